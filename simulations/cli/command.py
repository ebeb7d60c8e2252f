"""The ``hetfl`` command put together. Nothing heavy is imported before a command needs it."""

import shlex
import signal
import sys
from collections.abc import Callable
from functools import wraps
from inspect import getdoc
from types import FrameType
from typing import Annotated, Any

import click
import typer

from hetfl_flwr.common.packages import lacking, working_directory_last
from hetfl_flwr.common.versions import installed
from hetfl_flwr.errors import INTERRUPTED, HetflError, TooFewClients
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.text import printable
from simulations.cli.deploying import doctor, keys, rehearse, supernode
from simulations.cli.listing import data, list_, new, partition
from simulations.cli.models import export, predict
from simulations.cli.results import audit, compare, report, watch
from simulations.cli.running import reproduce, run, tune

app = typer.Typer(
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, export, predict, data, partition, keys, doctor, rehearse, supernode),
    *(new, list_, tune, reproduce, compare, report, audit, watch),
)
"""In the order of the help."""

REPEATABLE = (tune, reproduce, audit)
"""Commands that are given again to continue, as `run` with --sweep or --against is."""

ON_CTRL_C = 130
"""The exit status by which typer says that the user has interrupted."""

PASSING_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""How a command takes flags that are another program's."""


@app.callback(help="Federated learning across heterogeneous models.")
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Show the versions and exit.")] = False,
) -> None:
    if version:
        typer.echo(", ".join(f"{package} {number}" for package, number in installed().items()))
        raise typer.Exit


def _unwrapped(text: str) -> str:
    """Return a docstring whose paragraphs are a line each, which any terminal folds to its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that Ctrl-C ends with one line: how to continue, where there is something to continue.

    Code that knows it better gives the line in an `Interrupted`.
    """

    @wraps(command)
    def stoppable(**options: Any) -> None:
        try:
            command(**options)
        except KeyboardInterrupt as stopped:
            line = str(stopped)
            if not line and (command in REPEATABLE or options.get("sweep") or options.get("against")):
                line = f"stopped; to continue: {shlex.join(['hetfl', *sys.argv[1:]])}"
            if line:
                typer.echo(line, err=True)
            elif command is not watch:
                raise
            raise typer.Exit(1) from None

    return stoppable


for _command in COMMANDS:
    app.command(
        _command.__name__.rstrip("_"),
        help=_unwrapped(getdoc(_command) or ""),
        context_settings=PASSING_ON if _command is supernode else None,
    )(_stoppable(_command))


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop a command that is killed as Ctrl-C does, also where that is ignored, as in the background of a script."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def main() -> None:
    """Run the command; a user's mistake is one line on standard error and exit status 2."""
    working_directory_last()
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _stop)
    try:
        ended = app(standalone_mode=False)
        if ended == ON_CTRL_C:
            raise KeyboardInterrupt
        status = 2 if ended == 2 else 1 if ended else 0
    except HetflError as error:
        typer.echo(f"hetfl: {error}", err=True)
        status = 1 if isinstance(error, TooFewClients) else 2
    except ModuleNotFoundError as error:
        if (line := lacking(error)) is None:
            raise
        typer.echo(f"hetfl: {line}", err=True)
        status = 2
    except click.ClickException as error:
        if message := error.format_message():  # none where `hetfl` alone has shown the help
            typer.echo(f"hetfl: {printable(message)}", err=True)
        status = error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"hetfl: {printable(f'{error.filename}: {error.strerror}')}", err=True)
        status = 2
    except (KeyboardInterrupt, click.Abort):
        typer.echo(f"hetfl: {INTERRUPTED}", err=True)
        status = 1
    sys.exit(status)
