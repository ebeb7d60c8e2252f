"""The processes of the local engine's clients: this one, or a few worker processes."""

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pickle import HIGHEST_PROTOCOL, dumps, loads
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple

from flwr.app import Message, MessageType

from hetfl_flwr.common.flower import act_as_server
from hetfl_flwr.errors import ConfigError, FederationError, HetflError
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.seeding import generators_lent
from hetfl_flwr.server.exchange import read_only
from hetfl_flwr.wire.messages import packed, unpacked
from hetfl_flwr.wire.spec import Arrays, frozen
from simulations.engine.clients import FIRST_NODE, Answer, Clients, Hosted

AHEAD = 2
"""Maximum number of jobs of a worker: the current one, and the next, so that it never waits."""

EVEN = 1.1
"""Clients stay with their worker as long as no worker has more than this multiple of its even share."""


class Job(NamedTuple):
    """A job of a client.

    Parameters
    ----------
    kind : str
        The type of the message, a method of `Clients`; "answer": answer a Flower message.
    node : int
        The client's.
    payload : mapping of str to array, or Message
        The download, or the message.
    round : int
        The round, as the client receives it.
    """

    kind: str
    node: int
    payload: Arrays | Message
    round: int = 0


Jobs = Sequence[tuple[int, Job]]
"""Jobs, each with its ticket."""


class InProcess:
    """Clients in this process, one after another in the order of the jobs."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.count = clients, 1
        self._queue: deque[tuple[int, Job]] = deque()

    def submit(self, jobs: Jobs) -> None:
        """Queue jobs."""
        self._clients.begin()
        self._queue.extend(jobs)

    def is_busy(self) -> bool:
        """Return whether any job is left."""
        return bool(self._queue)

    def receive(self) -> tuple[int, Answer | Message]:
        """Run the next job; return its ticket, and the answer."""
        ticket, job = self._queue.popleft()
        return ticket, answer_of(self._clients, job)

    def call(self, what: str, *own: Any) -> list[Any]:
        """Call a method of `Clients`; return what it returns."""
        return [getattr(self._clients, what)(*own)]

    def close(self) -> None:
        """Do nothing: there are no worker processes."""
        return


def answer_of(clients: Clients, job: Job) -> Answer | Message:
    """Run a job."""
    kind, node, payload, round = job
    if isinstance(payload, Message):
        return clients.answer(payload)
    answer: Answer = getattr(clients, kind)(node, payload, round)
    return answer


WORKER = "hetfl-worker-"
"""Prefix of the names of worker processes."""

UNGUARDED = 71
"""Exit code of a worker process whose script starts a federation at import."""

GUARD = 'begin its work under if __name__ == "__main__":'
"""What a script that starts processes must do."""


def check_starts_processes(key: str) -> None:
    """Refuse to start processes in a script on standard input, which they cannot read.

    Parameters
    ----------
    key : str
        The key that requires them, and its value.

    Raises
    ------
    ConfigError
        The program is a script on standard input.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script == "<stdin>":
        raise ConfigError(f"{key}: processes read the script that starts them: save it as a file, and {GUARD}")


def end_unguarded() -> None:
    """End a worker process that runs the script instead of clients."""
    if multiprocessing.current_process().name.startswith(WORKER):
        sys.exit(UNGUARDED)


class Workers:
    """Clients in worker processes, assigned by their earlier times; a client is with one worker at a time.

    A worker reads its pipe also while it works, so that no pipe fills up on both sides.

    Parameters
    ----------
    workers : int
        How many, 2 or more.
    those : Hosted
        The clients.
    """

    def __init__(self, workers: int, those: Hosted) -> None:
        check_starts_processes(f"workers = {workers}")
        self.count = workers
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
        self._queues: list[deque[tuple[int, Job]]] = [deque() for _ in range(workers)]
        self._under_way: list[deque[tuple[int, Job]]] = [deque() for _ in range(workers)]
        self._written: dict[int, bytes] = {}  # downloads of the last jobs, by their ids
        self._owners: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def submit(self, jobs: Jobs) -> None:
        """Queue jobs for the clients' workers; if no job is under way, assign the clients anew."""
        self._written = {}
        if not self.is_busy():
            self._share_out([job.node for _, job in jobs])
        for ticket, job in jobs:
            self._queues[self._owner(job.node)].append((ticket, job))
        for _ in range(AHEAD):
            for worker in range(len(self._pipes)):
                self._feed(worker)

    def is_busy(self) -> bool:
        """Return whether any job is under way."""
        return any(self._under_way)

    def receive(self) -> tuple[int, Answer | Message]:
        """Wait for the next answer of any worker; return the job's ticket, and the answer."""
        waiting = [pipe for pipe, under_way in zip(self._pipes, self._under_way, strict=True) if under_way]
        worker = self._pipes.index(wait(waiting)[0])  # type: ignore[arg-type]
        answer, seconds = self._received(worker)
        ticket, job = self._under_way[worker].popleft()
        if job.kind == MessageType.TRAIN:  # the least of them all: a machine may be busy with other things
            self._seconds[job.node] = min(seconds, self._seconds.get(job.node, seconds))
        self._feed(worker)
        if isinstance(answer, Answer):
            return ticket, answer._replace(arrays=frozen(answer.arrays))
        return ticket, unpacked(answer)

    def call(self, what: str, *own: Any) -> list[Any]:
        """Call a method of `Clients` in every worker, each with its own argument; no job is under way."""
        for worker in range(self.count):
            self._tell(worker, (what, own[worker : worker + 1]))
        return [self._received(worker) for worker in range(self.count)]

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
        """Assign clients to workers; those that change their worker rest in between."""
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
        """Send a worker its next job, if there is one and room for it; shared downloads are serialised once."""
        if not self._queues[worker] or len(self._under_way[worker]) >= AHEAD:
            return
        ticket, job = self._queues[worker].popleft()
        if isinstance(job.payload, Message):
            content = packed(job.payload)
        else:
            content = self._written.get(id(job.payload)) or dumps(job.payload, HIGHEST_PROTOCOL)
            self._written[id(job.payload)] = content
        self._tell(worker, (job.kind, (job.node, content, job.round)))
        self._under_way[worker].append((ticket, job))

    def _tell(self, worker: int, what: object) -> None:
        try:
            self._pipes[worker].send(what)
        except OSError:
            raise self._died(worker) from None

    def _received(self, worker: int) -> Any:
        """Return a worker's answer to a message or a command, or raise its error."""
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
    """Assign clients to workers, the longest first: each to its own if that is even, else to the least loaded one.

    Parameters
    ----------
    seconds : mapping of int to float
        How long each client takes.
    owners : mapping of int to int
        The worker that has each of them.
    workers : int
        The number of workers.
    """
    loads, chosen = [0.0] * workers, {}
    most = EVEN * sum(seconds.values()) / workers
    for client in sorted(seconds, key=seconds.__getitem__, reverse=True):
        own, least = owners[client], loads.index(min(loads))
        chosen[client] = own if loads[own] + seconds[client] <= most or loads[own] == loads[least] else least
        loads[chosen[client]] += seconds[client]
    return chosen


@generators_lent()  # no other code draws from them here
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
                answer = _answer(clients, *received)
        except Exception as error:
            answer = str(error) if isinstance(error, HetflError) else f"{type(error).__name__}: {error}"
        try:
            pipe.send(answer)
        except OSError:
            return


def _answer(clients: Clients, kind: str, arguments: tuple[Any, ...]) -> object:
    """Run a job, and return its answer and its seconds; or call a method of `Clients`."""
    if kind not in (MessageType.TRAIN, MessageType.EVALUATE, "answer"):
        return getattr(clients, kind)(*arguments)
    node, content, round = arguments
    started = perf_counter()
    clients.begin()
    answer = answer_of(clients, Job(kind, node, unpacked(content) if kind == "answer" else loads(content), round))
    sent = packed(answer) if isinstance(answer, Message) else answer._replace(form=None)
    return sent, perf_counter() - started


def _read(pipe: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Read a pipe into a queue; None at its end."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        inbox.put(None)
