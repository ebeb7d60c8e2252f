"""The local engine: a Flower Grid that calls the ClientApp in this process, or in a few worker processes.

It runs the same ServerApp and ClientApp as Flower's own engines. The clients that were asked last are awake: what they
keep is in the memory of the process that runs them. The others rest: what they keep lies in files of a folder that goes
away with the run, from which any worker wakes them. Which worker runs a client, and whether it has rested, changes no
bit of the result.
"""

import multiprocessing
import shutil
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from heapq import heappop, heappush
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from tempfile import gettempdir
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_from_proto, recorddict_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from hetfl_flwr.config import RunConfig, Value, simulated_seconds
from hetfl_flwr.errors import FederationError, HetflError, Interrupted, StateError
from hetfl_flwr.lockstep import LARGEST_GROUP, run_together
from hetfl_flwr.node import run_store
from hetfl_flwr.seeding import generator
from hetfl_flwr.state import FileStore, ResidentContext

CLIENT_APP = "hetfl_flwr.client_app:app"
"""The ClientApp that clients run, as Flower's ``[tool.flwr.app.components]`` names it."""

FIRST_NODE = 2**62
"""Node id of client 0: as many bytes on the wire as the random ids of Flower's other engines."""

MEMORY = 2**31
"""Bytes of what clients keep that stay in memory, of all processes together; the rest lies in files."""

AWAKE = 1000
"""Most clients that are awake in one process, however little they keep: each has the numbers of its rows as well."""

SCRATCH = ".clients-"
"""How the folder begins, in the run folder, in which clients rest."""


class Clients:
    """The clients that this process runs: those asked last are awake, each with its Context; the others rest in files.

    Parameters
    ----------
    app : str
        The ClientApp as ``module:attribute``.
    run : int
        The run's id.
    run_config : mapping
        Flat run config, the same for all.
    count : int
        How many clients there are in all.
    scratch : Path
        Folder of those that rest, the same for all processes; made when the first one does.
    memory : int
        Bytes of what clients keep that stay in memory. At least one client does.
    """

    def __init__(
        self, app: str, run: int, run_config: Mapping[str, Value], count: int, scratch: Path, memory: int = MEMORY
    ) -> None:
        module, _, attribute = app.partition(":")
        self._app: ClientApp = getattr(import_module(module), attribute)
        self._run, self._run_config, self._count = run, dict(run_config), count
        self._scratch, self._memory = scratch, memory
        self.batched = run_config.get("batched", "auto") is not False
        self._contexts: dict[int, ResidentContext] = {}  # of those that are awake, by node
        self._bytes: dict[int, int] = {}  # what they keep, from the one asked longest ago to the last

    def answer(self, message: Message) -> Message:
        """Let the addressed client answer a message.

        Raises
        ------
        StateError
            What a client keeps cannot be written or read.
        """
        return self.answer_together([message])[0]

    def answer_together(self, messages: Sequence[Message]) -> list[Message]:
        """Let the addressed clients, each another one, answer, their training steps together where that is faster."""
        self._make_room()
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                self._wake(node)
        if len(messages) == 1:
            return [self._answer(messages[0])]
        return run_together([partial(self._answer, message) for message in messages])

    def rest(self, nodes: Iterable[int]) -> None:
        """Write down what clients keep, and forget all else about them: it is made again."""
        for node in nodes:
            if self._bytes.pop(node, None) is not None:
                context = self._contexts.pop(node)
                context.rest()
                if context.state:
                    self._write_records(node, recorddict_to_proto(context.state).SerializeToString())

    def flush(self) -> None:
        """Write down the state of all clients that are awake, and stay so."""
        for node in self._bytes:
            self._contexts[node].store.flush()

    def drop(self) -> None:
        """Forget the state of all clients that are awake: their files have another."""
        for node in self._bytes:
            self._contexts[node].store.drop()

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = self._contexts[node]
        try:
            return self._app(message, context)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        finally:
            if self._bytes.pop(node, None) is not None:
                self._bytes[node] = context.nbytes

    def _make_room(self) -> None:
        while len(self._bytes) > AWAKE or (len(self._bytes) > 1 and sum(self._bytes.values()) > self._memory):
            self.rest([next(iter(self._bytes))])

    def _wake(self, node: int) -> None:
        partition, records = node - FIRST_NODE, RecordDict()
        if self._records(node).exists():
            records = recorddict_from_proto(ProtoRecordDict.FromString(self._records(node).read_bytes()))
        own: dict[str, Value] = {"partition-id": partition, "num-partitions": self._count}
        file = FileStore(self._scratch, partition, lasting=False)
        context = ResidentContext(self._run, node, own, records, self._run_config, file=file)
        self._contexts[node], self._bytes[node] = context, 0

    def _write_records(self, node: int, packed: bytes) -> None:
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._records(node).write_bytes(packed)
        except OSError as error:
            raise StateError(f"{self._records(node)}: cannot be written: {error.strerror}") from None

    def _records(self, node: int) -> Path:
        return self._scratch / f"records-{node - FIRST_NODE}"


class LocalGrid(Grid):
    """Delivers messages to clients on this machine, without Ray and without a network.

    Replies are handed out one by one, in the order of simulated time: a client takes its ``client-seconds`` for a
    round, give or take a tenth, drawn by the run's seed, and no time for anything else. So what a server that answers
    each client as it comes sends next is the same for any number of workers.

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
        self._nodes = [FIRST_NODE + partition for partition in range(clients)]
        self._run = run
        self._sent = 0
        self._replies: dict[str, Message] = {}
        self.clock = 0.0
        self._due: list[tuple[float, int, str]] = []  # a heap: when, which message, its id
        self._config = RunConfig.from_flat(run_config)
        self._seconds = simulated_seconds(self._config.client_seconds)
        self._scratch = Path(self._config.output_dir or gettempdir()) / f"{SCRATCH}{run}-{token_hex(4)}"
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID
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
        """Queue messages for their clients.

        Raises
        ------
        Interrupted
            A stop was requested and this would begin another round.
        """
        pushed = list(messages)
        if self.stop_requested and any(message.metadata.message_type == MessageType.TRAIN for message in pushed):
            raise Interrupted
        for message in pushed:
            self._sent += 1
            # as long as the ids of Flower's simulation
            message.metadata.__dict__["_message_id"] = str(UUID(int=self._sent))
            heappush(self._due, (self.clock + self._duration(message), self._sent, message.metadata.message_id))
        self._host.send(pushed)
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the reply that comes in next in simulated time, if any is on its way."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        others = []
        while self._due and self._due[0][2] not in wanted:
            others.append(heappop(self._due))
        reply = self._awaited(self._due[0][2]) if self._due else None
        if reply is not None:
            self.clock = max(self.clock, heappop(self._due)[0])
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
        if message.metadata.message_type != MessageType.TRAIN:
            return 0.0
        partition = message.metadata.dst_node_id - FIRST_NODE
        jitter = generator(self._config.seed, partition, self._sent, "seconds").uniform(0.9, 1.1)
        return self._seconds[partition % len(self._seconds)] * jitter

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages and return all replies. There is no timeout: clients here answer or raise."""
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            replies += self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def save_clients(self, folder: Path) -> None:
        """Write every client's state; what has not changed since it was written last costs a file's name."""
        self._host.tell("flush")
        for partition in range(len(self._nodes)):
            self._store(partition).give(folder / f"client-{partition}")

    def load_clients(self, folder: Path) -> None:
        """Take up the state of each client that has one; what the others have saved since is forgotten."""
        for partition in range(len(self._nodes)):
            path, store = folder / f"client-{partition}", self._store(partition)
            if path.exists():
                store.write(path.read_bytes())
            else:
                store.forget()
        self._host.tell("drop")
        for remains in self._scratch.parent.glob(f"{SCRATCH}{self._run}-*"):  # of a process that was killed
            if remains != self._scratch:
                shutil.rmtree(remains, ignore_errors=True)

    def _store(self, partition: int) -> FileStore:
        if self._config.state_dir:
            return run_store(self._config, str(self._run), partition)
        return FileStore(self._scratch, partition, lasting=False)


class Hosted(NamedTuple):
    """What `Clients` is made of."""

    app: str
    run: int
    run_config: Mapping[str, Value]
    clients: int
    scratch: Path
    memory: int


class InProcess:
    """Clients in this process, one after another in the order in which messages came, or some of them together."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._queue: deque[Message] = deque()
        self._replies: deque[Message] = deque()

    def send(self, messages: Iterable[Message]) -> None:
        """Queue messages."""
        self._queue.extend(messages)

    def receive(self) -> Message | None:
        """Let the next client answer; where clients of one architecture step together, all that are to train."""
        if not self._replies and self._queue:
            self._replies += self._clients.answer_together(self._next())
        return self._replies.popleft() if self._replies else None

    def _next(self) -> list[Message]:
        together = [self._queue.popleft()]
        while self._queue and self._clients.batched and len(together) < LARGEST_GROUP:
            if not together[0].metadata.message_type == self._queue[0].metadata.message_type == MessageType.TRAIN:
                break
            together.append(self._queue.popleft())
        return together

    def tell(self, what: str) -> None:
        """Call a method of `Clients`."""
        getattr(self._clients, what)()

    def close(self) -> None:
        """Do nothing: there is no process to end."""


AHEAD = 2
"""Messages that a worker has at most: the one it works on, and the next, so that it need not wait for it."""

EVEN = 1.1
"""Clients stay with their worker as long as none has more than so many times its even share of the work."""


class Workers:
    """Clients in worker processes, shared out by how long each took before; a client is with one worker at a time.

    A worker always reads what it is sent, also while it works, so that no pipe fills up on both sides.

    Parameters
    ----------
    workers : int
        How many, 2 or more.
    those : Hosted
        The clients.
    """

    def __init__(self, workers: int, those: Hosted) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, those), daemon=True, name=f"hetfl-worker-{worker}")
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._queues: list[deque[Message]] = [deque() for _ in range(workers)]
        self._under_way: list[deque[Message]] = [deque() for _ in range(workers)]
        self._settled: deque[Message] = deque()
        self._owners: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Queue messages for the workers that have the clients."""
        if not any(self._queues) and not any(self._under_way):
            self._share_out([message.metadata.dst_node_id for message in messages])
        for message in messages:
            self._queues[self._owner(message.metadata.dst_node_id)].append(message)
        for _ in range(AHEAD):
            for worker in range(len(self._pipes)):
                self._feed(worker)

    def receive(self) -> Message | None:
        """Wait for the next reply of any worker."""
        if self._settled:
            return self._settled.popleft()
        waiting = [pipe for pipe, under_way in zip(self._pipes, self._under_way, strict=True) if under_way]
        if not waiting:
            return None
        worker = self._pipes.index(wait(waiting)[0])  # type: ignore[arg-type]
        packed = self._reply(worker)
        self._feed(worker)
        return _unpacked(packed)

    def tell(self, what: str) -> None:
        """Let every worker call a method of its `Clients`, after what is under way."""
        for worker, under_way in enumerate(self._under_way):
            while under_way:
                self._settled.append(_unpacked(self._reply(worker)))
        everyone = range(len(self._pipes))
        for worker in everyone:
            self._tell(worker, (what, ()))
        for worker in everyone:
            self._received(worker)
        for _ in range(AHEAD):
            for worker in everyone:
                self._feed(worker)

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _owner(self, node: int) -> int:
        return self._owners.setdefault(node, (node - FIRST_NODE) % len(self._pipes))

    def _share_out(self, nodes: Sequence[int]) -> None:
        """Choose the workers of clients that are all to work now; those that change theirs rest in between."""
        known = [self._seconds[node] for node in nodes if node in self._seconds]
        usual = sum(known) / len(known) if known else 1.0
        before = {node: self._owner(node) for node in nodes}
        seconds = {node: self._seconds.get(node, usual) for node in nodes}
        self._owners |= share_out(seconds, before, len(self._pipes))
        leaving: dict[int, list[int]] = {}
        for node in nodes:
            if self._owners[node] != before[node]:
                leaving.setdefault(before[node], []).append(node)
        for worker, some in leaving.items():
            self._tell(worker, ("rest", (some,)))
        for worker in leaving:
            self._received(worker)

    def _feed(self, worker: int) -> None:
        """Send a worker its next message, if there is one and room for it."""
        if self._queues[worker] and len(self._under_way[worker]) < AHEAD:
            message = self._queues[worker].popleft()
            self._tell(worker, _packed(message))
            self._under_way[worker].append(message)

    def _reply(self, worker: int) -> bytes:
        """Take in a worker's next reply, and how long it took."""
        packed: bytes
        packed, seconds = self._received(worker)
        message = self._under_way[worker].popleft().metadata
        if message.message_type == MessageType.TRAIN:  # the least of them all: a machine may be busy with other things
            self._seconds[message.dst_node_id] = min(seconds, self._seconds.get(message.dst_node_id, seconds))
        return packed

    def _tell(self, worker: int, what: object) -> None:
        try:
            self._pipes[worker].send(what)
        except OSError:
            raise self._died(worker) from None

    def _received(self, worker: int) -> Any:
        """Return a worker's answer to a message or a command, or raise the error that it came to."""
        try:
            answer = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._died(worker) from None
        if isinstance(answer, str):
            raise FederationError(f"worker {worker}: {answer}")
        return answer

    def _died(self, worker: int) -> FederationError:
        self._processes[worker].join(timeout=1)
        return FederationError(
            f"worker process {worker} ended (exit code {self._processes[worker].exitcode}); "
            "was it out of memory? Try fewer --workers"
        )


Host = InProcess | Workers
"""Where the clients run."""


def share_out(seconds: Mapping[int, float], owners: Mapping[int, int], workers: int) -> dict[int, int]:
    """Choose a worker for each client: the longest first, each its own if that is even, else the one with least to do.

    Parameters
    ----------
    seconds : mapping of int to float
        How long each client takes.
    owners : mapping of int to int
        The worker that has each of them.
    workers : int
        How many there are.
    """
    loads, chosen = [0.0] * workers, {}
    most = EVEN * sum(seconds.values()) / workers
    for client in sorted(seconds, key=seconds.__getitem__, reverse=True):
        own, least = owners[client], loads.index(min(loads))
        chosen[client] = own if loads[own] + seconds[client] <= most or loads[own] == loads[least] else least
        loads[chosen[client]] += seconds[client]
    return chosen


def _packed(message: Message) -> bytes:
    packed: bytes = message_to_proto(message).SerializeToString()
    return packed


def _unpacked(packed: bytes) -> Message:
    return message_from_proto(ProtoMessage.FromString(packed))


def _work(pipe: Connection, those: Hosted) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, those.run, SUPERLINK_NODE_ID
    clients = Clients(*those)
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read, args=(pipe, inbox), daemon=True).start()
    while (received := inbox.get()) is not None:
        answer: object
        try:
            answer = _answer(clients, received)
        except Exception as error:
            answer = str(error) if isinstance(error, HetflError) else f"{type(error).__name__}: {error}"
        try:
            pipe.send(answer)
        except OSError:
            return


def _answer(clients: Clients, received: bytes | tuple[str, tuple[Any, ...]]) -> object:
    """Return a client's packed reply and the seconds it took; or call a method of `Clients`."""
    if isinstance(received, bytes):
        started = perf_counter()
        reply = clients.answer(_unpacked(received))
        return _packed(reply), perf_counter() - started
    command, arguments = received
    getattr(clients, command)(*arguments)
    return ()


def _read(pipe: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Take in what comes through a pipe; None when it has ended."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        inbox.put(None)
