"""The warm executor of a SuperNode: a process that has imported a ClientApp's libraries, and forks others that answer.

It is started by `simulations.deployment.supernode`, which writes the node's address to its standard input. If
libraries have been installed, upgraded or removed since, it restarts with its pending messages.

A process that answers a message ends with the node, not with the executor: a reply is all that the node waits for.
"""

import importlib
import json
import os
import select
import signal
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.machinery import PathFinder
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn

from simulations.deployment.flower_node import (
    ExecutionSpec,
    LaunchResult,
    TaskType,
    answer,
    forget_exit_handlers,
    log,
    run_executor,
)

OWN = ("clients", "hetfl_flwr", "simulations", "strategies")
"""Packages that a message may bring with its app: the executor imports no copy of them."""

FIRST = ("torch", "flwr.clientapp", "numpy", "pydantic", "safetensors.torch", "pyarrow", "scipy.special")
"""What every ClientApp of ours imports, and takes long."""

FLOWERS = frozenset(name.partition(".")[0] for name in sys.modules) - {*OWN}
"""Packages that Flower's own process has imported, too, before it loads an app."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

Told = Mapping[str, Any]
"""The options of an executor from its node: see `simulations.deployment.supernode.run_supernode`."""


def libraries() -> list[int]:
    """Return when libraries were last installed, upgraded or removed, by the folders that they lie in."""
    folders = map(Path, [*site.getsitepackages(), site.getusersitepackages()])
    return [folder.stat().st_mtime_ns for folder in folders if folder.is_dir()]


BEFORE = libraries()
"""The libraries as they were before this process has imported any but Flower."""


class WarmExecutor:
    """Flower's Executor of one node, with processes that are forked from this one: one a message, or one that stays.

    The messages wait in a pipe, of which this one holds both ends: what a process has left unread, the next one reads.
    Where no process stays, each message has a pipe, too, which is left once a process reads it.

    Parameters
    ----------
    told : mapping
        The options from the node. With a ``keep`` of ``resident``, one process answers all messages of an app, and
        keeps its models and data.
    """

    def __init__(self, told: Told) -> None:
        self._told, self._stays = told, told["keep"] == "resident"
        self._app: str | None = None
        self._pipe: tuple[int, int] | None = None
        self._process = 0
        self._leaving: set[int] = set()

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return that messages to ClientApps can be answered, and no other tasks."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Do not wait: a node has one message at a time."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Have a message answered; by a new process where none stays, or it is of another app."""
        if spec.fab_hash != self._app:
            self.close()
        try:
            if not self._pipe:
                self._pipe, self._app = os.pipe(), spec.fab_hash
                os.set_blocking(self._pipe[1], False)
            os.write(self._pipe[1], json.dumps(asdict(spec), allow_nan=False).encode() + b"\n")
            self._read_on()
        except OSError as error:
            self.close()
            return LaunchResult.failed(f"no process for the ClientApp: {error.strerror}")
        if not self._stays:
            self.close()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap processes that have ended, and start another one for pending messages."""
        self._leaving = {process for process in self._leaving if not _has_ended(process)}
        with suppress(OSError):  # it is tried again
            self._read_on()

    def close(self) -> None:
        """Let the process end after the message that it is answering."""
        if self._process:
            self._leaving.add(self._process)
        for end in self._pipe or ():
            os.close(end)
        self._process, self._pipe, self._app = 0, None, None

    def _read_on(self) -> None:
        """Ensure that there is a process if a message is pending."""
        if self._process and _has_ended(self._process):
            self._process = 0
        if self._process or not self._pipe or not _is_readable(self._pipe[0]):
            return
        if _libraries_changed():
            begin_anew(self._told, [json.loads(line) for line in os.read(self._pipe[0], 2**16).splitlines()])
        self._process = fork(partial(_answer_all, self._pipe, self._told))


def _is_readable(file: int) -> bool:
    return bool(select.select([file], [], [], 0)[0])


def _has_ended(process: int) -> bool:
    """Return whether a process has ended; log it if it was terminated."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        return False
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        why = "; was there too little memory?" if -code == signal.SIGKILL else ""
        log(WARNING, "the process of the ClientApp was ended by %s%s", signal.Signals(-code).name, why)
    elif code:
        log(WARNING, "the process of the ClientApp has ended with status %d", code)
    return True


def _libraries_changed() -> bool:
    """Return whether libraries have changed since this process imported them; log it if so."""
    changed = libraries() != BEFORE
    if changed:
        log(INFO, "libraries have changed on disk: a new process begins")
    return changed


def begin_anew(told: Told, specs: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Replace this process by a fresh executor with these pending messages.

    Where that cannot be, this one ends, and the node starts another.
    """
    try:
        read, write = os.pipe()
        os.write(write, json.dumps({**told, "specs": specs}, allow_nan=False).encode())
        os.close(write)
        os.dup2(read, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)  # it would go on, and nobody would take its signal
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        sys.exit(f"hetfl: the executor cannot be started again: {error.strerror}")


def fork(work: Callable[[], int]) -> int:
    """Fork a process that does some work, and ends with the status that this returns, whatever happens in it.

    Parameters
    ----------
    work : callable
        Returns an exit status, or raises.

    Returns
    -------
    int
        The id of the process. Only the old one returns.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        forget_exit_handlers()
        _reset_signals()
        status = work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _reset_signals() -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)


def _answer_all(pipe: tuple[int, int], told: Told) -> int:
    """Answer messages one after the other, until one is not answered, there are no more, or a library has changed."""
    specs, own = pipe
    os.close(own)
    if told["keep"] == "resident":
        os.environ["HETFL_KEEP"] = "resident"
    end_with_node(told["alive"])
    status = [0]

    with open(specs, "rb", buffering=0) as lines:  # which reads no more than a line
        while not status[-1]:
            select.select([specs], [], [])
            if _libraries_changed() or not (line := lines.readline()):
                break
            _reset_signals()  # each message sets its own
            answer(ExecutionSpec(**json.loads(line)), unpacked=_forget_hiding, leave=status.append)
    return int(status[-1] != 0)


def _forget_hiding(app: Path) -> None:
    """Forget modules that would hide an app's own of the same name, as far as Flower's own process would not have them.

    Parameters
    ----------
    app : Path
        The folder of the app, from which modules are imported first.
    """
    packages = {name.partition(".")[0] for name in sys.modules} - FLOWERS
    hiding = {package for package in packages if (own := PathFinder.find_spec(package, [str(app)])) and own.origin}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] in hiding and not Path(path).is_relative_to(app):
            del sys.modules[name]


def end_with_node(alive: int) -> None:
    """Poll each second whether the node is still running; else end.

    Parameters
    ----------
    alive : int
        One end of a pipe, of which the node holds the other: it can be read once the node has ended.
    """

    def look(*_: object) -> None:
        if _is_readable(alive):
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)


def main() -> None:
    """Read from the standard input where the node is, and answer its messages until it ends."""
    told: dict[str, Any] = json.load(sys.stdin)
    end_with_node(told["alive"])
    for name in FIRST:
        importlib.import_module(name)
    executor = WarmExecutor(told)
    for spec in told["specs"]:
        executor.launch(ExecutionSpec(**spec))
    run_executor(executor, told["address"], bytes.fromhex(told["secret"]), told["root_certificates"], told["install"])


if __name__ == "__main__":
    main()
