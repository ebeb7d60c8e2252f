"""What several commands print: tables, a run that has ended, and one that the user has stopped."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


MAX_CLIENTS = 30
"""Maximum number of clients in the table at the end of a run."""


def show_run(folder: Path) -> None:
    """Print the results of a run."""
    from simulations.reports.runs import load_run
    from simulations.reports.tables import summary_table
    from simulations.reports.terminal import client_table

    finished = load_run(folder)
    print_tables(client_table(finished.name, finished.clients, MAX_CLIENTS), summary_table(finished))
    typer.echo(f"results: {folder}")


@contextmanager
def stopped_in_one_line(*, again: bool = True) -> Iterator[None]:
    """End the command in one line that says how to go on where the user stops what runs within.

    Parameters
    ----------
    again : bool
        Whether the same command goes on, where what runs within says nothing else.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        if not (again or str(stopped)):
            raise
        typer.echo(str(stopped) or f"stopped; to continue: {shlex.join(['hetfl', *sys.argv[1:]])}", err=True)
        raise typer.Exit(1) from None


def print_tables(*tables: Any) -> None:
    """Print tables as wide as the terminal is; to a file or a pipe as plain lines."""
    from simulations.reports.terminal import fitted, lines

    console = make_console()
    for table in tables:
        if not console.is_terminal:
            typer.echo("\n".join(lines(table)))
            continue
        for part in fitted(table, console):
            console.print(part)


def print_json(facts: Any) -> None:
    """Print facts as JSON in one line; what no JSON number is, such as infinity, is null."""
    from pydantic_core import to_json

    typer.echo(to_json(facts, inf_nan_mode="null").decode())


def make_console() -> "Console":
    """Return where to print: as wide as the terminal, or 160 columns."""
    from rich.console import Console

    # what is shown are names and texts of others: no markup, no emoji
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
