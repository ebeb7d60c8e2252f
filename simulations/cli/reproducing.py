"""``hetfl reproduce``: the tables and figures of papers, from many runs."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import parse_settings
from simulations.cli.options import MOST_WORKERS, FolderOption, OnOption, SettingsOption, target
from simulations.cli.printing import make_console


def reproduce(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE...", help="Names from `hetfl list tables`, files, or `all`.")
    ],
    seeds: Annotated[
        int, typer.Option(min=0, max=1000, help="Number of seeds, starting at 0 (default: the recipe's).")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Quick variant: bundled data, few rounds, one seed.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Short variant, if there is one: the same data, sized for a small machine.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only rows and columns whose name contains this; repeatable."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Number of runs at a time, each in its own process.")
    ] = 1,
    on: OnOption = "local",
    data_dir: FolderOption = None,
    settings: SettingsOption = None,
    out: Annotated[
        Path, typer.Option(parser=target, metavar="DIR", help="Folder for runs, tables and pictures.")
    ] = Path("reproduced"),
    results: Annotated[
        Path | None,
        typer.Option(
            parser=target,
            metavar="FILE.md",
            help="File that collects all tables; runs recorded there are not repeated.",
        ),
    ] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing; report earlier runs.")] = False,
) -> None:
    """Reproduce the papers' tables and figures, with the paper's figures beside ours.

    Finished runs under --out are not repeated; interrupted ones continue. With --results, the figures of each run are
    kept beside that file, in results/, so that a table can be made in parts and on several machines.

    Example: hetfl reproduce fedh2l-table2 --seeds 3 --workers 2 --data-dir data
    """
    from simulations.studies.backends import backend
    from simulations.studies.reproduce.command import Request
    from simulations.studies.reproduce.command import reproduce as reproduce_all
    from simulations.studies.reproduce.recipe import Variant

    extra = parse_settings(settings or [])
    if data_dir is not None:
        extra["data-dir"] = str(data_dir)
    if quick and short:
        raise ConfigError("--quick and --short: one of them")
    variant: Variant = "quick" if quick else "short" if short else "full"
    request = Request(out, variant, only or (), seeds, backend(on, workers), extra, results, report_only)
    if not reproduce_all(recipes, request, make_console()):
        raise typer.Exit(1)
