"""Accuracy against bytes, all algorithms on one scenario: ``python -m simulations.benchmarks.accuracy --out DIR``.

Every algorithm of the catalogue, over three seeds, on equal terms: LeNet-5 at every client, which the methods for
heterogeneous models do not need and those that average weights do; ten clients whose mixes of classes are drawn from a
Dirichlet distribution (0.5); Adam at 1e-3; ten mini-batches of 50 rows a client and round (FedH2L's word for that is
``exchange-every``); everything else as by default. What stays unequal belongs to the methods: FedMD's pre-training in
round 1 and its digesting, FedRep's passes over the head, FML's second model, FedH2L's steps on public samples. CHFL is
there twice: its default, the sum of heads as printed, does harm with ten clients.

The data are every tenth image of MNIST, written to ``DIR/data``, or without HETFL_DATA_DIR the bundled digits. Half of
a client's rows are its test set, and a tenth of the others is public. So training rows are few, and knowledge worth
its bytes; and each client is scored on the mix of classes that it has, which is what its model is for.

Each run has a folder in DIR, and one that is there already is not run again. The table, ``DIR/accuracy.md``, has means
and standard deviations over the seeds. Payload is that of all clients, up and down, public samples included:

- *best accuracy*: the highest mean accuracy over clients of any evaluated round (every second one);
- *95 % of its best*: the first evaluated round that reached that share of the run's own best accuracy, and the payload
  until then. A weak method is soon there: read it beside the accuracy;
- *local's best*: the payload until a run was as good as the best round of ``local`` with the same seed;
- *in all*: the payload of all rounds.

The picture, ``DIR/accuracy.png``, has the mean accuracy over the payload. ``hetfl compare DIR/*-[0-9]`` says more about
the same runs.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.filesize import decimal

from hetfl_flwr.algorithms import names
from hetfl_flwr.config import Value
from hetfl_flwr.data import Reading
from hetfl_flwr.data.sources.hub import open_source
from simulations.benchmarks.measure import run
from simulations.benchmarks.records import spread
from simulations.reports.plots.comparison import plot_costs
from simulations.reports.runs import INCIDENTAL, Group, Run, bytes_to, curve, figures, group_runs, load_run

SEEDS, SHARE = 3, 0.95
MNIST, THINNED = "ylecun/mnist", 10
BATCHES = 10
SCENARIO: Mapping[str, Value] = {
    "dataset": "digits",
    "clients": 10,
    "partition": "dirichlet:0.5",
    "models": "lenet5",
    "width": 84,  # LeNet-5's own: chfl would have another one otherwise
    "test-fraction": 0.5,
    "validation-fraction": 0.0,
    "public-fraction": 0.05,
    "local-batches": BATCHES,
    "rounds": 60,
    "evaluate-every": 2,
}
QUICK: Mapping[str, Value] = {"clients": 3, "rounds": 4}
METHODS: Mapping[str, Mapping[str, Value]] = {
    **{name: {"algorithm": name} for name in names()},
    "fedh2l": {"algorithm": "fedh2l", "fedh2l.exchange-every": BATCHES},
    "chfl-sum": {"algorithm": "chfl", "chfl.reduce": "sum"},
}
"""What is compared: by the name of the run folders, the settings of its own."""


def finished(settings: Mapping[str, Value], folder: Path) -> Run:
    """Return a run, which is run unless its folder is there.

    Raises
    ------
    BadParameter
        The folder holds a run of other settings.
    """
    _once(folder, lambda made: run(settings, made))
    found = load_run(folder)
    for key, value in settings.items():
        if key not in INCIDENTAL and found.config.get(key) != value:
            there = found.config.get(key)
            raise typer.BadParameter(f"{folder} was run with {key} = {there!r}, not {value!r}: name another --out")
    return found


def thinned(source: str, folder: Path) -> None:
    """Write every tenth image of each split of MNIST as a data set in the hub's layout, unless it is there."""

    def write(made: Path) -> None:
        (made / MNIST).mkdir(parents=True)
        for split, rows in open_source(MNIST, Reading(data_dir=source)).splits.items():
            rows.shard(THINNED, 0, contiguous=False).to_parquet(made / MNIST / f"{split}.parquet")

    _once(folder, write)


def table(groups: Sequence[Group]) -> str:
    """Return the figures in Markdown, best accuracy first."""
    alone = {figures(run)["seed"]: _best(run) for group in groups if group.label == "local" for run in group.runs}
    columns: dict[str, Callable[[Group], str]] = {
        "": lambda group: f"`{group.label}`",
        "best accuracy %": lambda group: _spread([100 * _best(run) for run in group.runs], "{:.1f}".format),
        "95 % of its best: round": lambda group: _spread([_first_round(run) for run in group.runs], "{:.0f}".format),
        "payload": lambda group: _paid([bytes_to(run, SHARE * _best(run)) for run in group.runs]),
        "`local`'s best: payload": lambda group: _paid(
            [bytes_to(run, alone[figures(run)["seed"]]) for run in group.runs]
        ),
        "in all": lambda group: _size(fmean(curve(run).payload[-1] for run in group.runs)),
    }
    ranked = sorted(groups, key=lambda group: -fmean(map(_best, group.runs)))
    lines = [columns, ["---"] * len(columns), *([cell(group) for cell in columns.values()] for group in ranked)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs, table and picture.")],
    quick: Annotated[bool, typer.Option("--quick", help="Digits, three clients, four rounds, one seed.")] = False,
) -> None:
    """Run all algorithms on one scenario, print the table and draw accuracy over bytes."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    scenario = {**SCENARIO, **(QUICK if quick else {})}
    if "HETFL_DATA_DIR" in os.environ and not quick:
        thinned(os.environ["HETFL_DATA_DIR"], out / "data")
        scenario |= {"dataset": "mnist", "data-dir": str(out / "data")}
    runs = []
    for seed in range(1 if quick else SEEDS):
        for name, own in METHODS.items():
            typer.echo(f"{name}, seed {seed}", err=True)
            runs.append(finished({**scenario, **own, "seed": seed}, out / f"{name}-{seed}"))
    figures_in_markdown = table(group_runs(runs))
    (out / "accuracy.md").write_text(figures_in_markdown)
    plot_costs(runs, out / "accuracy.png")
    typer.echo(figures_in_markdown)


def _once(folder: Path, make: Callable[[Path], object]) -> None:
    """Make a folder unless it is there. It gets its name last: one that is there is whole."""
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent) as unfinished:
            made = Path(unfinished, folder.name)
            make(made)
            made.rename(folder)


def _best(run: Run) -> float:
    return float(curve(run).accuracy.max())


def _first_round(run: Run) -> int:
    points = curve(run)
    return int(points.rounds[points.accuracy >= SHARE * _best(run)][0])


def _paid(sizes: Sequence[int | None]) -> str:
    """Return payload over seeds, and how many of them got there."""
    known = [size for size in sizes if size is not None]
    if not known:
        return "never"
    return _spread(known, _size) + (f" ({len(known)} of {len(sizes)} seeds)" if len(known) < len(sizes) else "")


def _spread(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return mean and standard deviation, the latter if there is any."""
    return spread(values, shown) if len(set(values)) > 1 else shown(values[0])


def _size(size: float) -> str:
    return decimal(round(size))


if __name__ == "__main__":
    typer.run(main)
