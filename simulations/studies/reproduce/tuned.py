"""Rows with settings of their own: what tuning has found for a cell, read from its folder or kept in a file."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from hetfl_flwr.common.errors import HetflError, RunFolderError
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.runs.figures.tables import byte_size
from simulations.studies.backends.backend import Backend
from simulations.studies.reproduce.recipe import Cell
from simulations.studies.reproduce.records import PLACES
from simulations.studies.tuning import Search, run_searches, usual_space

SEED = 999
"""Of the runs that settings are judged by: no table has it, so that no row is measured where it was tuned."""


class Found(BaseModel):
    """What tuning has found for a cell.

    Parameters
    ----------
    cell : str
        Row and column, as the name of a folder.
    settings : dict
        What its recipe says of the row as it is.
    trials : int
        How many settings were asked for.
    values : dict
        The best of them, by config key.
    validation : float
        The clients' mean accuracy with these on their validation samples, a fraction.
    payload, seconds : float
        What all trials have cost: bytes up and down, and seconds.
    versions : dict
        What made it, as `hetfl_flwr.common.versions.environment`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: str
    settings: dict[str, Value]
    trials: int
    values: dict[str, Value]
    validation: float
    payload: float
    seconds: float
    versions: dict[str, str]

    def is_of(self, cell: Cell) -> bool:
        """Whether it was found for this cell with these settings."""
        return (self.cell, self.settings, self.trials) == (cell.folder, _asked(cell), cell.trials)


class Findings:
    """What tuning has found so far. That of other settings than now asked for stays, too.

    Parameters
    ----------
    path : Path or None
        A file with a cell a line, which need not be there. None: there is none.

    Raises
    ------
    RunFolderError
        It cannot be read, or a line of it is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        try:
            lines = path.read_text().splitlines() if path is not None and path.exists() else []
            self._found = [Found.model_validate_json(line) for line in lines]
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise RunFolderError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None

    def of(self, cell: Cell) -> Found | None:
        """Return what was found for a cell; None where nothing was, or it has other settings now."""
        return next((one for one in self._found if one.is_of(cell)), None)

    def add(self, found: Found) -> None:
        """Take it, and write the file, if there is one."""
        self._found.append(found)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lines = sorted(one.model_dump_json() for one in self._found)
            replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())


def tune_cells(
    cells: Sequence[Cell], known: Findings, folder: Path, backend: Backend, console: Console, *, only_known: bool
) -> tuple[list[Cell], list[Found]]:
    """Return cells with the settings that were found for them, and what was found; others stay as they are.

    Parameters
    ----------
    cells : sequence of Cell
        Those with ``trials`` are tuned, if nothing is known of them: the learning rate and the method's own weight, as
        `simulations.studies.tuning.usual_space` has them, on validation samples under a seed of its own.
    known : Findings
        What was found before; what is found now is added.
    folder : Path
        Where the runs go, a folder for each cell. Those that have ended are not repeated.
    backend : Backend
        Where they run, and how many at a time.
    console : Console
        Where progress is shown.
    only_known : bool
        Run nothing. A cell of which nothing is known is left out, as is one whose tuning fails, with a line.
    """
    if not only_known:
        for new in _tuned([cell for cell in cells if cell.trials and not known.of(cell)], folder, backend, console):
            known.add(new)
    findings = {cell.folder: found for cell in cells if cell.trials and (found := known.of(cell))}
    there = [cell for cell in cells if not cell.trials or cell.folder in findings]
    values = {name: found.values for name, found in findings.items()}
    with_values = [
        cell.model_copy(update={"settings": {**cell.settings, **values.get(cell.folder, {})}}) for cell in there
    ]
    return with_values, list(findings.values())


def _tuned(cells: Sequence[Cell], folder: Path, backend: Backend, console: Console) -> Iterator[Found]:
    """Tune cells side by side, and go through what was found; of one that fails a line says so."""
    searches = dict[str, Search]()
    for cell in cells:
        with _told(cell, console):
            space = usual_space(RunConfig.from_flat({**cell.settings, "seed": SEED}))
            searches[cell.folder] = Search(cell.settings, space, folder / cell.folder, cell.trials, [SEED])
    if searches:
        trials = sum(cell.trials for cell in cells if cell.folder in searches)
        console.print(f"tuning {len(searches)} rows and columns: {trials} settings", highlight=False)
    failed = run_searches(list(searches.values()), backend, console)
    for cell in (cell for cell in cells if cell.folder in searches):
        with _told(cell, console):
            trials_of = searches[cell.folder].found(failed)
            yield Found(
                cell=cell.folder,
                settings=_asked(cell),
                trials=cell.trials,
                values=trials_of.best.values,
                validation=trials_of.best.validation or 0.0,
                payload=sum(one.payload for one in trials_of.trials),
                seconds=sum(one.seconds for one in trials_of.trials),
                versions=environment(),
            )


@contextmanager
def _told(cell: Cell, console: Console) -> Iterator[None]:
    """Say in one line why a cell could not be tuned, and go on."""
    try:
        yield
    except HetflError as error:
        console.print(f"{cell.name} could not be tuned, and has no run: {error}", style="red", markup=False)


def _asked(cell: Cell) -> dict[str, Value]:
    return {key: value for key, value in cell.settings.items() if key not in PLACES}


def tuning_as_markdown(cells: Iterable[Cell], findings: Sequence[Found]) -> str:
    """Return what was found in words: for each tuned cell its settings; before them, what all of it has cost."""
    if not findings:
        return ""
    names = {cell.folder: cell.name for cell in cells}
    seconds, payload = (sum(getattr(one, key) for one in findings) for key in ("seconds", "payload"))
    trials = sum(one.trials for one in findings)
    lines = [f"| {names[one.cell]} | {_written(one.values)} | {100 * one.validation:.2f} |" for one in findings]
    return (
        f"Tuned on validation samples under seed {SEED}: {trials} trials in all, {seconds / 3600:.1f} hours, "
        f"{byte_size(payload)} of payload.\n\n"
        "<details><summary>What tuning found</summary>\n\n"
        "| row | settings | validation, % |\n| --- | --- | --: |\n" + "\n".join(lines) + "\n\n</details>"
    )


def _written(values: Mapping[str, Value]) -> str:
    return ", ".join(f"`{key} = {json.dumps(value, allow_nan=False)}`" for key, value in values.items())
