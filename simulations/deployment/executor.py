"""The warm executor of a SuperNode: a process with the ClientApp's libraries imported, which forks to answer messages.

`simulations.deployment.supernode` starts it and writes the node's address to its standard input. If libraries are
installed, upgraded or removed, it restarts with its pending messages. A process that answers a message ends with the
node, not with the executor, since the node waits for the reply only.
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

APP_PACKAGES = ("clients", "hetfl_flwr", "simulations", "strategies")
"""Packages that an app may contain: the executor does not import its own copy of them."""

PRELOADED = ("torch", "flwr.clientapp", "numpy", "pydantic", "safetensors.torch", "pyarrow", "scipy.special")
"""Modules that every ClientApp of this project imports, and that take long."""

FLOWER_PACKAGES = frozenset(name.partition(".")[0] for name in sys.modules) - {*APP_PACKAGES}
"""Packages that Flower's process, too, has imported before it loads an app."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

Options = Mapping[str, Any]
"""The options of an executor, see `simulations.deployment.supernode.start_executor`."""


def libraries() -> list[int]:
    """Return the time in nanoseconds at which the folders of installed libraries were last changed."""
    folders = map(Path, [*site.getsitepackages(), site.getusersitepackages()])
    return [folder.stat().st_mtime_ns for folder in folders if folder.is_dir()]


LIBRARIES_AT_START = libraries()
"""The result of `libraries` before this process imported any of them except Flower."""


class WarmExecutor:
    """Flower's Executor of one node, which forks a process for each message, or one resident process per app.

    A resident process (``keep`` is ``resident``) answers all messages of an app and keeps its models and data. Messages
    wait in a pipe of which this process holds both ends: what one process leaves unread, the next one reads. Without a
    resident process, each message has a pipe of its own.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._stays = options, options["keep"] == "resident"
        self._app: str | None = None
        self._pipe: tuple[int, int] | None = None
        self._process = 0
        self._leaving: set[int] = set()

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return the eligible capacity: only tasks of ClientApps can be run."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Return at once: a node has one message at a time."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Pass a message to a process: a new one if none is resident, or if the message is of another app."""
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
        """Reap processes that have ended, and start one for pending messages."""
        self._leaving = {process for process in self._leaving if not _has_ended(process)}
        with suppress(OSError):  # retried at the next call
            self._read_on()

    def close(self) -> None:
        """Let the process end after its current message."""
        if self._process:
            self._leaving.add(self._process)
        for end in self._pipe or ():
            os.close(end)
        self._process, self._pipe, self._app = 0, None, None

    def _read_on(self) -> None:
        """Start a process if a message is pending and there is none."""
        if self._process and _has_ended(self._process):
            self._process = 0
        if self._process or not self._pipe or not _is_readable(self._pipe[0]):
            return
        if _libraries_changed():
            restart(self._options, [json.loads(line) for line in os.read(self._pipe[0], 2**16).splitlines()])
        self._process = fork(partial(_answer_all, self._pipe, self._options))


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
    """Return whether libraries have changed since this process started; log it if so."""
    changed = libraries() != LIBRARIES_AT_START
    if changed:
        log(INFO, "libraries have changed on disk: a new process is started")
    return changed


def restart(options: Options, specs: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Replace this process with a new executor for these pending messages; on failure end, and the node starts one."""
    try:
        read, write = os.pipe()
        os.write(write, json.dumps({**options, "specs": specs}, allow_nan=False).encode())
        os.close(write)
        os.dup2(read, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)  # the timer survives exec, and nothing would handle its signal
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        sys.exit(f"hetfl: the executor cannot be started again: {error.strerror}")


def fork(work: Callable[[], int]) -> int:
    """Fork a process that calls `work` and exits with the status that it returns; return the process id."""
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


def _answer_all(pipe: tuple[int, int], options: Options) -> int:
    """Answer messages one after another, until one fails, there are no more, or a library has changed."""
    specs, own = pipe
    os.close(own)
    if options["keep"] == "resident":
        os.environ["HETFL_KEEP"] = "resident"
    end_with_node(options["alive"])
    status = [0]

    with open(specs, "rb", buffering=0) as lines:  # unbuffered: reads one line only
        while not status[-1]:
            select.select([specs], [], [])
            if _libraries_changed() or not (line := lines.readline()):
                break
            _reset_signals()  # each message sets its own handlers
            answer(ExecutionSpec(**json.loads(line)), unpacked=_forget_hiding, leave=status.append)
    return int(status[-1] != 0)


def _forget_hiding(app: Path) -> None:
    """Drop imported modules that would hide modules of the same name in an app's folder.

    Modules that Flower's process would have imported, too, stay.
    """
    packages = {name.partition(".")[0] for name in sys.modules} - FLOWER_PACKAGES
    hiding = {package for package in packages if (own := PathFinder.find_spec(package, [str(app)])) and own.origin}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] in hiding and not Path(path).is_relative_to(app):
            del sys.modules[name]


def end_with_node(alive: int) -> None:
    """Check every second whether the node is still running; end this process if not.

    `alive` is one end of a pipe whose other end the node holds: it becomes readable when the node ends.
    """

    def look(*_: object) -> None:
        if _is_readable(alive):
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)


def main() -> None:
    """Read the options from standard input, and answer the node's messages until it ends."""
    options: dict[str, Any] = json.load(sys.stdin)
    end_with_node(options["alive"])
    for name in PRELOADED:
        importlib.import_module(name)
    executor = WarmExecutor(options)
    for spec in options["specs"]:
        executor.launch(ExecutionSpec(**spec))
    run_executor(
        executor, options["address"], bytes.fromhex(options["secret"]), options["root_certificates"], options["install"]
    )


if __name__ == "__main__":
    main()
