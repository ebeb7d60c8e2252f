"""Output that several commands share: tables, JSON, and the end of a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hetfl_flwr.text import printable

if TYPE_CHECKING:
    from rich.console import Console


MAX_CLIENTS = 30
"""Maximum number of clients in the table at the end of a run."""


def show_run(folder: Path) -> None:
    """Print the results of a run."""
    from simulations.reports.runs import load_run
    from simulations.reports.tables import client_table, summary_table

    finished = load_run(folder)
    print_tables(client_table(finished.name, finished.clients, MAX_CLIENTS), summary_table(finished))
    typer.echo(f"results: {printable(str(folder))}")


def print_tables(*tables: Any) -> None:
    """Print tables to the width of the terminal, or as plain lines to a file or pipe."""
    from simulations.reports.layout import fitted, lines

    console = make_console()
    for table in tables:
        if not console.is_terminal:
            typer.echo("\n".join(lines(table)))
            continue
        for part in fitted(table, console):
            console.print(part)


def print_json(facts: Any) -> None:
    """Print facts as one line of JSON; infinity and NaN become null."""
    from pydantic_core import to_json

    typer.echo(to_json(facts, inf_nan_mode="null").decode())


def make_console() -> "Console":
    """Return a console as wide as the terminal, or 160 columns for a file or pipe."""
    from rich.console import Console

    # names and texts come from users: no markup, no emoji
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
