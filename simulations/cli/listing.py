"""``hetfl list`` and ``hetfl new``: what there is to run, and a start for an algorithm of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig, parse_settings
from simulations.cli.catalogue.facts import USUAL_DATA, Kind, facts, keys_toml, write_keys
from simulations.cli.options import JsonOption, path
from simulations.cli.printing import print_json, print_tables


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list (default: everything).")] = None,
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
    from simulations.cli.catalogue.tables import table

    for each in kinds:
        print_tables(table(each, facts(each, config)))


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
