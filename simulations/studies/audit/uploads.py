"""Uploads that a run has kept (``keep-uploads``), read back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from hetfl_flwr.common.blobs import read_blob
from hetfl_flwr.common.errors import DamagedError, RunFolderError
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints
from hetfl_flwr.runs.observers.kept_uploads import UPLOADS, kept_files
from hetfl_flwr.server.messaging.exchange import MAX_SAMPLES
from hetfl_flwr.wire.spec import STATISTIC_LIMIT, Arrays


@dataclass(frozen=True)
class KeptUpload:
    """What one client was sent in a round, and what it has answered.

    Parameters
    ----------
    round : int
        The round that it counts in.
    client_id : int
        Which client.
    samples : int
        The ``num-examples`` that it has said.
    download, upload : mapping of str to array
        What it was sent, as it travelled, and what it has uploaded, decoded and checked.
    """

    round: int
    client_id: int
    samples: int
    download: Arrays
    upload: Arrays


class _Row(TypedDict):
    """Whose upload it is, the ``num-examples`` that it has said, and which of the downloads it was sent."""

    client: Annotated[int, Field(strict=True, ge=0)]
    samples: Annotated[int, Field(strict=True)]
    download: Annotated[int, Field(strict=True, ge=0)]


_ROWS = TypeAdapter(list[_Row])


def kept_uploads(run_folder: Path) -> Iterator[KeptUpload]:
    """Go through the uploads of a run, round by round; within one by client, and of one client as they came.

    Raises
    ------
    RunFolderError
        A file is damaged, or cannot be read, or is another run's.
    """
    begun = {Checkpoint.read_one(folder).begun for folder in checkpoints(run_folder)[:1]}
    for number, path in kept_files(run_folder):
        try:
            metadata, arrays, _ = read_blob(path, UPLOADS)
        except DamagedError as error:
            raise RunFolderError(str(error)) from None
        if begun - {metadata["run"]}:
            raise RunFolderError(f"{path} is of another run than the checkpoint of {run_folder}")
        try:
            yield from _unpacked(number, arrays, metadata)
        except DamagedError as error:
            raise RunFolderError(f"{path}: damaged ({error})") from None


def _unpacked(number: int, arrays: Arrays, metadata: dict[str, Any]) -> Iterator[KeptUpload]:
    if metadata["round"] != number:
        raise DamagedError(f"it is of round {metadata['round']}")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not (np.abs(array) <= STATISTIC_LIMIT).all():
            raise DamagedError(f"array '{name}' has values that are not finite, or beyond {STATISTIC_LIMIT:g}")
    try:
        rows = _ROWS.validate_python(metadata["uploads"])
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise DamagedError(f"uploads {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    known = -1
    for position, row in enumerate(rows):
        if not 0 <= row["samples"] <= MAX_SAMPLES:
            raise DamagedError(f"client {row['client']} says that it has {row['samples']} samples")
        if row["download"] > known + 1:  # they are numbered as they first occur
            raise DamagedError(f"client {row['client']} was sent download {row['download']}, which is not there")
        known = max(known, row["download"])
        yield KeptUpload(
            number,
            row["client"],
            row["samples"],
            _below(arrays, f"download.{row['download']}."),
            _below(arrays, f"upload.{position}."),
        )


def _below(arrays: Arrays, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
