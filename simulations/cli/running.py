"""``hetfl run``, ``hetfl tune`` and ``hetfl reproduce``: one run on this machine, or many."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetfl_flwr.config import RunConfig, Value, parse_settings
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.runs.record import check_no_run_file
from simulations.cli.options import (
    MAX_WORKERS,
    AlgorithmArgument,
    AtATimeOption,
    ClientsOption,
    DatasetOption,
    FolderOption,
    OnOption,
    RecipeOption,
    RoundsOption,
    SeedOption,
    SettingsOption,
    chosen_keys,
    path,
    target,
)
from simulations.cli.printing import make_console, print_tables, show_run
from simulations.cli.results import compare
from simulations.engine.run import run_locally

if TYPE_CHECKING:
    from simulations.studies.jobs import Backend


def run(
    algorithm: AlgorithmArgument,
    dataset: DatasetOption = None,
    data_dir: FolderOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_WORKERS, help="Worker processes; results do not depend on their number.")
    ] = 1,
    recipe: RecipeOption = None,
    settings: SettingsOption = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE...",
            help="Run every combination of these values, each in a folder of --out, --workers at a time: "
            '"fedhe.alpha=0,0.5 seed=0:5". a:b means a to b - 1; quote a value that contains a comma.',
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="local",
            help="Also run with each client training alone (local), on the data of all clients (pooled), or both "
            "(local,pooled), in folders of --out, --workers at a time, and report which clients the algorithm helps.",
        ),
    ] = None,
    on: OnOption = "local",
    out: Annotated[Path | None, typer.Option(parser=path, help="Run folder (default: a new one under runs/).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="With --resume: continue even if the newest checkpoint or a client's state is damaged, from the "
            "previous checkpoint or, if that is damaged too, without what is lost.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Flower's log and the clients' tracebacks.")] = False,
) -> None:
    """Run a federation on this machine.

    Example: hetfl run fedhe --dataset digits --clients 10 --rounds 50 --set partition=dirichlet:0.3 --set
    fedhe.alpha=0.5
    """
    chosen = chosen_keys(
        recipe,
        settings,
        algorithm=algorithm,
        dataset=dataset,
        data_dir=data_dir,
        clients=clients,
        rounds=rounds,
        seed=seed,
        output_dir=out,
        accept_loss=accept_loss or None,
    )
    for key in parse_settings(settings or []) if sweep is None else ():
        if "." in key and not key.startswith(f"{chosen['algorithm']}."):
            raise ConfigError(f"{key}: not an option of {chosen['algorithm']}: leave it out")
    if sweep is not None or against is not None:
        if resume or verbose:
            raise ConfigError("--resume and --verbose are for one run: a study resumes its runs automatically")
        from simulations.studies.backends import backend

        run_many(chosen, None if sweep is None else " ".join(sweep), against, backend(on, workers))
    elif on != "local":
        raise ConfigError(f"--on {on}: needs --sweep or --against; `flwr run` distributes the clients of one run")
    else:
        show_run(run_one(chosen, resume=resume, workers=workers, verbose=verbose))


def run_one(chosen: dict[str, Value], *, resume: bool, workers: int, verbose: bool) -> Path:
    """Run a federation and return its folder."""
    with _imports():
        import simulations.engine.grid  # noqa: F401
    return run_locally(chosen, resume=resume, workers=workers, verbose=verbose)


@contextmanager
def _imports() -> Iterator[None]:
    """Import large packages, in this project's own processes only, and exclude them from garbage collection for good.

    Otherwise, the collector would traverse all objects again and again during imports, and when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_many(chosen: dict[str, Value], sweep: str | None, against: str | None, backend: "Backend") -> None:
    """Execute the runs of a grid and a comparison, and compare the finished ones; a failed run fails the command.

    Raises `ConfigError` if no folder is given for the runs.
    """
    from simulations.studies.jobs import run_all
    from simulations.studies.sweeps import check, jobs, jobs_against, parse_grid

    if "output-dir" not in chosen:
        option = "--sweep" if against is None else "--against"
        raise ConfigError(f"{option} needs --out: the folder for its runs, in which the same command continues them")
    out = check_no_run_file(Path(str(chosen.pop("output-dir"))))
    grid = {} if sweep is None else parse_grid(sweep)
    wanted = jobs(chosen, grid, out) if against is None else jobs_against(chosen, against, grid, out)
    check(wanted)
    failed = run_all(wanted, backend, make_console())
    if ended := [job.folder for job in wanted if job.folder not in failed]:
        compare(ended)
    if failed:
        raise typer.Exit(1)


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
            help="Setting to vary: numbers from LOW to HIGH, or KEY=VALUE,VALUE; repeatable. Default: the learning "
            "rate and the method's main weight, from 1/30 to 30 times their values.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of settings to try; the first is the given one.")
    ] = 12,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of runs of each setting, with seeds 0 to N - 1.")
    ] = 1,
    workers: AtATimeOption = 1,
    on: OnOption = "local",
) -> None:
    """Try settings of a method and keep those with the best accuracy on validation samples. Needs optuna.

    Finished runs are not repeated: run the same command again to continue. Test samples are not used. Compare methods
    on seeds that were not used for tuning.

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
    there = backend(on, workers)
    found = tune_all(chosen, space, folder, make_console(), there, trials=trials, seeds=range(seeds))
    print_tables(tuning_table(found))
    typer.echo(f"best: {folder / BEST_FILE}")


def reproduce(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE...", help="Names from `hetfl list tables`, files, or `all`.")
    ],
    seeds: Annotated[
        int, typer.Option(min=0, max=999, help="Number of seeds, starting at 0 (default: the recipe's).")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Quick variant: bundled data, few rounds, one seed.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Short variant, if there is one: the same data, sized for a small machine.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this row, column or 'ROW, COLUMN'; * is any text; repeatable."),
    ] = None,
    workers: AtATimeOption = 1,
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
            metavar="DIR",
            help="Folder that keeps reports, pictures and a record of each run; runs recorded there are not repeated.",
        ),
    ] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing; report earlier runs.")] = False,
) -> None:
    """Reproduce the papers' tables and figures, and show the paper's numbers next to ours.

    Finished runs under --out are not repeated; interrupted ones continue. With --results, that folder keeps the figures
    of each run, so that a table can be made in parts and on several machines.

    Example: hetfl reproduce fedh2l-table2 --seeds 3 --workers 2 --data-dir data
    """
    from simulations.studies.backends import backend
    from simulations.studies.reproduce.command import Options
    from simulations.studies.reproduce.command import reproduce as reproduce_all
    from simulations.studies.reproduce.recipe import Variant

    extra = parse_settings(settings or [])
    if data_dir is not None:
        extra["data-dir"] = str(data_dir)
    if quick and short:
        raise ConfigError("--quick and --short: give only one")
    variant: Variant = "quick" if quick else "short" if short else "full"
    options = Options(out, variant, only or (), seeds, backend(on, workers), extra, results, report_only)
    if not reproduce_all(recipes, options, make_console()):
        raise typer.Exit(1)
