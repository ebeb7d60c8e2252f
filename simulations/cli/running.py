"""``hetfl run``: one run on this machine, or the many that ``--sweep`` and ``--against`` ask for."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import Value
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
    SeedOption,
    SettingsOption,
    chosen_keys,
    path,
)
from simulations.cli.printing import make_console, show_run, stopped_in_one_line
from simulations.cli.results import compare_runs
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
        int, typer.Option(min=1, max=MOST_WORKERS, help="Worker processes; results do not depend on their number.")
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
            help="Run the same also with each client training alone (local), or on the data of all (pooled), or both "
            "(local,pooled), in folders of --out, --workers at a time, and say whom the algorithm helps.",
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
            help="With --resume: continue although the newest checkpoint or a client's state is damaged, from the "
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
    if sweep is not None or against is not None:
        from simulations.studies.backends import backend

        run_many(chosen, None if sweep is None else " ".join(sweep), against, backend(on, workers))
    elif on != "local":
        raise ConfigError(f"--on {on}: is for the runs of --sweep and --against; one run is spread by `flwr run`")
    else:
        show_run(run_one(chosen, resume=resume, workers=workers, verbose=verbose))


def run_one(chosen: dict[str, Value], *, resume: bool, workers: int, verbose: bool) -> Path:
    """Run a federation and return its folder; one that is interrupted says so, and ends the command."""
    with stopped_in_one_line():
        with _imports():
            import simulations.engine.grid  # noqa: F401
        return run_locally(chosen, resume=resume, workers=workers, verbose=verbose)


@contextmanager
def _imports() -> Iterator[None]:
    """Import what is large, in a process of this project's own: Python's garbage collector leaves it alone for good.

    It would walk all that is there again and again while more is imported, and once more when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_many(chosen: dict[str, Value], sweep: str | None, against: str | None, backend: "Backend") -> None:
    """Run what a grid and a comparison ask for, and compare what has ended; one that fails fails the command.

    Raises
    ------
    ConfigError
        No folder is named for them.
    """
    from simulations.studies.sweeps import jobs, jobs_against, parse_against, parse_grid, run_jobs

    if "output-dir" not in chosen:
        option = "--sweep" if against is None else "--against"
        raise ConfigError(f"{option} needs --out: the folder of its run folders, in which it also goes on")
    out = check_no_run_file(Path(str(chosen.pop("output-dir"))))
    grid = {} if sweep is None else parse_grid(sweep)
    wanted = jobs(chosen, grid, out) if against is None else jobs_against(chosen, parse_against(against), grid, out)
    with stopped_in_one_line():
        folders, failed = run_jobs(wanted, backend, make_console())
    ended = [folder for folder in folders if folder not in failed]
    if ended:
        compare_runs(ended)
    if failed:
        raise typer.Exit(1)
