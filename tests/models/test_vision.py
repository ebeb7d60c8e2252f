"""Networks of torchvision: untouched from 64 pixels on, fitted to smaller images and to any number of channels."""

import pytest
import torch
import torchvision
from fixtures.tiers import exhaustive, mostly_exhaustive
from fixtures.zoo import assert_is_a_model_of_the_zoo, assert_trains
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models import build_model, parameter_count
from hetfl_flwr.models.vision import TORCHVISION

DIGITS = DataSpec(shape=(1, 8, 8), classes=10)
CIFAR = DataSpec(shape=(3, 32, 32), classes=10)
PACS = DataSpec(shape=(3, 64, 64), classes=7)


def weights(name: str, spec: DataSpec, **keys) -> int:
    with torch.device("meta"):
        return parameter_count(build_model(name, spec, seed=0, **keys))


def layers(module: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, kind)]


EACH = mostly_exhaustive(TORCHVISION, lambda name: name in ("alexnet", "resnet18", "mobilenet_v3_small"))
"""Of each kind of network one is tried out each time."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_trains_splits_and_survives_a_state(name):
    assert_is_a_model_of_the_zoo(name, DIGITS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [exhaustive((3, 16, 16)), (1, 28, 28), exhaustive((3, 32, 32)), exhaustive((3, 64, 64))], ids=str
)
@pytest.mark.parametrize("name", [each for each in EACH if each != exhaustive("vgg11_bn")])
def test_trains_on_images_of_any_size(name, shape):
    """For vgg11_bn, whose 129 million weights take seconds from 64 pixels on, its twin stands in."""
    spec = DataSpec(shape=shape, classes=3)
    assert_trains(build_model(name, spec, seed=0), spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_from_64_pixels_on_they_are_torchvision_s_own_layer_by_layer(name):
    """But for the head, which is beside the body, and for how fast running statistics go."""
    with torch.device("meta"):
        model, own = build_model(name, PACS, seed=0), torchvision.models.get_model(name, num_classes=7)
    head, layer = [item for item in own.named_modules() if isinstance(item[1], nn.Linear)][-1]
    own.set_submodule(head, nn.Identity())
    assert str(model.head) == str(layer)
    assert str(model.body) == str(own).replace("momentum=0.01", "momentum=0.1")


def test_alexnet_and_vgg11_for_cifar_by_hand():
    """VGG's five poolings leave 1x1 of 512 channels, AlexNet's three 32 -> 15 -> 7 -> 3 of 256; 512 units twice.

    On 12x12 images AlexNet's are 12 -> 5 -> 2, and the third, 3x3, is left out.
    """
    last = (512 * 512 + 512) + (512 * 10 + 10)
    vgg = [3 * 64, 64 * 128, 128 * 256, 256 * 256, 256 * 512, 512 * 512, 512 * 512, 512 * 512]
    biases = 64 + 128 + 2 * 256 + 4 * 512
    assert weights("vgg11", CIFAR) == 9 * sum(vgg) + biases + (512 * 512 + 512) + last
    alexnet = 9 * (3 * 64 + 192 * 384 + 384 * 256 + 256 * 256) + 25 * 64 * 192
    biases = 64 + 192 + 384 + 256 + 256
    assert weights("alexnet", CIFAR) == alexnet + biases + (9 * 256 * 512 + 512) + last
    assert weights("alexnet", DataSpec((3, 12, 12), 10)) == alexnet + biases + (4 * 256 * 512 + 512) + last


@pytest.mark.parametrize(
    ("name", "poolings"), [("alexnet", 2), ("vgg11", 3), ("resnet18", 0), ("mobilenet_v3_large", 0)]
)
def test_on_8x8_images_the_first_convolution_keeps_the_size_and_poolings_that_do_not_fit_are_left_out(name, poolings):
    """AlexNet 8 -> 3 -> 1, VGG 8 -> 4 -> 2 -> 1; a ResNet's one is left out on all small images."""
    body = build_model(name, DIGITS, seed=0).body
    first = layers(body, nn.Conv2d)[0]
    assert first(torch.zeros(2, 1, 8, 8)).shape[2:] == (8, 8)
    assert first.kernel_size == (3, 3)
    assert (first.bias is None) == (name not in ("alexnet", "vgg11"))
    assert len(layers(body, nn.MaxPool2d)) == poolings


def block(inputs: int, outputs: int) -> int:
    """Two convolutions 3x3 and, where the width changes, one 1x1; all without bias, each with scale and shift."""
    shortcut = inputs * outputs + 2 * outputs if inputs != outputs else 0
    return 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs + shortcut


def test_small_resnets_by_hand():
    """A first convolution 3x3 with 64 filters, then one block a stage, of 64, 128, 256 and 512 filters."""
    stages = [block(64, 64), block(64, 128), block(128, 256), block(256, 512)]
    for number, name in enumerate(("resnet4", "resnet6", "resnet8", "resnet10"), 1):
        head = 64 * 2 ** (number - 1) * 10 + 10
        assert weights(name, CIFAR) == 27 * 64 + 128 + sum(stages[:number]) + head
        with torch.device("meta"):
            convolutions = layers(build_model(name, CIFAR, seed=0), nn.Conv2d)
        assert sum(layer.kernel_size == (3, 3) for layer in convolutions) + 1 == int(name.removeprefix("resnet"))


def test_torchvision_s_own_stem_makes_an_image_a_quarter():
    """7x7 with stride 2 and max pooling: 32 -> 16 -> 8, where the fitted one keeps 32; AlexNet and VGG need more."""
    fitted, own = (build_model("resnet4", CIFAR, seed=0, stem=stem) for stem in ("fitted", "imagenet"))
    assert parameter_count(own) - parameter_count(fitted) == (49 - 9) * 3 * 64
    sizes = []
    for model in (fitted, own):
        model.body.layer1.register_forward_hook(lambda layer, inputs, output: sizes.append(tuple(output.shape[2:])))
        model(torch.zeros(2, 3, 32, 32))
    assert sizes == [(32, 32), (8, 8)]
    for name in ("alexnet", "vgg11"):
        with pytest.raises(ModelError, match=f"'{name}'.*stem"):
            build_model(name, CIFAR, seed=0, stem="imagenet")


def test_weights_are_drawn_by_he_s_rule():
    """A convolution 3x3 that gives 512 channels: deviation sqrt(2 / (9 * 512)), here over 1,179,648 weights."""
    body = build_model("resnet18", DIGITS, seed=0).body
    weight = body.layer4[0].conv1.weight.detach()
    assert weight.shape == (512, 256, 3, 3)
    assert float(weight.std()) == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)
    assert torch.equal(body.bn1.running_var, torch.ones(64))
    assert not body.bn1.running_mean.any()
    assert not layers(build_model("alexnet", DIGITS, seed=0), nn.Conv2d)[2].bias.any()
