"""A table or figure of a paper as a TOML file: its runs, its measures, and the paper's figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationError,
    model_validator,
)

from hetfl_flwr.config import RunConfig, Value, check_values, flattened, load_toml, usable_path
from hetfl_flwr.errors import ConfigError, HetflError, unknown
from hetfl_flwr.runs.record import Client, first_problem
from hetfl_flwr.text import LONGEST_NAME
from simulations.reports.pairing import SAME
from simulations.studies.jobs import ASIDE, PLACES
from simulations.studies.reproduce.keys import (
    GAIN,
    IMPACT,
    SHARES,
    Unit,
    check_curve,
    check_measure,
    first_client,
    unit_of,
)

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "tables"
"""Folder of the recipes."""

TUNED = ", tuned"
"""What the name of a tuned row ends in."""

MAX_SEEDS = 999
"""Maximum number of seeds."""

QUICK_FACTORS = 2
"""Maximum number of factors that tuning tries in the quick variant."""

SHARED = ("paper", "needs", "seeds", "settings", "short", "short-only", "quick", "columns")
"""Keys that a recipe inherits from the recipe whose runs it shares, unless it sets them."""

ELSEWHERE = ("seed", *sorted(ASIDE - {*PLACES}))
"""Keys that no recipe sets: seeds are numbered, and the command says where and how runs are executed."""


def _flat(table: object) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise ValueError("expected a table of config keys")
    flat = dict(flattened(table))
    try:
        check_values(flat)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    for key, value in flat.items():
        _in_lines(f"{key} = {value}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{key} = {value}: expected a finite number")
    return flat


def _in_lines(text: str) -> str:
    if not text.replace("\n", "").isprintable():
        raise ValueError(f"{text!r} holds a character that cannot be printed")
    return text


def _in_a_line(text: str) -> str:
    if "\n" in text:
        raise ValueError(f"{text!r} has several lines, expected one")
    return _in_lines(text)


Prose = Annotated[str, AfterValidator(_in_lines)]
"""A text of a page."""

Word = Annotated[str, AfterValidator(_in_a_line)]
"""A text that a page or the terminal shows in a line."""

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_in_a_line)]
"""The name of a row, a column or a measure."""

Settings = Annotated[dict[str, Value], PlainValidator(_flat)]
"""Config keys, flat; in TOML, an algorithm's options are a table."""

Variant = Literal["full", "short", "quick"]
"""The paper's settings; a reduced version on the same data for a small machine; bundled data and few rounds."""


ChosenBy = Literal["", "text", "authors", "result", "none"]
"""How the reading of what a paper leaves open was chosen.

Empty: not stated. Otherwise by the paper's text, by its authors' code or by its results, or not at all: several
readings are shown.
"""


def _form(figures: object) -> str:
    return "list" if isinstance(figures, list) else "table" if isinstance(figures, dict) else "number"


Papers = Annotated[Annotated[float, Tag("number")] | Annotated[dict[str, float], Tag("table")], Discriminator(_form)]
"""The paper's figure, or those of a column."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


class TableMeasure(_Part):
    """What is measured.

    Parameters
    ----------
    key : str
        A figure in ``summary.json``, such as ``"acc"``, or ``"payload"``: bytes up and down. ``"best:KEY"``,
        ``"last:KEY"``, ``"late:KEY"``: the largest value over the evaluated rounds, the last one, or the mean over the
        last quarter of them, of the mean over clients of what they report as KEY. ``"trained:KEY"``: the last value
        over the clients that have trained by then. ``"client-P:KEY"``, ``"clients-P-Q:KEY"``: the last value over
        client P, or clients P to Q. ``"numbers_up"``, ``"numbers_down"``: numbers that a client sends or receives in
        the last round, on average, and with the prefix ``"before:"``, before round 1. Or one of `IMPACT`.
    unit : {"%", "points", "numbers", "MB", ""}
        "%" is a share times 100, "points" are a difference of two shares times 100. Default: by the key, "%" for what
        clients report.
    """

    key: Annotated[str, AfterValidator(check_measure)]
    unit: Unit

    @model_validator(mode="before")
    @classmethod
    def _usual_unit(cls, said: Any) -> Any:
        """Complete a measure, or the key of one."""
        measure = {"key": said} if isinstance(said, str) else said
        if isinstance(measure, dict) and isinstance(key := measure.get("key"), str):
            return {"unit": unit_of(key), **measure}
        return measure


class Figures(_Part):
    """The form of the picture.

    Parameters
    ----------
    kind : {"bars", "curves", "gains", "differences", "features"}
        "bars": the paper's figures and ours for each measure. "curves": a reported value over rounds, mean and standard
        deviation over seeds. "gains": for each column, the clients' gains in accuracy over the baseline of each row,
        the largest mean first. "differences": for each column, the paired difference of the first measure from the
        baseline of each row, its interval, and the paper's difference. "features": principal components of the features
        of one client's model.
    measures : list of str
        For bars, the measures that get a panel, as far as there is room; empty: all. For gains, at most one,
        which is shown next to each row.
    y : list of str
        For curves, values that rounds report; ``"client-P:KEY"``, ``"clients-P-Q:KEY"`` restrict them to some clients.
        For differences, the values that should have stopped rising.
    client : int
        For features, the client whose model is used.
    """

    kind: Literal["bars", "curves", "gains", "differences", "features"] = "bars"
    measures: list[str] = []
    y: list[Annotated[str, AfterValidator(check_curve)]] = ["accuracy"]
    client: Client = 0

    @property
    def drawn(self) -> list[str]:
        """The values over rounds that a record keeps."""
        return self.y if self.kind in ("curves", "differences") else []


Seeds = Annotated[int, Field(ge=1, le=MAX_SEEDS)]
"""A number of seeds, starting at 0."""


class _Varied(_Part):
    settings: Settings = {}
    short: Settings = {}
    quick: Settings = {}
    seeds: Seeds = MAX_SEEDS

    def of(self, variant: Variant) -> dict[str, Value]:
        """Return the config keys that a variant adds to the full one."""
        return {"full": {}, "short": self.short, "quick": self.quick}[variant]


class TableColumn(_Varied):
    """Settings that runs of all rows have in common, such as the data set; fewer ``seeds`` than the recipe has."""

    name: Name


WHOLE = TableColumn.model_construct(name="")
"""The column of a recipe that has none."""


class TableRow(_Varied):
    """One method.

    Parameters
    ----------
    name : str
        Its name in the paper.
    settings : mapping
        Config keys, which override those of the recipe and the column.
    seeds : int
        Number of seeds, if it is smaller than the recipe's.
    paper : mapping
        The paper's figure for each measure, or a list of all in order; with columns, a mapping by column.
    within : mapping
        Config keys for single columns, by name; they override all others.
    without : list of str
        Columns that this row is not run in.
    against : str
        The baseline: the row that this one is compared with over seeds. Empty: the recipe's.
    """

    name: Name
    paper: Annotated[
        Annotated[list[float], Tag("list")] | Annotated[dict[str, Papers], Tag("table")], Discriminator(_form)
    ] = {}
    within: dict[str, Settings] = {}
    without: list[str] = []
    against: str = ""


class Cell(_Part):
    """One row in one column: its settings, its number of seeds, the paper's figures, and its baseline.

    ``factors`` are tried to tune it before it is run; without them, it is not tuned.
    """

    row: str
    column: str
    settings: dict[str, Value]
    paper: dict[str, float]
    seeds: int = 1
    against: str = ""
    factors: list[float] = []

    def tuned(self, factors: Sequence[float]) -> "Cell":
        """Return the tuned counterpart of a cell, whose baseline is tuned as well."""
        against = f"{self.against}{TUNED}" if self.against else ""
        changed = {"row": f"{self.row}{TUNED}", "against": against, "paper": {}, "factors": factors}
        return self.model_copy(update=changed)

    @property
    def name(self) -> str:
        """Row and column as a human-readable name."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def folder(self) -> str:
        """Row and column as the name of a folder."""
        words = "".join(letter if letter.isalnum() else " " for letter in self.name.lower()).split()
        return "-".join(words)

    def matches(self, name: str) -> bool:
        """Return whether this is the name of its row, of its column or of both; ``*`` is any text."""
        pattern = name.replace("[", "[[]")
        return any(fnmatchcase(own, pattern) for own in (self.row, self.column, self.name))


class Recipe(_Varied):
    """A table or a figure.

    Parameters
    ----------
    title : str
        Its title.
    paper, source : str
        The paper, and the place in it. Without a paper: what the comparison is.
    needs : str
        The data that are not bundled, and where to get them.
    runs : str
        Name of a recipe whose runs this one shares: cells of both are run once. Missing keys among paper, needs, seeds,
        settings, short, short-only, quick, columns and rows are taken from it, except the paper's figures.
    note : str
        What the paper leaves open, and how it is read here.
    chosen : {"text", "authors", "result", "none"}
        How the reading in the note was chosen: by the paper's text, by the authors' code, or by the results; "none":
        several readings are shown. With the last two, intervals that contain the paper's figures mean nothing, so none
        are counted. Empty: not stated.
    found : str
        How our figures compare with the paper's, and why they differ.
    seeds : int
        Number of seeds, from 0.
    against : str
        The default baseline of the rows.
    tuned : list of float
        Each cell gets a tuned counterpart in the row "NAME, tuned": its learning rate is multiplied by each of these
        factors, then the method's main weight, at the best rate. Empty: none.
    ranked : str
        The measure, a share or the gain, by which rows, tuned where they can be, are ranked over all columns. Empty:
        none.
    measures : mapping
        By name in the paper; a text is its key.
    figure : Figures
        The form of its picture.
    shown : list of str
        Rows in a picture of gains with several columns. Empty: all.
    columns : list of TableColumn
        Data or scenarios. Empty: one column without a name.
    rows : list of TableRow
        What is compared, usually methods.
    settings : mapping
        Config keys of all runs.
    short, quick : mapping
        Config keys of the short variant, and of the quick one, which has one seed and bundled data.
    short_only : list of str
        The short variant has only the cells that have one of these names (`Cell.matches`). Empty: all.
    variant : {"full", "short", "quick"}
        The variant to run, which the command sets.
    """

    title: Word
    paper: Word = ""
    source: Word
    needs: Prose = ""
    runs: str = ""
    note: Prose = ""
    chosen: ChosenBy = ""
    found: Prose = ""
    seeds: Seeds = 3
    against: str = ""
    tuned: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = []
    ranked: str = ""
    measures: Annotated[dict[Name, TableMeasure], Field(min_length=1)]
    figure: Figures = Figures()
    shown: list[str] = []
    short_only: Annotated[list[str], Field(alias="short-only")] = []
    columns: list[TableColumn] = []
    rows: Annotated[list[TableRow], Field(min_length=1)]
    variant: Variant = "full"

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Check references by name."""
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for several in (rows, columns):
            if len(set(several)) < len(several):
                raise ValueError(f"a name is given twice: {', '.join(several)}")
        _among("table or figure", filter(None, [self.runs]), names())
        _among("row", filter(None, [self.against, *(row.against for row in self.rows)]), rows)
        _among("row", self.shown, [*rows, *(f"{row}{TUNED}" for row in rows if self.tuned)])
        _among("measure", [*self.figure.measures, *filter(None, [self.ranked])], self.measures)
        if self.ranked and (key := self.measures[self.ranked].key) not in (*SHARES, GAIN):
            raise ValueError(f"ranked: {key} is not a share of right answers or the gain, of which more is better")
        if self.figure.kind == "gains" and len(self.figure.measures) > 1:
            raise ValueError("figure: next to gains, at most one measure can be shown")
        paired = self.compares_clients or self.figure.kind == "differences"
        if paired and not any(row.against or self.against for row in self.rows):
            raise ValueError("gains and differences need a baseline: name its row with against")
        for row in self.rows:
            _among("column", [*row.without, *row.within], columns)
            if not isinstance(row.paper, list):
                _among("column" if columns else "measure", row.paper, columns or self.measures)
            elif columns or len(row.paper) != len(self.measures):
                raise ValueError(f"{row.name}: a list of figures must have one per measure, and needs a single column")
        return self

    @model_validator(mode="after")
    def _runs(self) -> Self:
        """Check the config of each cell."""
        folders = [cell.folder for cell in self.cells()]
        if not folders:
            raise ValueError("no cell is left: every row is without all columns")
        if shared := next((folder for folder in folders if folders.count(folder) > 1), None):
            raise ValueError(
                f"names of rows or columns differ only in punctuation and share the folder {shared!r}: rename one"
            )
        for cell in (*self.cells(), *self.cells("short"), *self.cells("quick")):
            _among("measure", cell.paper, self.measures)
            try:
                usable_path(cell.folder)
                check_settings(cell.settings)
            except HetflError as error:
                raise ValueError(f"{cell.name}: {error}") from None
        for variant in get_args(Variant) if self.compares_clients else ():
            by_name = {(cell.row, cell.column): cell for cell in self.cells(variant)}
            for cell in by_name.values():
                base = by_name.get((cell.against, cell.column), cell)
                for key in SAME:
                    if cell.settings.get(key) != base.settings.get(key):
                        raise ValueError(f"{cell.name}: {key} differs in {base.row}, so clients cannot be compared")
        clients = [int(cell.settings.get("clients", 0)) for cell in self.cells()]
        shown = self.figure.client if self.figure.kind == "features" else 0
        asked = max([shown, *map(first_client, (*self.keys, *self.figure.drawn))])
        if all(clients) and asked >= max(clients):
            raise ValueError(
                f"no run has a client {asked}, used by a measure or the figure: there are 0 to {max(clients) - 1}"
            )
        return self

    @property
    def keys(self) -> list[str]:
        """The keys of measures that do not need a baseline."""
        return [measure.key for measure in self.measures.values() if measure.key not in IMPACT]

    @property
    def compares_clients(self) -> bool:
        """Whether it needs each client's accuracy and that of the baseline."""
        return self.figure.kind == "gains" or any(measure.key in IMPACT for measure in self.measures.values())

    @property
    def setting(self) -> str:
        """A description of the full variant's setting."""
        return "the paper's setting" if self.paper else "the full table's setting"

    @property
    def has_short(self) -> bool:
        """Whether its short variant differs from the full one."""
        return bool(self.short_only) or any(part.short for part in (self, *self.columns, *self.rows))

    def cells(self, variant: Variant = "full") -> Iterator[Cell]:
        """Yield the cells of the table, row by row; in the quick variant, without the paper's figures."""
        for row in self.rows:
            for column in self.columns or [WHOLE]:
                parts = [part.settings for part in (self, column, row)]
                parts += [part.of(variant) for part in (self, column, row)]
                parts += [row.within.get(column.name, {})]
                settings = {key: value for part in parts for key, value in part.items()}
                paper = {} if variant == "quick" else _paper(row, column.name, self.measures)
                cell = Cell(
                    row=row.name,
                    column=column.name,
                    settings=settings,
                    paper=paper,
                    seeds=1 if variant == "quick" else min(self.seeds, column.seeds, row.seeds),
                    against=row.against or self.against,
                )
                asked = self.short_only if variant == "short" else []
                if column.name not in row.without and (not asked or any(map(cell.matches, asked))):
                    yield cell
                    if self.tuned:
                        factors = self.tuned[:QUICK_FACTORS] if variant == "quick" else self.tuned
                        yield cell.tuned(factors)


def check_settings(settings: Mapping[str, Value]) -> None:
    """Raise a `ConfigError` unless these are the config keys of a cell."""
    RunConfig.from_flat(settings)
    if "algorithm" not in settings:
        raise ConfigError("algorithm is missing: name the row's method")
    for key in ELSEWHERE:
        if key in settings:
            why = "seeds is their number" if key == "seed" else "the command says where and how runs are executed"
            raise ConfigError(f"leave out {key}: {why}")


def _among(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(kind, name, known))


def _paper(row: TableRow, column: str, measures: Iterable[str]) -> dict[str, float]:
    if isinstance(row.paper, list):
        return dict(zip(measures, row.paper, strict=True))
    found: Mapping[str, Any] = row.paper.get(column, {}) if column else row.paper  # type: ignore[assignment]
    return dict(found)


def _completed(said: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's keys, completed by those of the recipe whose runs it shares."""
    if said.get("runs") not in names():
        return said
    other = load_toml(FOLDER / f"{said['runs']}.toml")
    rows = [{key: value for key, value in row.items() if key != "paper"} for row in other["rows"]]
    left: dict[str, Any] = {key: other[key] for key in SHARED if key in other}
    return {**left, "rows": rows, **said}


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Recipe:
    """Read a recipe by its name, or from a file.

    Raises a `ConfigError` that names the file and key if there is none, or it is not valid.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        raise ConfigError(
            unknown("table or figure", name, names()) if path.parent == FOLDER else f"{name!r} does not exist"
        )
    try:
        return Recipe.model_validate(_completed(load_toml(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error)}") from None
