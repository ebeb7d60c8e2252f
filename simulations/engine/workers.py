"""Where the clients of the local engine run: in this process, or shared out to a few worker processes."""

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pickle import HIGHEST_PROTOCOL, dumps, loads
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

from flwr.app import Message, MessageType

from hetfl_flwr.common.flower import act_as_server
from hetfl_flwr.errors import ConfigError, FederationError, HetflError
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.server.exchange import read_only
from hetfl_flwr.wire.forms import frozen
from hetfl_flwr.wire.messages import packed, unpacked
from hetfl_flwr.wire.spec import Arrays
from simulations.engine.clients import FIRST_NODE, Answer, Clients, Hosted

AHEAD = 2
"""Messages that a worker has at most: the one it works on, and the next, so that it need not wait for it."""

EVEN = 1.1
"""Clients stay with their worker as long as none has more than so many times its even share of the work."""


Jobs = Sequence[tuple[int, Arrays]]
"""Nodes, and what each is sent."""


class InProcess:
    """Clients in this process, one after another in the order in which messages came."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._queue: deque[Message] = deque()

    def ask(self, kind: str, round: int, jobs: Jobs) -> Iterator[tuple[int, Answer]]:
        """Let clients train or evaluate, one after another; yield the place of each job, and its answer."""
        self._clients.begin()
        for place, (node, download) in enumerate(jobs):
            yield place, getattr(self._clients, kind)(node, download, round)

    def send(self, messages: Iterable[Message]) -> None:
        """Queue messages."""
        self._queue.extend(messages)

    def receive(self) -> Message | None:
        """Let the next client answer."""
        return self._clients.answer(self._queue.popleft()) if self._queue else None

    def tell(self, what: str) -> None:
        """Call a method of `Clients`."""
        getattr(self._clients, what)()

    def close(self) -> None:
        """Do nothing: there is no process to end."""


WORKER = "hetfl-worker-"
"""How the names of worker processes begin."""

UNGUARDED = 71
"""Exit code of a worker process in which a script has begun to run a federation, as it does where it was started."""

GUARD = 'begin its work under if __name__ == "__main__":'
"""What a script has to do that starts processes."""


def check_starts_processes(key: str) -> None:
    """Refuse to start processes in a script on standard input, which they could not read.

    Parameters
    ----------
    key : str
        The key that asks for them, and its value.

    Raises
    ------
    ConfigError
        The program is such a script.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script == "<stdin>":
        raise ConfigError(f"{key}: processes read the script that starts them: save it as a file, and {GUARD}")


def end_unguarded() -> None:
    """End a worker process that runs the script that has started it, instead of clients."""
    if multiprocessing.current_process().name.startswith(WORKER):
        sys.exit(UNGUARDED)


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
        check_starts_processes(f"workers = {workers}")
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, those), daemon=True, name=f"{WORKER}{worker}")
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

    def ask(self, kind: str, round: int, jobs: Jobs) -> Iterator[tuple[int, Answer]]:
        """Let clients train or evaluate in their workers; yield the place of each job, and its answer, as they come.

        Nothing else is under way. Equal downloads are written once.
        """
        nodes = [node for node, _ in jobs]
        self._share_out(nodes)
        written: dict[int, bytes] = {}
        left: list[deque[int]] = [deque() for _ in self._pipes]
        busy: list[deque[tuple[int, int]]] = [deque() for _ in self._pipes]
        for place, node in enumerate(nodes):
            left[self._owner(node)].append(place)

        def feed(worker: int) -> None:
            if left[worker] and len(busy[worker]) < AHEAD:
                place = left[worker].popleft()
                node, download = jobs[place]
                if id(download) not in written:
                    written[id(download)] = dumps(download, HIGHEST_PROTOCOL)
                self._tell(worker, (kind, (node, written[id(download)], round)))
                busy[worker].append((place, node))

        for _ in range(AHEAD):
            for worker in range(len(self._pipes)):
                feed(worker)
        while waiting := [pipe for pipe, jobs_there in zip(self._pipes, busy, strict=True) if jobs_there]:
            worker = self._pipes.index(wait(waiting)[0])  # type: ignore[arg-type]
            answer, seconds = self._received(worker)
            place, node = busy[worker].popleft()
            if kind == MessageType.TRAIN:  # the least of them all: a machine may be busy with other things
                self._seconds[node] = min(seconds, self._seconds.get(node, seconds))
            feed(worker)
            yield place, answer._replace(arrays=frozen(answer.arrays))

    def receive(self) -> Message | None:
        """Wait for the next reply of any worker."""
        if self._settled:
            return self._settled.popleft()
        waiting = [pipe for pipe, under_way in zip(self._pipes, self._under_way, strict=True) if under_way]
        if not waiting:
            return None
        worker = self._pipes.index(wait(waiting)[0])  # type: ignore[arg-type]
        written = self._reply(worker)
        self._feed(worker)
        return unpacked(written)

    def tell(self, what: str) -> None:
        """Let every worker call a method of its `Clients`, after what is under way."""
        for worker, under_way in enumerate(self._under_way):
            while under_way:
                self._settled.append(unpacked(self._reply(worker)))
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
            self._tell(worker, packed(message))
            self._under_way[worker].append(message)

    def _reply(self, worker: int) -> bytes:
        """Take in a worker's next reply, and how long it took."""
        written: bytes
        written, seconds = self._received(worker)
        message = self._under_way[worker].popleft().metadata
        if message.message_type == MessageType.TRAIN:  # the least of them all: a machine may be busy with other things
            self._seconds[message.dst_node_id] = min(seconds, self._seconds.get(message.dst_node_id, seconds))
        return written

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
        code = self._processes[worker].exitcode
        if code == UNGUARDED:
            return FederationError(f"worker processes run the script that starts them, too: let it {GUARD}")
        return FederationError(
            f"worker process {worker} ended (exit code {code}); was it out of memory? Try fewer workers"
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


def _work(pipe: Connection, those: Hosted) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    keep_freed_memory()
    act_as_server(those.run)
    clients = Clients(*those)
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read, args=(pipe, inbox), daemon=True).start()
    while (received := inbox.get()) is not None:
        answer: object
        try:
            with read_only():
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
        reply = clients.answer(unpacked(received))
        return packed(reply), perf_counter() - started
    command, arguments = received
    if command not in (MessageType.TRAIN, MessageType.EVALUATE):
        getattr(clients, command)(*arguments)
        return ()
    node, written, round = arguments
    started = perf_counter()
    clients.begin()
    answer = getattr(clients, command)(node, loads(written), round)
    return answer._replace(form=None), perf_counter() - started


def _read(pipe: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Take in what comes through a pipe; None when it has ended."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        inbox.put(None)
