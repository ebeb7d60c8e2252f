"""The processes that run the local engine's clients: this one, or a few worker processes."""

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
from hetfl_flwr.errors import ConfigError, HetflError, WorkerError
from hetfl_flwr.node.machine import end_with_parent, keep_freed_memory
from hetfl_flwr.seeding import generators_lent
from hetfl_flwr.server.exchange import read_only
from hetfl_flwr.wire.messages import packed, unpacked
from hetfl_flwr.wire.spec import Arrays, frozen
from simulations.engine.clients import FIRST_NODE, Answer, Clients, Hosted

AHEAD = 2
"""Maximum number of tasks sent to a worker: the current and the next one, so that it never waits."""

MAX_SHARE = 1.1
"""Clients stay with their worker if its load is at most this multiple of an even share."""


class Task(NamedTuple):
    """A task of a client.

    `kind` is "train" or "evaluate" with a download as `payload`, or "answer" with a message.
    """

    kind: str
    node: int
    payload: Arrays | Message
    round: int = 0


Tasks = Sequence[tuple[int, Task]]
"""Tasks with their tickets."""


class InProcess:
    """Runs tasks in this process, one after another."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.count = clients, 1
        self._queue: deque[tuple[int, Task]] = deque()

    def submit(self, tasks: Tasks) -> None:
        """Queue tasks."""
        self._clients.begin()
        self._queue.extend(tasks)

    def is_busy(self) -> bool:
        """Return whether any task is left."""
        return bool(self._queue)

    def receive(self) -> tuple[int, Answer | Message]:
        """Run the next task; return its ticket and the answer."""
        ticket, task = self._queue.popleft()
        return ticket, self._clients.run(*task)

    def call(self, method: str, *argument: Any) -> list[Any]:
        """Call a method of `Clients`; return a list with its result."""
        return [getattr(self._clients, method)(*argument)]

    def close(self) -> None:
        """Do nothing: there are no worker processes."""


WORKER = "hetfl-worker-"
"""Prefix of the names of worker processes."""

UNGUARDED = 71
"""Exit code of a worker process whose script starts a federation when it is imported."""

GUARD = 'start its work under if __name__ == "__main__":'
"""What a script that starts processes must do, in messages."""


def check_starts_processes(key: str) -> None:
    """Raise ConfigError if the script comes from standard input, where processes that it starts cannot read it.

    `key` is the key that requires processes, with its value.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script == "<stdin>":
        raise ConfigError(f"{key}: processes read the script that starts them: save it as a file, and {GUARD}")


def end_unguarded() -> None:
    """End a worker process that runs the script instead of clients."""
    if multiprocessing.current_process().name.startswith(WORKER):
        sys.exit(UNGUARDED)


class Workers:
    """Runs tasks in worker processes, 2 or more, among which clients are divided by the times of their earlier tasks.

    A client belongs to one worker at a time. A worker reads its pipe while it works, so that a pipe cannot block both
    ends.
    """

    def __init__(self, workers: int, hosted: Hosted) -> None:
        check_starts_processes(f"workers = {workers}")
        self.count = workers
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, hosted), daemon=True, name=f"{WORKER}{worker}")
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._queues: list[deque[tuple[int, Task]]] = [deque() for _ in range(workers)]
        self._under_way: list[deque[tuple[int, Task]]] = [deque() for _ in range(workers)]
        self._written: dict[int, bytes] = {}  # serialized downloads of the last tasks, by id
        self._owners: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def submit(self, tasks: Tasks) -> None:
        """Queue tasks for the clients' workers; if no task is under way, divide the clients again first."""
        self._written = {}
        if not self.is_busy():
            self._share_out([task.node for _, task in tasks])
        for ticket, task in tasks:
            self._queues[self._owner(task.node)].append((ticket, task))
        for _ in range(AHEAD):
            for worker in range(len(self._pipes)):
                self._feed(worker)

    def is_busy(self) -> bool:
        """Return whether any task is under way."""
        return any(self._under_way)

    def receive(self) -> tuple[int, Answer | Message]:
        """Wait for the next answer of any worker; return the task's ticket and the answer."""
        waiting = [pipe for pipe, under_way in zip(self._pipes, self._under_way, strict=True) if under_way]
        worker = self._pipes.index(wait(waiting)[0])  # type: ignore[arg-type]
        answer, seconds = self._received(worker)
        ticket, task = self._under_way[worker].popleft()
        if task.kind == MessageType.TRAIN:  # the minimum, as other programs may slow a task down
            self._seconds[task.node] = min(seconds, self._seconds.get(task.node, seconds))
        self._feed(worker)
        if isinstance(answer, Answer):
            return ticket, answer._replace(arrays=frozen(answer.arrays))
        return ticket, unpacked(answer)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of `Clients` in every worker, with that worker's argument; no task may be under way."""
        for worker in range(self.count):
            self._send(worker, (method, arguments[worker : worker + 1]))
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
        """Divide clients among workers; a client that changes its worker is written to its file."""
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
            self._send(worker, ("rest", (some,)))
        for worker in leaving:
            self._received(worker)

    def _feed(self, worker: int) -> None:
        """Send a worker its next task if it can take one; shared downloads are serialized once."""
        if not self._queues[worker] or len(self._under_way[worker]) >= AHEAD:
            return
        ticket, task = self._queues[worker].popleft()
        if isinstance(task.payload, Message):
            content = packed(task.payload)
        else:
            content = self._written.get(id(task.payload)) or dumps(task.payload, HIGHEST_PROTOCOL)
            self._written[id(task.payload)] = content
        self._send(worker, (task.kind, (task.node, content, task.round)))
        self._under_way[worker].append((ticket, task))

    def _send(self, worker: int, request: object) -> None:
        try:
            self._pipes[worker].send(request)
        except OSError:
            raise self._died(worker) from None

    def _received(self, worker: int) -> Any:
        """Return a worker's answer, or raise its error."""
        try:
            answer = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._died(worker) from None
        if isinstance(answer, str):
            raise WorkerError(f"worker {worker}: {answer}")
        return answer

    def _died(self, worker: int) -> WorkerError:
        self._processes[worker].join(timeout=1)
        code = self._processes[worker].exitcode
        if code == UNGUARDED:
            return WorkerError(f"worker processes import the script that starts them: it must {GUARD}")
        return WorkerError(f"worker process {worker} ended (exit code {code}); was it out of memory? Try fewer workers")


Host = InProcess | Workers
"""Where the clients run."""


def share_out(seconds: Mapping[int, float], owners: Mapping[int, int], workers: int) -> dict[int, int]:
    """Assign clients to workers, the longest first: to the present owner if that is even enough, else the least loaded.

    `seconds` says how long each client takes, `owners` which worker has it now.
    """
    loads, chosen = [0.0] * workers, {}
    most = MAX_SHARE * sum(seconds.values()) / workers
    for client in sorted(seconds, key=seconds.__getitem__, reverse=True):
        own, least = owners[client], loads.index(min(loads))
        chosen[client] = own if loads[own] + seconds[client] <= most or loads[own] == loads[least] else least
        loads[chosen[client]] += seconds[client]
    return chosen


@generators_lent()  # no other code in this process draws from them
def _work(pipe: Connection, hosted: Hosted) -> None:
    """Run tasks that arrive by a pipe until it is closed."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    keep_freed_memory()
    act_as_server(hosted.run)
    clients = Clients(*hosted)
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
    """Run a task and return its answer and the seconds it took, or call a method of `Clients`."""
    if kind not in (MessageType.TRAIN, MessageType.EVALUATE, "answer"):
        return getattr(clients, kind)(*arguments)
    node, content, round = arguments
    started = perf_counter()
    clients.begin()
    answer = clients.run(kind, node, unpacked(content) if kind == "answer" else loads(content), round)
    sent = packed(answer) if isinstance(answer, Message) else answer._replace(form=None)
    return sent, perf_counter() - started


def _read(pipe: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Read a pipe into a queue; put None at its end."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        inbox.put(None)
