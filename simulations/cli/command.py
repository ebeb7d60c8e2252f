"""The complete ``hetfl`` command. Large packages are imported only when a subcommand needs them."""

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
"""The subcommands, in the order of the help."""

REPEATABLE = (tune, reproduce, audit)
"""Commands that are repeated to continue, as is `run` with --sweep or --against."""

ON_CTRL_C = 130
"""The exit status with which typer reports an interrupt by the user."""

PASSING_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that accepts another program's flags."""


@app.callback(help="Federated learning across heterogeneous models.")
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Show the versions and exit.")] = False,
) -> None:
    if version:
        typer.echo(", ".join(f"{package} {number}" for package, number in installed().items()))
        raise typer.Exit


def _unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, which terminals wrap to their own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that Ctrl-C ends with one line: how to continue, if there is anything to continue.

    Code that knows a better line raises it in an `Interrupted`.
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
    """Stop a command on SIGTERM as on Ctrl-C, even where Ctrl-C is ignored, as in the background of a script."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def main() -> None:
    """Run the command; a user error prints one line on standard error and gives exit status 2."""
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
