"""Processes killed by SIGKILL wherever it hurts, disks that are full, state files of something else."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fixtures.folders.reached import reached
from fixtures.waiting import until
from fixtures.wrong.faults import Scripted, on_its_clock
from flwr.app import Context, RecordDict

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import FederationError
from hetfl_flwr.methods import build_client
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.rounds import SyncRounds
from hetfl_flwr.wire.messages import ROUND
from simulations.cli.command import main
from simulations.cli.running import run_one
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED

SMALL: dict[str, Value] = {"local-batches": 1, "batch-size": 8, "models": f"{NORMED},mlp"}
SETTINGS = [f"--set={key}={value}" for key, value in {**SMALL, "checkpoint-every": 1}.items()]
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.truncate", "shutil.rmtree"}
REMOVALS = {"os.remove", "os.rmdir"}
"""Audit events of Python that a change of files begins with; removals may name a file by its folder's number."""


def forked(work: Callable[[], object]) -> int:
    """Let a child process do something, silently, and return its id. An error ends it with status 1."""
    child = os.fork()
    if child == 0:
        signal.alarm(900)  # whatever comes, it ends
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def status(child: int) -> int:
    """Wait for a child's end and return its exit status, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_before_change(number: int, folder: Path) -> None:
    """Let this process be killed when it is about to change files in a folder for the n-th time."""
    left = iter(range(number - 1, -1, -1))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        here = str(folder) in str(arguments[:2])
        writes = event == "open" and here and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in REMOVALS or (event in CHANGES and here)) and next(left, None) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def die_within_writing(size: int) -> None:
    """Let this process be killed when a file that it writes gets larger than this, with that much of it written."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


# --- a client on its own disk --------------------------------------------------------------------

ROUNDS = 12


def train(config: RunConfig, round: int) -> None:
    """Let client 0 of two train for a round, as a process that has just been started."""
    context = Context(7, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), config.to_flat())
    node = Node.from_context(context)
    build_client(config, node).fit([], {ROUND: round})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A client that keeps its state on disk, and what its file holds after each round if nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    keys = {"algorithm": "local", "dataset": "digits", "checkpoint-every": 3, "state-dir": str(folder)}
    config = RunConfig.from_flat({**SMALL, **keys})
    states = [b""]
    while len(states) <= ROUNDS:
        train(config, len(states))
        states.append((folder / "run-7" / "client-0.safetensors").read_bytes())
    assert len(set(states)) == ROUNDS + 1
    return config, states


class Killed:
    """The same client in processes that are killed: what it has on disk is always a state of the undisturbed one."""

    def __init__(self, undisturbed: tuple[RunConfig, list[bytes]], folder: Path) -> None:
        config, self.states = undisturbed
        self.config = config.with_values({"state-dir": str(folder)})
        self.folder = folder / "run-7"
        self.round = 0

    def go_on(self, prepare: Callable[[], object] = lambda: None, rounds: int = ROUNDS) -> int:
        """Start a process that goes on with the state that is there, for some rounds."""

        def work() -> None:
            prepare()
            for round in range(self.round + 1, min(self.round + rounds, ROUNDS) + 1):
                train(self.config, round)

        return forked(work)

    def check(self) -> None:
        """See which round the state is of: not an earlier one than before."""
        file = self.folder / "client-0.safetensors"
        reached = self.states.index(file.read_bytes()) if file.exists() else 0
        assert reached >= self.round
        self.round = reached
        kept = self.folder / "client-0.checkpoint.safetensors"
        assert not kept.exists() or self.states.index(kept.read_bytes()) % 3 == 0

    def finish(self) -> None:
        """Go on for four rounds, undisturbed: nothing is left of those that were killed."""
        expected = min(self.round + 4, ROUNDS)
        assert status(self.go_on(rounds=4)) == 0
        self.check()
        assert self.round == expected
        names = {path.name for path in self.folder.iterdir()}
        assert names <= {"client-0.safetensors", "client-0.checkpoint.safetensors"}


@pytest.mark.slow
def test_a_client_killed_before_any_change_of_its_files_comes_back_with_its_state(undisturbed, tmp_path):
    """Before the first change of its folder, then before the second, and so on, until four rounds need no more."""
    for number in count(1):
        client = Killed(undisturbed, tmp_path / str(number))
        ended = status(client.go_on(lambda: die_before_change(number, client.folder), rounds=4))  # noqa: B023
        assert ended in (-signal.SIGKILL, 0)
        client.check()
        if ended == 0:
            break
        client.finish()
    assert number > 12


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 4000])
def test_a_client_killed_while_it_writes_its_state_comes_back_with_the_older_one(undisturbed, tmp_path, size):
    client = Killed(undisturbed, tmp_path)
    assert status(client.go_on(rounds=2)) == 0
    client.check()
    assert status(client.go_on(lambda: die_within_writing(size))) == -signal.SIGXFSZ
    assert [path.stat().st_size for path in client.folder.glob(".*")] == [size]
    client.check()
    assert client.round == 2
    client.finish()


# --- a run ---------------------------------------------------------------------------------------


def run(folder: Path, *, resume: bool = False, workers: int = 1, **keys: Value) -> None:
    chosen = {} if resume else {**SMALL, "clients": 2, "checkpoint-every": 1, **keys}
    run_one({**chosen, "output-dir": str(folder)}, resume=resume, workers=workers, verbose=True)


def newest(folder: Path) -> int:
    """Return the round of a run's newest checkpoint, or 0."""
    return max((int(path.name.removeprefix("round-")) for path in folder.glob("checkpoint/round-*")), default=0)


@pytest.fixture
def whole(tmp_path):
    """Run a federation that is left in peace, and return its outcome."""

    def left_in_peace(**keys: Value) -> list[Any]:
        run(tmp_path / "whole", **keys)
        return reached(tmp_path / "whole")

    return left_in_peace


@pytest.mark.exhaustive
@pytest.mark.parametrize("state", ["context", "disk"])
def test_a_run_killed_before_any_change_of_its_files_ends_as_if_it_had_not_been(state, whole, tmp_path):
    """Begun once and resumed as often as it takes: each time one more change of files is allowed than the time before,
    so there is none before which it was not killed."""
    folder = tmp_path / "run"
    keys: dict[str, Value] = {"algorithm": "fedhe", "rounds": 25}
    if state == "disk":
        keys["state-dir"] = str(tmp_path / "state")
    run(folder, **{**keys, "rounds": 1})
    resumed = 0
    for number in count(1):

        def go_on(number: int = number) -> None:
            die_before_change(number, tmp_path)
            run_one({"output-dir": str(folder), "rounds": 25}, resume=True, workers=1, verbose=True)

        ended = status(forked(go_on))
        assert ended in (-signal.SIGKILL, 0), f"refused after {resumed} kills"
        assert newest(folder)
        if ended == 0:
            break
        resumed += 1
    assert resumed > 30
    assert len(list((folder / "checkpoint").iterdir())) <= 3  # killed before the oldest one was removed
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert reached(folder) == whole(**{key: value for key, value in keys.items() if key != "state-dir"})


@pytest.mark.exhaustive
def test_the_command_with_workers_killed_at_any_moment_ends_as_if_it_had_not_been(whole, tmp_path):
    """Up to two seconds after its first checkpoint. Nobody ends the workers: they see that their master is gone."""
    folder = tmp_path / "run"
    program = [sys.executable, "-c", "from simulations.cli.command import main; main()"]
    command = [*program, "run", "fedhe", "--workers=2", "--clients=2", "--rounds=5000", *SETTINGS, f"--out={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        until(lambda: newest(folder), process)
        time.sleep(generator(0, "workers").uniform(0, 2))
        process.kill()
    last = newest(folder)
    assert last > 0
    run_one({"output-dir": str(folder), "rounds": last + 2}, resume=True, workers=2, verbose=True)
    assert reached(folder) == whole(algorithm="fedhe", rounds=last + 2)


# --- full disks ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"only root may mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk up to some bytes."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
    return filler


def test_a_client_whose_disk_is_full_says_so_keeps_its_older_state_and_comes_back(
    small_disk, make_config, run_federation, monkeypatch
):
    """Client 1's state takes 660 kB and those of the others 8 kB each; in round 2 there is room for 300 kB."""
    keys = {**SMALL, "models": f"{NORMED},mlp,{NORMED}", "state-dir": str(small_disk), "algorithm": "fedhe"}
    config = make_config(**keys, clients=3, rounds=4)
    file = small_disk / "run-7" / "client-1.safetensors"
    held: list[bytes] = []

    def full(grid: Scripted) -> None:
        held.append(file.read_bytes())
        fill(small_disk, leave=300_000)

    def empty(grid: Scripted) -> None:
        held.append(file.read_bytes())
        (small_disk / "filler").unlink()

    grid = Scripted(config, {2: full, 3: empty})
    on_its_clock(grid, monkeypatch)
    rounds = entries(run_federation(config, grid))
    line = f'client 1 says: "train, round 2: state file {file} cannot be written: No space left on device"'
    assert [[failure["reason"] for failure in entry["failures"]] for entry in rounds] == [[], [], [line], [], []]
    assert held[0] == held[1] != file.read_bytes()
    assert ["train-loss" in entry["clients"]["1"] for entry in rounds[1:]] == [True, False, True, True]
    assert sorted(path.name for path in file.parent.iterdir()) == [f"client-{k}.safetensors" for k in range(3)]


@pytest.mark.parametrize("leave", [0, 10_000, 400_000])
def test_a_run_whose_disk_is_full_ends_with_one_line_and_goes_on_when_there_is_room(
    leave, small_disk, whole, monkeypatch, capfd
):
    """A checkpoint takes 700 kB, and the older one is still there when a new one is written: there is no room for
    anything, for the round's line and the server state, or for the smaller client as well."""
    folder, play = small_disk / "run", SyncRounds.play

    def full_in_round_2(self: SyncRounds, number: int, arrays: Any) -> Any:
        if number == 2:
            fill(small_disk, leave)
        return play(self, number, arrays)

    command = ["hetfl", "run", "fedhe", "--clients=2", "--rounds=4", *SETTINGS, f"--out={folder}"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", command)
        patch.setattr(SyncRounds, "play", full_in_round_2)
        with pytest.raises(SystemExit) as ended:
            main()
    again = f"hetfl run fedhe --out {folder} --resume"
    full = f"hetfl: run folder {folder} cannot be written: No space left on device"
    line = f"{full}; once this is fixed, continue with: {again}"
    assert (ended.value.code, capfd.readouterr().err.splitlines()[-1]) == (2, line)
    (small_disk / "filler").unlink()
    run_one({"output-dir": str(folder)}, resume=True, workers=1, verbose=True)
    assert reached(folder) == whole(algorithm="fedhe", rounds=4)


# --- the state of something else -----------------------------------------------------------------


def test_a_run_refuses_the_state_of_something_else_by_name(make_config, run_federation, refusal, tmp_path):
    """`test_state` has each thing that it may be of."""
    before = make_config(**{**SMALL, "algorithm": "fedhe"}, rounds=1, state_dir=str(tmp_path / "s"))
    run_federation(before)
    file = tmp_path / "s" / "run-7" / "client-1.safetensors"
    after = before.with_values({"models": f"{NORMED},lenet5", "output-dir": str(tmp_path / "after")})
    line = refusal(FederationError, run_federation, after)
    assert line.startswith("client 1, client registration: client 1 (")
    said = "another model: found 'mlp', expected 'lenet5'"
    assert f"{file}: state of {said}; use another state-dir or delete it" in line
    file.unlink()
    run_federation(after)
    assert entries(tmp_path / "after")[1]["failures"] == []
