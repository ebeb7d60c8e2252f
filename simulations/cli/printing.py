"""What several commands print: tables, a run that has ended, and one that the user has stopped."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hetfl_flwr.common.errors import Interrupted
from hetfl_flwr.common.packages import lacking

if TYPE_CHECKING:
    from rich.console import Console


def show_run(folder: Path) -> None:
    """Print what a run has come to, and draw its accuracy into its folder."""
    from hetfl_flwr.runs.figures.tables import client_table
    from simulations.reports.plots.run import plot_run
    from simulations.reports.runs import load_run
    from simulations.reports.tables import summary_table

    finished = load_run(folder)
    print_tables(client_table(finished.name, finished.clients), summary_table(finished))
    if any(record.accuracy is not None for record in finished.rounds):  # else no client has test samples
        try:
            plot_run(finished, folder / "accuracy.png")
        except ModuleNotFoundError as error:
            if (line := lacking(error)) is None:
                raise
            typer.echo(f"no accuracy.png: {line}", err=True)
    typer.echo(f"results: {folder}")


@contextmanager
def stopped_in_one_line() -> Iterator[None]:
    """End the command in one line, which says how to go on, where the user stops what runs within."""
    try:
        yield
    except Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(1) from None


def print_tables(*tables: Any) -> None:
    """Print tables as wide as the terminal is; to a file or a pipe as plain lines."""
    from hetfl_flwr.runs.figures.tables import fitted, lines

    console = make_console()
    for table in tables:
        if not console.is_terminal:
            typer.echo("\n".join(lines(table)))
            continue
        for part in fitted(table, console):
            console.print(part)


def make_console() -> "Console":
    """Return where to print: as wide as the terminal, or 160 columns."""
    from rich.console import Console

    # what is shown are names and texts of others: no markup, no emoji
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
