"""Predictions for rows, images, texts or time series, by a client's model: an exported file, or a run folder.

Columns are found by name. The description of the inputs comes with the model, see
`simulations.inference.export`; the data that it was trained on need not be there.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.errors import ConfigError, DataError, ModelError, cause
from hetfl_flwr.text import as_cell, printable
from simulations.inference.export import EXTRA, FORMAT, description, program_of, quiet
from simulations.inference.inputs import READERS, SHOWN, Model

AT_ONCE = 256
"""Batch size."""

FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable of torch's."""

OBJECTS = ("custom_obj_", "opaque_obj_")
"""How files in a ``.pt2`` begin that are objects of any class."""

_SYMBOL = r"[su]\d+"
_EXPRESSION = re.compile(
    rf"(Symbol\('{_SYMBOL}'(, (positive|nonnegative|integer)=True)*\)|Integer\(-?\d+\)|\b{_SYMBOL}\b|\b\d+\b"
    r"|\b(Add|Mul|FloorDiv|Mod|PythonMod|Max|Min|Eq|Ne|Lt|Le|Gt|Ge)\(|[-(), ])*"
)
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|higher_order|torchvision)(\.[A-Za-z0-9_]+){1,2}|torch\.sym_[a-z]+|math\.[a-z0-9]+"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_CHECKED = {
    "guards_code": lambda value: value in ([], None),
    "expr_str": lambda value: isinstance(value, str) and bool(_EXPRESSION.fullmatch(value)),
    "target": lambda value: isinstance(value, str) and bool(_OPERATOR.fullmatch(value)),
    "as_operator": lambda value: isinstance(value, str) and bool(_OPERATOR.fullmatch(value)),
    "range_constraints": lambda value: isinstance(value, dict) and all(re.fullmatch(_SYMBOL, key) for key in value),
    "min_val": lambda value: value is None or isinstance(value, int),
    "max_val": lambda value: value is None or isinstance(value, int),
}
"""What torch evaluates, or looks up by name, in a program's JSON, and what of it an export writes."""


@dataclass(frozen=True)
class Predictions:
    """The class of each row, image, text or series, and how sure the model is.

    Parameters
    ----------
    unit : {"row", "file"}
        What `names` are: numbers of rows, or paths of images. The first row is 1, and so is the header of a csv file.
    names : sequence
        N of them.
    classes : sequence of str
        N names of classes, those with the highest score.
    scores : sequence of float
        N scores in [0, 1]: the softmax of the logits.
    unreadable : sequence of str
        Why an image or a series could not be read, a line each; such ones are not among `names`.
    ids : tuple of (str, sequence of str)
        Name and N cells of each column of texts or whole numbers that tells the rows apart and that the model does not
        know.
    """

    unit: str
    names: Sequence[str]
    classes: Sequence[str]
    scores: Sequence[float]
    unreadable: Sequence[str] = ()
    ids: tuple[tuple[str, Sequence[str]], ...] = ()

    def write(self, file: IO[str]) -> None:
        """Write them as csv: row or file, the row's ids where it has any, class and score; see `as_cell`."""
        lines = csv.writer(file, lineterminator="\n")
        header = [self.unit, *(name for name, _ in self.ids), "class", "score"]
        scores = (f"{score:.4f}" for score in self.scores)
        rows = zip(self.names, *(cells for _, cells in self.ids), self.classes, scores, strict=True)
        lines.writerows(map(as_cell, row) for row in (header, *rows))


def predict(model: Path | str, file: Path | str, client: int | str | None = None) -> Predictions:
    """Return the classes of a file's content. A ``.pt2`` is a program: use only files that you trust.

    Parameters
    ----------
    model : path
        A ``.pt2`` file of ``hetfl export``, or a run folder or ``state-dir``.
    file : path
        Of a table, csv, parquet or json; of texts, such a file or one with a text a line (``.txt``); of time series,
        parquet, json or npz; of images, one or a folder.
    client : int or str, optional
        Whose model of a run folder, by number or name.

    Raises
    ------
    ConfigError
        A run folder without a client, or a file with one.
    ModelError
        The file is no model, or does not say what it takes.
    DataError
        The file cannot be read, holds nothing, lacks columns or is of another kind than the model takes.
    """
    loaded, file = load_model(Path(model), client), Path(file)
    if not file.exists():
        raise DataError(f"'{file}' is not there")
    try:
        whole = READERS[loaded.inputs["kind"]](loaded, file)
        read, wrong = whole.sound(), [*whole.wrong.values()]
        if not read.names and wrong:
            raise DataError("; ".join(wrong[:SHOWN]))
        parts = torch.split(torch.from_numpy(np.ascontiguousarray(read.inputs)), AT_ONCE)
        with torch.no_grad():
            logits = torch.cat([loaded.program(part) for part in parts])
        scores, classes = logits.softmax(1).max(1)
        known = [printable(str(name)) for name in loaded.told["outputs"]["classes"]]
        named = [known[number] for number in classes.tolist()]
        unit = "file" if loaded.inputs["kind"] == "image" else "row"
        return Predictions(unit, read.names, named, scores.tolist(), wrong, read.ids)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{loaded.called} says of its inputs what does not fit it: {cause(error)}") from None


def load_model(path: Path, client: int | str | None = None) -> Model:
    """Read a model as `predict` takes it."""
    called = f"'{path}'"
    if path.is_dir():
        if client is None:
            raise ConfigError(f"{called} is a run folder: say whose model, by name or number, such as --client 0")
        from simulations.inference.loading import load_client

        node = load_client(path, client, data=False)
        program: Callable[[Tensor], Tensor] = program_of(node)
        told = description(node)
    else:
        if client is not None and path.exists():
            raise ConfigError(f"{called} is one client's model already: leave --client out")
        program, told = _read(path, called)
    if told.get("format") != FORMAT or (told["inputs"]["kind"] == "table" and not told["inputs"].get("columns")):
        raise ModelError(f"{called} does not say what its inputs are made of: export it again, with this version")
    return Model(called, program, told)


def _read(path: Path, called: str) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """Return program and description of a ``.pt2`` file."""
    if not path.exists():
        raise ModelError(f"{called} is not there: expected a .pt2 file of hetfl export, or a run folder")
    if path.suffix != ".pt2":
        raise ModelError(f"{called}: expected a .pt2 file of hetfl export, or a run folder")
    told = _told(path, called)
    try:
        with quiet(), _weights_only():
            return torch.export.load(path).module(), told
    except Exception as error:
        raise ModelError(f"{called} is not a program of torch.export, or is damaged: {cause(error)}") from None


@contextmanager
def _weights_only() -> Iterator[None]:
    """Let torch load nothing but tensors and plain containers: an exporter's file holds pickles, which may run code."""
    before = {key: os.environ.pop(key, None) for key in (FORCE, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")}
    os.environ[FORCE] = "1"
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def _told(path: Path, called: str) -> dict[str, Any]:
    """Return the description in a ``.pt2`` file, of which nothing is run: a program of others is refused before."""
    try:
        with ZipFile(path) as archive:
            paths = [PurePosixPath(name) for name in archive.namelist()]
            [text] = [archive.read(str(path)) for path in paths if path.name == EXTRA] or [b"{}"]
            programs = [archive.read(str(path)) for path in paths if path.suffix == ".json" and path.name != EXTRA]
        told: dict[str, Any] = json.loads(text)
        foreign = next((key for program in programs for key in _foreign(json.loads(program.decode()))), "")
    except (BadZipFile, OSError, RuntimeError, ValueError, LookupError) as error:
        raise ModelError(f"{called} is not a program of torch.export, or is damaged: {cause(error)}") from None
    try:
        kind, classes = told["inputs"]["kind"], told["outputs"]["classes"]
    except (LookupError, TypeError):
        kind = classes = None
    if not (isinstance(kind, str) and kind in READERS and isinstance(classes, list)):
        raise ModelError(f"{called} does not say what it takes: it was not written by hetfl export")
    if compiled := [path for path in paths if "aotinductor" in path.parts or path.name.startswith(OBJECTS)]:
        raise ModelError(f"{called} holds more than a program and its weights ({compiled[0].name}): it is not run")
    if len({str(path).casefold() for path in paths}) < len(paths):
        raise ModelError(f"{called} holds two files of one name: it is not run")
    if foreign:
        raise ModelError(f"{called}: {foreign} is not as hetfl export writes it and may run code: it is not run")
    return told


def _foreign(program: Any) -> Iterator[str]:
    """Go through the keys of a program's JSON whose values an export does not write."""
    values = program if isinstance(program, list) else []
    if isinstance(program, dict):
        values = [*program.values()]
        yield from (key for key, value in program.items() if key in _CHECKED and not _CHECKED[key](value))
    for value in values:
        yield from _foreign(value)
