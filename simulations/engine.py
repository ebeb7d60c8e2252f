"""The local engine: a Flower Grid that calls the ClientApp in this process, or in a few worker processes.

It runs the same ServerApp and ClientApp as Flower's own engines. Each client keeps its Context in the process that
runs it; with workers, client k belongs to worker k modulo W for the whole run. Which worker runs a client changes no
bit of the result.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Set
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from hetfl_flwr.config import RunConfig, Value, simulated_seconds
from hetfl_flwr.errors import FederationError, Interrupted
from hetfl_flwr.node import state_store
from hetfl_flwr.seeding import generator
from hetfl_flwr.state import ResidentContext

CLIENT_APP = "hetfl_flwr.client_app:app"
"""The ClientApp that clients run, as Flower's ``[tool.flwr.app.components]`` names it."""

FIRST_NODE = 2**62
"""Node id of client 0: as many bytes on the wire as the random ids of Flower's other engines."""


class Clients:
    """The clients that live in one process, each with its Context.

    Parameters
    ----------
    app : str
        The ClientApp as ``module:attribute``.
    run : int
        The run's id.
    run_config : mapping
        Flat run config, the same for all.
    partitions : iterable of int
        Which clients live here.
    count : int
        How many clients there are in all.
    """

    def __init__(
        self, app: str, run: int, run_config: Mapping[str, Value], partitions: Iterable[int], count: int
    ) -> None:
        module, _, attribute = app.partition(":")
        self._app: ClientApp = getattr(import_module(module), attribute)
        self._config = RunConfig.from_flat(run_config)
        self._contexts = {
            FIRST_NODE + partition: ResidentContext(
                run,
                FIRST_NODE + partition,
                {"partition-id": partition, "num-partitions": count},
                RecordDict(),
                dict(run_config),
            )
            for partition in partitions
        }

    def answer(self, message: Message) -> Message:
        """Let the addressed client answer a message."""
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def save(self, folder: Path) -> None:
        """Write the state of each client that has one."""
        for node, context in self._contexts.items():
            blob = state_store(self._config, context).read()
            if blob is not None:
                (folder / f"client-{node - FIRST_NODE}").write_bytes(blob)

    def load(self, folder: Path) -> None:
        """Take up the state of each client that has one; what the others have saved since is forgotten."""
        for node, context in self._contexts.items():
            path, store = folder / f"client-{node - FIRST_NODE}", state_store(self._config, context)
            if path.exists():
                store.write(path.read_bytes())
            else:
                store.forget()


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

    Attributes
    ----------
    clock : float
        Simulated seconds since the run began: when the last reply that was handed out came in.
    """

    engine = "local"
    pull_interval = 0.0

    def __init__(
        self, run_config: Mapping[str, Value], clients: int, run: int, workers: int = 1, app: str = CLIENT_APP
    ) -> None:
        self.stop_requested = False
        self._nodes = [FIRST_NODE + partition for partition in range(clients)]
        self._run = run
        self._sent = 0
        self._replies: dict[str, Message] = {}
        self.clock = 0.0
        self._due: dict[str, float] = {}
        self._config = RunConfig.from_flat(run_config)
        self._seconds = simulated_seconds(self._config.client_seconds)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID
        if workers == 1:
            self._host: Host = InProcess(Clients(app, run, run_config, range(clients), clients))
        else:
            self._host = Workers(min(workers, clients), app, run, run_config, clients)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._host.close()

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
            self._due[message.metadata.message_id] = self.clock + self._duration(message)
            self._host.send(message)
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the reply that comes in next in simulated time, if any is on its way."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        first = min((message for message in self._due if message in wanted), key=self._due.__getitem__, default=None)
        if first is None:
            return []
        while first not in self._replies:
            reply = self._host.receive()
            if reply is None:
                return []
            self._replies[reply.metadata.reply_to_message_id] = reply
        self.clock = max(self.clock, self._due.pop(first))
        return [self._replies.pop(first)]

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
        """Write every client's state."""
        self._host.save(folder)

    def load_clients(self, folder: Path) -> None:
        """Take up every client's state."""
        self._host.load(folder)


class InProcess:
    """Clients in this process, one after another in the order in which messages came."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._queue: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._queue.append(message)

    def receive(self) -> Message | None:
        """Let the next client answer."""
        return self._clients.answer(self._queue.popleft()) if self._queue else None

    def save(self, folder: Path) -> None:
        """Write the clients' state."""
        self._clients.save(folder)

    def load(self, folder: Path) -> None:
        """Take up the clients' state."""
        self._clients.load(folder)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class Workers:
    """Clients in worker processes; each worker has one message at a time, so that no pipe fills up on both sides."""

    def __init__(self, workers: int, app: str, run: int, run_config: Mapping[str, Value], clients: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(workers):
            here, there = context.Pipe()
            arguments = (there, app, run, dict(run_config), range(worker, clients, workers), clients)
            process = context.Process(target=_work, args=arguments, daemon=True, name=f"hetfl-worker-{worker}")
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._queues: list[deque[Message]] = [deque() for _ in range(workers)]
        self._busy = [False] * workers
        self._settled: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Queue a message for the worker that has the client."""
        worker = (message.metadata.dst_node_id - FIRST_NODE) % len(self._pipes)
        self._queues[worker].append(message)
        self._feed(worker)

    def receive(self) -> Message | None:
        """Wait for the next reply of any worker."""
        if self._settled:
            return self._settled.popleft()
        waiting = [pipe for pipe, busy in zip(self._pipes, self._busy, strict=True) if busy]
        if not waiting:
            return None
        ready = wait(waiting)[0]
        worker = self._pipes.index(ready)  # type: ignore[arg-type]
        reply = _unpacked(self._received(worker))
        self._busy[worker] = False
        self._feed(worker)
        return reply

    def save(self, folder: Path) -> None:
        """Let every worker write its clients' state."""
        self._tell_all(("save", folder))

    def load(self, folder: Path) -> None:
        """Let every worker take up its clients' state."""
        self._tell_all(("load", folder))

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()

    def _feed(self, worker: int) -> None:
        if self._queues[worker] and not self._busy[worker]:
            self._tell(worker, _packed(self._queues[worker].popleft()))
            self._busy[worker] = True

    def _tell_all(self, command: tuple[str, Path]) -> None:
        for worker, busy in enumerate(self._busy):
            if busy:  # a message is under way: its reply comes before the command's
                self._settled.append(_unpacked(self._received(worker)))
                self._busy[worker] = False
        for worker in range(len(self._pipes)):
            self._tell(worker, command)
        for worker in range(len(self._pipes)):
            error = self._received(worker)
            if error is not None:
                raise FederationError(f"worker {worker} could not {command[0]} its clients: {error}")
            self._feed(worker)

    def _tell(self, worker: int, what: object) -> None:
        try:
            self._pipes[worker].send(what)
        except OSError:
            raise self._died(worker) from None

    def _received(self, worker: int) -> Any:
        try:
            return self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._died(worker) from None

    def _died(self, worker: int) -> FederationError:
        self._processes[worker].join(timeout=1)
        return FederationError(
            f"worker process {worker} ended (exit code {self._processes[worker].exitcode}); "
            "was it out of memory? Try fewer --workers"
        )


Host = InProcess | Workers
"""Where the clients run."""


def _packed(message: Message) -> bytes:
    packed: bytes = message_to_proto(message).SerializeToString()
    return packed


def _unpacked(packed: bytes) -> Message:
    return message_from_proto(ProtoMessage.FromString(packed))


def _work(
    pipe: Connection,
    app: str,
    run: int,
    run_config: Mapping[str, Value],
    partitions: Iterable[int],
    count: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID
    clients = Clients(app, run, run_config, partitions, count)
    while True:
        try:
            received = pipe.recv()
        except (EOFError, OSError):
            return
        if isinstance(received, bytes):
            pipe.send(_packed(clients.answer(_unpacked(received))))
            continue
        command, folder = received
        try:
            getattr(clients, command)(folder)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
        else:
            pipe.send(None)
