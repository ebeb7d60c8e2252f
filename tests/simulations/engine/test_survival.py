"""Processes on loopback that are killed, start late or leave, and what becomes of the run."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetfl_flwr.config import Value
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE, Checkpoint
from hetfl_flwr.runs.record import RESUME_FILE, ROUNDS_FILE, SUMMARY_FILE
from simulations.cli.running import run_one
from simulations.deployment.loopback import NAME, ROOT, Flower, flower
from simulations.testing.contract import entries

pytestmark = pytest.mark.exhaustive

PATIENCE = 600
"""Timeout in seconds of everything that a test waits for."""

FEDHE: dict[str, Value] = {"algorithm": "fedhe", "models": "mlp", "local-batches": 1, "checkpoint-every": 1}
FEDHE["dataset"] = "digits"  # in deployment it must be said


def until(true: Callable[[], object], started: Flower) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, started.logs()
        time.sleep(0.2)


def reaches(folder: Path, lines: int, started: Flower) -> None:
    """Wait until so many rounds are recorded, including the first evaluation."""
    until(lambda: (folder / ROUNDS_FILE).exists() and len(entries(folder)) >= lines, started)


def training(started: Flower, node: str) -> bool:
    """Return whether the last thing that a SuperNode said is that it has all that it is to train on.

    While it still receives, Flower (1.41) may keep a message of a run that has ended meanwhile: the node then answers
    that one, and sends the reply to the next with the one after.
    """
    _, asked, since = (started.home / f"{node}.log").read_text().rpartition("Receiving: train")
    return bool(asked) and "Received successfully" in since and "Sending:" not in since


def kill(started: Flower, name: str) -> None:
    """Kill a process and its children, which share its group, as a power failure would."""
    os.killpg(started.processes[name].pid, signal.SIGKILL)
    started.processes.pop(name).wait()


def kill_server_app(started: Flower) -> None:
    found = subprocess.run(
        ["pgrep", "-f", f"flwr-serverapp.*{started.address}"], capture_output=True, text=True, check=False
    )
    for process in found.stdout.split():
        os.kill(int(process), signal.SIGKILL)


def go_on(started: Flower, folder: Path) -> None:
    """Resume the run in a folder as the guide says."""
    started.start("run", "flwr", "run", str(ROOT), NAME, "--stream", "--run-config", str(folder / RESUME_FILE))


def test_a_killed_server_app_and_a_killed_superlink_cost_the_round_that_was_running(tmp_path):
    """Three rounds on two nodes. The ServerApp is killed in round 2 and the SuperLink in round 3, each time when a
    client is at it, and the run is started again: the end is that of a run that nothing has happened to."""
    settings = {**FEDHE, "clients": 2, "rounds": 3, "evaluate-every": 3}
    run, database = tmp_path / "run", ["--database", str(tmp_path / "link.db")]
    with flower(tmp_path / "flower") as started:
        started.superlink(*database)
        for client_id in range(2):
            started.supernode(client_id, 2, **{"state-dir": str(tmp_path / f"state-{client_id}")})
        started.start_run({**settings, "output-dir": str(run)})
        reaches(run, 2, started)
        until(lambda: training(started, "supernode-1"), started)
        kill_server_app(started)
        assert json.loads((run / SUMMARY_FILE).read_text())["rounds"] == 1
        started.processes.pop("run").kill()

        go_on(started, run)
        reaches(run, 3, started)
        until(lambda: training(started, "supernode-0"), started)
        kill(started, "superlink")
        kill_server_app(started)
        started.processes.pop("run").kill()

        started.superlink(*database)
        go_on(started, run)
        until(lambda: started.processes["run"].poll() is not None, started)
        assert started.processes["run"].returncode == 0, started.logs()
        assert started.statuses()[0] == "finished:completed", started.logs()
    whole = run_one({**settings, "output-dir": str(tmp_path / "whole")}, resume=False, workers=1, verbose=True)
    assert Checkpoint.read(run).round == 3
    assert (run / SERVER_STATE_FILE).read_bytes() == (whole / SERVER_STATE_FILE).read_bytes()
    keys = ("round", "accuracy", "clients", "failures", "bytes_up", "bytes_down")
    assert [[entry[key] for key in keys] for entry in entries(run)] == [
        [entry[key] for key in keys] for entry in entries(whole)
    ]


def test_nodes_that_are_killed_come_late_and_leave(tmp_path):
    """Of three clients two begin. The third comes in round 1 and takes part from then on; client 1 is killed while it
    trains in its turn, and comes back with its state; the third leaves, and the two go on to the end."""
    run = tmp_path / "run"

    def node(client_id: int) -> None:
        started.supernode(client_id, 3, **{"state-dir": str(tmp_path / f"state-{client_id}")})

    def trained(entry: dict[str, Any]) -> list[str]:
        return [client for client, values in entry["clients"].items() if "train-loss" in values]

    lasting: dict[str, Value] = {"rounds": 40, "evaluate-every": 40, "output-dir": str(run)}
    with flower(tmp_path / "flower") as started:
        started.superlink()
        node(0)
        node(1)
        started.start_run({**FEDHE, "clients": 3, "start-clients": 2, **lasting})
        reaches(run, 1, started)
        node(2)
        until(lambda: "2" in trained(entries(run)[-1]), started)
        until(lambda: training(started, "supernode-1"), started)
        killed = len(entries(run))
        kill(started, "supernode-1")
        node(1)
        until(lambda: len(entries(run)) > killed and "1" in trained(entries(run)[-1]), started)
        back = len(entries(run)) - 1
        started.processes["supernode-2"].terminate()
        until(lambda: any("has left" in str(entry["failures"]) for entry in entries(run)[back:]), started)
        reached = len(entries(run))
        started.flwr("stop", str(started.runs()[0]["run-id"]), NAME)
        until(lambda: json.loads((run / SUMMARY_FILE).read_text())["rounds"] >= reached - 1, started)
        assert started.statuses()[0] == "finished:stopped"
    told = entries(run)
    joined = next(entry["round"] for entry in told if "2" in trained(entry))
    assert joined >= 2
    assert all("2" in trained(entry) for entry in told[joined:back])
    assert "1" not in trained(told[killed])
    reasons = [failure["reason"] for entry in told for failure in entry["failures"]]
    assert any(reason.startswith("client 1 (mlp): ") for reason in reasons)
    assert not any("without its state" in reason for reason in reasons)
    assert [entry["round"] for entry in told] == list(range(len(told)))
    assert len(told) >= reached
    summary = json.loads((run / SUMMARY_FILE).read_text())
    assert summary["rounds"] == told[-1]["round"]
    assert summary["bytes_up"] == sum(entry["bytes_up"] for entry in told)
