"""All uses of Flower's internals by a warm SuperNode: check these first with a new release of Flower.

If one of them is missing, `simulations.deployment.supernode` runs Flower's own node.
"""

import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from zipfile import ZipFile

from flwr.cli.config_utils import get_fab_metadata
from flwr.cli.install import install_from_fab
from flwr.common import log
from flwr.common.config import get_project_dir, parse_config_args
from flwr.supercore.constant import TaskType
from flwr.supercore.exit.exit_handler import registered_exit_handlers, trigger_exit_handlers
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import ExecutionSpec, Executor, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode import start_client_internal as node_loop
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode, flower_supernode
from flwr.supernode.runtime import run_clientapp as clientapp

_push_message, _push_task_output = clientapp.push_message, clientapp.push_task_output
_pull = clientapp.pull_and_inflate_object_from_tree  # type: ignore[attr-defined]

FIRST_WAIT = 0.05
"""Seconds until an incomplete message is requested again; doubled each time."""

__all__ = [
    "ExecutionSpec",  # a message to answer: address, token, app
    "LaunchResult",  # returned to Flower's executor loop
    "TaskType",  # one of these is the messages of ClientApps
    "answer",
    "flower_supernode",  # the command `flower-supernode`
    "forget_exit_handlers",
    "log",  # Flower's log; the executor may not import `hetfl_flwr`, which has it, too
    "node_arguments",
    "parse_config_args",  # reads ``--node-config``
    "run_executor",
    "set_poll",
]


def node_arguments(arguments: list[str]) -> Any:
    """Parse the arguments of ``flower-supernode``; raise ConfigError with its message if they are invalid."""
    from hetfl_flwr.errors import ConfigError  # here, as the executor may not import `hetfl_flwr`

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; `flower-supernode --help` shows the flags")

    parser = _parse_args_run_supernode()
    parser.error = refuse  # type: ignore[method-assign]
    parser.allow_abbrev = False  # only complete names are looked for
    return parser.parse_args(arguments)


def set_poll(seconds: float) -> None:
    """Limit the time that a SuperNode in this process sleeps between two polls."""
    # only the name `time` in the module of the loop is replaced
    node_loop.time = SimpleNamespace(sleep=lambda usual: time.sleep(min(usual, seconds)))  # type: ignore[assignment,attr-defined]


def run_executor(executor: Executor, address: str, secret: bytes, root_certificates: str | None, install: bool) -> None:
    """Run Flower's executor loop with this executor, until the process ends."""
    superexec.get_executor = lambda *_, **__: executor  # type: ignore[attr-defined]
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=root_certificates is None,
        root_certificates_path=root_certificates,
        superexec_auth_secret=secret,
        runtime_dependency_install=install,
    )


def answer(spec: ExecutionSpec, *, unpacked: Callable[[Path], object], leave: Callable[[int], object]) -> None:
    """Answer one message as the command ``flwr-clientapp`` does, but without exiting.

    `unpacked` is called with the app's folder before anything is imported from it, and `leave` with the exit status at
    the end. A task that ends without a reply is not reported as failed, because the node would then wait for the reply
    forever. Instead the node misses the task's heartbeats, and replies within a minute that the ClientApp has crashed.
    """

    def done(code: int, **_: object) -> None:
        trigger_exit_handlers(run_before_force_exit=True)
        trigger_exit_handlers(run_before_force_exit=False)
        leave(code)

    parts = {**_parts_of_clientapp(unpacked), "flwr_exit": done}
    for name, part in parts.items():
        setattr(clientapp, name, part)
    clientapp.run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        runtime_dependency_install=spec.runtime_dependency_install,
    )


def _parts_of_clientapp(unpacked: Callable[[Path], object]) -> dict[str, Callable[..., object]]:
    """Return replacements for functions of ``flwr-clientapp``, for one message."""
    replied = False

    def unpack(bundle: bytes, **options: Any) -> Path:
        folder = _installed(bundle) or install_from_fab(bundle, **options)
        unpacked(folder)
        return folder

    def push_message(*arguments: Any) -> None:
        nonlocal replied
        _push_message(*arguments)
        replied = True

    def push_task_output(**output: Any) -> None:
        if replied:
            _push_task_output(**output)

    return {
        "install_from_fab": unpack,
        "pull_and_inflate_object_from_tree": partial(_pull, initial_backoff=FIRST_WAIT),
        "push_message": push_message,
        "push_task_output": push_task_output,
    }


def _installed(bundle: bytes) -> Path | None:
    """Return the folder of an app if it is completely installed; Flower would unpack it again."""
    folder: Path = get_project_dir(*get_fab_metadata(bundle), sha256(bundle).hexdigest())
    with ZipFile(BytesIO(bundle)) as opened:
        sizes = {folder / one.filename: one.file_size for one in opened.infolist() if not one.is_dir()}
    own = {path: size for path, size in sizes.items() if path.relative_to(folder).parts[0] != ".info"}
    return folder if all(path.is_file() and path.stat().st_size == size for path, size in own.items()) else None


def forget_exit_handlers() -> None:
    """Remove the exit handlers that this process has inherited from the one that forked it."""
    registered_exit_handlers.clear()
