"""``hetfl tune``: a method's own best settings, by validation samples."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs.schema import check_no_run_file
from simulations.cli.options import (
    MOST_WORKERS,
    AlgorithmArgument,
    ClientsOption,
    DatasetOption,
    FolderOption,
    OnOption,
    RecipeOption,
    RoundsOption,
    SettingsOption,
    chosen_keys,
    path,
)
from simulations.cli.printing import make_console, print_tables, stopped_in_one_line


def tune(
    algorithm: AlgorithmArgument,
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the runs, of best.toml and of tuning.json.")],
    dataset: DatasetOption = None,
    data_dir: FolderOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    recipe: RecipeOption = None,
    settings: SettingsOption = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH",
            help="What is tried: numbers from LOW to HIGH, or KEY=VALUE,VALUE; repeatable. Default: the learning rate "
            "and the method's own weight, 30 times less to 30 times more than they are.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="Settings to try; the first as they are.")] = 12,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each: seeds 0 to N - 1.")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="Runs at a time, each in its own process.")] = 1,
    on: OnOption = "local",
) -> None:
    """Try settings of a method and keep those with the best accuracy on validation samples. Needs optuna.

    Runs that have ended are not repeated: the same command goes on. Test samples have no say; keep seeds for the
    comparison that were not tuned on.

    Example: hetfl tune fedhe --clients 10 --rounds 50 --set partition=dirichlet:0.3 --out tuned/fedhe; then hetfl run
    fedhe --recipe tuned/fedhe/best.toml --seed 1
    """
    from simulations.studies.backends import backend
    from simulations.studies.tuning import BEST_FILE, parse_space, tuning_table, usual_space
    from simulations.studies.tuning import tune as tune_all

    named = {"dataset": dataset, "data_dir": data_dir, "clients": clients, "rounds": rounds}
    chosen = chosen_keys(recipe, settings, algorithm=algorithm, **named)
    if "seed" in chosen:
        raise ConfigError("seed: set --seeds, the number of seeds from 0")
    space = parse_space(over) if over else usual_space(RunConfig.from_flat(dict(chosen)))
    folder = check_no_run_file(out)
    with stopped_in_one_line():
        there = backend(on, workers)
        found = tune_all(chosen, space, folder, make_console(), there, trials=trials, seeds=range(seeds))
    print_tables(tuning_table(found))
    typer.echo(f"best: {folder / BEST_FILE}")
