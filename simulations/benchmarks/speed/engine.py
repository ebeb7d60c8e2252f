"""What the local engine costs: ``python -m simulations.benchmarks.speed.engine [--quick]``.

Three measurements, each against a target:

- *overhead*: milliseconds of one message to a client that answers at once, so that nothing but the engine is in it.
  "bare" is push and pull alone; "exchange" is what a round does: checks, order and both byte counts as well. The same
  app in Flower's simulation (Ray) with 4 clients, and how many times the local engine's messages a second that is.
- *speed*: rounds a second of FedHe on digits, by the local engine and by Flower's simulation (Ray) on the same cores,
  from the seconds in the run folders. Round 1 is left out, and so is everything before it: Ray takes longest to start.
- *memory*: peak resident memory of a whole run with 100 clients, and of one with 2: the libraries alone.

How to read the table: each row has the median, and the smallest and largest of its repeats (or rounds); compare rows
of one table only, for seconds differ from machine to machine. The ratios in the last rows are of medians.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from hetfl_flwr.config import RunConfig, Value
from simulations.benchmarks.measure import Row, hetfl_run, rates, ratios, seconds, show

RAY, FEW, CLIENTS, MANY = "simulation (Ray)", 4, 10, 100

ECHO = """\
[project]
name = "echo"
version = "1.0.0"
description = "Answers at once"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "hetfl"

[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:app"

[tool.flwr.app.config]
rounds = 0
out = ""
"""
"""The project of the app that does nothing, as Flower wants it."""


def overhead(clients: int, repeats: int) -> list[Row]:
    """Measure milliseconds a message, without and with what a round does around it."""
    from flwr.app import ConfigRecord, Message, MessageType, RecordDict

    from hetfl_flwr.server.federation import Federation
    from hetfl_flwr.server.messaging.member import Member
    from hetfl_flwr.wire.messages import CONFIG, ROUND
    from simulations.engine.grid import LocalGrid

    config = RunConfig(clients=clients)

    def messages() -> list[Message]:
        config_record = ConfigRecord({ROUND: 1})
        return [Message(RecordDict({CONFIG: config_record}), node, MessageType.TRAIN) for node in grid.get_node_ids()]

    def bare() -> None:
        grid.send_and_receive(messages())

    def exchange() -> None:
        federation.exchange(messages())

    with LocalGrid(config.to_flat(), clients, run=2**62, app="simulations.benchmarks.speed.echo:app") as grid:
        federation = Federation(grid, config)
        said: list[Any] = ["none", 0, 0, 0, (), 0, "", "", "uint8", 0, 0, 0, 0, -1, (), "", "", (), (), (), (), 0, ()]
        nobody = Member(0, 0, clients, *said, *[""] * 3)
        for client_id, node in enumerate(grid.get_node_ids()):
            federation.roster.add(replace(nobody, node=node, client_id=client_id))
        return [
            Row(f"overhead, {name}, {clients} clients", "ms a message", _timed(act, repeats, clients), "<= 0.5 ms")
            for name, act in (("bare", bare), ("exchange", exchange))
        ]


def ray_overhead(folder: Path, rounds: int) -> list[Row]:
    """Measure milliseconds a message in Flower's simulation, and the local engine's rate over it."""
    from simulations.benchmarks.speed.echo import exchange
    from simulations.deployment.flower import NAME, flower
    from simulations.engine.grid import LocalGrid

    app, out = folder / "echo", folder / "echo.json"
    app.mkdir()
    (app / "echo.py").write_text("from simulations.benchmarks import echo\n\napp = echo.app\nserver = echo.server\n")
    (app / "pyproject.toml").write_text(ECHO)
    with flower(folder / "echo-flower") as started:
        started.superlink("--simulation")
        nodes = f"num-supernodes={FEW} client-resources-num-cpus=1"
        settings = f"rounds={rounds} out='{out}'"
        said = started.flwr("run", str(app), NAME, "--stream", "-c", settings, "--federation-config", nodes)
        if not out.exists():
            raise RuntimeError(f"the simulation did not finish:\n{said}")
    ray: list[float] = json.loads(out.read_text())
    with LocalGrid({"clients": FEW}, FEW, run=2**62, app="simulations.benchmarks.speed.echo:app") as grid:
        local = [exchange(grid) for _ in range(rounds + 1)][1:]
    return [
        Row(f"overhead, bare, {FEW} clients", "ms a message", local, "<= 0.5 ms"),
        Row(f"the same, {RAY}", "ms a message", ray),
        Row(f"messages a second, local over {RAY}", "times", ratios(ray, local), ">= 100 times"),
    ]


def local_speed(folder: Path, rounds: int, workers: int) -> Row:
    """Measure FedHe's rounds a second in the local engine."""
    out = folder / f"local-{workers}"
    hetfl_run("fedhe", "--clients", str(CLIENTS), "--rounds", str(rounds), "--workers", str(workers), "--out", str(out))
    return Row(f"speed, local, {workers} worker{'s' * (workers > 1)}", "rounds / s", rates(out))


def ray_speed(folder: Path, rounds: int) -> Row:
    """Measure FedHe's rounds a second in Flower's simulation."""
    from simulations.deployment.flower import flower

    out = folder / "ray"
    settings: Mapping[str, Value] = {"algorithm": "fedhe", "rounds": rounds, "output-dir": str(out)}
    with flower(folder / "flower") as started:
        started.superlink("--simulation")
        nodes = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        said = started.run(settings, "--federation-config", nodes)
        if not (out / "summary.json").exists():
            raise RuntimeError(f"the simulation did not finish:\n{said}")
    return Row(f"speed, {RAY}", "rounds / s", rates(out))


def memory(folder: Path, dataset: str, clients: int) -> Row:
    """Measure the peak resident memory of one run."""
    options = ["--clients", str(clients), "--rounds", "2", "--dataset", dataset, "--set", "models=lenet5"]
    if dataset != "digits":
        options += ["--data-dir", os.environ["HETFL_DATA_DIR"]]
    peak = hetfl_run("fedhe", *options, "--out", str(folder / f"memory-{dataset}-{clients}"))
    return Row(f"memory, {clients} clients, LeNet-5, {dataset}", "GB", [peak / 1e9], "< 1.5 GB")


def main(quick: Annotated[bool, typer.Option("--quick", help="Few repeats, and no Ray.")] = False) -> None:
    """Measure the local engine and print the table."""
    rounds, repeats = (6, 5) if quick else (31, 30)
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Memory first: a process's peak counts in that of the one that started it, which is small as yet.
        datasets = ["digits", "mnist"] if "HETFL_DATA_DIR" in os.environ else ["digits"]
        rows = [memory(folder, dataset, clients) for dataset in datasets for clients in (2, MANY)]
        speeds = [local_speed(folder, rounds, workers) for workers in (1, 2)]
        if not quick:
            ray = ray_speed(folder, rounds)
            speeds += [ray, *(_ratio(speed, ray) for speed in speeds)]
            rows += ray_overhead(folder, rounds)
    rows += speeds
    for clients in (CLIENTS, MANY) if quick else (CLIENTS, MANY, 10 * MANY):
        rows += overhead(clients, repeats)
    show(rows)


def _timed(act: Callable[[], object], repeats: int, messages: int) -> list[float]:
    act()
    milliseconds = []
    for _ in range(repeats):
        milliseconds.append(seconds(act) * 1000 / messages)
    return milliseconds


def _ratio(speed: Row, ray: Row) -> Row:
    ratio = median(speed.samples) / median(ray.samples)
    return Row(f"{speed.what} over {RAY}", "times", [ratio], ">= 3 times")


if __name__ == "__main__":
    typer.run(main)
