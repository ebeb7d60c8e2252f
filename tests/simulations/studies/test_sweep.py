"""Sweeps: what a text stands for, which runs there are, that they go on, and that what is wrong is said before."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import StringIO
from shutil import rmtree
from threading import Event

import pytest
from fixtures.folders.run_folders import client, finish, make
from fixtures.waiting import until
from rich.console import Console

from hetfl_flwr import RoundCallback, compare, load, run, sweep
from hetfl_flwr.errors import HetflError, Interrupted, RunFolderError
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.record import rounds_written
from simulations.reports.doubts import too_short
from simulations.reports.runs import Run, group_runs, load_run, load_runs
from simulations.studies.backends import LocalBackend, run_job
from simulations.studies.jobs import Bar, Job, run_all
from simulations.studies.sweeps import check, jobs, parse_grid

SMALL = {"algorithm": "fedhe", "clients": 2, "rounds": 2, "models": "mlp", "batch-size": 20, "checkpoint-every": 1}


def run_sweep(base, grid, out, backend, console):
    wanted = jobs(base, grid, out)
    check(wanted)
    return [job.folder for job in wanted], run_all(wanted, backend, console)


@pytest.fixture
def console():
    return Console(file=StringIO(), width=300)


@pytest.fixture
def run_small():
    """Run one of the sweep by itself."""
    keys = {key.replace("-", "_"): value for key, value in SMALL.items()}
    return lambda out, **more: run(**{**keys, **more}, out=out, progress=False)


@pytest.mark.parametrize(("reached", "finished"), [(2, False), (3, True)])
def test_a_run_has_ended_when_its_summary_says_so_whatever_stands_among_its_rounds(tmp_path, reached, finished):
    folder = finish(make(tmp_path / "run"), rounds=reached)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write("no round\n" * 9)
    assert Job("run", folder, {"algorithm": "fedhe", "dataset": "digits", "rounds": 3}).finished is finished


@pytest.mark.parametrize("made", [{"learning-rate": 0.1}, {"fedhe.alpha": 0.5}, {"rounds": 4}])
def test_a_run_with_another_value_of_a_key_that_a_job_leaves_open_is_not_its_run(tmp_path, made):
    """As after ``hetfl reproduce TABLE --set learning-rate=0.1`` in the same folder."""
    folder = finish(make(tmp_path / "run", **made), rounds=made.get("rounds", 3))
    assert not Job("run", folder, {"algorithm": "fedhe", "dataset": "digits", "rounds": 3}).finished


HOW = {"start-timeout": 100.0, "node-keys": "k.toml", "round-timeout": 100.0, "state-keep": 7, "track": "prometheus"}


def test_how_a_run_is_executed_makes_no_other_run(tmp_path):
    """What a run records does, and so does every setting of the federation."""
    folders = [finish(make(tmp_path / "a")), finish(make(tmp_path / "b", seed=1, **HOW))]
    assert len(group_runs([load_run(folder) for folder in folders])) == 1
    asked = {"algorithm": "fedhe", "dataset": "digits", "rounds": 3}
    for more, finished in ((HOW, True), ({"costs": "time"}, False), ({"fraction": 0.5}, False)):
        assert Job("run", folders[0], asked | more).finished is finished


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("fedhe.alpha=0,0.5,1 seed=0:3", {"fedhe.alpha": [0, 0.5, 1], "seed": [0, 1, 2]}),
        ("seed=7,0:2 head-bias=true,false", {"seed": [7, 0, 1], "head-bias": [True, False]}),
        ('models="lenet5,mlp",mlp', {"models": ["lenet5,mlp", "mlp"]}),
        ("  dataset='./my photos', digits ", {"dataset": ["./my photos", "digits"]}),
        ("partition=dirichlet:0.3,iid", {"partition": ["dirichlet:0.3", "iid"]}),
    ],
)
def test_a_text_stands_for_values_by_key(text, grid):
    assert parse_grid(text) == grid


def test_a_run_is_called_by_its_values_and_left_with_nothing_to_guess(tmp_path):
    named = jobs({**SMALL, "seed": 9}, {"models": ["lenet5,mlp", "mlp"], "seed": [0, 1]}, tmp_path)
    assert [job.folder.name for job in named] == [
        f"models={models},seed={seed}" for models in ("lenet5+mlp", "mlp") for seed in (0, 1)
    ]
    assert [job.settings["seed"] for job in named] == [0, 1, 0, 1]
    assert named[0].settings["learning-rate"] == 0.001


@pytest.mark.slow
def test_a_sweep_is_run_once_and_goes_on(tmp_path, console, run_small):
    """A run that has ended is not run again, whoever ran it; one that was stopped ends with the bits of a whole one."""
    ended = run_small(tmp_path / "fedhe.alpha=0,seed=0", fedhe={"alpha": 0.0}).folder / "summary.json"
    stopped = run_small(tmp_path / "fedhe.alpha=0,seed=1", seed=1, fedhe={"alpha": 0}, checkpoint_every=1)
    rmtree(stopped.folder / "checkpoint" / "round-2")
    (stopped.folder / "summary.json").unlink()
    before = ended.stat().st_mtime_ns
    config = ended.with_name("config.toml")  # as of a version without this key
    config.write_text("".join(line for line in config.open() if not line.startswith("projection")))
    folders, failed = run_sweep(SMALL, {"fedhe.alpha": [0, 0.5], "seed": [0, 1]}, tmp_path, LocalBackend(2), console)
    assert failed == {}
    assert [folder.name for folder in folders] == [f"fedhe.alpha={a},seed={s}" for a in ("0", "0.5") for s in (0, 1)]
    assert ended.stat().st_mtime_ns == before
    whole = run_small(tmp_path / "whole", seed=1, fedhe={"alpha": 0})
    assert load(stopped.folder).rounds.drop(columns="seconds").equals(whole.rounds.drop(columns="seconds"))
    assert [load(folder).config["fedhe.alpha"] for folder in folders] == [0, 0, 0.5, 0.5]


def test_a_run_that_has_lost_its_config_gets_it_back(tmp_path, console, run_small, refusal):
    folder = run_small(tmp_path / "seed=0").folder
    config, rounds = (folder / "config.toml").read_text(), (folder / "rounds.jsonl").read_text()
    (folder / "config.toml").unlink()
    assert "repeat the command of its sweep" in refusal(RunFolderError, load_runs, [tmp_path])
    assert run_sweep(SMALL, {"seed": [0]}, tmp_path, LocalBackend(1), console)[1] == {}
    assert ((folder / "config.toml").read_text(), (folder / "rounds.jsonl").read_text()) == (config, rounds)


def test_a_run_that_has_lost_figures_does_not_count(tmp_path, console, run_small):
    """Its bytes are those of the rounds that are left."""
    folder = run_small(tmp_path / "seed=0", rounds=1).folder
    (folder / "rounds.jsonl").unlink()
    run(algorithm="fedhe", out=folder, resume=True, rounds=2, accept_loss=True, progress=False)
    _, failed = run_sweep(SMALL, {"seed": [0]}, tmp_path, LocalBackend(1), console)
    assert "has lost the figures of some rounds" in failed[folder].reason


@pytest.mark.parametrize(("made", "asked"), [(2, 1), (1, 2)])
def test_a_run_of_other_rounds_is_neither_taken_nor_extended(tmp_path, run_small, console, made, asked):
    """The weights of FML and CHFL, for example, follow a schedule over all rounds."""
    folder = run_small(tmp_path / "fedhe.alpha=0", rounds=made, fedhe={"alpha": 0}).folder
    _, failed = run_sweep(SMALL | {"rounds": asked}, {"fedhe.alpha": [0]}, tmp_path, LocalBackend(1), console)
    assert f"was run with rounds = {made}, not {asked}" in failed[folder].reason


@pytest.mark.parametrize(
    ("base", "grid", "said"),
    [
        ({}, {"fedhe.alfa": [0]}, "'fedhe.alfa'"),
        ({}, {"fedhe.alpha": [0, -1]}, "fedhe.alpha = -1"),
        ({}, {"seed": [0, 1, 0]}, "seed = 0"),
        ({}, {"seed": []}, "seed"),
        ({}, {"output-dir": ["a", "b"]}, "output-dir"),
        ({}, {"dataset": ["digits", "x" * 255]}, "dataset"),
        ({"models": "mlp,lenet5"}, {"algorithm": ["fedhe", "fedavg"]}, "same model"),
        ({}, {"dataset": ["digits", "./nothing"]}, "nothing"),
    ],
)
def test_what_is_wrong_is_refused_before_the_first_run(base, grid, said, tmp_path, console, refusal):
    assert said in refusal(HetflError, run_sweep, {**SMALL, **base}, grid, tmp_path / "sweep", 1, console)
    assert not (tmp_path / "sweep").exists()


def test_other_settings_in_a_run_s_place_are_refused(tmp_path, console, refusal, run_small):
    """Also where nothing is said of a key, and its default is another value than that of the run that is there."""
    run_small(tmp_path / "seed=0")
    other = {key: value for key, value in SMALL.items() if key != "batch-size"}
    said = refusal(RunFolderError, run_sweep, other, {"seed": [0, 1]}, tmp_path, 1, console)
    assert "batch-size = 20, not 50" in said
    assert [path.name for path in tmp_path.iterdir()] == ["seed=0"]


def test_a_run_of_another_algorithm_in_the_place_is_named_with_a_folder_that_is_free(tmp_path, console, refusal):
    make(tmp_path / "seed=0", algorithm="fedproto")
    said = refusal(RunFolderError, run_sweep, SMALL, {"seed": [0, 1]}, tmp_path, 1, console)
    assert "fedproto" in said
    assert f"--out {tmp_path}/fedhe" in said


def test_runs_that_were_too_short_are_counted_by_method(tmp_path):
    """Rounds 0, 1 and 3 have 10, 50 and 80 %; of the last one no more is known."""
    runs = [load_run(make(tmp_path / f"{n}", algorithm=name)) for n, name in enumerate(("fedhe", "fedhe", "local"))]
    long = [Run(**{**vars(run), "clients": [client(0, test=100)]}) for run in runs]
    level = Run(**{**vars(long[1]), "rounds": long[1].rounds[-1:]})
    assert too_short([long[0]]) == ["accuracy was still rising, by 30.0 points since round 1: more rounds may help"]
    assert "2 of 3 runs (fedhe 1, local 1)" in too_short([long[0], level, long[2]])[0]
    assert too_short([level, level]) == []


class Failing(RoundCallback):
    def round(self, entry):
        raise ValueError(str(entry.round))


def test_a_line_of_a_run_names_the_run(tmp_path, capsys):
    """What runs at the same time writes to one place."""
    settings = {**SMALL, "callbacks": f"{__name__}:Failing"}
    assert [run_job(Job(f"local seed={s}", tmp_path / str(s), {**settings, "seed": s})) for s in (0, 1)] == [None, None]
    lines = [line for line in capsys.readouterr().err.splitlines() if "Failing" in line]
    assert [line.split(": ")[1] for line in lines] == ["local seed=0", "local seed=1"]


def test_a_run_that_another_process_makes_is_waited_for_and_not_put_elsewhere(tmp_path):
    lock = FolderLock(tmp_path, run=1)
    said = run_job(Job("fedhe", tmp_path, SMALL)).reason
    lock.release()
    assert (f"process {os.getpid()} on " in said, "wait until it ends" in said, "folder" in said) == (True, True, False)


@pytest.mark.slow
def test_from_python_a_failing_run_is_named_and_the_others_are_kept(tmp_path):
    """A step size that makes all numbers infinite leaves no valid reply."""
    keys = {"clients": 2, "rounds": 1, "models": "mlp", "min_clients": 2, "progress": False}
    with pytest.raises(HetflError, match=r"learning-rate=1\d+: round 1"):
        sweep("fedhe", grid={"learning-rate": [1e30, 0.001]}, out=tmp_path, **keys)
    [kept] = sweep("fedhe", grid={"learning-rate": [0.001]}, out=tmp_path, **keys)
    assert compare([kept]).accuracy.tolist() == [kept.summary["accuracy"]]


def test_data_that_are_not_there_are_said_once(tmp_path, console):
    small: dict = {"algorithm": "fedhe", "clients": 2, "rounds": 1, "models": "mlp"}
    lacking = {"dataset": "mnist", "data-dir": str(tmp_path)}
    settings = [small | lacking, small | {"dataset": "digits"}, small | lacking]
    wanted = [Job(str(number), tmp_path / "runs" / str(number), one) for number, one in enumerate(settings)]
    failed = run_all(wanted, LocalBackend(), console)
    assert set(failed) == {wanted[0].folder, wanted[2].folder}
    lines = [line for line in console.file.getvalue().splitlines() if "holds no ylecun/mnist" in line]
    assert [line.split(":")[0] for line in lines] == ["0", "2 runs"]
    assert wanted[1].finished


class OneAtATime:
    """A backend whose runs end when they are told to stop, or die."""

    workers = 1

    def __init__(self, dies=False):
        self.dies, self.begun, self.told = dies, [], Event()

    @contextmanager
    def open(self, wanted):
        with ThreadPoolExecutor(3) as threads:
            try:
                yield partial(threads.submit, self.run)
            except BaseException:
                self.told.set()
                raise

    def run(self, job):
        self.begun.append(job)
        if self.dies:
            raise HetflError("died")
        self.told.wait(60)
        return "stopped"


@pytest.mark.parametrize("dies", [True, False])
def test_after_an_interrupt_or_where_nothing_can_run_no_further_run_begins_and_the_running_one_ends(
    tmp_path, console, monkeypatch, dies
):
    backend, wanted = OneAtATime(dies), [Job(name, tmp_path / name, {"rounds": 1}) for name in "abc"]

    def interrupted(bar, completed, **fields):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "update", interrupted)
    with pytest.raises(HetflError if dies else Interrupted, match="died" if dies else "to continue: hetfl"):
        run_all(wanted, backend, console)
    assert (backend.begun, backend.told.is_set()) == (wanted[:1], True)


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--sweep", "seed=0:2"], []], ids=["runs at a time", "workers of one run"])
def test_processes_end_at_once_and_say_nothing_when_the_command_is_killed(tmp_path, more):
    """They have begun when there are rounds; one that went on would have minutes to go."""
    command = [sys.executable, "-m", "hetfl_flwr", "run", "fedhe", "--clients=2", "--rounds=5000", "--workers=2", *more]
    with (tmp_path / "said").open("w+") as said:
        started = subprocess.Popen([*command, f"--out={tmp_path / 'out'}"], stdout=said, stderr=said)
        until(lambda: any(rounds_written(path.parent) for path in tmp_path.glob("out/**/rounds.jsonl")), started)
        children = processes_of(started.pid)
        assert len(children) >= 2
        started.kill()
        started.wait()
        until(lambda: not any(going_on(child) for child in children), seconds=20)
        said.seek(0)
        assert "Finishing this round" not in said.read()


def processes_of(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=True)
    return [int(process) for process in found.stdout.split()]


def going_on(process: int) -> bool:
    """Return whether a process runs; one whose parent has not waited for it yet does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")
