"""What a client's model takes, written beside its state: its data need not be there to read the state back."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hetfl_flwr.common.errors import DamagedError
from hetfl_flwr.common.files import header, read_header, read_sealed, seal
from hetfl_flwr.data import ClientData


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


def data_digest(path: Path) -> str | None:
    """Return the digest of a client's data as `pack_inputs` has written it; None where there is none.

    Raises
    ------
    DamagedError
        The file is not as it was written.
    """
    if not path.exists():
        return None
    digest: str | None = read_inputs(path)[1].get("data")
    return digest


def read_inputs(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the whole file, and its metadata; a `DamagedError` where it is not as it was written."""
    try:
        blob = read_sealed(path)
        return blob, read_header(blob, "inputs")
    except (OSError, DamagedError) as error:
        raise DamagedError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
