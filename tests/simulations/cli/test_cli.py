"""The `hetfl` command: exit status, one line for each mistake, nothing left behind, nothing lost."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from fixtures.tiers import exhaustive
from fixtures.waiting import until

from clients.fedhe import FedHeClient
from hetfl_flwr.__main__ import main as installed
from hetfl_flwr.config import read_toml
from hetfl_flwr.methods import find
from simulations.engine.run import run_locally

COMMAND = [sys.executable, "-c", "from simulations.cli.command import main; main()"]
SMALL = ("--clients", "2", "--rounds", "2", "--set", "models=mlp", "--set", "batch-size=20")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory: an empty one."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two rounds, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    keys = {"clients": 2, "rounds": 2, "models": "mlp", "batch-size": 20}
    return run_locally({**keys, "algorithm": "fedhe", "output-dir": str(folder)}, verbose=False)


@pytest.fixture
def there(finished, here):
    """The working directory, with that run in it."""
    shutil.copytree(finished, here / "run")
    return here


def start(folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own; what it prints goes to files of the folder."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)], stdout=out, stderr=err, env=environment, start_new_session=True
        )


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C: the whole process group hears it."""
    os.killpg(process.pid, signal.SIGINT)


def entries(run: Path) -> list[dict]:
    """The rounds that are written, without how long they took."""
    path = run / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [{**json.loads(line), "seconds": None} for line in lines if line.endswith("\n")]


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_run_is_shown_and_written_and_needs_no_terminal(hetfl, here):
    done = hetfl("run", "fedhe", *SMALL)
    assert done.status == 0
    assert "\x1b" not in done.out + done.err
    assert done.err == ""
    [run] = (here / "runs").iterdir()
    assert f"results: {run}" in done.out
    names = {"config.toml", "rounds.jsonl", "summary.json", "clients.json", "knowledge.safetensors"}
    assert names <= {path.name for path in run.iterdir()}
    assert list(here.rglob("*.png")) == []
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["algorithm"], summary["engine"], summary["rounds"]) == ("fedhe", "local", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedhe", *SMALL, "--out", "run"], "--resume"),
        (["fedhe", *SMALL, "--out", "file/run"], "file/run"),
        (["fedhe", "--dataset", "digitz", "--out", "own"], "digitz"),
        (["fedhe", *SMALL, "--out", "empty", "--resume"], "empty"),
        (["fedhe", "--out", "run", "--resume", "--seed", "3"], "seed = 0, not 3"),
        (["fedhe", "--out", "run", "--resume", "--rounds", "1"], "round 2"),
        (["local", "--out", "run", "--resume"], "algorithm = 'fedhe', not 'local'"),
        (["fedhe", "--out", "run", "--resume", "--set", "fedhe.alpha=2"], "fedhe.alpha = 1.0, not 2"),
    ],
)
def test_a_run_that_is_there_is_not_touched_by_a_refused_one(arguments, said, hetfl, there):
    (there / "empty").mkdir()
    (there / "own").mkdir()
    for name in ("file", "own/notes.txt"):
        (there / name).write_text("mine")
    before = contents(there)
    done = hetfl("run", *arguments)
    assert (done.refused, done.out, said in done.err) == (True, "", True)
    assert contents(there) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "run", "--out", "run/rounds.jsonl"),
        ("compare", "run", "--out", "run/summary.json"),
        ("partition", "--clients", "2", "--out", "run/config.toml"),
        ("partition", "--clients", "2", "--out", "run/checkpoint/split.png"),
        ("run", "fedhe", *SMALL, "--out", "run/checkpoint"),
        ("run", "fedhe", *SMALL, "--out", "run/checkpoint/round-2/new"),
        ("run", "fedhe", *SMALL, "--sweep", "seed=0,1", "--out", "run/checkpoint"),
        ("keys", "--host", "localhost", "--out", "run/checkpoint"),
        ("reproduce", "fedhe-table3", "--quick", "--out", "run/checkpoint"),
        ("report", "run", "--out", "link.html"),
    ],
)
def test_nothing_is_written_over_a_run_s_own_files(arguments, hetfl, there):
    (there / "link.html").symlink_to(there / "run" / "rounds.jsonl")
    before = contents(there)
    done = hetfl(*arguments)
    assert (done.refused, arguments[-1] in done.err) == (True, True)
    assert contents(there) == before


def test_too_few_clients_is_status_1_and_keeps_what_was_reached(hetfl, here, monkeypatch):
    learn = FedHeClient.learn

    def broken(self, download, round):
        if round == 2:
            raise OSError("no\nspace")
        return learn(self, download, round)

    monkeypatch.setattr(FedHeClient, "learn", broken)
    done = hetfl("run", "fedhe", *SMALL, "--out", "run")
    assert done.status == 1
    assert "Traceback" not in done.err
    assert f"OSError: no space ({Path(__file__)}, line " in done.err.splitlines()[-1]
    assert [len(entry["failures"]) for entry in entries(here / "run")] == [0, 0, 2]
    assert json.loads((here / "run" / "summary.json").read_text())["accuracy"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, exhaustive(2)])
def test_ctrl_c_finishes_the_round_and_the_resumed_run_equals_the_uninterrupted_one(workers, hetfl, here, tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    settings = ("--clients", 2, "--set", "models=mlp,lenet5", "--set", "checkpoint-every=0")
    process = start(
        tmp_path, "run", "fedhe", *settings, "--rounds", 5000, "--workers", workers, "--set", f"output-dir={stopped}"
    )
    until(lambda: len(entries(stopped)) > 2, process)
    interrupt(process)
    assert process.wait(300) == 1
    err = (tmp_path / "err").read_text()
    assert err.endswith(f"stopped; to continue: hetfl run fedhe --out {stopped} --resume\n")
    assert "Traceback" not in err
    assert "\x1b" not in err + (tmp_path / "out").read_text()

    reached = entries(stopped)[-1]["round"]
    assert json.loads((stopped / "summary.json").read_text())["rounds"] == reached
    assert hetfl("run", "fedhe", "--out", stopped, "--resume", "--rounds", reached + 2).status == 0
    assert hetfl("run", "fedhe", *settings, "--out", whole, "--rounds", reached + 2).status == 0
    assert len(entries(whole)) == reached + 3
    assert entries(stopped) == entries(whole)
    for name in ("knowledge.safetensors", "clients.json"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
    assert read_toml(stopped / "config.toml") == read_toml(whole / "config.toml")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_keeps_what_was_reached(here, tmp_path):
    """A round of a hundred thousand batches would take minutes."""
    run = tmp_path / "run"
    process = start(tmp_path, "run", "fedhe", *SMALL, "--set", "local-batches=100000", "--out", run)
    until(lambda: len(entries(run)) == 1, process)
    time.sleep(1)  # between two rounds a first Ctrl-C ends the run; this one is to hit the round itself
    interrupt(process)
    until(lambda: b"again to stop" in (tmp_path / "err").read_bytes(), process)
    time.sleep(0.2)
    assert process.poll() is None
    interrupt(process)
    assert process.wait(60) == 1
    assert (tmp_path / "err").read_text().endswith(f"hetfl run fedhe --out {run} --resume\n")
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert json.loads((run / "summary.json").read_text())["rounds"] == 0


@pytest.mark.parametrize("at", ["hetfl_flwr.__main__.import_module", "simulations.cli.running.show_run"])
def test_a_ctrl_c_during_imports_or_after_the_last_round_ends_in_one_line(here, monkeypatch, capfd, at):
    """Where no round is running, which it would let finish."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(at, interrupted)
    monkeypatch.setattr(sys, "argv", ["hetfl", "run", "fedhe", *SMALL, "--rounds", "1", "--out", "run"])
    with pytest.raises(SystemExit) as ended:
        installed()
    assert ended.value.code == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("hetfl: interrupted")


@pytest.mark.parametrize(
    ("arguments", "at"),
    [
        ("tune fedhe --out 'my tuning'", "studies.tuning.usual_space"),
        ("reproduce all", "studies.backends.backend"),
        ("run fedhe --out many --sweep seed=0:2", "studies.sweeps.check"),
        ("run fedhe --out many --against local", "cli.running.compare"),
        ("audit run", "audit.report.audited"),
    ],
)
def test_a_ctrl_c_at_any_time_says_that_the_same_command_continues(hetfl, monkeypatch, at, arguments):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("simulations.studies.jobs.run_all", lambda *_: {})
    monkeypatch.setattr(f"simulations.{at}", interrupted)
    done = hetfl(*shlex.split(arguments))
    assert (done.status, done.err) == (1, f"stopped; to continue: hetfl {arguments}\n")


def test_a_recipe_gives_what_the_command_line_does_not(hetfl, here):
    """By name or by path; `--set` and options win over it."""
    done = hetfl("run", "fedhe", "--recipe", "fedhe-digits", *SMALL, "--out", "named")
    assert done.status == 0
    config = tomllib.loads((here / "named" / "config.toml").read_text())
    assert (config["dataset"], config["rounds"], config["clients"], config["models"]) == ("digits", 2, 2, "mlp")

    (here / "own.toml").write_text('seed = 4\nrounds = 1\nclients = 2\nmodels = "mlp"\n[fedhe]\nalpha = 0.25\n')
    assert hetfl("run", "fedhe", "--recipe", "own.toml", "--seed", 5, "--out", "own").status == 0
    config = tomllib.loads((here / "own" / "config.toml").read_text())
    assert (config["seed"], config["rounds"]) == (5, 1)
    assert config["fedhe"] == find("fedhe").defaults | {"alpha": 0.25}


def test_a_folder_holds_one_run_or_several_and_not_both(hetfl, tmp_path):
    """Else a comparison of the folder would show the one and pass over the others."""
    small = ["--clients", "2", "--rounds", "1", "--set", "models=mlp", "--set", "local-batches=1"]
    assert hetfl("run", "local", *small, "--out", tmp_path / "s" / "one").status == 0
    over, into = (
        hetfl("run", "local", *small, "--out", tmp_path / "s"),
        hetfl("run", "local", *small, "--sweep", "seed=0:2", "--out", tmp_path / "s" / "one"),
    )
    assert (over.status, into.status) == (2, 2)
    assert f"holds runs in subfolders, such as {tmp_path}/s/one" in over.err
    assert f"{tmp_path}/s/one holds a run" in into.err
