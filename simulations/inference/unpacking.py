"""What a client's model takes, read back where its data are not."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load

from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.data.arrays.samples import Arrays
from hetfl_flwr.data.arrays.spec import Column
from hetfl_flwr.node.inputs import read_inputs


def unpack_inputs(path: Path) -> ClientData:
    """Return data without samples from what `hetfl_flwr.node.inputs.pack_inputs` has written.

    Raises
    ------
    DamagedError
        It is not as it was written.
    """
    blob, metadata = read_inputs(path)
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
