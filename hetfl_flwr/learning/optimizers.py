"""torch's optimizers, free of the wrappers that hide them from ``torch.compile``, and their state as named tensors.

The first call of a wrapped method imports the whole compiler, which takes as long as importing torch. Nothing is
compiled here, and what is inside the wrappers is the same arithmetic. Where a method has no wrapper it stays as it is.
"""

from collections.abc import Mapping
from inspect import unwrap

import torch


class Adam(torch.optim.Adam):
    """Adam and AMSGrad."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay."""

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(torch.optim.SGD):
    """Stochastic gradient descent."""

    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    zero_grad = unwrap(torch.optim.SGD.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return an optimizer's moments and counters under ``INDEX.NAME``, INDEX that of the parameter."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put copies of moments and counters back into a new optimizer over the same parameters."""
    parameters = _parameters(optimizer)
    for name, tensor in tensors.items():
        index, _, entry = name.partition(".")
        parameter = parameters[int(index)]
        optimizer.state[parameter][entry] = tensor.to(parameter.device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
