"""Tuned rows: the settings that tuning found for a cell, from its folder or from a file of results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from rich.console import Console

from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import HetflError
from hetfl_flwr.runs.record import Count, Fraction, Seconds
from hetfl_flwr.runs.settings import data_of
from simulations.reports.layout import byte_size
from simulations.studies.jobs import Backend, Job, located
from simulations.studies.reproduce.recipe import Cell, Settings, check_settings
from simulations.studies.reproduce.records import Kept, Key, Line, Versions, in_order
from simulations.studies.tuning import Tuning, run_searches, search_in_turn

SEED = 999
"""Seed of the tuning runs. No table has so many seeds, so no row is measured on the split that it was tuned on."""


class TunedCell(Line):
    """The result of tuning a cell.

    Parameters
    ----------
    cell : str
        Row and column, as the name of a folder.
    settings : dict
        The settings of the row in the recipe.
    factors : list of float
        What the learning rate and the main weight were multiplied by.
    trials : int
        The number of trials.
    values : dict
        The best values, by config key.
    validation : float
        The clients' mean validation accuracy with these values, a fraction.
    payload, seconds : float
        Bytes up and down and seconds of all trials.
    versions : dict
        The environment, as `hetfl_flwr.common.versions.environment`.
    data : list of str
        The digest of the data, as in `Record`.
    """

    cell: str
    settings: Settings
    factors: list[float]
    trials: Count
    values: Settings
    validation: Fraction
    payload: Annotated[float, Field(ge=0)]
    seconds: Seconds
    versions: Versions
    data: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _runs(self) -> Self:
        check_settings(self.settings | self.values)
        return self

    @property
    def key(self) -> Key:
        """The cell, its settings and the factors."""
        return self.cell, in_order(self.settings), str(self.factors)


class Findings(Kept[TunedCell]):
    """What tuning has found."""

    kind = TunedCell

    def of(self, cell: Cell) -> TunedCell | None:
        """Return the result for a cell with its settings and the data as they are now, if there is one."""
        one = self._lines.get((cell.folder, in_order(located(cell.settings)), str(cell.factors)))
        return one if one and Job(cell.name, Path(), cell.settings).has_data(one.data) else None


def tune_cells(
    cells: Sequence[Cell], known: Findings, folder: Path, backend: Backend, console: Console, *, only_known: bool
) -> tuple[list[Cell], list[TunedCell]]:
    """Return the cells with tuned settings, and the results of tuning; cells without ``factors`` are unchanged.

    A cell without a known result is tuned in `folder` by validation samples, with `SEED`
    (`simulations.studies.tuning.search_in_turn`). With `only_known`, nothing is run. Cells without a result are left
    out.
    """
    asked = [cell for cell in cells if cell.factors and not known.of(cell) and not only_known]
    if asked:
        console.print(f"tuning {len(asked)} rows and columns")
    searches = [search_in_turn(cell.settings, cell.factors, folder / cell.folder, [SEED]) for cell in asked]
    for cell, tuning in zip(asked, run_searches(searches, backend, console), strict=True):
        if isinstance(tuning, HetflError):
            console.print(f"{cell.name} could not be tuned, and has no run: {tuning}", style="red", markup=False)
        else:
            known.add(_found(cell, tuning))
    pairs = [(cell, known.of(cell)) for cell in cells]
    with_values = [
        cell.model_copy(update={"settings": cell.settings | one.values}) if one else cell
        for cell, one in pairs
        if one or not cell.factors
    ]
    return with_values, [one for _, one in pairs if one]


def _found(cell: Cell, tuning: Tuning) -> TunedCell:
    return TunedCell(
        cell=cell.folder,
        settings=located(cell.settings),
        factors=cell.factors,
        trials=len(tuning.trials),
        values=tuning.best.values,
        validation=tuning.best.validation or 0.0,
        payload=tuning.payload,
        seconds=tuning.seconds,
        versions=environment(),
        data=data_of(RunConfig.from_flat(cell.settings)),
    )


def tuning_as_markdown(findings: Sequence[TunedCell]) -> str:
    """Return the cost of tuning as a sentence, or an empty text if nothing is tuned."""
    if not findings:
        return ""
    seconds, payload = (sum(getattr(one, key) for one in findings) for key in ("seconds", "payload"))
    return (
        f"Tuned on validation samples under seed {SEED}: {sum(one.trials for one in findings)} trials in all, "
        f"{seconds / 3600:.1f} hours, {byte_size(payload)} of payload."
    )
