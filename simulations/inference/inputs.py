"""Reading of a model's inputs from files: rows of a table, texts, series or images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from hetfl_flwr.common.notices import warn
from hetfl_flwr.data.columns import (
    ABSENT,
    NO_NUMBER,
    FloatArray,
    are_missing,
    cleaned,
    numbers_among,
    read,
    rival,
)
from hetfl_flwr.data.folders import IMAGES, TABLES, advice_on, ending
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.images import Pixels
from hetfl_flwr.data.pivot import parse_pivot, pivoted
from hetfl_flwr.data.reading import Reading, parse_names, parse_vocabulary
from hetfl_flwr.data.roles import in_words, is_text
from hetfl_flwr.data.rows import notes_on, read_file
from hetfl_flwr.data.series import Layout
from hetfl_flwr.data.spec import Column
from hetfl_flwr.data.text_tables import read_letters
from hetfl_flwr.data.texts import Tokens
from hetfl_flwr.errors import DataError, ModelError
from hetfl_flwr.text import printable, some

FILE_KEYS = ("header_row", "encoding", "missing_values")
"""Fields of a `Reading` that are kept with a model, for the files that it will read."""


@dataclass(frozen=True)
class Model:
    """A program that maps stored inputs (B, *shape) to logits (B, C), and its description.

    `called` is its name in messages; `simulations.inference.export.description` defines the description.
    """

    called: str
    program: Callable[[Tensor], Tensor]
    description: Mapping[str, Any]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The part of the description about inputs."""
        inputs: Mapping[str, Any] = self.description["inputs"]
        return inputs

    @property
    def reading(self) -> Reading:
        """How files of rows were read in training."""
        keys = self.inputs.get("file", {})
        return Reading(**{key: keys[key] for key in FILE_KEYS if key in keys})


class Inputs(NamedTuple):
    """Stored inputs (N, *shape), their names, what is wrong with some by index, and the ids of `Predictions`."""

    inputs: np.ndarray[Any, Any]
    names: Sequence[str]
    wrong: Mapping[int, str] = {}
    ids: tuple[tuple[str, Sequence[str]], ...] = ()

    def valid(self) -> "Inputs":
        """Return the inputs with which nothing is wrong."""
        kept = [row for row in range(len(self.names)) if row not in self.wrong]
        ids = tuple((name, [cells[row] for row in kept]) for name, cells in self.ids)
        return Inputs(self.inputs[kept], [self.names[row] for row in kept], ids=ids)


def _rows(model: Model, path: Path) -> Inputs:
    """Read the rows of a table by column names; empty rows are left out with a warning."""
    whole = _file(model, path)
    frame = _filled(path, whole, whole.table.columns, "are empty")
    columns = [Column.of(one) for one in model.inputs["columns"]]
    found = {" ".join(name.split()): name for name in frame.names}
    here = {column.name: found.get(" ".join(column.name.split())) for column in columns}
    missing = [column.name for column in columns if here[column.name] is None and not column.constant]
    if missing:
        raise DataError(
            f"'{path}' has no column {listed(missing)}, which {model.called} was trained with; it has: "
            f"{listed(frame.names)}"
        )
    ids = _ids(model, path, frame, [*here.values()])
    blocks = [_encoded(path, column, here[column.name], frame) for column in columns]
    return Inputs(np.hstack(blocks), [*map(str, frame.numbers)], ids=ids)


def _filled(path: Path, frame: Frame, columns: Sequence[pa.ChunkedArray], said: str) -> Frame:
    """Return the rows that have a cell in some of the columns; a warning counts the others and says what they are."""
    filled = np.flatnonzero(np.any([column.is_valid().to_numpy() for column in columns], axis=0))
    if not len(filled):
        raise DataError(f"'{path}': all rows {said}")
    if empty := len(frame) - len(filled):
        warn(f"'{path}': {empty} of {len(frame)} rows {said}: left out")
    return frame.take(filled) if empty else frame


def _ids(model: Model, path: Path, frame: Frame, known: Sequence[str | None]) -> tuple[tuple[str, Sequence[str]], ...]:
    """Return columns of unique texts or integers without missing cells, except `known` ones and labels.

    A warning names all other columns.
    """
    found, ignored = list[tuple[str, Sequence[str]]](), list[str]()
    labels = parse_names(model.description["outputs"].get("column") or "")
    for name in (name for name in frame.names if name not in known and " ".join(name.split()) not in labels):
        cells = frame[name]
        is_id = is_text(cells.type) or pa.types.is_integer(cells.type)
        if is_id and not cells.null_count and len(cells.unique()) == len(cells):
            found.append((name, [printable(str(cell)) for cell in cells.to_pylist()]))
        else:
            ignored.append(name)
    if ignored:
        warn(f"'{path}': columns that the model does not know are ignored: {listed(ignored)}")
    return (*found,)


def _encoded(path: Path, column: Column, name: str | None, frame: Frame) -> np.ndarray[Any, Any]:
    """Encode a column as in training (N, width); warn of values that cannot be read."""
    if name is None:
        return np.full((len(frame), 1), np.nan)
    called = f"column '{name}' of '{path}'"
    try:
        cells = cleaned(frame[name], column.missing, column.values)
        other, surely = rival(column, cells) if column.kind != "category" and is_text(cells.type) else ("", True)
        inputs, others = read(replace(column, notation=other) if other else column, cells)
    except pa.ArrowException:
        raise DataError(f"{called} holds {in_words(frame[name].type)}; in training it was a {column.kind}") from None
    if not surely:
        raise DataError(
            f"{called} has ambiguous {column.kind}s: they may be {other}, and the model reads them as "
            f"{column.notation}: write them in one notation"
        )
    if other:
        warn(f"'{path}': column '{name}': {column.kind}s, read in the notation {other}")
    stored = inputs.reshape(len(cells), -1)
    infinite = np.flatnonzero((np.abs(stored) > np.finfo(np.float32).max).any(axis=1))
    if len(infinite):
        raise DataError(f"row {frame.numbers[infinite[0]]} of '{path}' has an infinite {name}")
    absent = others & are_missing(cells, [*NO_NUMBER, *ABSENT]).fill_null(False).to_numpy() if others.any() else others
    if column.kind != "category" and not column.constant and (others > absent).any() and np.isnan(stored).all():
        raise DataError(
            f"none of the {others.sum()} values of {called} is a {column.kind} as in training, {column.notation}: "
            "use the same notation"
        )
    if others.any():
        which = f"row {some(frame.numbers[others].tolist(), 1)}"
        what = "did not occur in training" if column.kind == "category" else f"are no {column.kind}s"
        warn(f"'{path}': column '{name}': {others.sum()} of {len(others)} values {what} ({which}): treated as unknown")
    return stored


def _as_trained(
    path: Path, columns: Mapping[str, Column], frame: Frame, name: str
) -> tuple[FloatArray, Column, Sequence[str]]:
    """Return the numbers (N,) of a column, read as in training; `pivoted` takes them."""
    return _encoded(path, columns[name], name, frame)[:, 0], columns[name], ()


def _column(model: Model, path: Path, usual: str, fits: Callable[[pa.DataType], bool]) -> tuple[Frame, str]:
    """Return a file of rows and the name of the input column: that of training, or the only one of a suitable type."""
    file = _file(model, path)
    fit = [name for name in file.names if fits(file[name].type)]
    name = model.inputs["column"] or (fit[0] if len(fit) == 1 else usual)
    if name not in file:
        raise DataError(f"'{path}' has no column '{name}'; it has: {listed(file.names)}")
    return file, name


def _texts(model: Model, path: Path) -> Inputs:
    """Read texts as rows of tokens; rows of a table without a text are left out with a warning."""
    ids: tuple[tuple[str, Sequence[str]], ...] = ()
    if path.suffix.lower() == ".txt":
        letters, notes = read_letters(path, model.reading.encoding)
        for note in notes:
            warn(f"'{path}': {note}")
        lines = [line.removesuffix("\n") for line in StringIO(letters, newline=None)]
        if not lines:
            raise DataError(f"'{path}' holds no rows: add some, or remove it")
        texts = pa.array(lines, pa.large_string())
        numbers = np.arange(1, len(texts) + 1)
    else:
        file, name = _column(model, path, "text", is_text)
        if not is_text(file[name].type):
            raise DataError(f"column '{name}' of '{path}' holds {in_words(file[name].type)}, not texts")
        file = _filled(path, file, [file[name]], "have no text")
        texts = file[name].cast(pa.large_string()).combine_chunks()
        numbers, ids = file.numbers, _ids(model, path, file, [name])
    kind, size = parse_vocabulary(model.inputs["vocabulary"])
    words = model.inputs["words"]
    if kind == "shared" and words is None:
        raise ModelError(f"{model.called} does not include the words of its vocabulary: export it where its data are")
    known = None if words is None else partial(pa.array, words, pa.large_string())
    inputs, _ = Tokens(model.inputs["shape"][1], size, known).read(texts)
    return Inputs(inputs, [*map(str, numbers)], ids=ids)


def _series(model: Model, path: Path) -> Inputs:
    """Read time series, channels first; rows of another shape are named in the result."""
    columns = parse_pivot(model.inputs.get("pivot") or "")
    file, name = _column(model, path, "x", pa.types.is_nested)
    names: Sequence[str] = [*map(str, file.numbers)]
    if columns:
        trained = {one.name: one for one in map(Column.of, model.inputs.get("columns", ()))}
        numbers = partial(_as_trained, path, trained, file) if trained else None
        file, channels, _, notes = pivoted(file, f"'{path}'", columns, model.reading, numbers)
        for note in notes:
            warn(note)
        names = [str(cell) for cell in file[columns[0]].to_pylist()]
        if [*channels] != [*model.inputs["names"]]:
            raise DataError(
                f"'{path}' has channels {listed(channels)}, {model.called} takes {listed(model.inputs['names'])}"
            )
    called, wanted = f"column '{name}' of '{path}'", model.inputs["layout"]
    cells, shape = file[name].combine_chunks(), tuple(model.inputs["shape"][1:])
    layout = Layout.of(cells[:1], "channels-first" if wanted == "auto" else wanted, called)
    if wanted == "auto" and layout.shape != shape and len(layout.cell) > 1:
        layout = replace(layout, transposed=True)
    if layout.shape != shape:
        raise DataError(
            f"row 1 of {called} holds {' x '.join(map(str, layout.cell))} numbers, and {model.called} takes {shape[0]} "
            f"channels of length {shape[1]}"
        )
    missing, dtype = (*numbers_among(model.reading.missing),), np.dtype(model.inputs["dtype"]).type
    inputs, wrong = replace(layout, dtype=dtype, missing=missing).read(cells)
    said = {row: f"row {file.numbers[row]} of {called} {why}" for row, why in wrong.items()}
    return Inputs(inputs, names, said, _ids(model, path, file, [name]))


def _images(model: Model, path: Path) -> Inputs:
    """Read images as pixels; files that cannot be read are named in the result."""
    paths = [path]
    if path.is_dir():
        paths = sorted(one for one in path.rglob("*") if one.suffix.lower() in IMAGES and one.is_file())
    elif path.suffix.lower() not in IMAGES:
        raise DataError(f"'{path}' is not an image, and {model.called} takes images: {', '.join(sorted(IMAGES))}")
    if not paths:
        raise DataError(f"'{path}' has no images, and {model.called} takes images")
    form = Pixels((*model.inputs["shape"][1:],), bool(model.inputs["resize"]), model.inputs["top"])
    names = [*map(str, paths)]
    inputs, wrong = form.read(pa.array(names))
    return Inputs(inputs, names, wrong)


READERS: Mapping[str, Callable[[Model, Path], Inputs]] = {
    "table": _rows,
    "text": _texts,
    "series": _series,
    "image": _images,
}


def _file(model: Model, path: Path) -> Frame:
    """Read a file of rows; warn of what was found in it."""
    if ending(path) not in TABLES or path.is_dir():
        raise DataError(f"'{path}' is not a file of rows, which {model.called} takes: {advice_on(path)}")
    (_, frame), *others = read_file(path, model.reading)
    if others:
        raise DataError(f"'{path}' has {len(others) + 1} sheets: give a file with only one")
    for note in notes_on([frame]):
        warn(note)
    return frame


def listed(names: Sequence[str]) -> str:
    """Return the first names as a list for messages."""
    return some([*map(repr, names)])
