"""Whether killed runs end as if nothing had happened: ``python -m simulations.benchmarks.kills --out DIR --kills 200``.

Each algorithm trains three clients on the bundled digits for 30 rounds in the local engine, with one and with two
workers, some in several modes. Runs are killed by SIGKILL: most up to 0.12 s after a round that is drawn at random,
some up to 1.5 s after they took their folder. A killed run is resumed, with as many workers as before or, from its
second kill on, with either number, and killed again, up to three times. At its end it must have the same bits as a run
that was not killed: rounds, summary, clients, the server's state and the clients'. Seconds and the id of a run do not
count. Nor may it leave another hidden file behind.

``DIR/kills.log`` gets a line for each kill, and ``DIR`` keeps the folders of runs that do not end so. If there is one,
the exit status is 1.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from hetfl_flwr import client_app, server_app  # noqa: F401  # before the first child, which then need not import them
from hetfl_flwr.common.blobs import unpack
from hetfl_flwr.config import Value
from hetfl_flwr.node.state import STATE as CLIENT_STATE
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints
from hetfl_flwr.runs.lock import LOCK_FILE
from hetfl_flwr.runs.schema import CLIENTS_FILE, ROUNDS_FILE, SERVER_STATE_FILE, SUMMARY_FILE
from simulations.engine.run import run_locally

ROUNDS, MOST_KILLS, SECONDS = 30, 3, 300
"""Of a run: its rounds, how often it is killed at most, and how long it may take to get to where it is killed."""

UNLIKE = "simulations.testing.lab:normed,mlp,lenet5"
STATE = "STATE"
"""Stands for a folder of the clients' states."""

COMMON: Mapping[str, Value] = {
    "models": UNLIKE,
    "local-batches": 1,
    "batch-size": 8,
    "clients": 3,
    "rounds": ROUNDS,
    "checkpoint-every": 2,
    "evaluate-every": 2,
}
ASYNC: Mapping[str, Value] = {"algorithm": "fedhe", "fedhe.mode": "async"}

CASES: Mapping[str, Mapping[str, Value]] = {
    "fedhe": {"algorithm": "fedhe"},
    "fedhe, half of the clients, best models kept": {
        "algorithm": "fedhe",
        "fraction": 0.5,
        "keep-best": True,
        "client-seconds": "1,2,3",
    },
    "fedhe, asynchronous": {**ASYNC, "client-seconds": "1,1.7,6"},
    "fedhe, asynchronous, median": {
        **ASYNC,
        "client-seconds": "1,3,2",
        "fedhe.store": "latest",
        "robust": "median",
        "checkpoint-every": 3,
    },
    "fedhe, asynchronous, noise": {
        **ASYNC,
        "models": "mlp",
        "client-seconds": "1,2,9",
        "clipping-norm": 4.0,
        "noise-multiplier": 1.0,
        "checkpoint-every": 1,
    },
    "fedhe, asynchronous, state-dir": {**ASYNC, "client-seconds": "2,1,5", "state-dir": STATE},
    **{name: {"algorithm": name} for name in ("fedh2l", "fedhenn", "fml", "fedkd", "agg")},
    "chfl": {"algorithm": "chfl", "width": 8},
    "fedhenn, homogeneous": {"algorithm": "fedhenn", "models": "mlp", "fedhenn.mode": "homogeneous"},
    "fedgh, asynchronous": {"algorithm": "fedgh", "width": 8, "fedgh.mode": "async", "client-seconds": "1,3,2"},
    "fedtgp": {"algorithm": "fedtgp", "width": 8, "fedtgp.server-epochs": 3},
    "lgfedavg": {"algorithm": "lgfedavg", "width": 8, "moments": "kept"},
    "fedmd": {"algorithm": "fedmd", "fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1},
    "dsfl": {"algorithm": "dsfl", "dsfl.public-samples": 20},
    "fedavg": {"algorithm": "fedavg", "models": "simulations.testing.lab:normed"},
    "fedprox": {"algorithm": "fedprox", "models": "mlp"},
    "fedrep": {"algorithm": "fedrep", "models": "mlp"},
    "heterofl": {"algorithm": "heterofl", "models": "lenet5,lenet5@0.5"},
    "feddf": {"algorithm": "feddf", "feddf.server-steps": 20},
    "local, state-dir": {"algorithm": "local", "state-dir": STATE},
}
"""What is run: config keys of each, beside `COMMON`."""


class Child:
    """A run in a child of this process, which has imported already what it needs."""

    _status: int | None

    def __init__(self, case: str, folder: Path, workers: int, *, resume: bool = False) -> None:
        self._folder, self._status = folder, None
        chosen: dict[str, Value] = {"output-dir": str(folder)}
        if not resume:
            chosen |= {**COMMON, **CASES[case]}
            if chosen.get("state-dir") == STATE:
                chosen["state-dir"] = str(_states(folder))
        self._pid = os.fork()
        if not self._pid:
            self._run(chosen, workers, resume)

    def _run(self, chosen: Mapping[str, Value], workers: int, resume: bool) -> None:
        status = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(_errors(self._folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            run_locally(chosen, resume=resume, workers=workers, verbose=False, progress=False)
            status = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(status)

    def ended(self) -> bool:
        """Say whether it has."""
        if self._status is None:
            done, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if done else None
        return self._status is not None

    def until(self, true: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until something is true, at most until it has ended or some seconds are over."""
        deadline = time.monotonic() + seconds
        while not (self.ended() or true() or time.monotonic() > deadline):
            time.sleep(0.005)

    def holds_its_folder(self) -> bool:
        """Say whether it has taken its run folder."""
        lock = self._folder / LOCK_FILE
        return lock.exists() and str(self._pid) in lock.read_text()

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if not self.ended():
            os.kill(self._pid, signal.SIGKILL)

    def status(self) -> int:
        """Wait for its end and return its exit status, or minus the number of the signal that ended it."""
        self.until(lambda: False, float("inf"))
        return self._status if self._status is not None else 1

    def said(self) -> str:
        """Return what it said on standard error, in one line."""
        return " ".join(_errors(self._folder).read_text(errors="replace").split())[-300:]


@dataclass
class Killed:
    """A run that was killed, resumed, and has come to an end: its kills in words, and what it came to."""

    kills: list[str]
    verdict: str = "same bits"


def outcome(folder: Path) -> dict[str, Any]:
    """Return all of a finished run that must have the same bits."""
    rounds = [{**json.loads(line), "seconds": 0} for line in (folder / ROUNDS_FILE).read_text().splitlines()]
    checkpoint, states = Checkpoint.read(folder), {}
    for client_id in checkpoint.clients:
        blob = checkpoint.client_state(folder, client_id)
        values, arrays, _ = unpack(blob, CLIENT_STATE)
        del values["stamp"]["run"]
        states[client_id] = values, {name: array.tobytes() for name, array in arrays.items()}
    return {
        "rounds": rounds,
        "summary": {**json.loads((folder / SUMMARY_FILE).read_text()), "seconds": 0},
        "clients": (folder / CLIENTS_FILE).read_text(),
        "server state": (folder / SERVER_STATE_FILE).read_bytes(),
        "client states": states,
        "hidden files": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
    }


def whole(case: str, folder: Path) -> dict[str, Any]:
    """Run a case without a kill."""
    _clear(folder)
    child = Child(case, folder, 1)
    if child.status():
        raise RuntimeError(f"{case}: {child.said()}")
    found = outcome(folder)
    _clear(folder)
    return found


def killed(case: str, workers: int, folder: Path, expected: Mapping[str, Any], draw: random.Random) -> Killed:
    """Run a case, kill it up to `MOST_KILLS` times, resume it each time, and compare its end with what is expected."""
    _clear(folder)
    run = Killed([])
    while True:
        resume = bool(checkpoints(folder))
        if not resume:
            _clear(folder)
        if len(run.kills) > 1:
            workers = draw.choice((1, 2))
        child = Child(case, folder, workers, resume=resume)
        when = _kill(child, folder, draw, resume) if len(run.kills) < MOST_KILLS else ""
        status = child.status()
        if status != -signal.SIGKILL:
            break
        begun = "resumed" if resume else "new"
        run.kills.append(f"{workers} worker(s), {begun}, killed {when}, checkpoint {_newest(folder)}")
    if status:
        run.verdict = f"REFUSED: {child.said()}"
        return run
    found = outcome(folder)
    if differ := [name for name, value in expected.items() if found[name] != value]:
        run.verdict = f"DIFFERS in {', '.join(differ)}"
    else:
        _clear(folder)
    return run


def _kill(child: Child, folder: Path, draw: random.Random, resume: bool) -> str:
    """Kill a run at a moment drawn at random, and return when that was."""
    child.until(child.holds_its_folder)
    if draw.random() < (0.25 if resume else 0.06):
        moment = draw.uniform(0, 1.5)
        when = f"{moment:.2f} s after it took the folder"
    else:
        last = max(_newest(folder), 0)
        number = draw.randint(last, min(last + 10, ROUNDS))
        child.until(lambda: _lines(folder) > number)
        moment = draw.uniform(0, 0.12)
        when = f"{moment:.2f} s after round {number}"
    time.sleep(moment)
    child.kill()
    return when


def _newest(folder: Path) -> int:
    """Return the round of the newest checkpoint; -1: there is none."""
    return max((int(path.name.removeprefix("round-")) for path in checkpoints(folder)), default=-1)


def _lines(folder: Path) -> int:
    path = folder / ROUNDS_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _errors(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.err")


def _states(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-state")


def _clear(folder: Path) -> None:
    for path in (folder, _states(folder)):
        shutil.rmtree(path, ignore_errors=True)
    _errors(folder).unlink(missing_ok=True)


def _turns(draw: random.Random) -> Iterator[tuple[str, int]]:
    """Go through cases and numbers of workers without end, each twice with one worker for once with two."""
    while True:
        turns = [(case, workers) for case in CASES for workers in (1, 1, 2)]
        draw.shuffle(turns)
        yield from turns


def main(
    out: Annotated[Path, typer.Option(help="Folder of the log, and of runs that did not end with the same bits.")],
    kills: Annotated[int, typer.Option(min=1, help="How many, at least.")] = 200,
    seed: Annotated[int, typer.Option(help="Of what is run and when it is killed.")] = 0,
) -> None:
    """Kill runs, resume them, and say what they came to."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    draw, expected, done, bad = random.Random(seed), dict[str, dict[str, Any]](), 0, 0
    with (out / "kills.log").open("w", buffering=1) as log:
        for number, (case, workers) in enumerate(_turns(draw)):
            if done >= kills:
                break
            if case not in expected:
                expected[case] = whole(case, out / "whole")
            run = killed(case, workers, out / f"run-{number}", expected[case], draw)
            for one in run.kills or ["not killed: it ended before"]:
                log.write(f"{number} {case}, {one}: {run.verdict}\n")
            done, bad = done + len(run.kills), bad + (run.verdict != "same bits")
        text = f"{done} kills, {bad} runs that did not end with the same bits"
        log.write(f"{text}\n")
    print(text)
    if bad:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
