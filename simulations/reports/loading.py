"""Read all runs at or below some folders."""

from collections.abc import Callable, Iterable
from pathlib import Path

from hetfl_flwr.common.notices import option, warn
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.runs.record import CONFIG_FILE, ROUNDS_FILE
from simulations.reports.runs import Run, load_run, run_folders


def load_runs(folders: Iterable[Path], on_damage: Callable[[str], object] = warn) -> list[Run]:
    """Read the runs at or below folders, as `run_folders` finds them and `load_run` reads them.

    Raises RunFolderError as `load_run`, and if a run has lost its ``config.toml``.
    """
    found = run_folders(folders)
    for folder in found:
        if (folder / ROUNDS_FILE).is_file() and not (folder / CONFIG_FILE).exists():
            single = option("with --resume", "with resume=True")
            raise RunFolderError(
                f"{folder}: {CONFIG_FILE} is missing; repeat the command of its sweep (of a single run, {single}) to "
                "restore it, or delete the folder"
            )
    return [load_run(folder, on_damage) for folder in found]
