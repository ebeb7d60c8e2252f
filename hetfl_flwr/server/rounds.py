"""How rounds are run: all clients together, or each as it comes."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flwr.app import Error, Message, MessageType

from hetfl_flwr.common.flower import ErrorCode
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, Interrupted
from hetfl_flwr.server.evaluation import Evaluation
from hetfl_flwr.server.exchange import FlowerExchange, exchange_of, read_only
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.grids import InFlight, KeepsClients, UnderWay
from hetfl_flwr.server.member import Failure, Member
from hetfl_flwr.server.replies import METRICS_ALONE, Outcome, Reply, Request, Traffic
from hetfl_flwr.server.roster import draw_to_evaluate
from hetfl_flwr.wire.forms import frozen
from hetfl_flwr.wire.messages import packed, unpacked
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy


@dataclass
class RoundResult:
    """What came of a round.

    Parameters
    ----------
    arrays : mapping of str to array
        What the server knows after it.
    trained, evaluated : Outcome
        Replies, failures and cost of training (with the sharing of public samples) and of evaluation.
    left_out : list of Failure
        Clients that have left, could not take part, or came back without what they had learned.
    carry : bool
        Whether clients that were not evaluated in this round count with what they had before.
    able : int
        How many clients could be asked to train.
    not_averaged : list of int
        The clients of whose uploads a robust average has left something out.
    lost : bool
        Whether it has too few valid replies, and the nodes of some that are missing have left or restarted meanwhile.
    """

    arrays: Arrays
    trained: Outcome = field(default_factory=Outcome)
    evaluated: Outcome = field(default_factory=Outcome)
    left_out: list[Failure] = field(default_factory=list)
    carry: bool = False
    able: int = 0
    not_averaged: list[int] = field(default_factory=list)
    lost: bool = False


class Rounds(Protocol):
    """A way to run rounds."""

    def start(self, arrays: Arrays) -> RoundResult:
        """Share public samples if the algorithm needs them, and evaluate before any training: round 0."""

    def resume(self, under_way: UnderWay) -> None:
        """Bring everyone back to where they were at a checkpoint, at no cost to the run's bytes."""

    def under_way(self) -> UnderWay:
        """Return what `resume` needs besides the server state and the clients' states."""

    def play(self, number: int, arrays: Arrays) -> RoundResult:
        """Run one round. With too few valid replies the server state stays as it was.

        Raises
        ------
        Interrupted
            A stop was requested: no round is begun.
        """


class SyncRounds:
    """Rounds in which the server waits for all clients that it has drawn, as in Flower's own strategies."""

    def __init__(self, config: RunConfig, strategy: "KnowledgeStrategy", federation: Federation) -> None:
        self._config = config
        self._strategy = strategy
        self._federation = federation
        self._sharing = strategy.sharing
        self._exchange = exchange_of(federation.grid, federation.messenger, strategy)
        self._evaluation = Evaluation(federation, strategy, self._exchange)

    def start(self, arrays: Arrays) -> RoundResult:
        """Share public samples if the algorithm needs them, and evaluate before any training."""
        noted, shared = self._federation.notes(), self._federation.share(self._sharing)
        with read_only():
            return RoundResult(arrays, shared, self._evaluation.evaluate(0, arrays), noted)

    def resume(self, under_way: UnderWay) -> None:
        """Share public samples again: they were counted when the run began."""
        self._federation.share(self._sharing)
        self._evaluation.restore(under_way.numbers.get("measured", {}))
        if isinstance(self._federation.grid, KeepsClients):
            self._federation.grid.restore(InFlight(under_way.numbers["engine"], {}))

    def under_way(self) -> UnderWay:
        """Return where the engine stands, and what need not be measured again: between rounds, nothing is under way."""
        grid, measured = self._federation.grid, {"measured": self._evaluation.hold()}
        return UnderWay(measured | ({"engine": grid.hold().numbers} if isinstance(grid, KeepsClients) else {}))

    def play(self, number: int, arrays: Arrays) -> RoundResult:
        """Run one round."""
        federation, strategy = self._federation, self._strategy
        if federation.stop_requested:
            raise Interrupted
        played = RoundResult(arrays, left_out=federation.notes())
        played.left_out += federation.welcome(number, strategy.check)
        played.trained.add(federation.share(self._sharing))
        drawn = federation.samples.holding(federation.draw(number), self._sharing)
        refused = Outcome()
        played.able = len(federation.messenger.refuse_busy(drawn, refused))
        if played.able < self._config.min_clients:  # nobody trains for nothing
            played.trained.add(refused)
            played.lost = federation.has_lost(played.trained.failures)
            return played
        self._evaluation.forget(drawn)
        with read_only():
            self._learn(number, drawn, played)
        return played

    def _learn(self, number: int, drawn: Sequence[Member], played: RoundResult) -> None:
        """Let clients train, aggregate what they upload, and evaluate where that is due."""
        strategy, arrays = self._strategy, played.arrays
        downloads = [(member, strategy.download_for(member, arrays, number)) for member in drawn]
        trained = self._exchange.train(number, downloads)
        played.trained.add(trained)
        played.trained.replies = trained.replies
        if len(trained.replies) < self._config.min_clients:
            played.lost = self._federation.has_lost(trained.failures)
            return
        played.arrays = aggregate(strategy, number, trained.replies, arrays)
        if is_due(number, self._config):
            played.evaluated = self._evaluation.evaluate(number, played.arrays)
        played.not_averaged = strategy.left_out.taken()


class AsyncRounds:
    """Rounds without a barrier: each client is sent the newest server state as soon as it has uploaded.

    A round is as many uploads as there are clients, from any of them. When an evaluation is due, each client is
    asked for it after its next upload, so that the others go on meanwhile. In the last round nobody is asked for more
    than is still wanted; what is under way is waited for, and everyone is evaluated.

    Clients are sent the number of their message in place of the round. No number is used twice, even in a resumed run.

    Where the engine keeps the clients, what is under way at a checkpoint is part of it, and a run that goes on is the
    same as one that was never stopped. Elsewhere messages under way are lost with the server, and clients that have
    answered them are ahead of it.
    """

    def __init__(self, config: RunConfig, strategy: "KnowledgeStrategy", federation: Federation) -> None:
        self._config = config
        if strategy.sharing is not None:
            raise ConfigError(f"{config.algorithm}: public samples cannot be shared in an asynchronous run")
        if config.nonparticipating_fraction:
            raise ConfigError(
                "nonparticipating-fraction: an asynchronous run asks all clients; set it to 0, or the mode to sync"
            )
        if config.fraction < 1:
            raise ConfigError("fraction: an asynchronous run asks all clients; set it to 1, or the mode to sync")
        self._strategy = strategy
        self._federation = federation
        self._exchange = FlowerExchange(federation.messenger, strategy)
        self._evaluation = Evaluation(federation, strategy, self._exchange)
        self._waiting: dict[str, tuple[Request, float]] = {}
        self._came: deque[Message] = deque()
        self._sent = 0
        self._wanted, self._last, self._asks = 0, False, True
        self._to_evaluate: set[int] = set()

    def start(self, arrays: Arrays) -> RoundResult:
        """Evaluate before any training."""
        noted = self._federation.notes()
        with read_only():
            return RoundResult(arrays, evaluated=self._evaluate(0, arrays), left_out=noted)

    def under_way(self) -> UnderWay:
        """Return the messages that clients have been sent, the replies that have come, and where the engine stands."""
        client_id = {member.node: member.client_id for member in self._federation.roster}
        numbers: dict[str, Any] = {
            "sent": self._sent,
            "to evaluate": sorted(client_id[node] for node in self._to_evaluate if node in client_id),
        }
        grid = self._federation.grid
        if not isinstance(grid, KeepsClients):
            return UnderWay(numbers)
        held = grid.hold()
        came = {reply.metadata.reply_to_message_id: reply for reply in self._came}
        numbers |= {
            "engine": held.numbers,
            "waiting": {message: asdict(sent.traffic) for message, (sent, _) in self._waiting.items()},
            "came": list(came),
        }
        messages = {f"message.{message}": packed(sent.message) for message, (sent, _) in self._waiting.items()}
        for message, reply in {**held.replies, **came}.items():
            if message in self._waiting:
                messages[f"reply.{message}"] = _packed_reply(reply, self._waiting[message][0])
        return UnderWay(numbers, messages)

    def resume(self, under_way: UnderWay) -> None:
        """Take up what was under way; where the engine does not keep it, number messages beyond all that came."""
        federation, numbers = self._federation, under_way.numbers
        self._sent = numbers["sent"]
        if not isinstance(federation.grid, KeepsClients):
            self._sent = max([self._sent, *(member.round for member in federation.roster)]) + len(federation.roster)
            return
        messages = {name: unpacked(written) for name, written in under_way.messages.items()}
        replies = {
            name.removeprefix("reply."): message for name, message in messages.items() if name.startswith("reply.")
        }
        self._to_evaluate = {member.node for member in federation.roster if member.client_id in numbers["to evaluate"]}
        deadline = time.monotonic() + self._config.round_timeout
        self._waiting = {
            message: (Request(messages[f"message.{message}"], Traffic(**traffic)), deadline)
            for message, traffic in numbers["waiting"].items()
        }
        expected = self._waiting.keys() - set(numbers["came"])
        federation.messenger.expect({message: self._waiting[message][0].node for message in expected})
        self._came.extend(replies[message] for message in numbers["came"])
        federation.grid.restore(InFlight(numbers["engine"], replies))

    def play(self, number: int, arrays: Arrays) -> RoundResult:
        """Take in as many uploads as there are clients, each answered at once."""
        federation = self._federation
        if federation.stop_requested:
            raise Interrupted
        played = RoundResult(arrays, carry=True, left_out=federation.notes())
        played.left_out += federation.welcome(number, self._strategy.check)
        self._drop_departed()
        members = list(federation.roster)
        waiting = {sent.node for sent, _ in self._waiting.values()}
        free = federation.messenger.refuse_busy((one for one in members if one.node not in waiting), played.trained)
        played.able = len(free) + len(waiting)
        self._asks = played.able >= self._config.min_clients  # else what is under way is taken in, and nobody trains
        self._wanted, self._last = len(members), number == self._config.rounds
        if is_due(number, self._config) and not self._last:
            self._to_evaluate = {member.node for member in draw_to_evaluate(members, self._config, number)}
        with read_only():
            for member in free:
                self._ask(member, number, played)
            while self._waiting and (self._last or len(played.trained.replies) < self._wanted):
                self._take(number, played)
        if len(played.trained.replies) < self._config.min_clients:
            played.lost = federation.has_lost(played.trained.failures)
        elif self._last:
            played.evaluated = self._evaluate(number, played.arrays)
        played.not_averaged = self._strategy.left_out.taken()
        return played

    def _evaluate(self, number: int, arrays: Arrays) -> Outcome:
        self._evaluation.forget(self._federation.roster)
        return self._evaluation.evaluate(number, arrays)

    def _take(self, number: int, played: RoundResult) -> None:
        """Use the next reply that has come, or look for more of them; those beyond this round wait for the next."""
        if self._came:
            self._use(self._came.popleft(), number, played)
            return
        self._came.extend(self._federation.messenger.pull(self._waiting))
        self._time_out(played)
        if not self._came:
            self._federation.messenger.pause()

    def _use(self, reply: Message, number: int, played: RoundResult) -> None:
        """Learn from a reply, and ask its client for more."""
        federation = self._federation
        sent, _ = self._waiting.pop(reply.metadata.reply_to_message_id, (None, 0.0))
        if sent is None:
            return  # a second reply to one message
        replies = self._judged(reply, sent, played)
        if sent.is_training and not replies:
            return  # asked again in the next round, lest one that fails at once uses the rounds up
        if sent.is_training:
            played.arrays = aggregate(self._strategy, number, replies, played.arrays)
        if sent.node not in federation.messenger.busy():
            self._ask(federation.roster.of(sent.node), number, played)

    def _judged(self, reply: Message, sent: Request, played: RoundResult) -> list[Reply]:
        """Return the reply, as it may be used, or nothing."""
        alone, messenger = Outcome(), self._federation.messenger
        messenger.judge(reply, sent, alone, self._exchange.expected if sent.is_training else METRICS_ALONE)
        messenger.reject_outliers(alone, sent.stage)
        result = played.trained if sent.is_training else played.evaluated
        result.add(alone)
        result.replies += alone.replies
        return alone.replies

    def _ask(self, member: Member, number: int, played: RoundResult) -> None:
        """Send a client that has nothing to do its next message: to evaluate where that is due, else to train."""
        strategy = self._strategy
        if member.node in self._to_evaluate and played.trained.replies:
            self._to_evaluate.discard(member.node)
            download = strategy.assess_download_for(member, played.arrays)
            self._push(self._exchange.message(MessageType.EVALUATE, number, member, download))
            return
        if not self._asks:
            return
        under_way = sum(sent.is_training for sent, _ in self._waiting.values())
        if self._last and len(played.trained.replies) + under_way >= self._wanted:
            return
        self._sent += 1
        download = strategy.download_for(member, played.arrays, self._sent)
        self._push(self._exchange.message(MessageType.TRAIN, self._sent, member, download))

    def _push(self, written: Message) -> None:
        for message in self._federation.messenger.as_sent([written]):
            sent = Request.of(message)
            self._federation.messenger.push([message])
            self._waiting[message.metadata.message_id] = sent, time.monotonic() + self._config.round_timeout

    def _time_out(self, played: RoundResult) -> None:
        """Count clients that have not answered in time, or have restarted, as failures.

        They are asked again in the next round.
        """
        came, messenger = {reply.metadata.reply_to_message_id for reply in self._came}, self._federation.messenger
        for message, (sent, deadline) in list(self._waiting.items()):
            if message not in came and (time.monotonic() > deadline or not messenger.is_under_way(message)):
                del self._waiting[message]
                messenger.time_out(sent, played.trained if sent.is_training else played.evaluated)

    def _drop_departed(self) -> None:
        gone = [message for message, (sent, _) in self._waiting.items() if sent.node not in self._federation.roster]
        self._federation.messenger.leave(gone)
        for message in gone:
            del self._waiting[message]


def _packed_reply(reply: Message, sent: Request) -> bytes:
    try:
        return packed(reply)
    except ValueError as error:  # a number that no message can hold, of a client in this process
        return packed(Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=sent.message))


def aggregate(strategy: "KnowledgeStrategy", number: int, replies: Sequence[Reply], arrays: Arrays) -> Arrays:
    """Return what the server knows after these replies; what it knew before where none of them weighs anything."""
    weighty = [reply for reply in replies if reply.samples]
    return frozen(strategy.learn(arrays, weighty, number)) if weighty else arrays


def is_due(number: int, config: RunConfig) -> bool:
    """Say whether clients are evaluated after a round: each ``evaluate-every`` rounds, and after the last."""
    return number % config.evaluate_every == 0 or number == config.rounds
