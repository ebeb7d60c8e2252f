"""The local engine: a Flower Grid that calls the ClientApp in this process, or in a few worker processes.

It runs the same ServerApp and ClientApp as Flower's own engines. The clients that were asked last are awake: what they
keep is in the memory of the process that runs them. The others rest: what they keep lies in files of a folder that goes
away with the run, from which any worker wakes them. Which worker runs a client, and whether it has rested, changes no
bit of the result.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from heapq import heappop, heappush
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from hetfl_flwr.common.flower import Run, act_as_server, name_message
from hetfl_flwr.common.notices import accepting, warn
from hetfl_flwr.config import RunConfig, Value, simulated_latency, simulated_links, simulated_seconds, simulated_speeds
from hetfl_flwr.data.client_data import unlike
from hetfl_flwr.errors import StateError
from hetfl_flwr.node.state import FileStore, run_store
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.grids import InFlight
from hetfl_flwr.server.messenger import Messenger
from hetfl_flwr.wire.codec import wire_bytes
from hetfl_flwr.wire.cost_metrics import FLOPS
from hetfl_flwr.wire.messages import METRICS
from simulations.engine.clients import CLIENT_APP, FIRST_NODE, MEMORY, ROWS, Answer, Clients, Hosted
from simulations.engine.exchange import LocalExchange
from simulations.engine.workers import Host, InProcess, Jobs, Workers

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy

SCRATCH = ".clients-"
"""How the folder begins, in the run folder, in which clients rest."""


Due = tuple[float, int, str, bool]
"""When a reply comes in, of which message, its id, and whether the time is known: until its size is, it is a bound."""


class LocalGrid(Grid):
    """Delivers messages to clients on this machine, without Ray and without a network.

    Replies are handed out one by one, in the order of simulated time: a client takes its ``client-seconds`` for a
    round, or the operations that it counts over its ``client-speed``, give or take a tenth, drawn by the run's seed,
    and its link what ``client-mbits`` and ``client-latency`` say; nothing else takes time, evaluation neither. So what
    a server that answers each client as it comes sends next is the same for any number of workers.

    Use it in a ``with``: leaving it ends the worker processes.

    Parameters
    ----------
    run_config : mapping
        Flat run config.
    clients : int
        Number of clients, 1 or more.
    run : int
        The run's id: what client state is stamped with.
    workers : int
        Worker processes. 1: everything in this process.
    app : str
        The ClientApp as ``module:attribute``.
    memory : int
        Bytes of what clients keep that stay in memory, of all processes together.

    Attributes
    ----------
    clock : float
        Simulated seconds since the run began: when the last reply that was handed out came in.
    """

    engine = "local"
    pull_interval = 0.0

    def __init__(
        self,
        run_config: Mapping[str, Value],
        clients: int,
        run: int,
        workers: int = 1,
        app: str = CLIENT_APP,
        memory: int = MEMORY,
    ) -> None:
        self.stop_requested = False
        self._nodes = [FIRST_NODE + client_id for client_id in range(clients)]
        self._run = run
        self._sent = 0
        self._replies: dict[str, Message] = {}
        self._digests: dict[str, str] = {}
        self.clock = 0.0
        self._due: list[Due] = []  # a heap
        self._config = RunConfig.from_flat(run_config)
        self._seconds = simulated_seconds(self._config.client_seconds)
        self._speeds = simulated_speeds(self._config.client_speed)
        self._settles = not (self._config.client_speed or self._config.client_mbits)  # when a message is sent
        self._links = simulated_links(self._config.client_mbits)
        self._latency = simulated_latency(self._config.client_latency)
        self._scratch = Path(self._config.output_dir or gettempdir()) / f"{SCRATCH}{run}-{token_hex(4)}"
        act_as_server(run)
        workers = min(workers, clients)
        those = Hosted(app, run, dict(run_config), clients, self._scratch, memory // workers)
        self._host: Host = InProcess(Clients(*those)) if workers == 1 else Workers(workers, those)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._host.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run.run_id

    @property
    def run(self) -> Run:
        """The run."""
        return Run.create_empty(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all clients' nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages for their clients."""
        pushed = list(messages)
        for message in pushed:
            self._sent += 1
            # as long as the ids of Flower's simulation
            name_message(message, str(UUID(int=self._sent)))
            when = self.clock + self._duration(message) + self._transfer(message, message.metadata.dst_node_id, 0)
            heappush(self._due, (when, self._sent, message.metadata.message_id, self._settles))
        self._host.send(pushed)
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the reply that comes in next in simulated time, if any is on its way."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        others, reply = list[Due](), None
        while self._due:
            when, number, name, settled = heappop(self._due)
            if name not in wanted:
                others.append((when, number, name, settled))
                continue
            reply = self._awaited(name)
            if reply is None:
                others.append((when, number, name, settled))
                break
            if settled:
                self.clock = max(self.clock, when)
                break
            self._replies[name] = reply  # now that it is known what it has cost, another may come before it
            took = self._computing(reply, number)
            if self._config.client_mbits:
                took += self._transfer(reply, reply.metadata.src_node_id, 1)
            heappush(self._due, (when + took, number, name, True))
            reply = None
        for other in others:
            heappush(self._due, other)
        return [] if reply is None else [reply]

    def _awaited(self, message: str) -> Message | None:
        while message not in self._replies:
            reply = self._host.receive()
            if reply is None:
                return None
            self._replies[reply.metadata.reply_to_message_id] = reply
        return self._replies.pop(message)

    def _duration(self, message: Message) -> float:
        """Return the seconds that training takes, as far as they are known when its message is sent."""
        client_id = message.metadata.dst_node_id - FIRST_NODE
        return self._trained(client_id, self._sent, message.metadata.message_type)

    def _trained(self, client_id: int, number: int, kind: str) -> float:
        if kind != MessageType.TRAIN or self._config.client_speed:
            return 0.0
        return self._seconds[client_id % len(self._seconds)] * self._jitter(client_id, number)

    def _computing(self, reply: Message, number: int) -> float:
        """Return the seconds that a simulated device takes for what a reply says to have been computed."""
        if reply.has_error() or METRICS not in reply.content.metric_records:
            return 0.0
        client_id = reply.metadata.src_node_id - FIRST_NODE
        return self._operations(client_id, number, reply.content.metric_records[METRICS])

    def _operations(self, client_id: int, number: int, metrics: Mapping[str, Any]) -> float:
        operations = metrics.get(FLOPS, 0.0)
        speed = self._speeds[client_id % len(self._speeds)]
        return float(operations / speed * self._jitter(client_id, number))

    def _jitter(self, client_id: int, number: int) -> float:
        return float(generator(self._config.seed, client_id, number, "seconds").uniform(0.9, 1.1))

    def _transfer(self, message: Message, node: int, way: int) -> float:
        """Return the seconds that a message takes on a node's link, down (0) or up (1)."""
        if message.metadata.message_type == MessageType.EVALUATE:
            return 0.0
        weighs = self._config.client_mbits and message.has_content()
        return self._carried(node - FIRST_NODE, way, wire_bytes(message) if weighs else 0)

    def _carried(self, client_id: int, way: int, wire: int) -> float:
        """Return the seconds that so many bytes take on a client's link."""
        delay = self._latency[client_id % len(self._latency)]
        if not self._config.client_mbits:
            return 2 * delay * (way == 0)  # a reply's is known when its message is sent
        return delay + 8e-6 * wire / self._links[client_id % len(self._links)][way]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages and return all replies. There is no timeout: clients here answer or raise."""
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            replies += self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; what has not changed since it was written last costs a file's name."""
        self._settle()
        self._host.tell("flush")
        digests = {k: self._store(k).give(folder / f"client-{k}") for k in range(len(self._nodes))}
        return {client_id: digest for client_id, digest in digests.items() if digest is not None}

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Take up the state of each of these clients; what the others have saved since is forgotten."""
        for client_id in range(len(self._nodes)):
            store = self._store(client_id)
            if client_id in client_ids:
                store.write((folder / f"client-{client_id}").read_bytes())
            else:
                store.forget()
        self._host.tell("drop")
        for remains in self._scratch.parent.glob(f"{SCRATCH}{self._run}-*"):  # of a process that was killed
            if remains != self._scratch:
                shutil.rmtree(remains, ignore_errors=True)

    def hold(self) -> InFlight:
        """Let clients that have something to do finish it, and return what is under way, which stays so.

        Nobody hears of a reply before its time, so that this changes no bit.
        """
        self._settle()
        numbers = {"clock": self.clock, "sent": self._sent, "due": sorted(self._due), "rows": self._rows()}
        return InFlight(numbers, {message: self._replies[message] for _, _, message, _ in self._due})

    def restore(self, held: InFlight) -> None:
        """Go on where `hold` was.

        Raises
        ------
        StateError
            The data of a client have changed since, and without ``accept-loss``.
        """
        before, rows = held.numbers["rows"], self._rows()
        found = {client_id: unlike(digest, rows.get(client_id, digest)) for client_id, digest in before.items()}
        changed = [client_id for client_id, what in found.items() if what]
        if changed:
            more = f" and {len(changed) - 1} more" * (len(changed) > 1)
            what = f"client {changed[0]}{more}: the {found[changed[0]]} are not those of before"
            if not self._config.accept_loss:
                raise StateError(f"{what}: the run would go on with other results; {accepting()} goes on like that")
            warn(what)
        self.clock, self._sent = held.numbers["clock"], held.numbers["sent"]
        self._due = [(when, number, message, settled) for when, number, message, settled in held.numbers["due"]]
        self._replies = dict(held.replies)

    def _rows(self) -> dict[str, str]:
        """Return the digests of what clients train on, by client id."""
        if not self._digests:
            self._host.tell("write_rows")
            for path in self._scratch.glob(f"{ROWS}*"):
                self._digests |= json.loads(path.read_bytes())
        return self._digests

    def _settle(self) -> None:
        while (reply := self._host.receive()) is not None:
            self._replies[reply.metadata.reply_to_message_id] = reply

    def _store(self, client_id: int) -> FileStore:
        if self._config.state_dir:
            return run_store(self._config, str(self._run), client_id)
        return FileStore(self._scratch, client_id, lasting=False)


class LocalEngine(LocalGrid):
    """The local engine as runs use it: rounds without messages, where the server waits for all clients of a round.

    Clients are handed arrays by reference. All else, such as registrations and rounds in which each client is answered
    as it comes, goes by messages.
    """

    def exchange(self, messenger: Messenger, strategy: "KnowledgeStrategy") -> LocalExchange:
        """Return what hands arrays to the clients."""
        return LocalExchange(self, messenger, strategy)

    def ask(self, kind: str, round: int, jobs: Jobs) -> Iterator[tuple[int, Answer]]:
        """Let clients train or evaluate; yield the place of each job, and its answer, as they come."""
        self._began, self._first = self.clock, self._sent + 1
        self._numbers = {node - FIRST_NODE: self._first + place for place, (node, _) in enumerate(jobs)}
        self._sent += len(jobs)
        return self._host.ask(kind, round, jobs)

    def passed(self, client_id: int, down: int, up: int, metrics: Mapping[str, Any]) -> None:
        """Let the time pass that a client has taken to train, and its messages of so many bytes to travel."""
        number = self._numbers[client_id]
        when = self._began + self._trained(client_id, number, MessageType.TRAIN)
        when += self._carried(client_id, 0, down)
        took = self._operations(client_id, number, metrics)
        if self._config.client_mbits:
            took += self._carried(client_id, 1, up)
        self.clock = max(self.clock, when + took)
