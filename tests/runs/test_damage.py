"""Run folders that are damaged, copied into, or written by two at once."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fixtures.federations.grids import Meddled, Watched
from fixtures.folders.reached import clients_of, server_state, summary_of

from hetfl_flwr import RoundCallback
from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.data import load_client_data
from hetfl_flwr.errors import FederationError, RunFolderError, StateError
from hetfl_flwr.node import registration
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints
from hetfl_flwr.runs.folder import KNOWLEDGE
from hetfl_flwr.runs.lock import LOCK_FILE, FolderLock, writer_of
from hetfl_flwr.server.upload_counts import UploadCounts
from simulations.cli.running import run_one
from simulations.engine.workers import Task
from simulations.reports.runs import load_run
from simulations.reports.tables import privacy
from simulations.testing.contract import entries

KEYS: dict[str, Any] = {"clients": 3, "models": "mlp", "rounds": 4, "checkpoint_every": 2, "local_batches": 1}


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


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def begin(folder: Path, **keys: Any) -> Path:
    chosen = {key.replace("_", "-"): value for key, value in (KEYS | keys).items()}
    return run_one({**chosen, "output-dir": str(folder)}, resume=False, workers=1, verbose=True)


def go_on(folder: Path, **keys: Any) -> Path:
    chosen = {key.replace("_", "-"): value for key, value in keys.items()}
    return run_one({"output-dir": str(folder), "rounds": 5, **chosen}, resume=True, workers=1, verbose=True)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A run of four rounds, with the checkpoints of rounds 2 and 4."""
    return begin(tmp_path_factory.mktemp("origin") / "run")


@pytest.fixture(scope="module")
def whole(origin, tmp_path_factory):
    """The same, gone on with without damage."""
    return go_on(Path(shutil.copytree(origin, tmp_path_factory.mktemp("whole") / "run")))


@pytest.fixture
def folder(origin, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(origin, tmp_path / "run"))


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [missing, cut, flipped, of_another_round, a_pipe])
def test_a_client_s_damaged_state_stops_the_resume_and_names_what_to_do(refusal, folder, damage):
    newest = folder / "checkpoint" / "round-4"
    damage(newest / "client-1")
    before = contents(folder)
    line = refusal(RunFolderError, go_on, folder)
    assert str(newest / "client-1") in line
    assert "--accept-loss" in line
    assert contents(folder) == before


@pytest.mark.parametrize("file", ["client-1", "knowledge.safetensors"])
def test_with_accept_loss_the_checkpoint_before_is_gone_back_to_and_nothing_else_is_lost(whole, folder, capsys, file):
    flipped(folder / "checkpoint" / "round-4" / file)
    go_on(folder, accept_loss=True)
    [failure] = entries(folder)[3]["failures"]
    assert (failure["partition"], failure["stage"]) == (-1, "resume")
    assert failure["reason"].endswith("went back to round 2")
    assert failure["reason"] in capsys.readouterr().err
    assert [entry["round"] for entry in entries(folder)] == list(range(6))
    assert server_state(folder) == server_state(whole)
    assert "accept-loss = false" in (folder / "config.toml").read_text()
    assert go_on(folder, rounds=6)  # nothing is damaged any more


def test_where_both_checkpoints_are_damaged_nothing_is_accepted(refusal, folder):
    """Client 1's state is lost in the newest, client 0's in the one before."""
    missing(folder / "checkpoint" / "round-4" / "client-1")
    cut(folder / "checkpoint" / "round-2" / "client-0")
    assert "round-4/client-1" in refusal(RunFolderError, go_on, folder, accept_loss=True)


def test_a_damaged_checkpoint_before_the_newest_changes_nothing(folder):
    flipped(folder / "checkpoint" / "round-2" / "client-1")
    assert [entry["failures"] for entry in entries(go_on(folder))] == [[]] * 6


@pytest.mark.parametrize("state_dir", ["", "state"])
def test_what_clients_save_later_changes_no_checkpoint(make_config, run_federation, tmp_path, state_dir):
    """A checkpoint's files are second names of those that clients rest in."""
    where = str(tmp_path / state_dir) if state_dir else ""
    config = make_config(**KEYS | {"checkpoint_every": 1, "rounds": 2}, state_dir=where)
    path, seen = Path(config.output_dir) / "checkpoint" / "round-1" / "client-0", list[bytes]()

    def look(grid: Watched, task: Task) -> None:
        if path.exists():
            grid._host.call("flush")
            seen.append(path.read_bytes())

    with Watched(config, look) as grid:
        run_federation(config, grid)
    assert len(seen) > 3
    assert len(set(seen)) == 1


def test_the_newest_checkpoint_is_found_by_its_number(tmp_path):
    for number in (2, 10, 9):
        (tmp_path / "checkpoint" / f"round-{number}").mkdir(parents=True)
    assert [path.name for path in checkpoints(tmp_path)] == ["round-10", "round-9", "round-2"]


@pytest.mark.parametrize("name", ["round-2.bak", "round-004", "round-4 ", "round-1٤", "round-+4", "round-1e1"])
def test_a_checkpoint_under_a_name_that_no_run_writes_is_neither_read_nor_removed(folder, name):
    (folder / "checkpoint" / "round-4").rename(folder / "checkpoint" / name)
    assert [path.name for path in checkpoints(folder)] == ["round-2"]
    assert Checkpoint.read(folder).round == 2
    go_on(folder)
    assert (folder / "checkpoint" / name / "client-0").exists()


IMPOSTORS: dict[str, Callable[[Path], object]] = {
    "a copy": lambda place: shutil.copytree(place.with_name("round-2"), place),
    "a file": lambda place: place.write_text("no checkpoint"),
    "a link to nothing": lambda place: place.symlink_to("nowhere"),
    "a link to a checkpoint": lambda place: place.symlink_to("round-2"),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_what_stands_in_place_of_a_checkpoint_is_refused_and_with_accept_loss_removed(
    refusal, folder, tmp_path, impostor
):
    """One in place of an old checkpoint is removed with it; what a link leads to stays."""
    place = folder / "checkpoint"
    for name in ("round-5", "round-1"):
        IMPOSTORS[impostor](place / name)
    shutil.copytree(place / "round-2", tmp_path / "mine")
    (place / "round-0").symlink_to(tmp_path / "mine")
    line = refusal(RunFolderError, go_on, folder)
    assert f"{place}/round-5" in line
    assert "--accept-loss" in line
    go_on(folder, accept_loss=True)
    assert sorted(path.name for path in place.iterdir()) == ["round-4", "round-5"]
    assert not (place / "round-5").is_symlink()
    assert Checkpoint.read(folder).round == 5
    assert entries(folder)[5]["failures"][0]["reason"].endswith("went back to round 4")
    assert (tmp_path / "mine" / "client-0").exists()


def test_a_checkpoint_whose_run_is_gone_is_not_gone_on_with(refusal, folder):
    """Without its rounds, and with another seed: the old checkpoint is refused, not mixed with the new run."""
    (folder / "rounds.jsonl").unlink()
    assert str(folder) in refusal(RunFolderError, begin, folder, seed=1)
    shutil.rmtree(folder / "checkpoint")
    begin(folder, seed=1)
    assert Checkpoint.read(folder).round == 4


@pytest.mark.parametrize("keys", [{"seed": 1}, {}])
def test_a_checkpoint_of_another_run_is_refused(refusal, folder, tmp_path, keys):
    """Of another config, or of the same: the rounds in the folder are not its own."""
    other = begin(tmp_path / "other", **keys)
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other / "checkpoint", folder / "checkpoint")
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(f"{folder}/rounds.jsonl is not the file that the checkpoint recorded")
    if keys:  # no loss to accept: the folder would become another run's
        assert "of another run" in refusal(RunFolderError, go_on, folder, accept_loss=True)


# --- rounds.jsonl --------------------------------------------------------------------------------


def a_line_changed(line: bytes) -> bytes:
    """It is a round of this run still, with another accuracy."""
    return json.dumps(json.loads(line) | {"accuracy": 0.99}).encode() + b"\n"


LINES: dict[str, Callable[[list[bytes]], list[bytes] | None]] = {
    "one changed": lambda lines: [*lines[:2], a_line_changed(lines[2]), *lines[3:]],
    "one lost": lambda lines: [lines[0], *lines[2:]],
    "one doubled": lambda lines: [*lines[:2], *lines[1:]],
    "none": lambda lines: [],
    "no file": lambda lines: None,
}


@pytest.mark.parametrize("damage", LINES)
def test_rounds_that_are_not_as_the_checkpoint_knows_them_need_to_be_accepted_as_lost(refusal, whole, folder, damage):
    path, aside = folder / "rounds.jsonl", folder / "rounds.damaged.jsonl"
    left = LINES[damage](path.read_bytes().splitlines(keepends=True))
    path.unlink() if left is None else path.write_bytes(b"".join(left))
    before = contents(folder)
    line = refusal(RunFolderError, go_on, folder)
    how = "not the file that the checkpoint recorded" if left else "missing or empty"
    assert line.startswith(f"{path} is {how}: the figures of all rounds up to 4 are lost; --accept-loss")
    assert contents(folder) == before
    go_on(folder, accept_loss=True)
    assert [entry["round"] for entry in entries(folder)] == [5]
    assert "lost" in entries(folder)[0]["failures"][0]["reason"]
    assert server_state(folder) == server_state(whole)
    summary = summary_of(folder)
    assert (summary["rounds"], summary["lost_rounds"]) == (5, [0, 1, 2, 3, 4])
    assert (aside.read_bytes() if aside.exists() else None) == before.get(path)
    assert {client["accuracy_before"] for client in clients_of(folder)} == {None}


def test_rounds_after_the_checkpoint_are_run_again_without_a_word(whole, folder, capsys):
    path = folder / "rounds.jsonl"
    later = json.dumps(json.loads(path.read_bytes().splitlines()[-1]) | {"round": 5, "accuracy": 0.99})
    path.write_bytes(path.read_bytes() + later.encode() + b'\n{"round": 6, "sec')
    capsys.readouterr()
    go_on(folder)
    assert "rounds.jsonl" not in capsys.readouterr().err
    assert [entry["round"] for entry in entries(folder)] == list(range(6))
    assert entries(folder)[-1]["accuracy"] == entries(whole)[-1]["accuracy"]


# --- two at once ---------------------------------------------------------------------------------


def test_a_folder_that_a_process_writes_is_refused_to_others_by_the_name_of_its_holder(refusal, folder):
    """Also to another run of the same process. When the holder has ended, there is no trace of it."""
    lock = FolderLock(folder, 77)
    line = refusal(RunFolderError, go_on, folder)
    assert f"process {os.getpid()} on " in line
    assert "run 77" in line
    lock.release()
    go_on(folder)
    assert not list(folder.glob(".*"))


HOLD = """
import sys, time
from pathlib import Path
from hetfl_flwr.runs.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), 5)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_lock_of_a_process_that_was_killed_is_taken_over(refusal, tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"process {holder.pid} on " in refusal(RunFolderError, FolderLock, tmp_path, 6)
        holder.send_signal(signal.SIGKILL)
    FolderLock(tmp_path, 6).release()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_in_the_place_of_a_lock_is_named_and_held_by_nobody(refusal, folder, make):
    make(folder / LOCK_FILE)
    assert writer_of(folder) == ""
    line = refusal(RunFolderError, go_on, folder)
    assert line == f"{folder / LOCK_FILE} must be a plain file, which a run locks: remove what is there"
    shutil.rmtree(folder / LOCK_FILE) if (folder / LOCK_FILE).is_dir() else (folder / LOCK_FILE).unlink()
    go_on(folder)


# --- state on nodes ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(run_federation):
    """Run a federation whose clients are on other machines; with another run id it goes on for a round."""

    def run(config: RunConfig, run: int = 7, **keys: Any) -> Path:
        if run != 7:
            config = config.with_values({"resume": True, "rounds": 5, **keys})
        return run_federation(config, Meddled(config, run=run), run_id=run)

    return run


@pytest.mark.parametrize(("damage", "said"), [(flipped, "client-1.safetensors: damaged"), (missing, "")])
def test_a_lost_state_on_a_node_is_named_and_goes_on_from_nothing(
    refusal, tmp_path, make_config, elsewhere, damage, said
):
    """What is damaged must be accepted as lost; what is missing may be of a node that is new."""
    config = make_config(**KEYS, state_dir=str(tmp_path / "state"))
    folder = elsewhere(config)
    for file in (tmp_path / "state" / "run-7").glob("client-1.*safetensors"):
        damage(file)
    if said:
        line = refusal(FederationError, elsewhere, config, 8)
        assert said in line
        assert "accept-loss = true" in line
    elsewhere(config, 8, **{"accept-loss": bool(said)})
    [failure] = entries(folder)[-1]["failures"]
    assert failure["partition"] == 1
    assert "without its state" in failure["reason"]


def test_a_node_says_when_it_registers_that_its_state_folder_cannot_be_written(
    refusal, tmp_path, make_config, run_federation
):
    """And leaves nothing behind of the look whether it can."""
    (tmp_path / "file").write_text("no folder")
    config = make_config(**KEYS, state_dir=str(tmp_path / "file" / "state"))
    line = refusal(FederationError, run_federation, config)
    assert line.count(f"state-dir {tmp_path}/file/state") == 1  # the same of all clients
    assert not Path(config.output_dir).exists()
    run_federation(make_config(algorithm="fedavg", models="mlp", state_dir=str(tmp_path / "state")))
    assert not (tmp_path / "state").exists()  # clients of fedavg keep nothing


@pytest.mark.parametrize("keep", [2, 0])
def test_a_client_keeps_the_state_of_the_newest_runs(make_config, elsewhere, tmp_path, keep):
    """Two of them; the one that a run goes on with stays, however old it is, and other clients' files stay, too.
    With 0 all stay."""
    state, keys = tmp_path / "state", {**KEYS, "rounds": 1, "checkpoint_every": 1, "state_keep": keep}
    configs = [make_config(**keys, state_dir=str(state), output_dir=str(tmp_path / str(number))) for number in range(3)]
    elsewhere(configs[0])
    (state / "run-7").rename(state / "run-1")
    (state / "run-1" / "client-9.safetensors").write_bytes(b"of a client elsewhere")
    (state / "run-file").touch()
    for number in (1, 2):
        elsewhere(configs[number])
        (state / "run-7").rename(state / f"run-{number + 1}")
    assert sorted(path.name for path in state.iterdir()) == ["run-1", "run-2", "run-3", "run-file"]
    left = [path.name for path in (state / "run-1").iterdir()]
    assert left == ["client-9.safetensors"] if keep else len(left) > 3


# --- other versions ------------------------------------------------------------------------------


def repacked(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what checkpoints say, with checksums that fit."""
    for checkpoint in checkpoints(folder):
        path = checkpoint / "knowledge.safetensors"
        values, arrays, _ = read_blob(path, KNOWLEDGE)
        change(values)
        path.write_bytes(pack(KNOWLEDGE, values, arrays))


class Reads(RoundCallback):
    """Reads the run folder before the first round after a resume, as `hetfl watch` may at any time."""

    found: ClassVar[list[int]] = []

    def begin(self, run):
        self.found.append(load_run(run.folder).summary["rounds"])


def test_a_run_that_goes_on_from_an_older_checkpoint_has_a_summary_of_that_round(folder):
    shutil.rmtree(folder / "checkpoint" / "round-4")
    go_on(folder, accept_loss=True, callbacks=f"{__name__}:Reads")
    assert Reads.found == [2]
    assert load_run(folder).summary["rounds"] == 5


def test_rounds_that_were_put_aside_are_not_overwritten(folder):
    for number, name in enumerate(("rounds.damaged.jsonl", "rounds.damaged-2.jsonl"), start=5):
        flipped(folder / "rounds.jsonl")
        before = (folder / "rounds.jsonl").read_bytes()
        go_on(folder, rounds=number, accept_loss=True)
        assert (folder / name).read_bytes() == before


def test_a_run_that_goes_on_with_other_versions_says_so_in_one_line_and_keeps_both(folder, capsys):
    """Back to the first ones, they are the last in the list; with equal ones nothing is said."""
    now = summary_of(folder)["versions"]
    other = now | {"torch": "1.0", "threads": "4"}
    repacked(folder, lambda told: told.update(versions=[other]))
    capsys.readouterr()
    for rounds, said in (
        (5, f"bit-identical: torch 1.0 before, {now['torch']} now; threads 4 before, 1 now"),
        (6, None),
    ):
        go_on(folder, rounds=rounds)
        found = [line for line in capsys.readouterr().err.splitlines() if "versions differ" in line]
        assert [line.endswith(said or "") for line in found] == ([True] if said else [])
        summary = summary_of(folder)
        assert (summary["earlier_versions"], summary["versions"]) == ([other], now)


def test_an_option_or_a_default_of_a_later_version_does_not_keep_a_run_from_going_on(folder, monkeypatch):
    """The run's own config has neither the option nor the default of today."""
    path = folder / "config.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("alpha =")))
    repacked(folder, lambda told: told["config"].pop("fedhe.alpha"))
    monkeypatch.setattr(RunConfig.model_fields["learning_rate"], "default", 0.5)
    go_on(folder)


def test_a_run_of_another_engine_is_refused(refusal, folder):
    repacked(folder, lambda told: told["under_way"].pop("engine"))
    assert "engine" in refusal(RunFolderError, go_on, folder)


# --- other data ----------------------------------------------------------------------------------


def a_table(folder: Path, rows: int = 300, flip: int = 0, odd: tuple[int, ...] = (), header: str = "one,two") -> str:
    """Write a table of two classes; the labels of its first rows may be flipped, and a cell of some rows be another."""
    folder.mkdir(exist_ok=True, parents=True)
    lines = [
        f"{99 if row in odd else row % 17},{row % 5},{('no', 'yes')[(row % 3 == 0) ^ (row < flip)]}"
        for row in range(rows)
    ]
    (folder / "data.csv").write_text("\n".join([f"{header},label", *lines]) + "\n")
    for module in [module for name, module in sys.modules.items() if name.startswith("hetfl_flwr.data.")]:
        for cached in [value for value in vars(module).values() if hasattr(value, "cache_clear")]:
            cached.cache_clear()  # as in a process of its own
    return str(folder)


@pytest.fixture
def on_a_table(tmp_path, make_config):
    """The config of a federation on a table of the user's own, whose nodes keep their states."""
    table = {"dataset": a_table(tmp_path / "table"), "label_column": "label"}
    return make_config(**KEYS, **table, state_dir=str(tmp_path / "state"))


@pytest.fixture
def own(tmp_path):
    """Run a federation on a table of the user's own."""

    def run(algorithm: str = "fedhe") -> Path:
        table = {"dataset": a_table(tmp_path / "table"), "label_column": "label"}
        return begin(tmp_path / "run", algorithm=algorithm, **table)

    return run


@pytest.mark.parametrize("algorithm", ["fedhe", "fedavg"])
@pytest.mark.parametrize("changed", [{"flip": 150}, {"rows": 200}, {"header": "two,one"}], ids=str)
def test_data_that_have_changed_stop_the_resume_by_the_client_and_may_be_accepted(
    refusal, own, tmp_path, capsys, algorithm, changed
):
    """Labels, the number of rows, and names: the numbers are the same, and mean something else. Clients of fedavg keep
    no state."""
    folder = own(algorithm)
    before = contents(folder)
    a_table(tmp_path / "table", **changed)
    line = refusal(StateError, go_on, folder)
    assert "client 0 and 2 more: the training samples, labels or names have changed" in line
    assert "--accept-loss" in line
    assert contents(folder) == before
    go_on(folder, accept_loss=True, rounds=5)
    assert "client 0 and 2 more: the training samples" in capsys.readouterr().err
    [noted] = [one["reason"] for entry in entries(folder) for one in entry["failures"]]
    assert "client 0 and 2 more: the training samples" in noted
    go_on(folder, rounds=6)


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_cell_of_a_row_that_nobody_trains_on_is_noticed(refusal, own, tmp_path, part):
    """It changes what the run measures, and of its training nothing."""
    folder = own()
    config = RunConfig.from_flat(read_toml(folder / "config.toml"))
    row = int(getattr(load_client_data(config.split(3), 1), part).rows[0])
    a_table(tmp_path / "table", odd=(row,))
    assert "client 1: the validation or test samples" in refusal(StateError, go_on, folder)
    go_on(folder, accept_loss=True)


def test_data_that_have_moved_are_the_same_ones(own, tmp_path, refusal):
    """A folder of another name is not enough to refuse them, and no reason to take others."""
    folder, moved = own(), tmp_path / "elsewhere" / "table"
    moved.parent.mkdir()
    (tmp_path / "table").rename(moved)
    go_on(folder, dataset=str(moved))
    a_table(moved, flip=150)
    assert "names have changed" in refusal(StateError, go_on, folder, rounds=6)
    assert "was run with dataset = " in refusal(RunFolderError, go_on, folder, dataset="digits", rounds=6)


def test_a_node_compares_its_data_with_those_that_it_kept_its_state_of(refusal, tmp_path, on_a_table, elsewhere):
    elsewhere(on_a_table)
    a_table(tmp_path / "table", flip=150)
    line = refusal(FederationError, elsewhere, on_a_table, 8)
    assert "client 0 (mlp): its training samples, labels or names have changed since its state was saved" in line
    assert "set accept-loss = true" in line
    elsewhere(on_a_table, 8, **{"accept-loss": True})
    elsewhere(on_a_table, 8, rounds=6)  # what was accepted is what it has trained on


def test_a_node_on_a_machine_of_its_own_logs_that_its_data_are_others_and_goes_on(
    tmp_path, on_a_table, elsewhere, monkeypatch, caplog
):
    """Its data may grow while the federation runs, and who runs it cannot accept a loss in the server's name."""
    monkeypatch.setattr(registration, "simulated", lambda: False)
    elsewhere(on_a_table)
    changed = "its training samples, labels or names have changed since its state was saved"
    said = f"client 0 (mlp): {changed}; it continues with them"
    for run, told in ((8, True), (9, False)):
        a_table(tmp_path / "table", flip=150)
        caplog.clear()
        elsewhere(on_a_table, run, rounds=run - 3)
        assert (said in caplog.text) is told


# --- counts of uploads ---------------------------------------------------------------------------


def test_an_upload_is_on_the_disk_before_it_is_asked_for(tmp_path):
    """A run that is killed forgets no upload that has left a client."""
    path = tmp_path / "counts"
    uploads = UploadCounts(path)
    for act, counts in (
        (lambda: uploads.asked([0, 2]), {0: 1, 2: 1}),
        (lambda: uploads.refused(2), {0: 1, 2: 0}),
        (lambda: uploads.asked([0]), {0: 2, 2: 0}),
    ):
        act()
        again = UploadCounts(path)
        assert again.resume({0: 1}) == ""
        assert again.counts == counts


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    keys = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "noise_source": "system"}
    return begin(tmp_path_factory.mktemp("noisy") / "run", **keys)


def uploads(folder: Path) -> list[int | None]:
    return [client["uploads"] for client in clients_of(folder)]


@pytest.mark.parametrize("damage", [missing, cut, flipped, a_pipe])
def test_a_damaged_count_of_uploads_stops_the_resume_and_no_epsilon_is_reported_that_is_too_low(
    refusal, noisy, tmp_path, damage
):
    folder = Path(shutil.copytree(noisy, tmp_path / "run"))
    damage(folder / "upload-counts.safetensors")
    line = refusal(RunFolderError, go_on, folder)
    assert line.startswith(f"{folder}/upload-counts.safetensors: ")
    assert "--accept-loss" in line
    go_on(folder, accept_loss=True)
    for rounds in (5, 6):  # also when it goes on once more: the loss stays
        assert {one["epsilon"] for one in (summary_of(folder), *clients_of(folder))} == {"Infinity"}
        assert set(uploads(folder)) == {None}
        assert "is not known" in str(privacy(load_run(folder)))
        go_on(folder, rounds=rounds + 1)


def test_samples_with_noise_are_shared_once(tmp_path):
    """Fresh noise would be another release of the same samples, and the mean of both has less."""
    keys = {"public_noise_multiplier": 1.0, "public_clipping_norm": 1.0, "noise_source": "system"}
    folder, shared = tmp_path / "run", list[dict[str, list[float]]]()
    for rounds in (1, 2):
        if rounds == 1:
            begin(folder, algorithm="dsfl", rounds=1, **keys)
        else:
            go_on(folder, rounds=2)
        held = Checkpoint.read(folder).under_way.arrays
        shared.append({name: array.tolist() for name, array in held.items()})
    assert len(shared[0]) == 3
    assert shared[0] == shared[1]


def test_uploads_are_counted_on(noisy, tmp_path):
    folder = Path(shutil.copytree(noisy, tmp_path / "run"))
    go_on(folder, rounds=5)
    go_on(folder, rounds=6)
    assert uploads(folder) == [count + 2 for count in uploads(noisy) if count is not None]


# --- config.toml ---------------------------------------------------------------------------------


CONFIGS: dict[str, Callable[[Path], object]] = {
    "missing": missing,
    "not TOML": lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\xa0\n", 3)),
    "another's": lambda path: path.write_text(path.read_text().replace("\nbatch-size = 50", "\nbatch-size = 51")),
}


@pytest.mark.parametrize("damage", CONFIGS)
def test_a_run_goes_on_with_the_config_of_its_checkpoint(whole, folder, damage):
    """Whatever has become of its ``config.toml``."""
    CONFIGS[damage](folder / "config.toml")
    go_on(folder)
    assert server_state(folder) == server_state(whole)
    assert (folder / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()
