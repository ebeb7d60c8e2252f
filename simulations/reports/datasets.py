"""Short names of data sets: paths relative to the folder that all of them are in."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from os.path import commonpath
from pathlib import PurePath

from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.data.reading import comma_list, parse_data_sets
from hetfl_flwr.text import printable
from simulations.reports.runs import Run


def short_names(datasets: Iterable[str]) -> dict[str, str]:
    """Return a short name for each data set; different data sets get different names.

    Examples
    --------
    >>> short_names(["digits", "/home/ann/data/north.csv,/home/ann/data/south.csv", "/home/ann/old/north.csv"])
    {'digits': 'digits', '/home/ann/data/north.csv,/home/ann/data/south.csv': './data/north.csv,./data/south.csv', \
'/home/ann/old/north.csv': './old/north.csv'}
    >>> short_names(["/home/ann/data/north.csv"])
    {'/home/ann/data/north.csv': './north.csv'}
    """
    called = {dataset: dataset_called(dataset) for dataset in datasets}
    parts = {part for name in called.values() for part in parse_data_sets(name)}
    folders = [PurePath(part).parent for part in parts if PurePath(part).is_absolute()]
    above = f"{commonpath(folders).rstrip('/')}/" if folders else ""

    def shortened(name: str) -> str:
        parts = parse_data_sets(name)
        short = (f"./{part.removeprefix(above)}" if part.startswith("/") else part for part in parts)
        return printable(comma_list(short))

    return {dataset: shortened(name) for dataset, name in called.items()}


def with_short_names(runs: Sequence[Run]) -> list[Run]:
    """Return runs for tables and pictures, whose data sets have short names."""
    names = short_names(str(run.config["dataset"]) for run in runs)

    def named(run: Run) -> Run:
        dataset, said = str(run.config["dataset"]), run.summary["dataset"]
        summary = {**run.summary, "dataset": names[dataset] if said == dataset_called(dataset) else said}
        return replace(run, config=run.config | {"dataset": names[dataset]}, summary=summary)  # type: ignore[arg-type]

    return [named(run) for run in runs]
