"""What a client's model takes, written beside its state: its data need not be there to read the state back."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from hetfl_flwr.common.errors import DamagedError, private
from hetfl_flwr.common.files import header, read_header, read_sealed, seal
from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.data.arrays.samples import Arrays
from hetfl_flwr.data.arrays.spec import Column


def pack_inputs(data: ClientData) -> bytes:
    """Write what a client's inputs are, how they are scaled, and a digest of its data; none of them."""
    arrays = data.train.arrays
    metadata = {
        "shape": arrays.spec.shape,
        "classes": arrays.spec.classes,
        "vocabulary": arrays.spec.vocabulary,
        "peak": None if isinstance(arrays.peak, torch.Tensor) else arrays.peak,
        "class names": arrays.class_names,
        "input names": arrays.input_names,
        "columns": [asdict(column) for column in arrays.columns],
        "brightest": arrays.brightest,
        "words": list(arrays.words()) if arrays.words else None,
        "data": data.digest,
    }
    tensors = {"centre": arrays.centre, "inputs": arrays.inputs[:0]}
    if isinstance(arrays.peak, torch.Tensor):
        tensors["peak"] = arrays.peak
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return seal(save(plain, header("inputs", metadata)))


def unpack_inputs(path: Path) -> ClientData:
    """Return data without samples from what `pack_inputs` has written.

    Raises
    ------
    DamagedError
        It is not as it was written.
    """
    blob, metadata = _read(path)
    tensors = load(blob)
    spec = DataSpec(tuple(metadata["shape"]), metadata["classes"], metadata["vocabulary"])
    arrays = Arrays(
        spec,
        tensors["inputs"],
        torch.zeros(0, dtype=torch.int64),
        train_rows=0,
        peak=tensors["peak"] if metadata["peak"] is None else metadata["peak"],
        centre=tensors["centre"],
        class_names=tuple(metadata["class names"]),
        input_names=tuple(metadata["input names"]),
        columns=tuple(Column(**{**one, "values": tuple(one["values"])}) for one in metadata.get("columns", ())),
        brightest=metadata.get("brightest", 255.0),
        words=None if metadata.get("words") is None else partial(list, metadata["words"]),
    )
    none = Samples(arrays, torch.zeros(0, dtype=torch.int64))
    return ClientData(spec, none, none, none)


def data_digest(path: Path) -> str | None:
    """Return the digest of a client's data as `pack_inputs` has written it; None where there is none.

    Raises
    ------
    DamagedError
        The file is not as it was written.
    """
    if not path.exists():
        return None
    digest: str | None = _read(path)[1].get("data")
    return digest


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        blob = read_sealed(path)
        return blob, read_header(blob, "inputs")
    except (OSError, DamagedError) as error:
        raise DamagedError(f"{private(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
