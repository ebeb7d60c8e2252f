"""What a client's model takes, read back where its data are not."""

from functools import partial

import torch

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import Column
from hetfl_flwr.node.node import INPUTS
from hetfl_flwr.node.state import ClientState
from hetfl_flwr.wire.spec import under


def unpack_inputs(state: ClientState) -> tuple[RunConfig, ClientData]:
    """Return a client's config and data without samples, from a state that was saved in a state folder."""
    metadata, tensors = state.inputs or {}, under(INPUTS, state.tensors)
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
