"""What a client's model takes, read back where its data are not."""

from functools import partial
from pathlib import Path

import torch

from hetfl_flwr.common.blobs import read_blob
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import Column
from hetfl_flwr.node.inputs import INPUTS


def unpack_inputs(path: Path) -> tuple[RunConfig, ClientData]:
    """Return a client's config and data without samples from what `hetfl_flwr.node.inputs.pack_inputs` has written.

    Raises
    ------
    DamagedError
        It is not as it was written.
    """
    blob = read_blob(path, INPUTS)
    metadata, tensors = blob.values, {name: torch.from_numpy(array) for name, array in blob.arrays.items()}
    spec = DataSpec(tuple(metadata["shape"]), metadata["classes"], metadata["vocabulary"])
    arrays = Arrays(
        spec,
        tensors["inputs"],
        torch.zeros(0, dtype=torch.int64),
        train_rows=0,
        peak=tensors["peak"] if metadata["peak"] is None else metadata["peak"],
        centre=tensors["centre"],
        origin=tensors.get("origin"),
        class_names=tuple(metadata["class names"]),
        input_names=tuple(metadata["input names"]),
        columns=tuple(Column.of(one) for one in metadata["columns"]),
        brightest=metadata["brightest"],
        words=None if metadata["words"] is None else partial(list, metadata["words"]),
    )
    none = Samples(arrays, torch.zeros(0, dtype=torch.int64))
    return RunConfig.from_flat(metadata["config"]), ClientData(spec, none, none, none)
