"""Check a user-defined model: run it once to create lazy layers, and report in one line why it cannot be trained."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError, cause
from hetfl_flwr.models.split_model import SplitModel, ends_in_head, logits_of, split
from hetfl_flwr.seeding import seeded


def entered(module: object, spec: DataSpec, *, known: bool = False) -> SplitModel:
    """Return what a user's function has returned as a SplitModel, after one forward pass in evaluation mode.

    The pass creates lazy layers, and layers and buffers that a model creates when it first sees its inputs; their
    initial values come from the global random generators. If another result of the same function has been checked for
    these data (`known`), the split is not checked again. Raises ModelError if it is not a module, does not fit the
    data, has weights or logits that are not finite float32 numbers, or does not end in a Linear.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"its function returned {type(module).__name__}; return a torch.nn.Module")
    modes = {layer: layer.training for layer in module.modules()}
    with torch.no_grad():
        logits = logits_of(module.eval(), spec)
        if not known:
            logits_of(module, spec, 1)  # such as the last row of a test set, or the only one to predict
    if logits.dtype != torch.float32 or not logits.isfinite().all():
        raise ModelError(f"for random inputs it returns {_dtype(logits)} logits, expected finite float32 ones")
    _check_state(module)
    for layer in module.modules():
        layer.training = modes.get(layer, True)
    if not isinstance(module, SplitModel):
        return split(module, spec=None if known else spec)
    if not known and not ends_in_head(module, "head", SplitModel(module.body, module.head), spec):
        raise ModelError(
            "its logits are not head(body(x)), which is what methods train: remove other operations from its forward"
        )
    return module


def constants(model: SplitModel, spec: DataSpec) -> dict[str, Tensor]:
    """Train a model from `entered` on two batches, and return the buffers that this does not change, by name.

    The model cannot be used afterwards. Raises ModelError with the reason if it cannot be trained or averaged.
    """
    with torch.no_grad():
        first, again = (_seeded_logits(model.eval(), spec) for _ in range(2))
    if not torch.equal(first, again):
        raise ModelError("it returns other logits when called again: it must not keep anything between batches")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
    _train(model, spec)
    if odd := [name for name, _ in _forms(before) ^ _forms(model.state_dict())]:
        raise ModelError(f"training adds, removes or reshapes '{min(odd)}' of its state: create it in __init__")
    now = dict(model.named_buffers(remove_duplicate=False))
    same = {name: now[name] for name, buffer in buffers.items() if torch.equal(now[name], buffer)}
    for name, tensor in before.items():
        if name not in same and not tensor.isfinite().all():
            raise ModelError(f"'{name}' in its state has values that are not finite, and training changes it")
    return same


def _check_state(module: nn.Module) -> None:
    """Raise ModelError for weights that cannot be trained, and for a state that cannot be sent."""
    for name, weight in module.named_parameters():
        if is_lazy(weight):
            raise ModelError(f"its weight '{name}' has no shape after a forward pass: remove the layer, or use it")
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise ModelError(f"its weight '{name}' is {_dtype(weight)}: weights must be float16, bfloat16 or wider")
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise ModelError(f"'{name}' of its state is of type {type(value).__name__}: make it a tensor in a buffer")


def _train(model: SplitModel, spec: DataSpec) -> None:
    """Compute the gradients of two batches of different sizes, and take a step."""
    try:
        with torch.enable_grad():
            for size in (2, 3):
                logits = _seeded_logits(model.train(), spec, size)
                torch.autograd.backward(functional.cross_entropy(logits, torch.zeros(size, dtype=torch.int64)))
            torch.optim.SGD(model.parameters(), fused=True).step()
    except RuntimeError as error:
        raise ModelError(f"it cannot be trained: {cause(error)}") from error
    for part in (model.body, model.head):
        trained = [name for name, weight in part.named_parameters() if weight.requires_grad]
        if trained and all(weight.grad is None for weight in part.parameters()):
            raise ModelError(f"it cannot be trained: no gradient reaches {', '.join(trained)}: remove torch.no_grad")


def _seeded_logits(model: nn.Module, spec: DataSpec, size: int = 2) -> Tensor:
    with seeded(0, "probe"):
        return logits_of(model, spec, size)


def _forms(state: dict[str, Tensor]) -> set[tuple[str, str]]:
    return {(name, f"{tuple(tensor.shape)} {tensor.dtype}") for name, tensor in state.items()}


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
