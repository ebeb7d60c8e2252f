"""``hetfl partition``: which client has which samples."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.notices import warn
from hetfl_flwr.common.text import printable
from hetfl_flwr.config import RunConfig
from simulations.cli.options import (
    ClientsOption,
    DatasetOption,
    FolderOption,
    JsonOption,
    RecipeOption,
    SeedOption,
    SettingsOption,
    chosen_keys,
    target,
)
from simulations.cli.printing import print_json, print_tables


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
    from hetfl_flwr.algorithms import resolve
    from hetfl_flwr.runs.resolution import default_clients
    from simulations.reports.partition import load_split, split_table
    from simulations.reports.plots.drawing import write_figure
    from simulations.reports.plots.partition import split_figure

    chosen = chosen_keys(recipe, settings, dataset=dataset, data_dir=data_dir, clients=clients, seed=seed)
    config = RunConfig.from_flat(chosen)
    split = load_split(resolve(config.with_values({"clients": config.clients or default_clients(config)})))
    for line in split.notes:
        warn(printable(line))
    if out is not None:
        write_figure(split_figure(split), out)
    if json:
        print_json(split)
        return
    print_tables(split_table(split))
    if out is not None:
        typer.echo(f"picture: {out}")
