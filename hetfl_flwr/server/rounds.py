"""Synchronous and asynchronous rounds."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import MessageType

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, Failure, Interrupted
from hetfl_flwr.seeding import seeded
from hetfl_flwr.server.exchange import Outcome, Pending, Reply, read_only
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.grids import KeepsClients, engine_of, is_stopped
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import LOST
from hetfl_flwr.server.roster import draw, draw_to_evaluate
from hetfl_flwr.wire.spec import Arrays, frozen

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy

MAX_AHEAD = 1_000_000
"""Maximum number of messages that a client of an asynchronous run may be ahead of the server's checkpoint."""


@dataclass
class RoundResult:
    """The result of a round; ``arrays`` is the server state after it."""

    arrays: Arrays
    trained: Outcome = field(default_factory=Outcome)
    evaluated: Outcome = field(default_factory=Outcome)
    """Replies, failures, outliers and traffic of training (with the sharing of public samples) and of evaluation."""
    noted: list[Failure] = field(default_factory=list)
    """Failures of clients that left, could not join, or rejoined without their state."""
    able: int = 0
    """Number of clients that could be asked to train."""
    not_averaged: list[int] = field(default_factory=list)
    """Clients whose uploads a robust average left out, in part or in full."""
    lost: bool = False
    """Whether there were too few valid replies, and nodes of missing clients left or restarted during the round."""


class Rounds(ABC):
    """Runs rounds; clients must have registered before the first one.

    Random numbers that an algorithm draws from the global generators are seeded on the server as on clients: by the
    number of the round or, where clients are answered one by one, of the message.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._config, self._strategy = federation.config, federation.strategy
        self._exchange, self._registration = federation.exchange, federation.registration
        self._evaluation = Evaluation(federation)

    def start(self, arrays: Arrays) -> RoundResult:
        """Share public samples if the algorithm needs them, and evaluate before any training: round 0."""
        noted, shared = self._registration.notes(), self.federation.samples.share()
        with read_only(), self.federation.generators_lent():
            return RoundResult(arrays, shared, self._evaluation.evaluate(0, arrays), noted)

    @abstractmethod
    def resume(self, under_way: Pending) -> list[str]:
        """Restore messages and metrics from a checkpoint, without adding to the run's traffic; return what is lost."""

    @abstractmethod
    def under_way(self) -> Pending:
        """Return what `resume` needs besides the server state and the clients' states."""

    def _restored(self, under_way: Pending) -> list[str]:
        lost = self._exchange.restore(under_way)
        self._registration.note(lost)
        return lost

    def play(self, number: int, arrays: Arrays) -> RoundResult:
        """Run one round; with too few valid replies, the server state does not change.

        Raises `Interrupted`, before the round starts, if the user asked to stop.
        """
        if is_stopped(self.federation.grid):
            raise Interrupted
        played = RoundResult(arrays, noted=self._registration.notes())
        played.noted += self._registration.welcome(number, self._strategy.check)
        with read_only(), self.federation.generators_lent():
            self._play(number, played)
        if len(played.trained.replies) < self._config.min_clients:
            gone, failures = self._registration.gone(), played.trained.failures
            played.lost = any(failure.node in gone or failure.reason.endswith(LOST) for failure in failures)
        played.not_averaged = self._strategy.left_out.taken()
        self._strategy.left_out.log(self._config.algorithm, number, played.not_averaged)
        return played

    @abstractmethod
    def _play(self, number: int, played: RoundResult) -> None:
        """Let clients train, aggregate their uploads, and evaluate clients if an evaluation is due."""


class SyncRounds(Rounds):
    """Rounds in which the server waits for all sampled clients, as in Flower's strategies."""

    def resume(self, under_way: Pending) -> list[str]:
        """Restore public samples, metrics and messages; samples that are sent again are not counted."""
        self.federation.samples.restore(under_way.arrays)
        self.federation.samples.share()
        self._evaluation.restore(under_way.numbers.get("measured", {}))
        return self._restored(under_way)

    def under_way(self) -> Pending:
        """Return the engine's state, last metrics and public samples; between rounds, no messages are under way."""
        numbers = {"measured": self._evaluation.hold(), **self._exchange.hold().numbers}
        return Pending(numbers, self.federation.samples.hold())

    def _play(self, number: int, played: RoundResult) -> None:
        config, strategy, samples = self._config, self._strategy, self.federation.samples
        played.trained.add(samples.share())
        drawn = samples.holding(draw(self.federation.roster, config, self._registration.clients, number))
        refused = Outcome()
        played.able = len(self._exchange.refuse_busy(drawn, MessageType.TRAIN, refused))
        if played.able < config.min_clients:  # do not train clients whose uploads would be discarded
            played.trained.add(refused)
            return
        self._evaluation.forget(drawn)
        with seeded(config.seed, number, "download"):
            downloads = [(member, strategy.download_for(member, played.arrays, number)) for member in drawn]
        trained = self._exchange.ask(MessageType.TRAIN, number, downloads)
        played.trained.add(trained)
        played.trained.replies = trained.replies
        if len(trained.replies) >= config.min_clients:
            with seeded(config.seed, number, "aggregate"):
                played.arrays = aggregate(strategy, number, trained.replies, played.arrays)
            if is_due(number, config):
                played.evaluated = self._evaluation.evaluate(number, played.arrays)


class AsyncRounds(Rounds):
    """Rounds without a barrier: each client receives the newest server state as soon as it has uploaded.

    A round is complete after as many uploads as there are clients, from any of them. When an evaluation is due, each
    client evaluates after its next upload, while the others continue. In the last round, only as many uploads are
    requested as the round still needs; the server waits for all messages under way, and evaluates all clients.

    Clients receive the number of their message in place of the round. No number is used twice, even in a resumed run.

    If the engine holds the clients, checkpoints include the messages under way, and a resumed run equals one that was
    never stopped. In other engines, messages under way are lost with the server, and clients that have answered them
    are ahead of it.
    """

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        config = self._config
        if self._strategy.sharing is not None:
            raise ConfigError(f"{config.algorithm}: public samples cannot be shared in an asynchronous run")
        for key, wrong, value in (
            ("nonparticipating-fraction", config.nonparticipating_fraction > 0, 0),
            ("fraction", config.fraction < 1, 1),
        ):
            if wrong:
                raise ConfigError(
                    f"{key}: an asynchronous run trains all clients; set it to {value}, or set the mode to sync"
                )
        self._sent = 0
        self._wanted, self._last, self._trains = 0, False, True
        self._to_evaluate: set[int] = set()

    def under_way(self) -> Pending:
        """Return the messages under way, and the engine's state."""
        client_id = {member.node: member.client_id for member in self.federation.roster}
        to_evaluate = sorted(client_id[node] for node in self._to_evaluate if node in client_id)
        held = self._exchange.hold()
        return Pending({"sent": self._sent, "to evaluate": to_evaluate, **held.numbers}, held.arrays)

    def resume(self, under_way: Pending) -> list[str]:
        """Restore the messages under way or, if they are lost, continue with numbers above all earlier ones."""
        roster, numbers = self.federation.roster, under_way.numbers
        self._sent = numbers["sent"]
        if not isinstance(self.federation.grid, KeepsClients):
            most = self._sent + MAX_AHEAD
            self._sent = max([self._sent, *(min(member.round, most) for member in roster)]) + len(roster)
            return []
        self._to_evaluate = {member.node for member in roster if member.client_id in numbers["to evaluate"]}
        return self._restored(under_way)

    def _play(self, number: int, played: RoundResult) -> None:
        """Aggregate as many uploads as there are clients, each as it arrives."""
        exchange, config, members = self._exchange, self._config, list(self.federation.roster)
        exchange.drop_departed()
        waiting = {sent.member.node for sent in exchange.waiting}
        idle = (member for member in members if member.node not in waiting)
        free = exchange.refuse_busy(idle, MessageType.TRAIN, played.trained)
        played.able = len(free) + len(waiting)
        self._trains = played.able >= config.min_clients  # else only replies under way are processed
        self._wanted, self._last = len(members), number == config.rounds
        if is_due(number, config) and not self._last:
            self._to_evaluate = {member.node for member in draw_to_evaluate(members, config, number)}
        for member in free:
            self._ask(member, number, played)
        while exchange.waiting and (self._last or len(played.trained.replies) < self._wanted):
            self._take(number, played)
        if self._last and len(played.trained.replies) >= config.min_clients:
            self._evaluation.forget(members)
            earlier, played.evaluated = played.evaluated, self._evaluation.evaluate(number, played.arrays)
            played.evaluated.add(earlier)

    def _take(self, number: int, played: RoundResult) -> None:
        """Wait for a reply, aggregate its upload, and send the client its next message."""
        sent, outcome = self._exchange.take()
        trains = sent.kind == MessageType.TRAIN
        result = played.trained if trains else played.evaluated
        result.add(outcome)
        result.replies += outcome.replies
        if trains and not outcome.replies:
            return  # asked again next round, or a client that fails at once would be asked endlessly
        if trains:
            with seeded(self._config.seed, sent.number, "aggregate"):
                played.arrays = aggregate(self._strategy, number, outcome.replies, played.arrays)
        if sent.member.node not in self._exchange.busy():
            self._ask(self.federation.roster.of(sent.member.node), number, played)

    def _ask(self, member: Member, number: int, played: RoundResult) -> None:
        """Send an idle client its next message: to evaluate if that is due, else to train."""
        strategy, exchange = self._strategy, self._exchange
        if member.node in self._to_evaluate and played.trained.replies:
            self._to_evaluate.discard(member.node)
            with seeded(self._config.seed, number, member.client_id, "assess"):
                download = strategy.assess_download_for(member, played.arrays)
            exchange.send(MessageType.EVALUATE, number, [(member, download)])
            return
        if not self._trains:
            return
        under_way = sum(sent.kind == MessageType.TRAIN for sent in exchange.waiting)
        if self._last and len(played.trained.replies) + under_way >= self._wanted:
            return
        self._sent += 1
        with seeded(self._config.seed, self._sent, "download"):
            download = strategy.download_for(member, played.arrays, self._sent)
        exchange.send(MessageType.TRAIN, self._sent, [(member, download)])


class Evaluation:
    """Evaluates clients; the last metrics of unchanged models are used again.

    A model is unchanged if the client was not asked to train since, receives no download for evaluation, and is
    simulated: a node on another machine may have other test samples by now. Only the traffic of evaluation shows the
    difference.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._keeps = engine_of(federation.grid) != "deployment"
        self._known: dict[int, Reply] = {}

    def forget(self, members: Iterable[Member]) -> None:
        """Forget the last metrics of these clients, whose models change."""
        for member in members:
            self._known.pop(member.node, None)

    def hold(self) -> dict[str, Any]:
        """Return the last metrics, by client id, as JSON."""
        return {
            str(reply.client_id): {"metrics": dict(reply.metrics), "classes": dict(reply.classes)}
            for reply in self._known.values()
        }

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the metrics that `hold` returned, for the current clients, unless ``accept-loss`` is set.

        A client without its state has another model, and is evaluated anew.
        """
        federation = self._federation
        known = {} if federation.config.accept_loss else {int(client): one for client, one in held.items()}
        restores = isinstance(federation.grid, KeepsClients)
        for member in federation.roster:
            sure = restores or not federation.registration.is_behind(member)
            if sure and (one := known.get(member.client_id)):
                self._known[member.node] = Reply(member.client_id, one["metrics"], classes=one["classes"])

    def evaluate(self, number: int, state: Arrays) -> Outcome:
        """Evaluate the clients sampled for the evaluation after a round; round 0 is before any training."""
        federation = self._federation
        members = draw_to_evaluate(federation.roster, federation.config, number)
        with seeded(federation.config.seed, number, "assess"):
            downloads = [(member, federation.strategy.assess_download_for(member, state)) for member in members]
        alone = {member.client_id: member.node for member, download in downloads if not download}
        known = {node: self._known[node] for node in alone.values() if node in self._known}
        wanted = [one for one in downloads if one[0].node not in known]
        evaluated = federation.exchange.ask(MessageType.EVALUATE, number, wanted)
        if self._keeps:
            self._known |= {alone[reply.client_id]: reply for reply in evaluated.replies if reply.client_id in alone}
        evaluated.replies = sorted([*evaluated.replies, *known.values()], key=lambda reply: reply.client_id)
        return evaluated


def aggregate(strategy: "KnowledgeStrategy", number: int, replies: Sequence[Reply], arrays: Arrays) -> Arrays:
    """Return the server state after these replies; unchanged if no client has any samples."""
    weighty = [reply for reply in replies if reply.samples]
    return frozen(strategy.learn(arrays, weighty, number)) if weighty else arrays


def is_due(number: int, config: RunConfig) -> bool:
    """Return whether clients are evaluated after a round: every ``evaluate-every`` rounds, and after the last."""
    return number % config.evaluate_every == 0 or number == config.rounds
