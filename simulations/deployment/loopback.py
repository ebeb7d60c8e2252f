"""A federation on loopback: one SuperLink, its SuperNodes and the ``flwr`` command, as Flower's own processes."""

import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

import psutil

from hetfl_flwr.config import Value
from hetfl_flwr.errors import FederationError
from simulations.deployment.keys import Keys
from simulations.deployment.supernode import free_port

ROOT = Path(__file__).parents[2]
"""Folder of the app's pyproject.toml; exists in a checkout only."""

NAME = "loopback"
"""Name of the SuperLink in ``flwr`` commands."""

MARK = "HETFL_LOOPBACK"
"""Environment variable by which a process and its children are known, also in a process group of their own."""

START, RUN, END = 180, 900, 20
"""Time limits in seconds: for a server to start, a run to finish, and a process to end after SIGTERM."""


@dataclass
class Flower:
    """A SuperLink with its own FLWR_HOME, and the processes around it.

    `home` is FLWR_HOME, the working directory of all processes and the folder of their logs. With `keys`, connections
    use TLS and the SuperLink authenticates SuperNodes by their registered keys; without, connections are plain text and
    open to everyone. `variables` are additional environment variables. `keep` is the ``--keep`` of SuperNodes started
    from now on; if it is empty, they are Flower's own.
    """

    home: Path
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port('127.0.0.1')}")
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    keys: Keys | None = None
    variables: dict[str, str] = field(default_factory=dict)
    keep: str = "fork"
    mark: str = field(default_factory=lambda: uuid4().hex)

    def superlink(self, *options: str) -> None:
        """Start the SuperLink, and wait until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        trust = f"root-certificates = {_toml_value(str(self.keys.ca))}" if self.keys else "insecure = true"
        (self.home / "config.toml").write_text(f'[superlink.{NAME}]\naddress = "{self.address}"\n{trust}\n')
        host, _, port = self.address.partition(":")
        self.start("superlink", "flower-superlink", *self._as_server(), "--host", host, "--port", port, *options)
        deadline = time.monotonic() + START
        while not self._answers():
            if time.monotonic() > deadline or self.processes["superlink"].poll() is not None:
                raise self.failure("the SuperLink does not answer")
            time.sleep(0.1)

    def supernode(self, client_id: int, clients: int, /, **settings: Value) -> None:
        """Start the SuperNode of one client with its own settings; do not wait for it."""
        settings = {"partition-id": client_id, "num-partitions": clients, **settings}
        self.node(f"supernode-{client_id}", *self._as_node(client_id), "--node-config", _toml(settings))

    def node(self, name: str, *options: str) -> None:
        """Start a SuperNode with these options, which must include those for TLS and keys; do not wait for it."""
        ports = ["--superlink", self.address, "--port", str(free_port("127.0.0.1"))]
        command = ["hetfl", "supernode", "--keep", self.keep, "--poll", "0.2"] if self.keep else ["flower-supernode"]
        self.start(name, *command, *ports, *options)

    def register(self, number: int) -> None:
        """Register a node's public key with the SuperLink."""
        if self.keys is None:
            raise ValueError("no keys to register")
        output = self.flwr("supernode", "register", str(self.keys.node_public(number)), NAME)
        if "registered successfully" not in output:
            raise self.failure(f"the key of node {number} is not registered")

    def start(self, name: str, *command: str) -> None:
        """Start a process in its own process group, with its own log."""
        with (self.home / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [_script(command[0]), *command[1:]],
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, settings: Mapping[str, Value], *options: str) -> str:
        """Run the app to its end, whether it succeeds or fails, and return the output."""
        return self.flwr(*_run_command(settings), *options)

    def start_run(self, settings: Mapping[str, Value], *options: str) -> None:
        """Run the app as process ``run``; do not wait for it."""
        self.start("run", "flwr", *_run_command(settings), *options)

    def statuses(self) -> list[str]:
        """Return the statuses of the runs, newest first."""
        return [run["status"] for run in self.runs()]

    def runs(self) -> list[dict[str, Any]]:
        """Return the output of `flwr list`, newest run first."""
        listed: list[dict[str, Any]] = json.loads(self.flwr("list", NAME, "--format", "json"))["runs"]
        return listed

    def flwr(self, *command: str) -> str:
        """Run a ``flwr`` command, and return its output."""
        done = subprocess.run(
            [_script("flwr"), *command],
            cwd=self.home,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=RUN,
            check=False,
        )
        return done.stdout

    def logs(self) -> str:
        """Return the last 3,000 characters of each log."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def check(self) -> None:
        """Raise FederationError if the SuperLink or a SuperNode has ended."""
        for name, process in self.processes.items():
            if name != "run" and process.poll() is not None:
                raise self.failure(f"{name} has ended: {self.errors(name)[-1]}")

    def errors(self, name: str) -> list[str]:
        """Return the first line of each error in a process's log, without Flower's exit code; at least one line."""
        plain = re.sub(r"\x1b\[\d+m", "", (self.home / f"{name}.log").read_text())
        return re.findall(r"^ERROR\s*:\s*(?:Exit Code: \d+\s*)?(.+)$", plain, re.MULTILINE) or ["no reason given"]

    def failure(self, reason: str) -> FederationError:
        """Return an error that also names the folder of the logs."""
        return FederationError(f"{reason}; logs: {self.home}")

    def end(self) -> None:
        """End all processes and their children: by SIGTERM, and after `END` seconds by SIGKILL."""
        for process in reversed(self.processes.values()):
            process.terminate()
        deadline = time.monotonic() + END
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        while left:
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            time.sleep(0.1)
            left = self._left()
        for process in self.processes.values():
            process.wait()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all processes, in which Flower installs nothing and sends no telemetry."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            MARK: self.mark,
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            **self.variables,
        }

    def _as_server(self) -> list[str]:
        """Return the SuperLink's options for TLS and authentication."""
        if self.keys is None:
            return ["--insecure"]
        files = {"ca-certfile": self.keys.ca, "certfile": self.keys.server, "keyfile": self.keys.server_key}
        return ["--enable-supernode-auth", *(f"--ssl-{option}={path}" for option, path in files.items())]

    def _as_node(self, number: int) -> list[str]:
        """Return a SuperNode's options for TLS and authentication."""
        if self.keys is None:
            return ["--insecure"]
        return [f"--root-certificates={self.keys.ca}", f"--auth-supernode-private-key={self.keys.node(number)}"]

    def _left(self) -> list[psutil.Process]:
        """Return the processes that still run and have this object's mark in their environment."""
        ending = any(process.poll() is None for process in self.processes.values())
        left = [
            each
            for each in psutil.process_iter(["status", "environ"])
            if each.info["status"] != psutil.STATUS_ZOMBIE and (each.info["environ"] or {}).get(MARK) == self.mark
        ]
        return self._left() if ending and not left else left  # one may have started another while it ended

    def _answers(self) -> bool:
        scheme, context = ("https", ssl.create_default_context(cafile=self.keys.ca)) if self.keys else ("http", None)
        try:
            with urlopen(f"{scheme}://{self.address}/health", timeout=1, context=context) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def flower(home: Path, keys: Keys | None = None) -> Iterator[Flower]:
    """Yield a `Flower` whose processes are ended on exit, also after an error."""
    started = Flower(home, keys=keys)
    try:
        yield started
    finally:
        started.end()


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _run_command(settings: Mapping[str, Value]) -> list[str]:
    return ["run", str(ROOT), NAME, "--stream", "--run-config", _toml(settings)]


def _toml(settings: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={_toml_value(value)}" for key, value in settings.items())


def _toml_value(value: Value) -> str:
    return json.dumps(value, allow_nan=False)  # also valid TOML
