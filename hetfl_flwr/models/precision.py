"""Mixed precision: a model's forward passes in bfloat16 where that is safe, everything around them in float32."""

from contextlib import ExitStack

import torch
from torch import nn

from hetfl_flwr.models.split_model import SplitModel


def mixed(model: SplitModel, precision: str) -> SplitModel:
    """Let body and head compute under ``torch.autocast``, each time that either is called.

    Features and logits come out as float32, so that losses, gradients and all that is sent stay float32, as weights
    and optimizers do. Copies of the model compute as it does.

    Parameters
    ----------
    model : SplitModel
        It is changed, and returned.
    precision : str
        ``"bfloat16"``, or ``"none"``: the model stays as it is.

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
        part.register_forward_hook(region.leave, always_call=True)  # also after an error: autocast is never left on
    return model


class _Region:
    """The forward passes of one module under autocast."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._open: list[ExitStack] = []

    def enter(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._open.append(ExitStack())
        self._open[-1].enter_context(torch.autocast(inputs[0].device.type, self._dtype))

    def leave(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor | None) -> object:
        self._open.pop().close()
        return None if output is None else output.float()  # None: the forward pass has failed
