"""What a table or a figure of a paper is, as a TOML file: its runs, what is measured, and the paper's figures."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from hetfl_flwr.config import RunConfig, Value, flattened, load_toml
from hetfl_flwr.errors import ConfigError, HetflError, unknown
from hetfl_flwr.runs.record import Summary

TABLES = Path(__file__).resolve().parents[2] / "recipes" / "tables"
"""Where the recipes lie."""

NUMBERS = ("numbers_up", "numbers_down")
"""What is counted over the rounds beside the figures of ``summary.json``."""

GAIN, HARMED, WORST = "gain", "harmed", "worst-tenth"
IMPACT = (GAIN, HARMED, WORST)
"""What is known of a run beside the run of the row that it is compared with, of the same seed: the mean gain in
accuracy over the clients, the share of clients that lose more than a point, and the mean gain of the tenth that gains
least."""

QUICK_TRIALS = 2
"""Settings that the quick variant tries, at most."""

PAYLOAD = "payload"
"""A figure of ``summary.json`` and its counterpart together: ``bytes_up`` and ``bytes_down``."""

SHARED = ("paper", "needs", "seeds", "settings", "short", "short-only", "quick", "columns")
"""What a recipe that does not say it takes from the one whose runs it shares."""

Settings = Annotated[dict[str, Value], BeforeValidator(lambda table: dict(flattened(table)))]
"""Config keys, flat; a table of them in TOML is an algorithm's own."""

Variant = Literal["full", "short", "quick"]
"""The paper's settings; on the same data as much of them as a small machine can do; bundled data and few rounds."""


Reading = Literal["", "text", "authors", "result", "none"]
"""How what a paper leaves open came to be read as it is: unsaid; by the paper's text, by its authors' own code, by the
figures that came out, or not at all, where several readings stand beside each other."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Measure(_Part):
    """What is measured.

    Parameters
    ----------
    key : str
        A figure of ``summary.json``, such as ``"acc"``; ``"payload"``: bytes up and down; ``"best:KEY"``: the largest,
        over the evaluated rounds, of the mean over clients of what they report as KEY; ``"last:KEY"``: that mean in the
        last of them; ``"trained:KEY"``: the same of those clients that have trained by then;
        ``"client-P:KEY"``, ``"clients-P-Q:KEY"``: the mean of what client P, or clients P to Q, reported last;
        ``"numbers_up"`` or ``"numbers_down"``: how many numbers a client sends or is sent in the last round, and with
        ``"before:"`` in front of it before round 1, on average; or one of `IMPACT`.
    unit : {"%", "points", "numbers", "MB", ""}
        "%" is a share times 100, "points" are a difference of two of these.
    """

    key: str
    unit: Literal["%", "points", "numbers", "MB", ""] = "%"

    @field_validator("key")
    @classmethod
    def _known(cls, key: str) -> str:
        if ":" not in key:
            _among("figure", [key], [*Summary.__annotations__, *NUMBERS, *IMPACT, PAYLOAD])
        return key


class Figures(_Part):
    """The form of the picture.

    Parameters
    ----------
    kind : {"bars", "lines", "curves", "gains", "differences", "features"}
        "bars": each measure, marks for the paper's figure and ours. "lines": each measure over the columns. "curves":
        a measure over rounds, mean and standard deviation over the seeds. "gains": a panel a column, and in it for each
        row its clients' gains in accuracy over those of the row that it is compared with, the largest mean on top.
        "differences": a panel a column, and in it for each row the paired difference of the first measure from the row
        that it is compared with, its interval, and the paper's difference.
        "features": principal components of the features of one client's model.
    measures : list of str
        Of bars and lines: which ones have a panel, as far as there is room. Empty: all. Of gains: one, which stands
        beside each row, or none.
    y : list of str
        Of curves: what each round reports, or ``"client-P:KEY"``, ``"clients-P-Q:KEY"``: what some of the clients do.
        Of differences: what should have stopped rising.
    client : int
        Of features: whose model.
    """

    kind: Literal["bars", "lines", "curves", "gains", "differences", "features"] = "bars"
    measures: list[str] = []
    y: list[str] = ["accuracy"]
    client: int = 0

    @property
    def drawn(self) -> list[str]:
        """What each round reports that a record keeps."""
        return self.y if self.kind in ("curves", "differences") else []


class _Varied(_Part):
    settings: Settings = {}
    short: Settings = {}
    quick: Settings = {}

    def of(self, variant: Variant) -> dict[str, Value]:
        """Return the config keys that a variant has beside those of the full one."""
        return {"full": {}, "short": self.short, "quick": self.quick}[variant]


class Column(_Varied):
    """What sets some runs of a row apart from others, such as the data set."""

    name: str


class Row(_Varied):
    """One method.

    Parameters
    ----------
    name : str
        As the paper calls it.
    settings : mapping
        Config keys, over those of the recipe and of the column.
    paper : mapping
        The paper's figure for each measure, or a list of all of them in order; with columns, a mapping by column.
    within : mapping
        Config keys in one column alone, by its name; they go before all others.
    without : list of str
        Columns that this row has no run in.
    against : str
        The row that this one is compared with over the seeds. Empty: the recipe's.
    """

    name: str
    paper: list[float] | dict[str, float | dict[str, float]] = {}
    within: dict[str, Settings] = {}
    without: list[str] = []
    against: str = ""


class Cell(_Part):
    """One row in one column: what is run for each seed, what the paper says, and which row it is compared with.

    ``trials`` is how many settings are tried before it is run; 0: it has the settings as they are.
    """

    row: str
    column: str
    settings: dict[str, Value]
    paper: dict[str, float]
    against: str = ""
    trials: int = 0

    @property
    def tuned(self) -> "Cell":
        """The same with settings of its own, beside what it is compared with, which has its own, too."""
        against = f"{self.against}, tuned" if self.against else ""
        return self.model_copy(update={"row": f"{self.row}, tuned", "against": against, "paper": {}})

    @property
    def name(self) -> str:
        """Row and column as one name for people."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def folder(self) -> str:
        """Row and column as the name of a folder."""
        words = "".join(letter if letter.isalnum() else " " for letter in self.name.lower()).split()
        return "-".join(words)

    def matches(self, words: Collection[str]) -> bool:
        """Whether the name has one of these in it; with none, each does."""
        return not words or any(word in self.name for word in words)


class Recipe(_Varied):
    """A table or a figure.

    Parameters
    ----------
    title, paper, source : str
        What it is, whose, and where it stands there.
    needs : str
        Data that is not bundled, and where to get it.
    runs : str
        Name of a recipe whose runs these are too: a row and column of both is run once, for both. What is not said
        here, of paper, needs, seeds, settings, columns and rows, is as there; only the paper's figures are not.
    note : str
        What the paper leaves open and how it is read here.
    chosen : {"text", "authors", "result", "none"}
        How the reading that the note tells was chosen: as the paper's text has it, as its authors' code has it, or as
        the one of several whose figures came nearest; "none": several readings are beside each other. With the last
        two it says nothing if the paper's figures lie in our intervals, and none are counted. Empty: unsaid.
    found : str
        What our figures say beside the paper's, and why they differ. The first paragraph stands on the page of all
        results.
    seeds : int
        How many, from 0.
    against : str
        The row that the others are compared with over the seeds, but for those that name another one.
    tuned : int
        How many settings are tried for each row and column, of which a second row is made, "NAME, tuned". 0: none.
    ranked : str
        A measure by which rows are ranked over all columns and seeds, more being better. Empty: they are not.
    measures : mapping
        By the paper's names; a text is the key of a share.
    figure : Figures
        What its picture shows, and how.
    shown : list of str
        Rows of the table on the page of all results. Empty: all.
    columns : list of Column
        Data or scenarios. Empty: the table has one column, which has no name.
    rows : list of Row
        What is compared, as a rule methods.
    settings : mapping
        Config keys of all runs.
    short, quick : mapping
        What differs in the short variant, and in the quick one, which is of one seed and bundled data.
    short_only : list of str
        What the names of cells must have one of to be in the short variant. Empty: all are.
    variant : {"full", "short", "quick"}
        Which of them is run; the command says it.
    """

    title: str
    paper: str
    source: str
    needs: str = ""
    runs: str = ""
    note: str = ""
    chosen: Reading = ""
    found: str = ""
    seeds: Annotated[int, Field(ge=1)] = 3
    against: str = ""
    tuned: Annotated[int, Field(ge=0)] = 0
    ranked: str = ""
    measures: dict[str, Annotated[Measure, BeforeValidator(lambda key: {"key": key} if isinstance(key, str) else key)]]
    figure: Figures = Figures()
    shown: list[str] = []
    short_only: Annotated[list[str], Field(alias="short-only")] = []
    columns: list[Column] = []
    rows: list[Row]
    variant: Variant = "full"

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Check that names are names of something here."""
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for several in (rows, columns):
            if len(set(several)) < len(several):
                raise ValueError(f"a name is given twice: {', '.join(several)}")
        _among("table or figure", filter(None, [self.runs]), names())
        _among("row", filter(None, [self.against, *(row.against for row in self.rows)]), rows)
        _among("row", self.shown, [*rows, *(f"{row}, tuned" for row in rows if self.tuned)])
        _among("measure", [*self.figure.measures, *filter(None, [self.ranked])], self.measures)
        if self.figure.kind == "gains" and len(self.figure.measures) > 1:
            raise ValueError("figure: beside gains stands one measure, or none")
        paired = self.compares_clients or self.figure.kind == "differences"
        if paired and not any(row.against or self.against for row in self.rows):
            raise ValueError("gains and differences are over another row: say which one with against")
        for row in self.rows:
            _among("column", [*row.without, *row.within], columns)
            if not isinstance(row.paper, list):
                _among("column" if columns else "measure", row.paper, columns or self.measures)
            elif columns or len(row.paper) != len(self.measures):
                raise ValueError(f"{row.name}: a list of figures has one for each measure, and is for one column")
        return self

    @model_validator(mode="after")
    def _runs(self) -> Self:
        """Check that each cell is a run."""
        for cell in (*self.cells(), *self.cells("short"), *self.cells("quick")):
            _among("measure", cell.paper, self.measures)
            try:
                RunConfig.from_flat(cell.settings)
            except HetflError as error:
                raise ValueError(f"{cell.name}: {error}") from None
        return self

    @property
    def keys(self) -> list[str]:
        """The keys of the measures that a run has by itself."""
        return [measure.key for measure in self.measures.values() if measure.key not in IMPACT]

    @property
    def compares_clients(self) -> bool:
        """Whether it asks for each client's accuracy beside that of another row."""
        return self.figure.kind == "gains" or any(measure.key in IMPACT for measure in self.measures.values())

    @property
    def has_short(self) -> bool:
        """Whether its short variant differs from the full one."""
        return bool(self.short_only) or any(part.short for part in (self, *self.columns, *self.rows))

    def cells(self, variant: Variant = "full") -> Iterator[Cell]:
        """Go through the cells of the table, row by row; with other data the paper's figures stand beside none."""
        for row in self.rows:
            for column in self.columns or [Column(name="")]:
                parts = [part.settings for part in (self, column, row)]
                parts += [part.of(variant) for part in (self, column, row)]
                parts += [row.within.get(column.name, {})]
                settings = {key: value for part in parts for key, value in part.items()}
                paper = {} if variant == "quick" else _paper(row, column.name, self.measures)
                against = row.against or self.against
                cell = Cell(row=row.name, column=column.name, settings=settings, paper=paper, against=against)
                left_out = variant == "short" and not cell.matches(self.short_only)
                if column.name not in row.without and not left_out:
                    yield cell
                    if self.tuned:
                        trials = min(self.tuned, QUICK_TRIALS) if variant == "quick" else self.tuned
                        yield cell.tuned.model_copy(update={"trials": trials})


def _among(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(kind, name, known))


def _paper(row: Row, column: str, measures: Iterable[str]) -> dict[str, float]:
    if isinstance(row.paper, list):
        return dict(zip(measures, row.paper, strict=True))
    found: Mapping[str, Any] = row.paper.get(column, {}) if column else row.paper  # type: ignore[assignment]
    return dict(found)


def _completed(said: dict[str, Any]) -> dict[str, Any]:
    """Return what a recipe says, and what it leaves to the one whose runs it shares."""
    if said.get("runs") not in names():
        return said
    other = load_toml(TABLES / f"{said['runs']}.toml")
    rows = [{key: value for key, value in row.items() if key != "paper"} for row in other["rows"]]
    left: dict[str, Any] = {key: other[key] for key in SHARED if key in other}
    return {**left, "rows": rows, **said}


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
        return Recipe.model_validate(_completed(load_toml(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from None
