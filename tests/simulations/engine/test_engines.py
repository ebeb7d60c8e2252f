"""The same config and seed give the same bits in every engine: client results, server state and byte counts.

The reference is the local engine with one worker.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RAY_MEMORY
from fixtures.folders.reached import clients_of, server_state, summary_of
from fixtures.tiers import complete, exhaustive
from threadpoolctl import threadpool_limits

from hetfl_flwr.config import Value
from hetfl_flwr.methods import names
from hetfl_flwr.runs.record import ROUNDS_FILE, SUMMARY_FILE
from simulations.cli.running import run_one
from simulations.deployment.loopback import ROOT, Flower, flower
from simulations.testing.contract import entries

CLIENTS = 4
MODELS = ("mlp", "lenet5", "fedhe:5")

FEDHE: dict[str, Value] = {"algorithm": "fedhe", "models": ",".join(MODELS), "rounds": 3, "batch-size": 20}
FEDHE["dataset"] = "digits"  # in deployment it must be said
PRIVATE: dict[str, Value] = {"payload-precision": "half", "clipping-norm": 20.0, "noise-multiplier": 0.01}
DRAWN: dict[str, Value] = {**FEDHE, **PRIVATE, "fraction": 0.5, "partition": "dirichlet:0.5", "seed": 3}
FEDAVG: dict[str, Value] = {"algorithm": "fedavg", "models": "mlp", "rounds": 2, "batch-size": 20}
FEDAVG["dataset"] = "digits"

PAYLOAD = ("round", "accuracy", "global_accuracy", "bytes_up", "bytes_down", "clients", "failures")
"""Keys of a round that are equal in every engine. ``clients`` holds each client's accuracy, loss and training loss."""

IDS = (64 - 36) + 2 * 9 + 3 + 2
"""Bytes by which a message's size may differ, all from ids in its metadata: the id of the message replied to is a UUID
(36 characters) or a hash (64), two task ids take 1 to 10 bytes, three node and run ids 9 or 10, and two lengths around
them may take one more."""


def local(folder: Path, settings: dict[str, Value], workers: int = 1) -> Path:
    chosen = {"clients": CLIENTS, **settings, "output-dir": str(folder)}
    return run_one(chosen, resume=False, workers=workers, verbose=True)


def assert_same_bits(folder: Path, reference: Path) -> None:
    for found, expected in zip(entries(folder), entries(reference), strict=True):
        assert {key: found[key] for key in PAYLOAD} == {key: expected[key] for key in PAYLOAD}
        for key in ("wire_up", "wire_down"):
            assert abs(found[key] - expected[key]) <= IDS * CLIENTS
    assert server_state(folder) == server_state(reference)


@pytest.mark.slow
@pytest.mark.usefixtures("spawned_workers")
@pytest.mark.parametrize(("settings", "workers"), [exhaustive(DRAWN, 3), (FEDAVG, 2)], ids=["fedhe", "fedavg"])
def test_the_number_of_workers_changes_no_bit(tmp_path, settings, workers):
    """Four clients are divided unevenly among three workers, and a round with two of them may leave a worker idle."""
    assert_same_bits(local(tmp_path / "many", settings, workers), local(tmp_path / "one", settings))


def test_the_number_of_cores_changes_no_bit(tmp_path):
    """NumPy's products of matrices have one thread for each core, and other bits with other numbers of threads."""
    many, one = tmp_path / "many", tmp_path / "one"
    for folder, threads in ((many, 4), (one, 1)):
        with threadpool_limits(threads, "blas"):
            local(folder, {"algorithm": "fedhenn", **TWO_ROUNDS})
    assert_same_bits(many, one)


def test_another_seed_gives_other_bits(tmp_path):
    """The comparison can fail: it does not compare constants."""
    with pytest.raises(AssertionError):
        assert_same_bits(local(tmp_path / "1", {**DRAWN, "seed": 4}), local(tmp_path / "0", DRAWN))


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Start a SuperLink that simulates nodes with Ray, on two processors.

    The status of its runs is read once, after all of them, as each call of ``flwr`` takes seconds.
    """
    with flower(tmp_path_factory.mktemp("ray")) as started:
        started.superlink("--simulation")
        yield started
        assert set(started.statuses()) == {"finished:completed"}


OF_A_KIND = ("feddf", "fedh2l", "fedkd", "fedproto")
"""One algorithm for each kind of payload: pools with and without labels, and varying sizes."""


TWO_ROUNDS: dict[str, Value] = {"rounds": 2, "batch-size": 20, "partition": "classes:6"}
POOLED: dict[str, Value] = {"algorithm": "local", "rounds": 2, "batch-size": 20, "pooled": True}
POOLED["dataset"] = "breast-cancer"
OTHERS = [name for name in names() if name not in ("fedhe", "fedavg", *OF_A_KIND)]


def each_algorithm() -> list[Any]:
    """Return a run of every algorithm with its default models, and one with all data in one place."""
    kinds = [exhaustive({"algorithm": name, **TWO_ROUNDS}) for name in OF_A_KIND]
    others = [complete({"algorithm": name, **TWO_ROUNDS}) for name in OTHERS]
    return [DRAWN, exhaustive(FEDAVG), *kinds, *others, complete(POOLED)]


RUNS = """
import json, sys
from simulations.cli.running import run_one
for settings in json.loads(sys.argv[1]):
    run_one(settings, resume=False, workers=1, verbose=True)
"""


@pytest.mark.exhaustive
def test_another_interpreter_gives_the_same_bits(tmp_path):
    """Hashes of strings differ in it, and so does the order of sets. CI does not run these algorithms on Ray."""
    here, there = ({name: tmp_path / kind / name for name in OTHERS} for kind in ("here", "there"))
    each = [
        {"algorithm": name, **TWO_ROUNDS, "clients": CLIENTS, "output-dir": str(folder)}
        for name, folder in there.items()
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", RUNS, json.dumps(each)], env=variables, check=True, timeout=900)
    for name, folder in here.items():
        assert_same_bits(there[name], local(folder, {"algorithm": name, **TWO_ROUNDS}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    each_algorithm(),
    ids=lambda settings: settings["algorithm"],
)
def test_ray_gives_the_bits_of_the_local_engine(ray, tmp_path, settings):
    """Clients of FedHe and FedAvg run in either of two processes, those of other algorithms in one."""
    folder, each = tmp_path / "ray", 1 if settings in (DRAWN, FEDAVG) else 2
    nodes = f"num-supernodes={CLIENTS} client-resources-num-cpus={each} init-args-num-cpus=2"
    said = ray.run({**settings, "output-dir": str(folder)}, "--federation-config", nodes)
    assert (folder / SUMMARY_FILE).exists(), said
    assert summary_of(folder)["engine"] == "simulation"
    assert_same_bits(folder, local(tmp_path / "local", settings))


@pytest.mark.exhaustive
def test_two_machines_give_the_bits_of_the_local_engine(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    for _ in range(2):
        machines.add_node(num_cpus=1, object_store_memory=RAY_MEMORY)
    nodes = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
    with flower(tmp_path) as started:
        started.superlink("--simulation")
        said = started.run({**FEDAVG, "output-dir": str(tmp_path / "ray")}, "--federation-config", nodes)
        assert (tmp_path / "ray" / SUMMARY_FILE).exists(), said
    assert_same_bits(tmp_path / "ray", local(tmp_path / "local", FEDAVG))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Start a SuperLink and three SuperNodes with different models; the second keeps its state on disk.

    Between two messages, the nodes keep their imports, everything, and nothing.
    """
    with flower(tmp_path_factory.mktemp("flower")) as started:
        started.superlink()
        for client_id, model in enumerate(MODELS):
            on_disk = {"state-dir": str(started.home / "state")} if client_id == 1 else {}
            started.keep = ("fork", "resident", "")[client_id]
            started.supernode(client_id, len(MODELS), model=model, **on_disk)
        yield started


def both(deployed: Flower, folder: Path, **keys: Value) -> tuple[Path, Path]:
    """Run FedHe in the deployment and in the local engine, with the nodes' models."""
    settings: dict[str, Value] = {**FEDHE, **PRIVATE, "clients": len(MODELS), **keys}
    there = {key: value for key, value in settings.items() if key != "models"}
    said = deployed.run({**there, "output-dir": str(folder / "deployed")})
    assert deployed.statuses()[0] == "finished:completed", said + deployed.logs()
    return folder / "deployed", local(folder / "local", settings)


@pytest.mark.exhaustive
def test_deployment_gives_the_bits_of_the_local_engine(deployed, tmp_path):
    """Noise depends on the seed only if asked for."""
    there, here = both(deployed, tmp_path, **{"noise-source": "seed", "rounds": 2})
    assert summary_of(there)["engine"] == "deployment"
    kept = [path.name for path in (deployed.home / "state").glob("run-*/*.safetensors")]
    assert sorted(kept) == ["client-1.safetensors"]
    assert_same_bits(there, here)


@pytest.mark.exhaustive
def test_in_deployment_noise_is_not_the_seed_s_unless_that_is_asked_for(deployed, tmp_path):
    """Everything else is equal, as the previous test shows. Before the round, only one client is measured."""
    there, here = both(deployed, tmp_path, **{"rounds": 1, "local-batches": 1, "evaluate-fraction": 0.1})
    assert server_state(there) != server_state(here)


@pytest.mark.exhaustive
def test_in_deployment_a_slow_node_holds_nobody_up(tmp_path, monkeypatch):
    """Node 2 does not finish its first batch before the server has written down rounds 0, 1 and 2. Of the nine uploads
    of three rounds it has sent one; the others went on meanwhile. A callback of a user's is told of every round."""
    run = tmp_path / "run"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("WAIT_FOR", str(run / ROUNDS_FILE))
    monkeypatch.setenv("LINES", "3")
    with flower(tmp_path / "flower") as started:
        started.superlink()
        for client_id, model in enumerate(["mlp", "mlp", "fixtures.models:waiting"]):
            started.supernode(client_id, 3, model=model)
        settings: dict[str, Value] = {"algorithm": "fedhe", "fedhe.mode": "async", "rounds": 3, "local-batches": 1}
        settings["callbacks"] = "fixtures.callbacks:Lines"
        said = started.run({**settings, "clients": 3, "dataset": "digits", "evaluate-every": 3, "output-dir": str(run)})
        assert started.statuses()[0] == "finished:completed", said + started.logs()
    sent = [client["bytes_up"] // 480 for client in clients_of(run)]
    assert sum(sent) == 9
    assert sent[2] == 1
    assert sum(len(entry["failures"]) for entry in entries(run)) == 0
    seconds = [entry["seconds"] for entry in entries(run)]
    assert sum(seconds[:3]) < 500  # node 2 would have held them up for 600
    told = [f"{entry['round']} {entry['accuracy']}" for entry in entries(run)]
    assert (run / "lines.txt").read_text().splitlines() == ["begin None", *told, "end None"]
