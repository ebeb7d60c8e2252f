"""Whether killed runs end as if nothing had happened: ``python -m simulations.benchmarks.kills --out DIR --kills 200``.

Each case trains three clients on the bundled digits for 30 rounds in the local engine, with one or two workers. Runs
are killed by SIGKILL: most up to 0.12 s after a round that is drawn at random, some up to 1.5 s after they began. A
killed run is resumed, with either number of workers, and killed again, up to three times. At its end it must have the
same bits as a run that was not killed: rounds, summary, clients, the server's state and the clients'. Seconds and the
id of a run do not count. Nor may it leave another hidden file behind.

``DIR/kills.log`` gets a line for each run, and ``DIR`` keeps the folders of runs that do not end so. If there is one,
the exit status is 1.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from multiprocessing.context import ForkProcess
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
from hetfl_flwr.runs.record import CLIENTS_FILE, ROUNDS_FILE, SERVER_STATE_FILE, SUMMARY_FILE, rounds_written
from simulations.engine.run import run_locally

ROUNDS, MOST_KILLS, SECONDS = 30, 3, 300
"""Of a run: its rounds, how often it is killed at most, and how long it may take to get to where it is killed."""

COMMON: Mapping[str, Value] = {
    "models": "simulations.testing.lab:normed,mlp,lenet5",
    **{"local-batches": 1, "batch-size": 8, "clients": 3, "rounds": ROUNDS},
    **{"checkpoint-every": 2, "evaluate-every": 2},
}
ASYNC: Mapping[str, Value] = {"algorithm": "fedhe", "fedhe.mode": "async", "client-seconds": "1,3,2"}
RUN = "run"
"""The run folder, in a folder of its own."""

STATE = {"state-dir": "STATE"}
"""A folder of the clients' states beside the run folder."""

CASES: Mapping[str, Mapping[str, Value]] = {
    "fedhe, half of the clients": {"algorithm": "fedhe", "fraction": 0.5, "keep-best": True, "client-seconds": "1,2,3"},
    "fd, asynchronous, median": {
        **{"algorithm": "fd", "fd.mode": "async", "client-seconds": "1,3,2"},
        **{"robust": "median", "checkpoint-every": 3},
    },
    "fedhe, asynchronous, noise": {**ASYNC, "models": "mlp", "clipping-norm": 4.0, "noise-multiplier": 1.0},
    "fedhe, asynchronous, state-dir": {**ASYNC, **STATE},
    **{name: {"algorithm": name} for name in ("fedh2l", "fedhenn", "fml", "fedkd", "agg")},
    "fedhenn, homogeneous": {"algorithm": "fedhenn", "models": "mlp", "fedhenn.mode": "homogeneous"},
    "fedgh, asynchronous": {"algorithm": "fedgh", "width": 8, "fedgh.mode": "async", "client-seconds": "1,3,2"},
    "fedtgp": {"algorithm": "fedtgp", "width": 8, "fedtgp.server-epochs": 3},
    "chfl": {"algorithm": "chfl", "width": 8},
    "lgfedavg": {"algorithm": "lgfedavg", "width": 8, "moments": "kept"},
    "fedmd": {"algorithm": "fedmd", "fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1},
    "dsfl": {"algorithm": "dsfl", "dsfl.public-samples": 20},
    "fedavg": {"algorithm": "fedavg", "models": "simulations.testing.lab:normed"},
    "fedrep": {"algorithm": "fedrep", "models": "mlp"},
    "heterofl": {"algorithm": "heterofl", "models": "lenet5,lenet5@0.5"},
    "feddf": {"algorithm": "feddf", "feddf.server-steps": 20},
    "local, state-dir": {"algorithm": "local", **STATE},
}
"""What is run: config keys of each, beside `COMMON`."""


def started(case: str, folder: Path, workers: int, *, resume: bool = False) -> ForkProcess:
    """Run a case, or resume its run, in a child of this process."""
    chosen: dict[str, Value] = {"output-dir": str(folder / RUN)}
    if not resume:
        chosen |= {**COMMON, **CASES[case]}
        if "state-dir" in chosen:
            chosen["state-dir"] = str(folder / "state")
    process = multiprocessing.get_context("fork").Process(target=_run, args=(chosen, workers, resume))
    process.start()
    return process


def _run(chosen: Mapping[str, Value], workers: int, resume: bool) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run_locally(chosen, resume=resume, workers=workers, verbose=False, progress=False)


def outcome(folder: Path) -> dict[str, Any]:
    """Return all of a finished run that must have the same bits."""
    rounds = [{**json.loads(line), "seconds": 0} for line in (folder / ROUNDS_FILE).read_text().splitlines()]
    checkpoint, states = Checkpoint.read(folder), {}
    for client_id in checkpoint.at["clients"]:
        values, arrays, _ = unpack(checkpoint.client_state(client_id), CLIENT_STATE)
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
    process = started(case, folder, 1)
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{case} has ended with status {process.exitcode}")
    found = outcome(folder / RUN)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def killed(case: str, folder: Path, expected: Mapping[str, Any], draw: random.Random) -> tuple[int, str]:
    """Run a case, kill it up to `MOST_KILLS` times, resume it each time; return the kills, and what it came to."""
    kills = 0
    while True:
        resume = bool(checkpoints(folder / RUN))
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        process = started(case, folder, draw.choice((1, 1, 2)), resume=resume)
        if kills < MOST_KILLS:
            _kill(process, folder / RUN, draw, resume)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            break
        kills += 1
    if process.exitcode:
        return kills, f"ended with status {process.exitcode}"
    found = outcome(folder / RUN)
    if differ := [name for name, value in expected.items() if found[name] != value]:
        return kills, f"DIFFERS in {', '.join(differ)}"
    shutil.rmtree(folder, ignore_errors=True)
    return kills, "same bits"


def _kill(process: ForkProcess, folder: Path, draw: random.Random, resume: bool) -> None:
    """Kill a run at a moment drawn at random."""
    deadline, last = time.monotonic() + SECONDS, rounds_written(folder) if resume else 0
    early = draw.random() < (0.25 if resume else 0.06)
    number, moment = draw.randint(last, min(last + 10, ROUNDS)), draw.uniform(0, 1.5 if early else 0.12)

    def reached() -> bool:
        lock = folder / LOCK_FILE
        with suppress(OSError):
            return str(process.pid) in lock.read_text() and (early or rounds_written(folder) >= number)
        return False

    while process.is_alive() and not reached() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(moment)
    process.kill()


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
        for number in count():
            if done >= kills:
                break
            case = draw.choice(list(CASES))
            if case not in expected:
                expected[case] = whole(case, out / "whole")
            of_run, verdict = killed(case, out / f"run-{number}", expected[case], draw)
            log.write(f"{number} {case}, killed {of_run} times: {verdict}\n")
            done, bad = done + of_run, bad + (verdict != "same bits")
        text = f"{done} kills, {bad} runs that did not end with the same bits"
        log.write(f"{text}\n")
    print(text)
    if bad:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
