"""PyTorch's optimizers without the wrappers for ``torch.compile``, and their state as named tensors.

The first call of a wrapped method imports the whole compiler, which takes as long as importing torch and is not needed
here.
"""

from collections.abc import Mapping
from inspect import unwrap
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind", bound=type[torch.optim.Optimizer])


def _unwrapped(kind: Kind) -> Kind:
    for name in ("add_param_group", "zero_grad", "step"):
        method = unwrap(getattr(kind, name))
        setattr(kind, name, torch.no_grad()(method) if name == "step" else method)
    return kind


@_unwrapped
class Adam(torch.optim.Adam):
    """Adam and AMSGrad."""


@_unwrapped
class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay."""


@_unwrapped
class SGD(torch.optim.SGD):
    """Stochastic gradient descent. Some parameters may have no momentum yet, where PyTorch requires all or none."""

    def _init_group(self, group: Any, params: Any, grads: Any, buffers: Any) -> bool:
        sparse: bool = super()._init_group(group, params, grads, buffers)  # type: ignore[no-untyped-call]
        if any(one is not None for one in buffers):
            buffers[:] = [torch.zeros_like(of) if one is None else one for one, of in zip(buffers, params, strict=True)]
        return sparse


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Return the parameters of an optimizer, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return an optimizer's moments and counters as ``INDEX.NAME``, with the index of the parameter, after a prefix."""
    return {
        f"{prefix}{index}.{name}": value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        for index, parameter in enumerate(stepped(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load copies of moments and counters into a new optimizer with the same parameters."""
    parameters = stepped(optimizer)
    for name, tensor in tensors.items():
        index, _, entry = name.partition(".")
        parameter = parameters[int(index)]
        optimizer.state[parameter][entry] = tensor.to(parameter.device, copy=True)
