"""Flower's own processes around one SuperLink: SuperNodes and the ``flwr`` command, each ended by its id."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from hetfl_flwr.config import Value

ROOT = Path(__file__).parents[2]
"""Where the app's pyproject.toml lies: this needs a checkout."""

START, RUN, END = 60, 900, 20
"""Seconds that a server may take to start, a run to finish, and a process to end when asked to."""


@dataclass
class Flower:
    """One SuperLink with a FLWR_HOME of its own, and all that is started around it.

    Parameters
    ----------
    home : Path
        FLWR_HOME, working directory of the servers, and where their logs are written.
    """

    home: Path
    address: str = field(default_factory=lambda: f"127.0.0.1:{_free_port()}")
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def superlink(self, *options: str) -> None:
        """Start the SuperLink and wait until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(f'[superlink.tested]\naddress = "{self.address}"\ninsecure = true\n')
        host, _, port = self.address.partition(":")
        self.start("superlink", "flower-superlink", "--insecure", "--host", host, "--port", port, *options)
        deadline = time.monotonic() + START
        while not self._answers():
            if time.monotonic() > deadline or self.processes["superlink"].poll() is not None:
                raise RuntimeError(f"the SuperLink does not answer:\n{self.logs()}")
            time.sleep(0.1)

    def supernode(self, partition: int, partitions: int, **settings: Value) -> None:
        """Start the SuperNode of one client with its own settings, and do not wait for it."""
        settings = {"partition-id": partition, "num-partitions": partitions, **settings}
        ports = ["--superlink", self.address, "--port", str(_free_port())]
        options = ["--insecure", *ports, "--node-config", _toml(settings)]
        self.start(f"supernode-{partition}", "flower-supernode", *options)

    def start(self, name: str, *command: str) -> None:
        """Start a process that goes on, with a log of its own, leading a process group of its own."""
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
        """Run the app to its end, good or bad, and return what was printed."""
        return self.flwr("run", str(ROOT), "tested", "--stream", "--run-config", _toml(settings), *options)

    def statuses(self) -> list[str]:
        """Return what `flwr list` says of the runs, newest first."""
        return [run["status"] for run in json.loads(self.flwr("list", "tested", "--format", "json"))["runs"]]

    def flwr(self, *command: str) -> str:
        """Run the ``flwr`` command."""
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
        """Return the ends of all logs, for whoever asks why."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def end(self) -> None:
        """End all that was started: asked first, then by force."""
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(END)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all processes: Flower's scripts are found, nothing is installed and nothing reported."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://{self.address}/health", timeout=1) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def flower(home: Path) -> Iterator[Flower]:
    """Give a Flower whose processes are ended on leaving, also after a failure."""
    started = Flower(home)
    try:
        yield started
    finally:
        started.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _toml(settings: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
