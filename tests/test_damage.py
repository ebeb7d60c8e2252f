"""Run folders that are damaged, copied into, or written by two at once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, RunFolderError, StateError
from hetfl_flwr.node.stores import prune
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.server.messaging.grids import GridView
from simulations.cli import _run, main
from simulations.engine.grid import LocalGrid
from simulations.reports.runs import load_run

KEYS = {"clients": 3, "models": "mlp", "rounds": 4, "checkpoint_every": 2, "local_batches": 1}


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    """Change one bit in the middle: safetensors does not notice."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # another name may lead to the same file
    path.write_bytes(content)


def of_another_round(path: Path) -> None:
    shutil.copy(path.parents[1] / "round-2" / path.name, path)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "missing": missing,
    "cut": cut,
    "flipped": flipped,
    "of another checkpoint": of_another_round,
    "a pipe": a_pipe,
}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def server_state(folder: Path) -> bytes:
    return (folder / "knowledge.safetensors").read_bytes()


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    """A run of four rounds, with the checkpoints of rounds 2 and 4."""
    chosen = {key.replace("_", "-"): value for key, value in KEYS.items()}
    return _run({**chosen, "output-dir": str(tmp_path_factory.mktemp("origin") / "run")}, resume=False, **AT_HOME)


AT_HOME: dict[str, Any] = {"workers": 1, "verbose": True}


@pytest.fixture
def folder(origin, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(origin, tmp_path / "run"))


def go_on(folder: Path, **keys: Any) -> Path:
    return _run({"output-dir": str(folder), "rounds": 5, **keys}, resume=True, **AT_HOME)


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_client_s_damaged_state_stops_the_resume_and_names_what_it_means_and_what_to_do(refusal, folder, damage):
    newest = folder / "checkpoint" / "round-4"
    DAMAGE[damage](newest / "client-1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(f"{newest}: client 1's state is {'missing' if damage == 'missing' else 'damaged'}")
    assert "it would go on from its initial weights" in line
    assert "the checkpoint of round 2 is whole: --accept-loss (accept-loss = true) goes back to it" in line
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("file", ["client-1", "knowledge.safetensors"])
def test_with_accept_loss_the_checkpoint_before_is_gone_back_to_and_nothing_else_is_lost(
    origin, folder, tmp_path, capsys, file
):
    whole = go_on(Path(shutil.copytree(origin, tmp_path / "whole")))
    flipped(folder / "checkpoint" / "round-4" / file)
    go_on(folder, **{"accept-loss": True})
    [failure] = lines(folder)[3]["failures"]
    assert (failure["partition"], failure["stage"]) == (-1, "resume")
    assert failure["reason"].endswith("gone back to round 2")
    assert failure["reason"] in capsys.readouterr().err
    assert [entry["round"] for entry in lines(folder)] == list(range(6))
    assert server_state(folder) == server_state(whole)
    assert "accept-loss = false" in (folder / "config.toml").read_text()
    assert go_on(folder, rounds=6)  # nothing is damaged any more


def test_where_both_checkpoints_are_damaged_the_clients_that_lost_their_state_begin_anew_and_are_named(refusal, folder):
    """Client 1's is lost in the newest, client 0's in the one before."""
    missing(folder / "checkpoint" / "round-4" / "client-1")
    cut(folder / "checkpoint" / "round-2" / "client-0")
    assert "--accept-loss (accept-loss = true) goes on like that" in refusal(RunFolderError, go_on, folder)
    go_on(folder, **{"accept-loss": True})
    [failure] = lines(folder)[5]["failures"]
    said = "client 1's state of round 4 is missing: it goes on from its initial weights"
    assert (failure["partition"], failure["stage"], failure["reason"]) == (1, "resume", said)
    assert [len(entry["failures"]) for entry in lines(folder)] == [0] * 5 + [1]


def test_a_damaged_checkpoint_before_the_newest_concerns_nobody(folder):
    flipped(folder / "checkpoint" / "round-2" / "client-1")
    assert [entry["failures"] for entry in lines(go_on(folder))] == [[]] * 6


def test_without_any_checkpoint_that_can_be_read_nothing_is_accepted(refusal, folder):
    for number in (2, 4):
        flipped(folder / "checkpoint" / f"round-{number}" / "knowledge.safetensors")
    line = refusal(RunFolderError, go_on, folder, **{"accept-loss": True})
    assert line == (
        f"{folder}/checkpoint/round-4: damaged checkpoint (its checksum does not fit); no other checkpoint is there"
    )


def test_the_command_refuses_with_status_2_and_goes_on_with_its_flag(folder, monkeypatch, capfd):
    missing(folder / "checkpoint" / "round-4" / "client-1")
    for flag, status in ((), 2), (("--accept-loss",), 0):
        monkeypatch.setattr(sys, "argv", ["hetfl", "run", "fedhe", "--out", str(folder), "--resume", *flag])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == status, capfd.readouterr().err


def test_a_copy_of_a_checkpoint_under_another_name_is_nobody_s(folder):
    shutil.copytree(folder / "checkpoint" / "round-2", folder / "checkpoint" / "round-2.bak")
    go_on(folder)
    assert (folder / "checkpoint" / "round-2.bak" / "client-0").exists()


def test_what_clients_save_later_changes_no_checkpoint(make_config, run_federation, tmp_path):
    """A checkpoint's files are second names of those that clients rest in."""
    for state_dir in ("", str(tmp_path / "state")):
        seen: list[bytes] = []

        class Looking(LocalGrid):
            def pull_messages(self, message_ids: Any, seen: list[bytes] = seen) -> Any:
                path = Path(self._config.output_dir) / "checkpoint" / "round-1" / "client-0"
                if path.exists():
                    self._host.tell("flush")
                    seen.append(path.read_bytes())
                return super().pull_messages(message_ids)

        name = "disk" if state_dir else "memory"
        config = make_config(**KEYS | {"checkpoint_every": 1, "rounds": 2}, output_dir=str(tmp_path / name))
        config = config.with_values({"state-dir": state_dir})
        with Looking(config.to_flat(), 3, 7) as grid:
            run_federation(config, grid)
        assert len(seen) > 3
        assert len(set(seen)) == 1


@pytest.mark.parametrize("name", ["round-004", "round-04", "round-4 ", "round-1٤", "round-+4", "round-1e1"])
def test_a_copy_of_a_checkpoint_under_a_name_that_no_run_writes_is_nobody_s(folder, name):
    """Also where it is the only one: what it holds cannot be told from its name."""
    (folder / "checkpoint" / "round-4").rename(folder / "checkpoint" / name)
    assert [path.name for path in checkpoints(folder)] == ["round-2"]
    assert Checkpoint.read(folder).round == 2


@pytest.mark.parametrize("name", ["round-5", "round-40"])
def test_a_checkpoint_under_the_name_of_another_round_is_refused_and_with_accept_loss_given_up(refusal, folder, name):
    shutil.copytree(folder / "checkpoint" / "round-2", folder / "checkpoint" / name)
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(
        f"{folder}/checkpoint/{name}: damaged checkpoint (it is of round 2); the checkpoint of round"
    )
    go_on(folder, **{"accept-loss": True})
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == ["round-4", "round-5"]
    assert Checkpoint.read(folder).round == 5


def a_file(place: Path) -> None:
    place.write_text("no checkpoint")


def a_link_to_nothing(place: Path) -> None:
    place.symlink_to("nowhere")


def a_link_to_a_checkpoint(place: Path) -> None:
    place.symlink_to("round-2")


IMPOSTORS = [a_file, a_link_to_nothing, a_link_to_a_checkpoint]


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_what_stands_in_place_of_a_checkpoint_is_refused_and_with_accept_loss_removed(refusal, folder, impostor):
    impostor(folder / "checkpoint" / "round-5")
    before = sorted((folder / "checkpoint" / "round-2").iterdir())
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(f"{folder}/checkpoint/round-5: damaged checkpoint (")
    assert "the checkpoint of round 4 is whole: --accept-loss" in line
    assert sorted((folder / "checkpoint" / "round-2").iterdir()) == before
    go_on(folder, **{"accept-loss": True})
    assert not (folder / "checkpoint" / "round-5").is_symlink()
    assert Checkpoint.read(folder).round == 5
    [failure] = lines(folder)[5]["failures"]
    assert failure["reason"].endswith("gone back to round 4")


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_what_stands_in_place_of_an_old_checkpoint_is_removed_with_it_and_what_a_link_leads_to_stays(
    folder, tmp_path, impostor
):
    impostor(folder / "checkpoint" / "round-1")
    shutil.copytree(folder / "checkpoint" / "round-2", tmp_path / "mine")
    (folder / "checkpoint" / "round-0").symlink_to(tmp_path / "mine")
    go_on(folder)
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == ["round-4", "round-5"]
    assert (tmp_path / "mine" / "client-0").exists()


@pytest.mark.parametrize("accept", [False, True])
def test_a_file_in_place_of_all_checkpoints_is_refused(refusal, folder, accept):
    shutil.rmtree(folder / "checkpoint")
    (folder / "checkpoint").write_text("no folder")
    line = refusal(RunFolderError, go_on, folder, **{"accept-loss": accept})
    assert line.startswith(f"{folder} has no checkpoint to resume from")


# --- another run's -------------------------------------------------------------------------------


def test_a_checkpoint_whose_run_is_gone_is_not_gone_on_with(refusal, folder):
    """Without its rounds, and with another seed: the old checkpoint is refused, not mixed with the new run."""
    (folder / "rounds.jsonl").unlink()
    keys = {key.replace("_", "-"): value for key, value in KEYS.items()} | {"seed": 1, "output-dir": str(folder)}
    line = refusal(RunFolderError, _run, keys, resume=False, **AT_HOME)
    assert line.startswith(f"{folder}/checkpoint/round-4 is of an earlier run, whose rounds.jsonl is gone: delete ")
    shutil.rmtree(folder / "checkpoint")
    _run(keys, resume=False, **AT_HOME)
    assert Checkpoint.read(folder).round == 4


def test_a_checkpoint_of_a_run_with_another_config_is_refused(refusal, folder, tmp_path):
    keys = {key.replace("_", "-"): value for key, value in KEYS.items()} | {"seed": 1}
    other = _run({**keys, "output-dir": str(tmp_path / "other")}, resume=False, **AT_HOME)
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other / "checkpoint", folder / "checkpoint")
    assert "is of a run with another config" in refusal(RunFolderError, go_on, folder)


# --- rounds.jsonl --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [b'{"round": 2, "sec', b"\xff\xfe\x00", b'{"round": "two", "seconds": 1}', b"[]", b"", b"[" * 10**5],
    ids=["cut", "binary", "text", "list", "empty", "deep"],
)
def test_a_damaged_line_of_the_rounds_is_lost_alone_and_said(folder, capsys, line):
    path = folder / "rounds.jsonl"
    whole = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*whole[:2], line, *whole[3:]]) + b"\n")
    assert [record.round for record in load_run(folder).rounds] == [0, 1, 3, 4]
    assert f"{path}, line 3 is damaged and left out" in capsys.readouterr().err
    go_on(folder)
    assert f"{path}, line 3 is damaged and left out" in capsys.readouterr().err
    assert path.read_bytes().splitlines()[:4] == [*whole[:2], *whole[3:]]
    assert [entry["round"] for entry in lines(folder)] == [0, 1, 3, 4, 5]


def test_a_line_that_was_changed_is_lost_alone_and_named(folder, capsys):
    """It is a round of this run still, with another accuracy."""
    path = folder / "rounds.jsonl"
    whole = path.read_bytes().splitlines()
    changed = json.dumps(json.loads(whole[2]) | {"accuracy": 0.99}).encode()
    path.write_bytes(b"\n".join([*whole[:2], changed, *whole[3:]]) + b"\n")
    go_on(folder)
    err = capsys.readouterr().err
    assert f"hetfl: {path}, line 3 is damaged and left out: round 2 was written otherwise\n" in err
    assert f"hetfl: {path} has lost round 2\n" in err
    assert [entry["round"] for entry in lines(folder)] == [0, 1, 3, 4, 5]


def test_lines_that_are_lost_are_named(folder, capsys):
    path = folder / "rounds.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([whole[0], whole[3]]))
    go_on(folder)
    assert f"hetfl: {path} has lost round 1, 2, 4\n" in capsys.readouterr().err
    assert [entry["round"] for entry in lines(folder)] == [0, 3, 5]


def test_a_line_that_is_doubled_is_kept_once_and_named(folder, capsys):
    path = folder / "rounds.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole, whole[2]]))
    go_on(folder)
    assert f"hetfl: {path}, line 6 is left out: round 2 is there already\n" in capsys.readouterr().err
    assert path.read_bytes().splitlines(keepends=True)[:5] == whole


def test_rounds_after_the_checkpoint_are_run_again_without_a_word(origin, folder, tmp_path, capsys):
    whole = go_on(Path(shutil.copytree(origin, tmp_path / "whole")))
    path = folder / "rounds.jsonl"
    later = json.dumps(json.loads(path.read_bytes().splitlines()[-1]) | {"round": 5, "accuracy": 0.99})
    path.write_bytes(path.read_bytes() + later.encode() + b"\n")
    capsys.readouterr()
    go_on(folder)
    assert "rounds.jsonl" not in capsys.readouterr().err
    assert [entry["round"] for entry in lines(folder)] == list(range(6))
    assert lines(folder)[-1]["accuracy"] == lines(whole)[-1]["accuracy"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_pipe_in_place_of_the_rounds_is_one_line_for_all_that_read_them(refusal, folder, make):
    path = folder / "rounds.jsonl"
    path.unlink()
    make(path)
    assert refusal(RunFolderError, go_on, folder) == f"{path} is no file"
    assert refusal(RunFolderError, load_run, folder) == f"{path} is no file"


# --- two at once ---------------------------------------------------------------------------------


def test_a_folder_that_a_process_writes_is_refused_to_others_by_the_name_of_its_holder(refusal, folder):
    """Also to another run of the same process. When the holder has ended, there is no trace of it."""
    lock = FolderLock(folder, 77)
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(f"{folder} is being written by process {os.getpid()} on ")
    assert "(run 77): wait for its end, or name another folder" in line
    lock.release()
    go_on(folder)
    assert not list(folder.glob(".*"))


def test_a_run_that_is_refused_leaves_the_holder_s_files(refusal, tmp_path, make_config, run_federation):
    config = make_config(algorithm="fedavg", models="mlp,lenet5")
    Path(config.output_dir).mkdir()
    lock = FolderLock(Path(config.output_dir), 77)
    refusal(RunFolderError, run_federation, config)
    assert [path.name for path in Path(config.output_dir).iterdir()] == [".lock"]
    lock.release()
    refusal(FederationError, run_federation, config)
    assert not list(Path(config.output_dir).iterdir())


HOLD = """
import sys, time
from pathlib import Path
from hetfl_flwr.runs.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), 5)
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_process_that_was_killed_is_taken_over(refusal, tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"process {holder.pid} on " in refusal(RunFolderError, FolderLock, tmp_path, 6)
        holder.send_signal(signal.SIGKILL)
    FolderLock(tmp_path, 6).release()


@pytest.mark.slow
def test_of_two_processes_at_once_exactly_one_runs(tmp_path, make_config):
    """Ten times two, that begin together."""
    for number in range(10):
        folder, begin = tmp_path / str(number), time.monotonic() + 0.2
        folder.mkdir()
        children = [_forked(lambda: _hold(folder, begin)) for _ in range(2)]  # noqa: B023
        ended = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        assert ended == [0, 3]


def _hold(folder: Path, begin: float) -> int:
    while time.monotonic() < begin:
        pass
    try:
        lock = FolderLock(folder, 1)
    except RunFolderError:
        return 3
    time.sleep(0.5)
    lock.release()
    return 0


def _forked(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(work())
    return child


# --- state on nodes ------------------------------------------------------------------------------


class Elsewhere(GridView):
    """Clients that the server cannot save."""

    engine, pull_interval = "local", 0.0

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *error: object) -> None:
        self._grid.__exit__(None, None, None)  # type: ignore[attr-defined]


def elsewhere(config: RunConfig, run: int) -> Elsewhere:
    grid = LocalGrid(config.to_flat(), config.clients, run)
    return Elsewhere(grid, grid.get_node_ids())


def test_a_damaged_state_on_a_node_is_named_and_goes_on_from_nothing_only_if_that_is_accepted(
    refusal, tmp_path, make_config, run_federation
):
    config = make_config(**KEYS, state_dir=str(tmp_path / "state"))
    folder = run_federation(config, elsewhere(config, 7))
    for file in (tmp_path / "state" / "run-7").glob("client-1.*safetensors"):
        flipped(file)
    longer = config.with_values({"resume": True, "rounds": 5})
    line = refusal(FederationError, run_federation, longer, elsewhere(longer, 8), run_id=8)
    assert "client-1.safetensors: damaged state (its checksum does not fit): it would go on from an older" in line
    assert "which accept-loss = true allows" in line
    longer = longer.with_values({"accept-loss": True})
    run_federation(longer, elsewhere(longer, 8), run_id=8)
    [failure] = lines(folder)[-1]["failures"]
    assert failure["reason"].startswith("client 1 (mlp): comes without its state, but it has trained until round 4")


def test_a_node_says_when_it_registers_that_its_state_folder_cannot_be_written(
    refusal, tmp_path, make_config, run_federation
):
    (tmp_path / "file").write_text("no folder")
    config = make_config(**KEYS, state_dir=str(tmp_path / "file" / "state"))
    line = refusal(FederationError, run_federation, config)
    assert f"client 0, client registration: state-dir {tmp_path}/file/state cannot be written: Not a directory" in line
    assert not Path(config.output_dir).exists()


def test_nothing_is_left_of_the_look_whether_a_folder_can_be_written(refusal, tmp_path, make_config, run_federation):
    config = make_config(algorithm="fedavg", models="mlp", state_dir=str(tmp_path / "state"))
    run_federation(config)  # whose clients keep nothing
    unlike = {"models": "mlp", "dataset": "digits,breast-cancer", "output_dir": str(tmp_path / "two")}
    config = make_config(**unlike, state_dir=str(tmp_path / "state"))
    assert "the same number of classes" in refusal(FederationError, run_federation, config)
    assert not (tmp_path / "state").exists()


def test_a_client_keeps_the_state_of_the_newest_runs(make_config, run_federation, tmp_path):
    """Two of them; the one that a run goes on with stays, however old it is, and other clients' files stay, too."""
    state = tmp_path / "state"

    def run(number: int, **keys: Any) -> None:
        config = make_config(
            **{**KEYS, "rounds": 1, "checkpoint_every": 1},
            state_keep=2,
            state_dir=str(state),
            output_dir=str(tmp_path / "a"),
        ).with_values({key.replace("_", "-"): value for key, value in keys.items()})
        run_federation(config, elsewhere(config, number), run_id=number)

    def runs() -> list[str]:
        return sorted(path.name for path in state.iterdir())

    run(1, output_dir=str(tmp_path / "first"))
    (state / "run-1" / "client-9.safetensors").write_bytes(b"of a client elsewhere")
    for number in (2, 3):
        run(number, output_dir=str(tmp_path / str(number)))
    assert runs() == ["run-1", "run-2", "run-3"]
    assert [path.name for path in (state / "run-1").iterdir()] == ["client-9.safetensors"]
    (state / "run-1" / "client-9.safetensors").unlink()
    (state / "run-1").rmdir()
    run(4, output_dir=str(tmp_path / "2"), resume=True, rounds=2)
    assert runs() == ["run-2", "run-4"]


def test_keeping_no_number_of_runs_keeps_all(tmp_path):
    for number in range(3):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "client-1.safetensors").write_bytes(b"x")
        os.utime(tmp_path / f"run-{number}" / "client-1.safetensors", (number, number))
    assert prune(tmp_path, 1, 0, set()) == []
    assert prune(tmp_path, 1, 1, {"0"}) == ["2", "1"]
    assert [path.name for path in tmp_path.iterdir()] == ["run-0"]


def test_a_file_that_cannot_be_read_back_is_one_line(refusal, tmp_path):
    from hetfl_flwr.node.inputs import unpack_inputs

    (tmp_path / "inputs-0.safetensors").write_bytes(b"x" * 100)
    assert "cannot be read: it has no checksum" in refusal(StateError, unpack_inputs, tmp_path / "inputs-0.safetensors")
