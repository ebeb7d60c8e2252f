"""Mixed precision: bfloat16 inside body and head, float32 everywhere else, and nothing at all by default."""

import json

import pytest
import torch
from fixtures.tiers import exhaustive
from safetensors.torch import load_file
from torch import nn

from clients.fml import FMLClient
from hetfl_flwr.models import SplitModel, mixed

IMAGES = torch.linspace(0, 1, 4 * 64).reshape(4, 1, 8, 8)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no features")


def seen(layer: nn.Module) -> list[torch.dtype]:
    """Return a list to which each forward pass of a layer adds its output's type."""
    dtypes: list[torch.dtype] = []
    layer.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    return dtypes


def small() -> tuple[SplitModel, nn.Linear]:
    """Return a model of a body of two layers, and the first of them."""
    torch.manual_seed(0)
    inner = nn.Linear(64, 8)
    return SplitModel(nn.Sequential(nn.Flatten(), inner, nn.ReLU()), nn.Linear(8, 3)), inner


def test_layers_compute_in_bfloat16_and_what_comes_out_is_float32():
    """However it is called: whole, or body and head one after the other, as algorithms do."""
    plain, _ = small()
    model, inner = small()
    dtypes = seen(inner)
    assert mixed(model, "bfloat16") is model
    features, logits = model.body(IMAGES), model(IMAGES)
    assert dtypes == [torch.bfloat16] * 2
    assert torch.equal(model.head(features), logits)
    assert (features.dtype, logits.dtype) == (torch.float32, torch.float32)
    assert torch.equal(logits, logits.bfloat16().float())  # the head's, too
    assert not torch.equal(logits, plain(IMAGES))
    torch.testing.assert_close(logits, plain(IMAGES), rtol=0, atol=0.02)  # bfloat16 has 8 bits: numbers near 1
    logits.sum().backward()
    assert {(weight.dtype, weight.grad.dtype) for weight in model.parameters()} == {(torch.float32, torch.float32)}
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_leaves_autocast_off_and_the_model_as_it_was():
    model = mixed(SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 2), Failing()), nn.Linear(2, 2)), "bfloat16")
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no features"):
            model(IMAGES)
        assert not torch.is_autocast_enabled("cpu")
    model.body[2] = nn.ReLU()
    assert model(IMAGES).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["fedhe", *map(exhaustive, ("fedh2l", "fml", "fedhenn", "fedproto", "fedgh", "fedrep", "lgfedavg"))],
)
def test_a_run_in_bfloat16_differs_but_not_by_much(make_config, run_federation, tmp_path, algorithm):
    """Four rounds of six batches: within 0.05 of the accuracy of float32, and sent in the same types and shapes."""
    models = "lenet5" if algorithm == "fedrep" else "mlp,lenet5"
    keys = {"algorithm": algorithm, "models": models, "rounds": 4, "local_batches": 6, "learning_rate": 0.003}
    keys |= {"fedhenn.rad_size": 32}
    ran = {}
    for precision in ("none", "bfloat16"):
        config = make_config(**keys, mixed_precision=precision, output_dir=str(tmp_path / precision))
        folder = run_federation(config)
        summary = json.loads((folder / "summary.json").read_text())
        ran[precision] = summary["accuracy"], summary["bytes_up"], load_file(folder / "knowledge.safetensors")
    (accuracy, sent, learnt), (other, other_sent, other_learnt) = ran["none"], ran["bfloat16"]
    assert abs(other - accuracy) < 0.05
    assert other_sent == sent
    assert [(name, array.dtype) for name, array in other_learnt.items()] == [
        (name, array.dtype) for name, array in learnt.items()
    ]
    assert all(array.isfinite().all() for array in other_learnt.values())
    assert any(not torch.equal(array, learnt[name]) for name, array in other_learnt.items())


def test_every_model_of_a_client_is_mixed(make_config, make_node):
    """Its own, and FML's meme."""
    config = make_config(algorithm="fml", mixed_precision="bfloat16")
    node, plain = make_node(config), make_node(config.with_values({"mixed-precision": "none"})).model
    inputs, _ = node.data.train.batch(torch.arange(2))
    for model in (node.model, FMLClient(node).small, plain):
        dtypes = seen(next(layer for layer in model.body.modules() if isinstance(layer, nn.Linear | nn.Conv2d)))
        model(inputs)
        assert dtypes == [torch.float32 if model is plain else torch.bfloat16]
