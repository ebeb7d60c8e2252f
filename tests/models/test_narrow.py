"""Networks of a part of the width."""

import pytest
import torch
from fixtures.tiers import exhaustive
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models import SplitModel, build_model, parse_models, trainable_count
from hetfl_flwr.seeding import generator
from simulations.testing.lab import NORMED

DIGITS = DataSpec((1, 8, 8), 10)


@pytest.mark.parametrize(
    "name", ["mlp", "lenet5", "cnn1", "fedhe:9", NORMED, *map(exhaustive, ("cnn2", "resnet18", "vgg11_bn"))]
)
def test_a_narrow_network_is_the_leading_part_of_the_wide_one(name):
    """The wide network with the narrow one's weights in the leading block of each array, and 0 elsewhere, gives the
    same logits."""
    wide, narrow = (build_model(one, DIGITS, seed=1).eval() for one in (name, f"{name}@0.5"))
    drawn = narrow.state_dict()
    with torch.no_grad():
        for key, tensor in wide.state_dict().items():
            tensor.zero_()
            if tensor.ndim:
                tensor[tuple(map(slice, drawn[key].shape))] = drawn[key]
        for key, tensor in wide.state_dict().items():
            if key.endswith("running_var"):
                tensor[len(drawn[key]) :] = 1
        images = torch.from_numpy(generator(0, "images").normal(size=(3, 1, 8, 8))).float()
        torch.testing.assert_close(wide(images), narrow(images), rtol=1e-4, atol=1e-5)
    sizes = [
        (len(one), len(other))
        for one, other in zip(wide.state_dict().values(), drawn.values(), strict=True)
        if one.ndim
    ]
    assert {small / great for great, small in sizes} == {0.5, 1.0}


def test_the_weights_of_a_part_are_counted():
    """64 x 100 + 100 + 100 x 100 + 100 + 100 x 10 + 10 = 17,610. Parts are exact; a width for all comes behind."""
    assert trainable_count(build_model("mlp@0.5", DIGITS, seed=0, bounded=True)) == 17_610
    assert trainable_count(build_model("mlp@1", DIGITS, seed=0)) == trainable_count(build_model("mlp", DIGITS, seed=0))
    assert trainable_count(build_model("test_narrow:tenths@0.1", DIGITS, seed=0)) == 64 * 3 + 3 + 3 * 10 + 10
    model = build_model("mlp@0.5", DIGITS, seed=0, width=6)
    assert (model.width, model.body[1].in_features) == (6, 100)
    assert parse_models("mlp, fedhenn@0.25")[::5] == ("mlp", "fedhenn:4@0.25")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lenet5@0.25", "'body.0' has 6 channels"),
        ("mlp@0.001", "'body.1' has 200 channels"),
        ("fixtures.models:linear@0.5", "Flatten"),
        ("test_narrow:grouped@0.5", "'body.0' is a GroupNorm"),
        ("test_narrow:tied@0.5", "its layers share a weight"),
    ],
)
def test_a_width_that_a_network_does_not_have_is_refused_in_one_line(name, said, refusal):
    line = refusal(ModelError, build_model, name, DIGITS, seed=0)
    assert f"model '{name}'" in line
    assert said in line


def tied(spec: DataSpec) -> SplitModel:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return SplitModel(nn.Sequential(nn.Flatten(), first, second), nn.Linear(64, spec.classes))


def frozen(spec: DataSpec) -> SplitModel:
    first = nn.Linear(64, 64).requires_grad_(False)
    return SplitModel(nn.Sequential(nn.Flatten(), first, nn.Linear(64, 8)), nn.Linear(8, spec.classes))


def test_a_narrow_layer_is_frozen_where_the_wide_one_is():
    model = build_model("test_narrow:frozen@0.5", DIGITS, seed=0)
    learns = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert [name for name, does in learns.items() if not does] == ["body.1.weight", "body.1.bias"]
    assert len(learns) == 6


def grouped(spec: DataSpec) -> SplitModel:
    return SplitModel(nn.Sequential(nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(64, 8)), nn.Linear(8, spec.classes))


@pytest.mark.parametrize("part", ["0", "2", "half", "-0.5", "nan", "1e-1", "", "0.5@0.5", "0." + 30 * "1"])
def test_what_is_no_part_of_a_width_is_refused_by_name(part, refusal):
    assert f"model 'mlp@{part}'" in refusal(ModelError, parse_models, f"mlp@{part}")


def tenths(spec: DataSpec) -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 30)), nn.Linear(30, spec.classes))
