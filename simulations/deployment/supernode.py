"""Flower's SuperNode with a warm executor, so that its ClientApps start without delay."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from logging import WARNING
from pathlib import Path
from typing import Any, NoReturn

from click import ClickException

from hetfl_flwr.errors import ConfigError

SHORTEST, LONGEST = 0.01, 60.0
"""Range of the poll interval for messages, in seconds."""

RESTART = 1.0
"""Seconds after which an executor that has ended is started again."""

KEEP = ("fork", "resident")
"""What is kept of a ClientApp between two messages: only its imports, or its models and data as well."""


def run_supernode(arguments: Sequence[str], keep: str, poll: float) -> NoReturn:
    """Run Flower's SuperNode with a warm executor until it is ended.

    `arguments` are those of ``flower-supernode``; without ``--port`` a free port is used. `keep` is one of `KEEP`, and
    `poll` the interval in seconds at which the node asks the SuperLink for messages, and the executor the node. As with
    Flower's executor, each message has its own token. The secret that authenticates the executor passes through pipes.
    If a warm executor is not possible, Flower's own node runs.
    """
    if keep not in KEEP:
        raise ConfigError(f"--keep = {keep}: expected {' or '.join(KEEP)}")
    if not SHORTEST <= poll <= LONGEST:
        raise ConfigError(f"--poll = {poll:g}: expected {SHORTEST:g} to {LONGEST:g} seconds")
    given = list(arguments)
    if "-V" in given or "--version" in given:
        _run_plain(given)
    try:
        _check_room(given)
        from simulations.deployment.flower_node import (
            flower_supernode,
            log,
            node_arguments,
            parse_config_args,
            set_poll,
        )
    except (ImportError, AttributeError) as error:
        why = " ".join(str(error).split())
        print(f"hetfl: no warm executor ({why}): the node runs as Flower's own", file=sys.stderr, flush=True)
        _run_plain(given)
    parsed = node_arguments(given)
    _check_node_config(parsed.node_config or "", parse_config_args)
    chosen = any(one.split("=")[0] == "--port" for one in given)
    try:
        port = free_port(parsed.host, parsed.port if chosen else 0)
    except OSError:
        raise ConfigError(f"port {parsed.port} of {parsed.host} is taken: give this node its own --port") from None
    given += [] if chosen else ["--port", str(port)]
    secret = secrets.token_bytes(32)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    alive, _ = os.pipe()  # only this process holds the other end
    options = {
        "alive": alive,
        "address": f"{host}:{port}",
        "secret": secret.hex(),
        "root_certificates": parsed.ssl_ca_certfile,
        "install": parsed.runtime_dependency_install,
        "keep": keep,
    }
    environment = {**os.environ, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll)}

    def keep_warm() -> None:
        while True:
            try:
                status = start_executor(options, environment).wait()
                log(WARNING, "the executor has ended (status %d) and is started again", status)
            except OSError as error:  # such as too many open files or no memory: may pass
                log(WARNING, "the executor cannot be started (%s); trying again", error.strerror)
            time.sleep(RESTART)

    threading.Thread(target=keep_warm, daemon=True, name="executor").start()
    set_poll(poll)
    read, write = os.pipe()
    os.write(write, secret)
    os.close(write)
    sys.argv = ["flower-supernode", *given, "--isolation", "process", "--superexec-auth-secret-file", f"/dev/fd/{read}"]
    flower_supernode()
    sys.exit(0)


def _check_node_config(text: str, read: Callable[[list[str]], object]) -> None:
    try:
        read([text] if text.strip() else [])
    except OSError as error:
        raise ConfigError(f"--node-config = {text}: {error.strerror}") from None
    except (ClickException, TypeError, ValueError):
        raise ConfigError(f"--node-config = {text}: expected KEY=VALUE, texts in double quotes") from None


def start_executor(options: Mapping[str, Any], environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Start an executor process, and write its options to its standard input.

    The options ``address``, ``secret``, ``root_certificates`` and ``install`` say how to connect to the node, ``keep``
    is one of `KEEP`, and ``alive`` is one end of a pipe whose other end the node holds.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "simulations.deployment.executor"],
        stdin=subprocess.PIPE,
        env=environment,
        text=True,
        pass_fds=[options["alive"]],
    )
    if process.stdin is not None:
        with closing(process.stdin) as pipe:
            json.dump({**options, "specs": []}, pipe, allow_nan=False)
    return process


def _check_room(arguments: Sequence[str]) -> None:
    """Raise ImportError if the system or the node's flags do not permit a warm executor."""
    if not hasattr(os, "fork"):
        raise ImportError("this system cannot fork processes")
    own = {one.split("=")[0] for one in arguments} & {"--isolation", "--superexec-auth-secret-file"}
    if own:
        raise ImportError(f"{' and '.join(sorted(own))}: another program runs the ClientApps")


def _run_plain(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Flower's own SuperNode."""
    installed = Path(sys.executable).with_name("flower-supernode")
    command = str(installed) if installed.exists() else shutil.which("flower-supernode") or "flower-supernode"
    os.execv(command, ["flower-supernode", *arguments])


def free_port(host: str, port: int = 0) -> int:
    """Return a port that can be bound, by default any free one; raise OSError if it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        return int(one.getsockname()[1])
