"""A client's config and what its model takes, written beside its state: both are needed to read the state back.

Its data need not be there for that.
"""

from dataclasses import asdict
from pathlib import Path

import torch

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData

INPUTS = "inputs"
"""The kind of file that this is."""


def pack_inputs(config: RunConfig, data: ClientData) -> bytes:
    """Write a client's config, what its inputs are, how they are scaled, and a digest of its data; no samples."""
    arrays = data.train.arrays
    values = {
        "config": config.to_flat(),
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
    if arrays.origin is not None:
        tensors["origin"] = arrays.origin
    return pack(INPUTS, values, {name: tensor.cpu().numpy() for name, tensor in tensors.items()})


def data_digest(path: Path) -> str:
    """Return the digest of a client's data as `pack_inputs` has written it; raises DamagedError as `read_blob`."""
    return str(read_blob(path, INPUTS).values["data"])
