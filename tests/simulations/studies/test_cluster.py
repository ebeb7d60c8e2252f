"""Runs on a Ray cluster of two machines, both on loopback: the same bits as here, and nothing lost with a machine."""

from io import StringIO
from threading import Timer

import pytest
from conftest import RAY_MEMORY
from rich.console import Console
from typer.testing import CliRunner

from hetfl_flwr.errors import ConfigError, HetflError
from hetfl_flwr.runs.record import SERVER_STATE_FILE, read_rounds
from simulations.cli.command import app
from simulations.studies import backends
from simulations.studies.backends import BACKENDS, LocalBackend, RayBackend, backend
from simulations.studies.jobs import Job, run_all

SMALL = {"algorithm": "fedhe", "clients": 2, "models": "mlp", "batch-size": 20, "checkpoint-every": 1}


@pytest.fixture(scope="module")
def first(machines):
    return machines.add_node(num_cpus=1, object_store_memory=RAY_MEMORY)


@pytest.fixture
def two(machines, first):
    second = machines.add_node(num_cpus=1, object_store_memory=RAY_MEMORY)
    yield second
    if second in machines.worker_nodes:
        machines.remove_node(second)


@pytest.fixture
def reached(machines, monkeypatch):
    """`RAY_ADDRESS` names the cluster."""
    monkeypatch.setenv("RAY_ADDRESS", machines.address)


@pytest.fixture
def console():
    return Console(file=StringIO(), width=300)


def a_run(folder, seed=0, **more):
    return Job(f"seed {seed}", folder / f"seed-{seed}", {**SMALL, "rounds": 3, "seed": seed, **more})


def outcome(job):
    state = (job.folder / SERVER_STATE_FILE).read_bytes()
    return state, [(entry.round, entry.accuracy) for entry in read_rounds(job.folder)]


@pytest.mark.exhaustive
def test_a_cluster_of_two_gives_the_bits_of_this_machine(tmp_path, reached, two, console):
    there, here = ([a_run(tmp_path / name, seed) for seed in range(3)] for name in ("there", "here"))
    assert run_all(there, RayBackend(2), console) == {}
    assert run_all(here, LocalBackend(2), console) == {}
    assert [outcome(job) for job in there] == [outcome(job) for job in here]
    assert all(job.finished for job in there)


@pytest.mark.exhaustive
def test_what_a_lost_machine_had_goes_on_elsewhere_from_its_checkpoint(
    tmp_path, machines, reached, two, console, capsys
):
    wanted = [a_run(tmp_path / "there", seed, rounds=150, **{"evaluate-every": 100}) for seed in range(2)]
    alone = [a_run(tmp_path / "here", seed, rounds=150, **{"evaluate-every": 100}) for seed in range(2)]
    lost = []

    def lose():
        if all(job.done for job in wanted):
            lost.append([job.done for job in wanted])
            machines.remove_node(two, allow_graceful=False)
        else:
            later()

    def later():
        timer = Timer(0.5, lose)
        timer.daemon = True
        timer.start()

    later()
    assert run_all(wanted, RayBackend(2), console) == {}
    assert lost
    assert all(done < 150 for done in lost[0])
    said = [line for line in capsys.readouterr().err.splitlines() if "was lost" in line]
    assert len(said) == 1
    assert int(said[0].rpartition(" ")[2]) > 0
    assert run_all(alone, LocalBackend(2), console) == {}
    assert [outcome(job) for job in wanted] == [outcome(job) for job in alone]


@pytest.mark.exhaustive
def test_another_version_on_a_machine_is_refused(tmp_path, reached, first, console, refusal, monkeypatch):
    monkeypatch.setattr(backends, "version", lambda name: "0.0.1")
    said = refusal(HetflError, run_all, [a_run(tmp_path)], RayBackend(1), console)
    assert "0.0.1" in said


@pytest.fixture
def asked_for(monkeypatch):
    """What a backend called ray is asked for; its runs happen here."""
    workers = []

    def backend(count):
        workers.append(count)
        return LocalBackend(count)

    monkeypatch.setitem(BACKENDS, "ray", backend)
    return workers


OF_DIGITS = ["--clients", "2", "--rounds", "1", "--set", "models=mlp", "--set", "local-batches=1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["run", "fedhe", *OF_DIGITS, "--sweep", "seed=0:1"],
        ["run", "fedhe", *OF_DIGITS, "--against", "local"],
        ["tune", "fedhe", *OF_DIGITS, "--trials", "1"],
        ["reproduce", "fedhe-table3", "--quick", "--only", "FedAvg"],
    ],
    ids=lambda command: command[0] + command[-2],
)
def test_each_command_that_makes_many_runs_makes_them_where_it_is_told(tmp_path, asked_for, command):
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out"), "--on", "ray", "--workers", "2"])
    assert done.exit_code == 0, done.output
    assert asked_for == [2]


def test_one_run_has_no_backend_and_the_moon_none(tmp_path, refusal):
    done = CliRunner().invoke(app, ["run", "fedhe", "--on", "ray", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, ConfigError)
    assert "moon" in refusal(ConfigError, backend, "moon", 1)
