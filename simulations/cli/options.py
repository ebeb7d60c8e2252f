"""Arguments and options that several commands share: files, folders and config keys."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.config import DEFAULT_CLIENTS, Value, parse_settings, read_toml, usable_path
from hetfl_flwr.errors import ConfigError, unknown
from hetfl_flwr.runs.record import check_no_run_file

RECIPES = Path(__file__).parents[1] / "recipes"

MAX_WORKERS = 256
"""Maximum number of parallel processes: each takes hundreds of megabytes."""


def path(text: str) -> Path:
    """Read an argument that names a file or folder, as `usable_path` does; a pipe is refused: opening it may block."""
    named = usable_path(str(text)).expanduser()
    if named.is_fifo() and not named.is_relative_to("/dev"):  # /dev/stdout may be one, which somebody reads
        raise ConfigError(f"{named}: is a pipe, expected a file or a folder")
    return named


def target(text: str) -> Path:
    """Read an argument that names a file to write; a file that belongs to a run is refused."""
    return check_no_run_file(path(text))


AlgorithmArgument = Annotated[
    str, typer.Argument(help="Name from `hetfl list algorithms`, or package.module for one of your own.")
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        help="Name from `hetfl list datasets`, a hub id, a folder (./photos) or a file (./wine.csv) of yours."
    ),
]
FolderOption = Annotated[Path | None, typer.Option(parser=path, help="Folder with local copies in the hub's layout.")]
ClientsOption = Annotated[
    int | None, typer.Option(help=f"Number of clients (default {DEFAULT_CLIENTS}, or the number of owners or folders).")
]
RoundsOption = Annotated[int | None, typer.Option(help="Number of training rounds.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all random numbers.")]
RecipeOption = Annotated[
    Path | None, typer.Option(parser=path, help="TOML file of config keys, or a name from `hetfl list recipes`.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any config key; repeatable, the last value of a key wins."),
]
OnOption = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="BACKEND",
        help="Where to run: local (this machine) or ray (the Ray cluster that RAY_ADDRESS names, or the one of this "
        "machine), up to --workers runs at a time.",
    ),
]
AtATimeOption = Annotated[
    int, typer.Option("--workers", min=1, max=MAX_WORKERS, help="Number of runs at a time, each in its own process.")
]
RunsArgument = Annotated[
    list[Path], typer.Argument(parser=path, metavar="DIR...", help="Run folders, or folders that contain run folders.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the same information as JSON.")]


def chosen_keys(recipe: Path | None, settings: list[str] | None, **named: Value | Path | None) -> dict[str, Value]:
    """Return the config keys set on a command line: its options override its recipe, and ``--set`` overrides both."""
    given = {key.replace("_", "-"): value for key, value in named.items() if value is not None}
    return {
        **(read_toml(_recipe(recipe)) if recipe is not None else {}),
        **{key: str(value) if isinstance(value, Path) else value for key, value in given.items()},
        **parse_settings(settings or []),
    }


def _recipe(path: Path) -> Path:
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    names = {recipe.stem: recipe for recipe in RECIPES.glob("*.toml")}
    if str(path) not in names:
        raise ConfigError(unknown("recipe", str(path), names, "hetfl list recipes"))
    return names[str(path)]
