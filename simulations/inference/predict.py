"""Predictions for rows, images, texts or time series by a client's model, from an exported file or a run folder.

Columns are found by name. The description of the inputs is part of the model, see `simulations.inference.export`; the
training data are not needed.
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
from simulations.inference.inputs import READERS, Model

BATCH_SIZE = 256
SHOWN = 5
"""Maximum number of wrong inputs that a message names."""

FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable of torch."""

OBJECTS = ("custom_obj_", "opaque_obj_")
"""Prefixes of files in a ``.pt2`` that hold objects of arbitrary classes."""

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
"""Keys of a program's JSON whose values torch evaluates or looks up by name, and which values an export writes."""


@dataclass(frozen=True)
class Predictions:
    """The predicted class and score of each row, image, text or series.

    Parameters
    ----------
    unit : {"row", "file"}
        What `names` are: row numbers from 1 (in a csv file the header is row 1), or paths of images.
    names : sequence
        N row numbers or paths.
    classes : sequence of str
        N class names.
    scores : sequence of float
        N softmax scores of these classes, in [0, 1].
    unreadable : sequence of str
        One line for each image or series that could not be read; these are not in `names`.
    ids : tuple of (str, sequence of str)
        Name and N cells of each column that identifies the rows and is not an input of the model.
    """

    unit: str
    names: Sequence[str]
    classes: Sequence[str]
    scores: Sequence[float]
    unreadable: Sequence[str] = ()
    ids: tuple[tuple[str, Sequence[str]], ...] = ()

    def write(self, file: IO[str]) -> None:
        """Write csv with the columns row or file, ids if there are any, class and score."""
        lines = csv.writer(file, lineterminator="\n")
        own = (self.unit, "class", "score")
        ids = (f"{name} (input)" if name in own else name for name, _ in self.ids)
        header = [self.unit, *ids, "class", "score"]
        scores = (f"{score:.4f}" for score in self.scores)
        rows = zip(self.names, *(cells for _, cells in self.ids), self.classes, scores, strict=True)
        lines.writerows(map(as_cell, row) for row in (header, *rows))


def predict(model: Path | str, file: Path | str, client: int | str | None = None) -> Predictions:
    """Predict the classes of a file's content. A ``.pt2`` is a program: use only files that you trust.

    `model` is a ``.pt2`` file from ``hetfl export``, or a run folder or ``state-dir``, for which `client` is a number
    or name. `file` is, for tables, csv, parquet or json; for texts, such a file or a ``.txt`` with one text per line;
    for time series, parquet, json or npz; for images, an image or a folder.
    """
    loaded, file = load_model(Path(model), client), Path(file)
    if not file.exists():
        raise DataError(f"'{file}' does not exist")
    try:
        whole = READERS[loaded.inputs["kind"]](loaded, file)
        read, wrong = whole.valid(), [*whole.wrong.values()]
        if not read.names and wrong:
            raise DataError("; ".join(wrong[:SHOWN]))
        parts = torch.split(torch.from_numpy(np.ascontiguousarray(read.inputs)), BATCH_SIZE)
        with torch.no_grad():
            logits = torch.cat([loaded.program(part) for part in parts])
        scores, classes = logits.softmax(1).max(1)
        known = [printable(str(name)) for name in loaded.description["outputs"]["classes"]]
        named = [known[number] for number in classes.tolist()]
        unit = "file" if loaded.inputs["kind"] == "image" else "row"
        return Predictions(unit, read.names, named, scores.tolist(), wrong, read.ids)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{loaded.called} has a description that does not fit it: {cause(error)}") from None


def load_model(path: Path, client: int | str | None = None) -> Model:
    """Load a model as `predict` accepts it."""
    called = f"'{path}'"
    if path.is_dir():
        if client is None:
            raise ConfigError(f"{called} is a run folder: name a client or its number, such as --client 0")
        from simulations.inference.loading import load_client

        node = load_client(path, client, data=False)
        program: Callable[[Tensor], Tensor] = program_of(node)
        described = description(node)
    else:
        if client is not None and path.exists():
            raise ConfigError(f"{called} is already one client's model: leave --client out")
        program, described = _read(path, called)
    inputs = described["inputs"]
    if described.get("format") != FORMAT or (inputs["kind"] == "table" and not inputs.get("columns")):
        raise ModelError(f"{called} does not describe how its inputs are made: export it again with this version")
    return Model(called, program, described)


def _read(path: Path, called: str) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """Return the program and the description of a ``.pt2`` file."""
    if not path.exists():
        raise ModelError(f"{called} does not exist: expected a .pt2 file from hetfl export, or a run folder")
    if path.suffix != ".pt2":
        raise ModelError(f"{called}: expected a .pt2 file from hetfl export, or a run folder")
    described = _read_description(path, called)
    try:
        with quiet(), _weights_only():
            return torch.export.load(path).module(), described
    except Exception as error:
        raise ModelError(f"{called} is not a program of torch.export, or is damaged: {cause(error)}") from None


@contextmanager
def _weights_only() -> Iterator[None]:
    """Let torch load only tensors and plain containers, as an exported file holds pickles, which may run code."""
    before = {key: os.environ.pop(key, None) for key in (FORCE, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")}
    os.environ[FORCE] = "1"
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def _read_description(path: Path, called: str) -> dict[str, Any]:
    """Return the description in a ``.pt2`` file; refuse a file that may run code. Nothing in it is run here."""
    try:
        path_size = path.stat().st_size
        with ZipFile(path) as archive:
            paths = [PurePosixPath(name) for name in archive.namelist()]
            [text] = [archive.read(str(path)) for path in paths if path.name == EXTRA] or [b"{}"]
            programs = [archive.read(str(path)) for path in paths if path.suffix == ".json" and path.name != EXTRA]
            # torch compares no checksums; an export is not compressed, and what unpacks to far more is left to torch
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked <= 2 * path_size and (damaged := archive.testzip()):
                raise BadZipFile(f"{damaged} has another checksum")
        described: dict[str, Any] = json.loads(text)
        foreign = next((key for program in programs for key in _foreign(json.loads(program.decode()))), "")
    except (BadZipFile, OSError, RuntimeError, ValueError, LookupError) as error:
        raise ModelError(f"{called} is not a program of torch.export, or is damaged: {cause(error)}") from None
    try:
        kind, classes = described["inputs"]["kind"], described["outputs"]["classes"]
    except (LookupError, TypeError):
        kind = classes = None
    if not (isinstance(kind, str) and kind in READERS and isinstance(classes, list)):
        raise ModelError(f"{called} does not describe its inputs: it was not written by hetfl export")
    if compiled := [path for path in paths if "aotinductor" in path.parts or path.name.startswith(OBJECTS)]:
        raise ModelError(f"{called} contains more than a program and its weights ({compiled[0].name}): it is not run")
    if len({str(path).casefold() for path in paths}) < len(paths):
        raise ModelError(f"{called} contains two files with the same name: it is not run")
    if foreign:
        raise ModelError(f"{called}: {foreign} is not as hetfl export writes it and may run code: it is not run")
    return described


def _foreign(program: Any) -> Iterator[str]:
    """Yield the keys of a program's JSON whose values an export does not write."""
    values = program if isinstance(program, list) else []
    if isinstance(program, dict):
        values = [*program.values()]
        yield from (key for key, value in program.items() if key in _CHECKED and not _CHECKED[key](value))
    for value in values:
        yield from _foreign(value)
