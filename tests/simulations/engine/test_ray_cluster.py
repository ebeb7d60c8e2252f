"""Flower's simulation on a Ray cluster of two machines, both on loopback: the same bits, and what a lost one costs."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_engines import assert_same_bits, local

from hetfl_flwr.config import Value
from hetfl_flwr.runs.record import RESUME_FILE, ROUNDS_FILE, SUMMARY_FILE
from simulations.deployment.flower import NAME, ROOT, Flower, flower

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CLIENTS = 4
FEDHE: dict[str, Value] = {"algorithm": "fedhe", "models": "mlp", "rounds": 2, "batch-size": 20, "dataset": "digits"}
NODES = ("--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1")
SPACE = 80 * 2**20


@pytest.fixture
def machines() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": SPACE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=SPACE)
    yield cluster
    cluster.shutdown()


def test_two_machines_give_the_bits_of_the_local_engine(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    with flower(tmp_path) as started:
        started.superlink("--simulation")
        said = started.run({**FEDHE, "output-dir": str(tmp_path / "ray")}, *NODES)
        assert (tmp_path / "ray" / SUMMARY_FILE).exists(), said
    assert_same_bits(tmp_path / "ray", local(tmp_path / "local", FEDHE))


def test_a_run_that_loses_a_machine_says_so_and_goes_on_with_the_other(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    settings = {**FEDHE, "rounds": 100, "checkpoint-every": 1, "state-dir": str(tmp_path / "state")}
    folder = tmp_path / "ray"
    with flower(tmp_path) as started:
        started.superlink("--simulation")
        started.start_run({**settings, "output-dir": str(folder)}, *NODES)
        until(lambda: written(folder) > 3, started)
        machines.remove_node(list(machines.worker_nodes)[-1], allow_graceful=False)
        until(lambda: started.processes["run"].poll() is not None, started)
        before = written(folder)
        assert 3 < before <= 100
        assert json.loads((folder / SUMMARY_FILE).read_text())["rounds"] == before - 1
        assert (
            f"go on from the last checkpoint: flwr run --run-config {folder / RESUME_FILE}"
            in (tmp_path / "run.log").read_text()
        )
        said = started.flwr("run", str(ROOT), NAME, "--stream", "--run-config", str(folder / RESUME_FILE), *NODES)
        assert json.loads((folder / SUMMARY_FILE).read_text())["rounds"] == 100, said
    assert f"round={before}/100" in said
    assert f"round={before - 1}/100" not in said
    assert_same_bits(folder, local(tmp_path / "local", {**settings, "state-dir": ""}))


def written(folder: Path) -> int:
    """Return how many rounds are written down, round 0 among them."""
    path = folder / ROUNDS_FILE
    return len(path.read_text().splitlines()) if path.exists() else 0


def until(true: Callable[[], object], started: Flower) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, started.logs()
        time.sleep(0.2)
