"""Models as payloads: which entries of a state dict are sent, and how they are read and loaded."""

from copy import deepcopy
from hashlib import sha256
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray

from hetfl_flwr.models.split_model import constant_buffers
from hetfl_flwr.wire.spec import COUNTER_LIMIT, LEARNT_LIMIT, STATISTIC_LIMIT, Arrays, ArraySpec, PayloadSpec

M = TypeVar("M", bound=torch.nn.Module)


def weights(model: torch.nn.Module) -> PayloadSpec:
    """Declare the floating-point entries of a state dict that training changes: parameters and running statistics.

    Integer buffers (the step counters of batch norm) stay on the client, because they have no mean. So do buffers that
    training does not change, such as a mask. Floating-point numbers of 8 or 16 bits are sent as float32.
    """
    state = model.state_dict()
    return PayloadSpec(tuple(spec for name, spec in _entries(model).items() if state[name].is_floating_point()))


def whole_state(model: torch.nn.Module) -> PayloadSpec:
    """Declare `weights` and the integer buffers that training changes, such as the step counters of batch norm."""
    return PayloadSpec(tuple(_entries(model).values()))


def fingerprint(model: torch.nn.Module) -> str:
    """Return a fingerprint of a model's `weights`, equal for models whose weights can be averaged."""
    return sha256(repr(weights(model)).encode()).hexdigest()[:16]


def model_arrays(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the entries that `weights` declares."""
    return {name: array for name, array in state_arrays(model).items() if array.dtype.kind == "f"}


def state_arrays(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the entries that `whole_state` declares."""
    constant, short = constant_buffers(model), (torch.float16, torch.bfloat16)
    return {
        name: (tensor.float() if tensor.dtype in short else tensor).cpu().numpy().copy()
        for name, tensor in model.state_dict().items()
        if name not in constant
    }


def load_model_arrays(model: torch.nn.Module, arrays: Arrays) -> None:
    """Load received arrays into a model; other entries of its state dict do not change."""
    if arrays:
        state = model.state_dict()  # detached tensors
        torch._foreach_copy_([state[name] for name in arrays], [torch.from_numpy(one) for one in arrays.values()])


def loaded(model: M, arrays: Arrays) -> M:
    """Return a copy of a model with received arrays loaded."""
    copy = deepcopy(model)
    load_model_arrays(copy, arrays)
    return copy


def _entries(model: torch.nn.Module) -> dict[str, ArraySpec]:
    """Declare the entries of a state dict that are sent: floating-point numbers up to a limit, and any integers.

    Only user-defined models have buffers that are known to be constant.
    """
    constant = constant_buffers(model)
    return {
        name: _entry(name, tensor, LEARNT_LIMIT if isinstance(tensor, torch.nn.Parameter) else STATISTIC_LIMIT)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if name not in constant
    }


def _entry(name: str, tensor: torch.Tensor, most: float) -> ArraySpec:
    smallest = 0.0 if name.rpartition(".")[2] == "running_var" else -most
    short = tensor.is_floating_point() and tensor.element_size() < 4  # NumPy lacks some of these dtypes
    kind = "float32" if short else str(tensor.dtype).removeprefix("torch.")
    least, largest = (smallest, most) if tensor.is_floating_point() else _integers(kind)
    frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    return ArraySpec(name, tuple(tensor.shape), kind, least, largest, update=True, frozen=frozen)


def _integers(dtype: str) -> tuple[float | None, float | None]:
    """Return the bounds of an integer buffer; narrow dtypes and booleans need none."""
    return (-COUNTER_LIMIT, COUNTER_LIMIT) if dtype == "int64" else (None, None)
