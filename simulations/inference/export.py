"""Export of trained models for devices without this project: as a program of torch.export, or as ONNX.

The program takes a batch of any size of inputs as they are stored, such as pixels from 0 to 255, and returns logits;
the scaling of the inputs is part of it. The file contains a description of inputs and outputs, as JSON:

- ``.pt2``: ``extra = {"hetfl.json": ""}; program = torch.export.load(path, extra_files=extra).module()``
- ``.onnx``: ``session.get_modelmeta().custom_metadata_map["hetfl"]`` of an onnxruntime session

`description` defines it, and `simulations.inference.predict` uses it.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hetfl_flwr.common.files import writing
from hetfl_flwr.data import Samples, parse_pivot, prepared
from hetfl_flwr.data.columns import DATES, FORMATS, MARKS, PATTERNS, days_among
from hetfl_flwr.data.folders import is_folder
from hetfl_flwr.data.reading import comma_list, parse_data_sets
from hetfl_flwr.data.spec import Column
from hetfl_flwr.errors import ConfigError, ModelError, cause
from hetfl_flwr.node.node import Node
from simulations.inference.inputs import FILE_KEYS

KINDS = (".pt2", ".onnx")
EXTRA = "hetfl.json"
"""Name of the description in a ``.pt2`` file."""

FORMAT = 4
"""Version of the description."""

WORD = r"\w+"
"""Pattern of a word, after lower-casing: letters, digits and underscores."""

MEANING = {
    "image": "pixels as they are stored, 0 to {top:g}: channels, height, width",
    "table": "columns in the order of names, neither scaled nor centered; NaN where one is missing; COLUMN=VALUE is 1 "
    "where the row has the value, else 0",
    "series": "channels x points in time as they are stored, neither scaled nor centered; none may be missing",
    "text": "tokens of the vocabulary {vocabulary}, 0 after the end",
}

HASHED = "a word's token is 1 + MurmurHash3 (32 bits, seed 0, unsigned) of its UTF-8 bytes modulo {modulo}"
RANKED = "a word's token is 2 + its place in words; 1 where it is not there"
RESIZED = "bilinear, smoothed (Pillow's Resampling.BILINEAR), to height and width whatever the sides' ratio"
"""How inputs are made from raw data, in the words of `description`."""

ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
"""Metadata of torch about the traced source code, with paths of this machine."""

TRACED = 2
"""Size of the batch with which the program is traced; torch would make a size of 1 a constant."""


class Program(nn.Module):
    """A model preceded by the scaling of its inputs, as in `samples`."""

    peak: Tensor
    centre: Tensor
    origin: Tensor | None

    def __init__(self, model: nn.Module, samples: Samples) -> None:
        super().__init__()
        arrays = samples.arrays
        self.model, self.spec = model, arrays.spec
        self.register_buffer("peak", torch.as_tensor(arrays.peak, dtype=torch.float32))
        self.register_buffer("centre", arrays.centre)
        self.register_buffer("origin", arrays.origin)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C) of stored inputs (B, *shape)."""
        logits: Tensor = self.model(prepared(inputs, self.spec, self.peak, self.centre, self.origin))
        return logits


def export_node(node: Node, path: Path) -> Path:
    """Write a client's model to a ``.pt2`` or ``.onnx`` file, and return its path; raise ModelError if torch cannot."""
    if path.suffix not in KINDS:
        raise ConfigError(f"{path}: unknown kind of model file; known: {', '.join(KINDS)}")
    if path.suffix == ".onnx" and not find_spec("onnxscript"):
        raise ConfigError("ONNX needs the package onnxscript: pip install 'hetfl[onnx]', or write a .pt2 file")
    program = program_of(node)
    metadata = json.dumps(description(node), indent=1, allow_nan=False)
    with writing(path, ConfigError), quiet():
        path.parent.mkdir(parents=True, exist_ok=True)
        traced = _traced(program, node)
        if path.suffix == ".pt2":
            torch.export.save(traced, path, extra_files={EXTRA: metadata})
        else:
            onnx = torch.onnx.export(
                traced, dynamo=True, input_names=["inputs"], output_names=["logits"], verbose=False
            )
            assert onnx is not None
            onnx.model.metadata_props["hetfl"] = metadata
            onnx.save(path)
    return path


def program_of(node: Node) -> Program:
    """Return a client's measured model with the scaling of its inputs."""
    return Program(_plain(node.predictor or node.model), node.data.train).cpu().eval()


def description(node: Node) -> dict[str, Any]:
    """Return the description of a client's program: inputs, outputs and origin."""
    arrays, config = node.data.train.arrays, node.config
    return {
        "format": FORMAT,
        "inputs": {
            "kind": arrays.spec.kind,
            "shape": ["batch", *arrays.spec.shape],
            "dtype": str(arrays.dtype).removeprefix("torch."),
            "meaning": MEANING[arrays.spec.kind].format(top=arrays.brightest, vocabulary=config.vocabulary),
            "names": list(arrays.input_names),
            "file": {key: getattr(config, key) for key in FILE_KEYS},
            **_own(node),
        },
        "outputs": {
            "shape": ["batch", arrays.spec.classes],
            "dtype": "float32",
            "meaning": "logits: softmax gives probabilities",
            "column": config.label_column or None,
            "classes": list(arrays.class_names) or [str(number) for number in range(arrays.spec.classes)],
        },
        "normalize": f"{config.normalize}, done by the program itself",
        "made of": {
            "model": node.model_name,
            "algorithm": config.algorithm,
            "dataset": comma_list(Path(one).name if is_folder(one) else one for one in parse_data_sets(config.dataset)),
            "partition": node.client_id,
            "seed": config.seed,
        },
    }


def _own(node: Node) -> dict[str, Any]:
    """Return the part of the description for this kind of inputs, such as columns or how texts become tokens."""
    config, arrays = node.config, node.data.train.arrays
    raw = config.normalize == "none"  # then a constant has an influence, too
    columns = [
        asdict(column) | _reading(column) | {"constant": column.constant and not raw} for column in arrays.columns
    ]
    match arrays.spec.kind:
        case "table":
            return {"columns": columns}
        case "image":
            mode = "L" if arrays.spec.shape[0] == 1 else "RGB"
            return {"mode": mode, "top": arrays.brightest, "resize": RESIZED if config.image_size else None}
        case "series":  # where a file of rows has them, and in which layout
            pivot = parse_pivot(config.pivot)
            layout = "channels-first" if pivot else config.series_layout
            column = pivot[-1] if pivot else config.series_column or None
            return {"column": column, "layout": layout, "pivot": config.pivot, "columns": columns}
        case "text":
            hashed = HASHED.format(modulo=arrays.spec.vocabulary - 1)
            return {
                "column": config.text_column,
                "vocabulary": config.vocabulary,
                "word": WORD,
                "token": hashed if config.vocabulary.startswith("hashed:") else RANKED,
                "words": list(arrays.words()) if arrays.words else None,
            }


def _reading(column: Column) -> dict[str, Any]:
    """Return the description of how texts in a column are read."""
    if column.kind == "date":
        origin, missing = ("1900-01-01", []) if column.is_clock else ("1970-01-01", days_among(column.missing))
        formats = {"formats": FORMATS[column.notation], "origin": origin, "missing_days": missing}
        return {"pattern": DATES[column.notation].pattern, **formats}
    if column.kind == "category":
        return {}
    thousands, decimal = MARKS[column.notation]
    return {"thousands": thousands, "decimal": decimal, "pattern": PATTERNS[column.notation]}


def _plain(model: nn.Module) -> nn.Module:
    """Return a copy without this project's hooks for memory layout and mixed precision."""
    model = deepcopy(model)
    for layer in model.modules():
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, "__module__", "").startswith("hetfl_flwr."):
                    del hooks[key]
    return model


def _traced(program: Program, node: Node) -> torch.export.ExportedProgram:
    arrays = node.data.train.arrays
    inputs = torch.zeros((TRACED, *arrays.spec.shape), dtype=arrays.dtype)
    try:
        traced = torch.export.export(program, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:
        raise ModelError(f"torch.export cannot take '{node.model_name}': {cause(error)}") from error
    for graph in (one.graph for one in traced.graph_module.modules() if isinstance(one, torch.fx.GraphModule)):
        for step in graph.nodes:
            for key in ORIGINS:
                step.meta.pop(key, None)
    return traced


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the exporters' internal messages."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
