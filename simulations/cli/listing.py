"""``hetfl list`` and ``hetfl new``: what there is to run, and a start for an algorithm of one's own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig, parse_settings
from simulations.cli.options import RECIPES, path
from simulations.cli.printing import print_tables


class Kind(StrEnum):
    """What `hetfl list` can show."""

    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    RECIPES = "recipes"
    TABLES = "tables"
    KEYS = "keys"


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list (default: everything).")] = None,
    data_dir: Annotated[str, typer.Option(help="Folder with local copies in the hub's layout.")] = "",
    dataset: Annotated[str, typer.Option(help="Data set for which model sizes are shown.")] = "digits",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How to read that data set, such as image-size=64."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="With keys: print the table that `flwr run` reads.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="FILE", help="With keys: write that table into a pyproject.toml."),
    ] = None,
) -> None:
    """List algorithms, data sets, models, recipes, tables and config keys.

    Example: hetfl list models --dataset mnist
    """
    from simulations.cli import catalogue

    if (toml or into is not None) and kind != Kind.KEYS:
        raise ConfigError("--toml and --into are for `hetfl list keys`")
    if into is not None:
        catalogue.write_keys(into)
        return
    if toml:
        typer.echo(catalogue.keys_toml(), nl=False)
        return
    config = RunConfig.from_flat({"data-dir": data_dir, "dataset": dataset, **parse_settings(settings or [])})

    tables = {
        Kind.ALGORITHMS: catalogue.algorithms,
        Kind.DATASETS: lambda: catalogue.datasets(data_dir),
        Kind.MODELS: lambda: catalogue.models(config.dataset, config.reading),
        Kind.RECIPES: lambda: catalogue.recipes(RECIPES),
        Kind.TABLES: catalogue.tables,
        Kind.KEYS: catalogue.keys,
    }
    for each in [kind] if kind else list(Kind):
        print_tables(tables[each]())


def new(
    name: Annotated[str, typer.Argument(help="Name, such as my_method, or my_pkg.my_method in a package of yours.")],
) -> None:
    """Create a small working algorithm in the working directory, as a starting point for your own.

    Example: hetfl new my_method
    """
    from simulations.authoring.new import write_algorithm

    here = Path.cwd()
    folder = write_algorithm(name, here).relative_to(here)
    typer.echo(f"written: {folder} (server side strategy.py, client side client.py, test_{folder.name}.py)")
    typer.echo(f"run it:  hetfl run {name} --clients 4 --rounds 10")
    typer.echo(f"test it: pytest {folder}")
