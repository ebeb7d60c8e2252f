"""Mixed precision: forward passes of a model in bfloat16 where this is safe, and everything else in float32."""

from contextlib import ExitStack

import torch
from torch import nn

from hetfl_flwr.models.split_model import SplitModel


def mixed(model: SplitModel, precision: str) -> SplitModel:
    """Let body and head of a model run under ``torch.autocast``, in place, with ``"bfloat16"`` or ``"none"`` for off.

    Features and logits are returned as float32, so that losses, gradients, weights, optimizers and payloads stay
    float32. Copies of the model behave in the same way.

    Examples
    --------
    >>> model = mixed(SplitModel(nn.Flatten(), nn.Linear(64, 10)), "bfloat16")
    >>> model(torch.zeros(2, 1, 8, 8)).dtype
    torch.float32
    """
    if precision == "none":
        return model
    for part in (model.body, model.head):
        region = _Region(getattr(torch, precision))
        part.register_forward_pre_hook(region.enter)
        part.register_forward_hook(region.leave, always_call=True)  # also after an error, to turn autocast off
    return model


class _Region:
    """Hooks that run the forward passes of a module under autocast."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._open: list[ExitStack] = []

    def enter(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._open.append(ExitStack())
        self._open[-1].enter_context(torch.autocast(inputs[0].device.type, self._dtype))

    def leave(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor | None) -> object:
        self._open.pop().close()
        return None if output is None else output.float()  # None if the forward pass has failed
