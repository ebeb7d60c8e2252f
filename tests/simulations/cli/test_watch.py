"""``hetfl watch``: a run that goes on, that has ended, and that was stopped."""

import fcntl
import json
import os
import re
import shlex
import socket
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from shutil import rmtree
from threading import Timer

import pytest
from fixtures.folders.run_folders import summarize
from flwr.common.config import parse_config_args
from rich.console import Console
from typer.testing import CliRunner

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import Failure, RunFolderError
from hetfl_flwr.runs.lock import LOCK_FILE, writer_of
from hetfl_flwr.runs.record import Round
from simulations.cli.command import app
from simulations.reports import watching
from simulations.reports.runs import load_run
from simulations.reports.watching import RunState, standing


@pytest.fixture
def run(make_config, run_federation):
    """A run of three rounds, the first one with a failure."""
    folder = run_federation(make_config(clients=2, rounds=3, evaluate_every=1))
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    first = json.loads(lines[1])
    first["failures"] = [{"partition": 1, "stage": "train", "reason": "ran out of memory", "node": 7}]
    lines[1] = json.dumps(first)
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    summarize(folder)
    return folder


def hold(folder, process=None, host=None):
    who = f"process {process or os.getpid()} on {host or socket.gethostname()}"
    (folder / LOCK_FILE).write_text(f"{who} since 2026-01-02 03:04:05 (run 7)\n")


@contextmanager
def held(folder):
    """This process holds the folder, as `FolderLock` does."""
    hold(folder)
    with (folder / LOCK_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_lock_that_names_nobody_is_held_by_whoever_holds_it(tmp_path):
    """As one that an older version has left, or that a full disk has cut."""
    for content in ('{"host": "here", "pid": 7}', ""):
        (tmp_path / LOCK_FILE).write_text(content)
        assert writer_of(tmp_path) == ""
        with (tmp_path / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert writer_of(tmp_path) == (content or "another process")


def cut(folder, rounds):
    """As if it had been stopped after so many rounds."""
    for place in (folder / "checkpoint").glob("round-*"):
        if int(place.name.removeprefix("round-")) > rounds:
            rmtree(place)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines[: rounds + 1]))
    summarize(folder)


def watch(folder, *arguments):
    done = CliRunner().invoke(app, ["watch", str(folder), *arguments])
    return done.exit_code, done.output


def test_a_run_that_has_ended_is_said_in_full_and_ends_the_command(run):
    status, said = watch(run)
    assert status == 0
    [line] = said.splitlines()
    assert line.startswith(f"{run.name}: round 3 of 3, accuracy ")
    assert line.endswith(", 1 failure, ended")
    whole = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(whole.replace('{"round": 2,', "{", 1))
    assert watch(run)[0] == 0  # also if a line is damaged
    assert "line 3 is damaged" in watch(run, "--once")[1]
    (run / "rounds.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(RunFolderError, match="rounds"):  # no more "stopped; to continue"
        standing(run)
    (run / "rounds.jsonl").write_text(whole)
    status, said = watch(run, "--once")
    assert "round 1: ran out of memory" in said
    rows = [text.split() for text in said.splitlines()]
    assert [(row[0], row[-3], row[-1]) for row in rows if row and row[0] in ("0", "1")] == [
        ("1", "3", "1"),  # it has failed
        ("0", "3", "0"),
    ]
    told = json.loads(watch(run, "--json", "--failed")[1])
    assert [client["client"] for client in told["clients"]] == [1]


def test_an_upload_that_is_left_out_is_no_failure(run):
    rounds = [json.loads(text) for text in (run / "rounds.jsonl").read_text().splitlines()]
    rounds[1]["outliers"], rounds[1]["failures"] = [{**rounds[1]["failures"][0], "reason": "far too large"}], []
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rounds))
    (run / "summary.json").unlink()  # which has other figures
    status, said = watch(run, "--once")
    assert (status, ", 1 upload left out, ended" in said, "failure," in said) == (0, True, False)
    assert "round 1: far too large" in said
    rows = [text.split() for text in said.splitlines()]
    assert sorted((row[0], row[-2:]) for row in rows if row and row[0] in ("0", "1")) == [
        ("0", ["0", "0"]),  # failures, left out
        ("1", ["0", "1"]),
    ]
    assert json.loads(watch(run, "--json", "--failed")[1])["clients"] == []


def test_a_run_that_goes_on_has_a_writer_and_an_end_in_sight(run):
    cut(run, 1)
    with held(run):
        now = standing(run)
        assert not now.ended
        assert now.writer == f"process {os.getpid()} on {socket.gethostname()} since 2026-01-02 03:04:05 (run 7)"
        assert "round 1 of 3" in now.line
        assert now.line.endswith(" s left")
        assert watch(run, "--once")[0] == 0


@pytest.mark.parametrize(("width", "height", "least"), [(80, 24, 11), (200, 50, 120)])
def test_a_terminal_is_filled_and_not_exceeded_by_the_clients_that_fail_are_late_or_are_worst(
    run, width, height, least
):
    """Of 200 clients, of which 7 has failed, 9 is late, and the higher a number the better; the rest is counted."""
    found = load_run(run)
    clients = [
        {**found.clients[0], "partition": number, "name": f"Hospital {number:03} of the city"} for number in range(200)
    ]
    first, last = (
        Round(number, 1.0, clients={str(client): {"accuracy": client / 200} for client in here}, failures=failures)
        for number, here, failures in (
            (1, range(200), [Failure(7, "train", "ran out of memory " * 20, 7)]),
            (2, [client for client in range(200) if client != 9], []),
        )
    )
    state = RunState(replace(found, clients=clients, rounds=[first, last]), "process 7 " * 4)

    def lines(state, **terminal):
        console = Console(file=StringIO(), width=width, height=height, **terminal)
        console.print(state.shown(console))
        return console.file.getvalue().splitlines()

    said = lines(state, force_terminal=True, color_system=None)
    numbers = [int(number) for number in re.findall(r"(\d+)  Hospital", "\n".join(said))]
    assert (len(said) < height, max(map(len, said)) <= width) == (True, True)
    assert len(numbers) >= least
    in_order = [7, 9, *(number for number in range(200) if number not in (7, 9))]
    assert sorted(numbers, key=in_order.index) == in_order[: len(numbers)]
    assert [row.split()[0] for row in said if "Hospital" in row][:3] == ["7", "9", "0"]
    assert any(row.startswith(f"and {200 - len(numbers)} more") for row in said)
    assert sum("Hospital" in row for row in lines(state)) == 200  # to a file or a pipe
    assert [row.split()[0] for row in lines(replace(state, failed=True)) if "Hospital" in row] == ["7"]


@pytest.mark.parametrize("lock", [None, {"process": 2**22 + 1}, {"process": os.getpid()}])
def test_a_run_that_was_stopped_is_called_so(run, lock):
    """Nobody holds its folder, a process that is gone does, or one whose id another has by now or is a zombie's."""
    cut(run, 1)
    if lock:
        hold(run, **lock)
    assert standing(run).ended
    status, said = watch(run)
    assert (status, ", stopped; to continue: hetfl run fedhe --out " in said) == (1, True)
    rmtree(run / "checkpoint")
    assert "to continue" not in watch(run)[1]


def test_of_another_engine_the_command_is_flower_s_and_reads_a_file_whose_rounds_may_be_changed(
    make_config, run_federation, monkeypatch, caplog
):
    """As `flwr run` reads it; it takes a file or values, not both."""
    monkeypatch.setattr("hetfl_flwr.server_app.engine_of", lambda grid: "simulation")
    folder = run_federation(make_config(clients=2, rounds=2, checkpoint_every=1))
    command = f"flwr run . --run-config {folder}/resume.toml"
    assert [line for line in caplog.messages if "if the run stops" in line and line.endswith(command)]
    cut(folder, 1)
    said = watch(folder)[1]
    program, *arguments = shlex.split(said.partition("to continue: ")[2].splitlines()[0])
    assert (program, arguments[:3]) == ("flwr", ["run", ".", "--run-config"])
    [file] = arguments[3:]
    text = (folder / "resume.toml").read_text()
    assert "\nrounds = 2\n" in text
    assert "raise rounds in the file" in said
    (folder / "resume.toml").write_text(text.replace("\nrounds = 2\n", "\nrounds = 4\n"))
    again = RunConfig.from_flat(parse_config_args([file]))
    assert (again.resume, again.rounds, again.output_dir) == (True, 4, str(folder))
    assert load_run(run_federation(again)).rounds[-1].round == 4


def test_of_a_deployment_the_command_names_a_superlink_and_is_not_broken_into_lines(
    tmp_path, make_config, run_federation, monkeypatch, caplog, refusal
):
    """Whoever gives it without the name starts a simulation, which says so."""
    monkeypatch.setattr("hetfl_flwr.server_app.engine_of", lambda grid: "deployment")
    out = tmp_path / "-".join(["long"] * 40)
    folder = run_federation(make_config(clients=2, rounds=2, checkpoint_every=1, output_dir=str(out)))
    command = f"flwr run . NAME --stream --run-config {folder}/resume.toml"
    assert [line for line in caplog.messages if line.endswith(command)]
    cut(folder, 1)
    assert f"{command}\n" in watch(folder, "--once")[1]
    assert command in standing(folder).facts["resume"]
    monkeypatch.setattr("hetfl_flwr.server_app.engine_of", lambda grid: "simulation")
    again = RunConfig.from_flat(parse_config_args([f"{folder}/resume.toml"])).with_values({"seed": 1})
    said = refusal(RunFolderError, run_federation, again)
    assert "SuperLink" in said.replace(command, "")
    assert command in said


def test_a_run_that_ends_while_it_is_read_was_not_stopped(run, monkeypatch):
    def read(folder, **keys):
        found = load_run(folder, **keys)
        (run / LOCK_FILE).unlink()
        return found

    cut(run, 1)
    monkeypatch.setattr(watching, "load_run", read)
    with held(run):
        assert standing(run).facts["state"] == "running"


def test_ctrl_c_ends_it_without_a_word(run, monkeypatch, hetfl):
    """It is how one leaves, and nothing of it could be kept."""
    cut(run, 1)

    def pressed(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("simulations.cli.results.time.sleep", pressed)
    with held(run):
        done = hetfl("watch", run)
    assert (done.status, done.err, done.out.count("\n")) == (1, "", 1)


def test_to_a_pipe_it_writes_a_line_for_each_round_until_the_end(run):
    whole = (run / "rounds.jsonl").read_text()
    cut(run, 1)

    def end():
        (run / "rounds.jsonl").write_text(whole)
        (run / LOCK_FILE).unlink()

    with held(run):
        timer = Timer(1.0, end)
        timer.start()
        status, said = watch(run, "--every", "0.1")
        timer.join()
    lines = said.splitlines()
    assert status == 0
    assert (len(lines), "round 1 of 3" in lines[0], lines[-1].endswith("ended")) == (2, True, True)
