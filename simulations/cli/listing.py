"""``hetfl list``, ``hetfl partition`` and ``hetfl new``: what is available, and a starting point for a new method."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, parse_settings
from hetfl_flwr.errors import ConfigError, DataError, HetflError
from hetfl_flwr.text import printable
from simulations.cli.facts import USUAL_DATA, Kind, Row, facts, keys_toml, write_keys
from simulations.cli.options import (
    ClientsOption,
    DatasetOption,
    FolderOption,
    JsonOption,
    RecipeOption,
    SeedOption,
    SettingsOption,
    chosen_keys,
    path,
    target,
)
from simulations.cli.printing import print_json, print_tables
from simulations.reports.layout import NOTHING, table_of

if TYPE_CHECKING:
    from hetfl_flwr.data.overview import ColumnFacts, Overview

LONGEST = 60
"""Letters of a name or an example in the table of columns."""


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to describe (default: list all names).")] = None,
    data_dir: Annotated[str, typer.Option(help="Folder with local copies in the hub's layout.")] = "",
    dataset: Annotated[str, typer.Option(help="Data set for which model sizes are shown.")] = USUAL_DATA,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How to read that data set, such as image-size=64."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="With keys: print the table that `flwr run` reads.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="FILE", help="With keys: write that table into a pyproject.toml."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List algorithms, data sets, models, recipes, tables and config keys.

    Example: hetfl list models --dataset mnist
    """
    if (toml or into is not None) and kind != Kind.KEYS:
        raise ConfigError("--toml and --into are for `hetfl list keys`")
    if into is not None:
        write_keys(into)
        return
    if toml:
        typer.echo(keys_toml(), nl=False)
        return
    config = RunConfig.from_flat({"data-dir": data_dir, "dataset": dataset, **parse_settings(settings or [])})
    kinds = [kind] if kind else list(Kind)
    if json:
        print_json({each: facts(each, config) for each in kinds})
        return
    if kind is None:
        print_tables(names({each: facts(each, config) for each in kinds}))
    else:
        print_tables(table(kind, facts(kind, config)))


def partition(
    dataset: DatasetOption = None,
    data_dir: FolderOption = None,
    clients: ClientsOption = None,
    seed: SeedOption = None,
    recipe: RecipeOption = None,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option(parser=target, metavar="FILE.png", help="Picture to write.")] = None,
    json: JsonOption = False,
) -> None:
    """Show how samples are split over clients, before any training.

    Example: hetfl partition --dataset digits --clients 10 --set partition=dirichlet:0.3 --out split.png
    """
    from hetfl_flwr.methods import resolve
    from hetfl_flwr.runs.settings import default_clients
    from simulations.reports.partition import load_split, split_table
    from simulations.reports.plots.drawing import write_figure
    from simulations.reports.plots.partition import split_figure

    chosen = chosen_keys(recipe, settings, dataset=dataset, data_dir=data_dir, clients=clients, seed=seed)
    config = RunConfig.from_flat(chosen)
    split = load_split(resolve(config.model_copy(update={"clients": config.clients or default_clients(config)})))
    for line in split.notes:
        warn(printable(line))
    if out is not None:
        write_figure(split_figure(split), out)
    if json:
        print_json(split.to_json())
        return
    _say(split.facts)
    print_tables(split_table(split))
    if out is not None:
        typer.echo(f"picture: {out}")


def data(
    dataset: Annotated[str, typer.Argument(help="A file, a folder, a name of `hetfl list datasets`, or a hub id.")],
    data_dir: FolderOption = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a data set is interpreted: its columns, classes and owners.

    Example: hetfl data ./patients.csv --set label-column=sick --set partition=natural:hospital
    """
    from hetfl_flwr.data.domains import overview

    config = RunConfig.from_flat(chosen_keys(None, settings, dataset=dataset, data_dir=data_dir))
    found = overview(config.dataset, config.reading)
    for line in found.notes:
        warn(printable(line))
    if json:
        print_json(found)
    else:
        if found.columns:
            print_tables(_columns(found))
        _say(found.lines)
    if found.problem:
        raise DataError(found.problem)


def _columns(found: "Overview") -> Table:
    """Return the columns of a data set as a table."""
    columns: dict[str, Callable[[ColumnFacts], str]] = {
        "column": lambda one: printable(one.name, LONGEST),
        "becomes": lambda one: one.becomes,
        "inputs": lambda one: f"{one.inputs:,}",
        "missing": lambda one: f"{one.missing:,}",
        "example": lambda one: printable(one.example, LONGEST),
        "how": lambda one: printable(one.why),
    }
    words = {"column", "example", "how"}
    return table_of(printable(found.place), columns, found.columns, words=words, whole={"becomes"}, notes=[])


def _say(facts: Sequence[str]) -> None:
    """Print how a data set is interpreted, as a run does."""
    for line in facts:
        typer.echo(printable(line))


def new(
    name: Annotated[str, typer.Argument(help="Name, such as my_method, or my_pkg.my_method in a package of yours.")],
) -> None:
    """Create a small working algorithm in the working directory, as a starting point for your own.

    Example: hetfl new my_method
    """
    from simulations.authoring.new import write_algorithm

    here = Path.cwd()
    folder = write_algorithm(name, here).relative_to(here)
    typer.echo(f"created {folder}: strategy.py (server side), client.py (client side), test_{folder.name}.py")
    typer.echo(f"run it:  hetfl run {name} --clients 4 --rounds 10")
    typer.echo(f"test it: pytest {folder}")


TITLES = {
    Kind.ALGORITHMS: "algorithms (in full: the docstrings of FOLDER/NAME.py in strategies/ and clients/)",
    Kind.DATASETS: "data sets (or a hub id with image-column, text-column or label-column, or a folder: ./photos)",
    Kind.MODELS: "models for {dataset}: inputs {shape}, {classes} classes (or package.module:function of your own)",
    Kind.RECIPES: "recipes",
    Kind.TABLES: "tables and figures: hetfl reproduce NAME",
    Kind.KEYS: "config keys: --set key=value, or flwr run -c 'key=value'",
}
NOTES = {
    Kind.DATASETS: "Samples of the whole data set: a local copy may hold fewer. Megabytes: decoded, in memory. 0: "
    "images of different sizes, so image-size is needed. Folder only: not on the hub; a run says where to get it."
}


def names(found: Mapping[Kind, Sequence[Row]]) -> Table:
    """Return the names of everything that can be listed, as a table with one row per kind."""
    named = {kind: ", ".join(str(row.get("name", row.get("key"))) for row in rows) for kind, rows in found.items()}
    return table_of(
        "Available",
        {"kind": str, "names": named.__getitem__},
        list(found),
        words={"names"},
        notes=["`hetfl list KIND` describes them; `hetfl list algorithms` shows what each client sends."],
    )


def table(kind: Kind, rows: Sequence[Row]) -> Table:
    """Return the rows of one kind as a table with one column per fact; raises `HetflError` if there are none."""
    if not rows:
        raise HetflError(f"nothing to list: {kind}")
    names = [name for name in rows[0] if kind is not Kind.MODELS or f"{{{name}}}" not in TITLES[kind]]
    columns = {name.replace("_", " "): partial(_cell, name) for name in names}
    numbers = {name for name in names if all(isinstance(row[name], int | float | None) for row in rows)}
    words = {name.replace("_", " ") for name in names if name not in ("name", *numbers)}
    title, note = TITLES[kind].format_map(rows[0]), NOTES.get(kind)
    return table_of(title, columns, rows, words=words, whole={"name"}, notes=[note])


def _cell(name: str, row: Row) -> str:
    fact = row[name]
    if name == "default":
        return repr(fact)
    if isinstance(fact, dict):
        return "\n".join(f"{key} = {value}" for key, value in fact.items())
    if isinstance(fact, list):
        if name == "shape" and 0 in fact[1:]:
            return "many sizes"
        return (" x " if name == "shape" else "\n").join(map(str, fact)) or NOTHING
    if isinstance(fact, int | float) and not isinstance(fact, bool):
        return f"{fact:,}" if isinstance(fact, int) else f"{fact:,.2f}"
    return NOTHING if fact is None else str(fact)
