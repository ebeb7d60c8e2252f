"""Rows with tuned settings: what tuning has found for a cell, from its folder or from a file of results."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import HetflError
from simulations.reports.terminal import byte_size
from simulations.studies.jobs import PLACES, Backend
from simulations.studies.reproduce.recipe import Cell
from simulations.studies.reproduce.records import Line, read_lines, write_lines
from simulations.studies.tuning import Search, run_searches, usual_space

SEED = 999
"""Seed of the tuning runs: no table has it, so that no row is measured where it was tuned."""


class Found(Line):
    """What tuning has found for a cell.

    Parameters
    ----------
    cell : str
        Row and column, as the name of a folder.
    settings : dict
        The recipe's settings of the row.
    trials : int
        How many settings were asked for.
    values : dict
        The best of them, by config key.
    validation : float
        The clients' mean accuracy with these on their validation samples, a fraction.
    payload, seconds : float
        The costs of all trials: bytes up and down, and seconds.
    versions : dict
        What made it, as `hetfl_flwr.common.versions.environment`.
    """

    cell: str
    settings: dict[str, Value]
    trials: int
    values: dict[str, Value]
    validation: float
    payload: float
    seconds: float
    versions: dict[str, str]

    def is_of(self, cell: Cell) -> bool:
        """Return whether it was found for this cell with these settings."""
        return (self.cell, self.settings, self.trials) == (cell.folder, _asked(cell), cell.trials)


def tune_cells(
    cells: Sequence[Cell], kept: Path | None, folder: Path, backend: Backend, console: Console, *, only_known: bool
) -> tuple[list[Cell], list[Found]]:
    """Return cells with the settings that were found for them, and what was found; others stay as they are.

    Parameters
    ----------
    cells : sequence of Cell
        Those with ``trials`` are tuned, if nothing is known of them: the learning rate and the method's own weight
        (`simulations.studies.tuning.usual_space`), on validation samples under a seed of its own.
    kept : Path or None
        File of what was found, a cell a line; what was found for other settings stays.
    folder : Path
        Where the runs go, a folder for each cell. Those that have ended are not repeated.
    backend : Backend
        Where they run.
    console : Console
        Where progress is shown.
    only_known : bool
        Run nothing. A cell that is not known, or whose tuning fails, is left out.
    """
    known = read_lines(kept, Found)

    def found(cell: Cell) -> Found | None:
        return next((one for one in reversed(known) if one.is_of(cell)), None)

    if not only_known:
        for new in _tuned([cell for cell in cells if cell.trials and not found(cell)], folder, backend, console):
            known.append(new)
            write_lines(kept, sorted(known, key=Found.model_dump_json))
    pairs = [(cell, found(cell)) for cell in cells]
    with_values = [
        cell.model_copy(update={"settings": cell.settings | one.values}) if one else cell
        for cell, one in pairs
        if one or not cell.trials
    ]
    return with_values, [one for _, one in pairs if one]


def _tuned(cells: Sequence[Cell], folder: Path, backend: Backend, console: Console) -> Iterator[Found]:
    """Tune cells side by side, and go through what was found; a line names one that fails."""
    searches = list[tuple[Cell, Search]]()
    for cell in cells:
        with _named(cell, console):
            space = usual_space(RunConfig.from_flat({**cell.settings, "seed": SEED}))
            searches.append((cell, Search(cell.settings, space, folder / cell.folder, cell.trials, [SEED])))
    if searches:
        trials = sum(cell.trials for cell, _ in searches)
        console.print(f"tuning {len(searches)} rows and columns: {trials} settings", highlight=False)
    failed = run_searches([search for _, search in searches], backend, console)
    for cell, search in searches:
        with _named(cell, console):
            tuning = search.found(failed)
            yield Found(
                cell=cell.folder,
                settings=_asked(cell),
                trials=cell.trials,
                values=tuning.best.values,
                validation=tuning.best.validation or 0.0,
                payload=tuning.payload,
                seconds=tuning.seconds,
                versions=environment(),
            )


@contextmanager
def _named(cell: Cell, console: Console) -> Iterator[None]:
    """Print why a cell could not be tuned, and go on."""
    try:
        yield
    except HetflError as error:
        console.print(f"{cell.name} could not be tuned, and has no run: {error}", style="red", markup=False)


def _asked(cell: Cell) -> dict[str, Value]:
    return {key: value for key, value in cell.settings.items() if key not in PLACES}


def tuning_as_markdown(cells: Iterable[Cell], findings: Sequence[Found]) -> str:
    """Return the settings that were found for each cell, and what tuning has cost."""
    if not findings:
        return ""
    names = {cell.folder: cell.name for cell in cells}
    seconds, payload = (sum(getattr(one, key) for one in findings) for key in ("seconds", "payload"))
    trials = sum(one.trials for one in findings)
    lines = []
    for one in findings:
        values = ", ".join(f"`{key} = {json.dumps(value, allow_nan=False)}`" for key, value in one.values.items())
        lines.append(f"| {names[one.cell]} | {values} | {100 * one.validation:.2f} |")
    return (
        f"Tuned on validation samples under seed {SEED}: {trials} trials in all, {seconds / 3600:.1f} hours, "
        f"{byte_size(payload)} of payload.\n\n"
        "<details><summary>What tuning found</summary>\n\n"
        "| row | settings | validation, % |\n| --- | --- | --: |\n" + "\n".join(lines) + "\n\n</details>"
    )
