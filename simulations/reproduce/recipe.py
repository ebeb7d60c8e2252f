"""What a table or a figure of a paper is, as a TOML file: its runs, what is measured, and the paper's figures."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hetfl_flwr.config import RunConfig, Value, flattened
from hetfl_flwr.errors import ConfigError, HetflError, unknown

TABLES = Path(__file__).resolve().parents[1] / "recipes" / "tables"
"""Where the recipes lie."""

Settings = Annotated[dict[str, Value], BeforeValidator(lambda table: dict(flattened(table)))]
"""Config keys, flat; a table of them in TOML is an algorithm's own."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Measure(_Part):
    """What is measured.

    Parameters
    ----------
    key : str
        A figure of ``summary.json``, such as ``"acc"``; ``"best:KEY"``: the largest, over the evaluated rounds, of the
        mean over clients of what they report as KEY; ``"client-P:KEY"``: what client P reported last; ``"numbers_up"``
        or ``"numbers_down"``: numbers of four bytes that a client sends or is sent a round.
    unit : {"%", "numbers", "MB", ""}
        "%" is a share times 100.
    """

    key: str
    unit: Literal["%", "numbers", "MB", ""] = "%"


class Figures(_Part):
    """The form of the picture.

    Parameters
    ----------
    kind : {"bars", "curves", "features"}
        "bars": each measure, the paper's figure and ours. "curves": a measure over rounds or bytes, mean and
        deviation over the seeds. "features": principal components of the features of one client's model.
    x, y : str
        Of curves: ``"round"`` or ``"bytes"``, and what each round reports.
    client : int
        Of features: whose model.
    """

    kind: Literal["bars", "curves", "features"] = "bars"
    x: Literal["round", "bytes"] = "round"
    y: list[str] = ["accuracy"]
    client: int = 0


class Column(_Part):
    """What sets some runs of a row apart from others, such as the data set."""

    name: str
    settings: Settings = {}
    quick: Settings = {}
    needs: str = ""


class Row(_Part):
    """One method.

    Parameters
    ----------
    name : str
        As the paper calls it.
    settings : mapping
        Config keys, over those of the recipe and of the column.
    paper : mapping
        The paper's figure for each measure; with columns, a mapping of these by column.
    without : list of str
        Columns that this row has no run in.
    """

    name: str
    settings: Settings = {}
    quick: Settings = {}
    paper: dict[str, float | dict[str, float]] = {}
    without: list[str] = []


class Cell(_Part):
    """One row in one column: what is run for each seed, and what the paper says."""

    row: str
    column: str
    settings: dict[str, Value]
    paper: dict[str, float]

    @property
    def name(self) -> str:
        """Row and column as one name for people."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def folder(self) -> str:
        """Row and column as the name of a folder."""
        words = "".join(letter if letter.isalnum() else " " for letter in self.name.lower()).split()
        return "-".join(words)


class Recipe(_Part):
    """A table or a figure.

    Parameters
    ----------
    title, paper, source : str
        What it is, whose, and where it stands there.
    needs : str
        Data that is not bundled, and where to get it.
    note : str
        What the paper leaves open and how it is read here.
    seeds : int
        How many, from 0.
    against : str
        The row that the others are compared with over the seeds.
    measures : mapping
        By the paper's names; a text is the key of a share.
    settings, quick : mapping
        Config keys of all runs, and what differs in the quick variant, which is of one seed and bundled data.
    """

    title: str
    paper: str
    source: str
    needs: str = ""
    note: str = ""
    seeds: Annotated[int, Field(ge=1)] = 3
    against: str = ""
    measures: dict[str, Annotated[Measure, BeforeValidator(lambda key: {"key": key} if isinstance(key, str) else key)]]
    figure: Figures = Figures()
    settings: Settings = {}
    quick: Settings = {}
    columns: list[Column] = []
    rows: list[Row]

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Check that names are names of something here."""
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for names in (rows, columns):
            if len(set(names)) < len(names):
                raise ValueError(f"a name is given twice: {', '.join(names)}")
        _among("row", [self.against] if self.against else [], rows)
        for row in self.rows:
            _among("column", row.without, columns)
            _among("column" if columns else "measure", row.paper, columns or self.measures)
        return self

    @model_validator(mode="after")
    def _runs(self) -> Self:
        """Check that each cell is a run."""
        for cell in (*self.cells(), *self.cells(quick=True)):
            _among("measure", cell.paper, self.measures)
            try:
                RunConfig.from_flat(cell.settings)
            except HetflError as error:
                raise ValueError(f"{cell.name}: {error}") from None
        return self

    def cells(self, *, quick: bool = False) -> Iterator[Cell]:
        """Go through the cells of the table, row by row."""
        for row in self.rows:
            for column in self.columns or [Column(name="")]:
                if column.name in row.without:
                    continue
                parts = [self.settings, column.settings, row.settings]
                if quick:
                    parts += [self.quick, column.quick, row.quick]
                settings = {key: value for part in parts for key, value in part.items()}
                yield Cell(row=row.name, column=column.name, settings=settings, paper=_paper(row, column.name))


def _among(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(kind, name, known))


def _paper(row: Row, column: str) -> dict[str, float]:
    found: Mapping[str, Any] = row.paper.get(column, {}) if column else row.paper  # type: ignore[assignment]
    return dict(found)


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def load(name: str) -> Recipe:
    """Read a recipe by its name, or from a file.

    Raises
    ------
    ConfigError
        There is none, or it is not right: names file and key.
    """
    path = Path(name) if name.endswith(".toml") else TABLES / f"{name}.toml"
    if not path.exists():
        raise ConfigError(unknown("table or figure", name, names()))
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from None
