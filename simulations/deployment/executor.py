"""The warm executor of a SuperNode: a process that has imported what a ClientApp needs, and forks one for each message.

It is started by `simulations.deployment.supernode`, which tells it by its standard input where the node is.
"""

import importlib
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from logging import WARNING
from pathlib import Path
from types import ModuleType
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
from simulations.deployment.loaded import Loaded

OWN = ("clients", "hetfl_flwr", "simulations", "strategies")
"""Packages that a message brings with its app: a process that answers one takes no other copy of them."""

FIRST = ("torch", "flwr.clientapp", "numpy", "pydantic", "safetensors.torch")
"""What every ClientApp of ours imports; what else one does is learnt from the first message."""

MOST_LEARNT = 2**16
"""Bytes of names of modules that are taken from a process which has answered a message."""

COMPILED = frozenset(name.partition(".")[0] for name in FIRST)
"""Packages that cannot be imported a second time: after a change of one the node is to be started again."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


class WarmExecutor:
    """Flower's Executor, which starts a process for each message, by a fork of this one."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}  # what a process has to say of its imports, by its id
        self._loaded = Loaded(ignored=OWN, kept=COMPILED)

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return that messages to ClientApps can be answered, and no other tasks."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Wait for nothing: a node has one message at a time."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork a process that answers a message."""
        _forget_changed(self._loaded)
        said, says = os.pipe()
        executor = os.getpid()
        try:
            process = fork()
        except OSError as error:
            os.close(said)
            os.close(says)
            return LaunchResult.failed(f"no process for the ClientApp: {error.strerror}")
        if not process:
            os.close(said)
            _answer_once(spec, says, executor)
        os.close(says)
        self._running[process] = said
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Take leave of processes that have ended, and import what they had to."""
        for process, said in list(self._running.items()):
            if _has_ended(process):
                del self._running[process]
                _learn(said)
                self._loaded.look()

    def close(self) -> None:
        """End those that are answering."""
        for process in self._running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


class ResidentExecutor:
    """Flower's Executor with one process, which answers all messages of an app and keeps its models and data."""

    get_eligible_capacity = WarmExecutor.get_eligible_capacity
    wait_for_capacity = WarmExecutor.wait_for_capacity

    def __init__(self) -> None:
        self._process, self._specs, self._app = 0, -1, ""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Have a message answered; by a new process where it is of another app, or the old one has ended."""
        if spec.fab_hash != self._app:
            self.close()
        try:
            if not self._process:
                self._start(spec.fab_hash or "")
            os.write(self._specs, json.dumps(asdict(spec), allow_nan=False).encode() + b"\n")
        except OSError as error:
            self.close()
            return LaunchResult.failed(f"no process for the ClientApp: {error.strerror}")
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Take note that the process has ended."""
        if self._process and _has_ended(self._process):
            os.close(self._specs)
            self._process = 0

    def close(self) -> None:
        """End the process."""
        if self._process:
            os.close(self._specs)
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGTERM)
            os.waitpid(self._process, 0)
            self._process = 0

    def _start(self, app: str) -> None:
        specs, self._specs = os.pipe()
        executor = os.getpid()
        self._process = fork()
        if not self._process:
            os.close(self._specs)
            _answer_all(specs, executor)
        os.close(specs)
        self._app = app


def _has_ended(process: int) -> bool:
    """Say whether a process has ended; in the log, if it was not by itself."""
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


def _forget_changed(loaded: Loaded) -> set[str]:
    """Forget what has changed on disk, and say in the log what cannot be."""
    forgotten, kept = loaded.forget_changed()
    if kept:
        log(WARNING, "%s has changed on disk: start this node again to have it used", ", ".join(sorted(kept)))
    return forgotten


def fork() -> int:
    """Fork; in the new process, forget what the old one does at its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if not process:
        forget_exit_handlers()
        _reset_signals()
    return process


def _reset_signals() -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)


def _answer_once(spec: ExecutionSpec, says: int, executor: int) -> NoReturn:
    """Answer a message in a process of its own, and say which modules it took."""
    status, before = 1, set(sys.modules)
    end_with(executor)
    _forget_own()
    try:
        answer(spec, parent=spec.parent_pid)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os.set_blocking(says, False)
        with suppress(OSError):
            os.write(says, json.dumps(_installed(before), allow_nan=False).encode()[:MOST_LEARNT])
        _leave(status)


def _answer_all(specs: int, executor: int) -> NoReturn:
    """Answer messages one after the other, until one is not answered or there are no more."""
    os.environ["HETFL_KEEP"] = "resident"
    _forget_own()
    end_with(executor)
    status, loaded = [0], Loaded(ignored=OWN, kept=COMPILED)
    with os.fdopen(specs) as lines:
        for line in lines:
            spec = ExecutionSpec(**json.loads(line))
            if _forget_changed(loaded):
                _forget_own()  # what it keeps was made of what has changed
            _reset_signals()  # each message sets its own
            answer(spec, parent=None, leave=lambda code: status.append(code))
            if status[-1]:
                break
            loaded.look()
    _leave(int(status[-1] != 0))


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _forget_own() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in OWN:
            del sys.modules[name]


def _installed(before: Iterable[str]) -> list[str]:
    """Return the modules that were imported since, in order, which are installed and not of the app."""
    known = set(before)
    return [
        name
        for name, module in list(sys.modules.items())
        if name not in known and name.partition(".")[0] not in OWN and _is_installed(module)
    ]


def _is_installed(module: ModuleType) -> bool:
    path = getattr(module, "__file__", None) or ""
    places = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(path).is_relative_to(place) for place in places)


def _learn(said: int) -> None:
    """Import what a process has imported, so that the next one need not."""
    with os.fdopen(said, "rb") as pipe:
        written = pipe.read()
    names: list[str] = []
    with suppress(ValueError):
        names = json.loads(written)
    for name in names:
        with suppress(Exception):  # what cannot be imported here is imported there
            importlib.import_module(name)


def end_with(parent: int) -> None:
    """Look each second whether the process that has started this one is still there; else end."""

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)


def main() -> None:
    """Read from the standard input where the node is, and answer its messages until it ends."""
    told: dict[str, Any] = json.load(sys.stdin)
    end_with(told["node"])
    for name in FIRST:
        importlib.import_module(name)
    executor = WarmExecutor() if told["keep"] == "fork" else ResidentExecutor()
    run_executor(executor, told["address"], bytes.fromhex(told["secret"]), told["root_certificates"], told["install"])


if __name__ == "__main__":
    main()
