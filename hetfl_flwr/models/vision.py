"""Networks of torchvision, adapted to the data by a few rules.

- The first convolution has as many input channels as the images.
- For images of 64x64 pixels or more, everything else is torchvision's, with its names of weights.
- For smaller images, the first convolution is 3x3 with stride 1, so that it keeps the size of the image, and a ResNet
  has no max pooling, as is usual on CIFAR. AlexNet and VGG leave out poolings that do not fit (see `zoo.trunk`), have
  no average pooling, and have 512 units in their hidden layers instead of 4096.
- With ``stem = "imagenet"``, torchvision's layers are used for small images, too: the first convolution halves the
  image, and a pooling halves it again. HtFLlib and FedProto use their ResNets in this way.
- ResNets with 4, 6, 8 and 10 layers are HtFLlib's: torchvision's with one block in each of the first one to four
  stages.
- Weights are initialized as those of torchvision's ResNets: convolutions by He's rule, linear layers as in PyTorch.
- The momentum of batch norm's running statistics is 0.1, PyTorch's default. Torchvision's MobileNet V3 uses 0.01, for
  the many thousand batches of ImageNet; with a few hundred batches in a federation, it would be tested at chance level.
"""

from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.pretrained import find_weights, load_weights
from hetfl_flwr.models.split_model import SplitModel, cut
from hetfl_flwr.models.zoo import image_channels, trunk

TORCHVISION: Mapping[str, str] = MappingProxyType(
    {
        "alexnet": "AlexNet: five convolutions and two hidden layers",
        "vgg11": "VGG with eight convolutions and two hidden layers",
        "vgg11_bn": "VGG with eight convolutions, batch norm and two hidden layers",
        "resnet18": "ResNet with 18 layers",
        "resnet34": "ResNet with 34 layers",
        "resnet50": "ResNet with 50 layers",
        "mobilenet_v2": "MobileNet V2",
        "mobilenet_v3_small": "MobileNet V3, the small one",
        "mobilenet_v3_large": "MobileNet V3, the large one",
    }
)
"""Descriptions of the networks, by torchvision's names."""

RESNETS: Mapping[str, int] = MappingProxyType({"resnet4": 1, "resnet6": 2, "resnet8": 3, "resnet10": 4})
"""Small ResNets by HtFLlib's names, with their number of stages, of one block each."""

WITHOUT_AVERAGE = ("alexnet", "vgg11", "vgg11_bn")
"""Networks without average pooling over the whole image: their own layers do not work on small images."""

Stem = Literal["fitted", "imagenet"]
"""The first layers for small images: with stride 1 and without pooling, or torchvision's own."""

SMALL = 64
"""Images with a shorter side of fewer pixels are small."""

SMALL_UNITS = 512
"""Units of each hidden layer of AlexNet and VGG for small images."""


def vision(name: str, spec: DataSpec, pretrained: str = "", stem: Stem = "fitted") -> SplitModel:
    """Build a network of `TORCHVISION` or `RESNETS` for images.

    `pretrained` is the source of ImageNet weights, as in `pretrained.find_weights`; if it is empty, weights are random.
    Small ResNets have no ImageNet weights. `stem` sets the first layers for small images: "fitted" has stride 1 and no
    pooling, and leaves out other layers that do not fit; "imagenet" has torchvision's layers. Raises ModelError if the
    data are not images, for small images with "imagenet" and AlexNet or VGG, for small images with "fitted" and
    pretrained weights, or if there are no such weights.

    Examples
    --------
    >>> vision("mobilenet_v3_small", DataSpec(shape=(1, 28, 28), classes=10)).width
    1024
    >>> vision("resnet4", DataSpec(shape=(3, 32, 32), classes=10)).width
    64
    """
    channels, size = image_channels(spec), "x".join(map(str, spec.shape[1:]))
    small = min(spec.shape[1:]) < SMALL
    if small and stem == "imagenet":
        if name in WITHOUT_AVERAGE:
            raise ModelError(f"its own layers need images of {SMALL}x{SMALL} or more, not {size}: set stem to fitted")
        small = False
    if pretrained and small:
        raise ModelError(
            f"pretrained weights need images of {SMALL}x{SMALL} or more, not {size}: set image-size={SMALL}"
        )
    with torch.device("meta"):
        module = _resnet(RESNETS[name], spec.classes) if name in RESNETS else _torchvision(name, spec.classes)
        _fit_stem(module, channels, small)
        if small:
            _fit_small(module, spec)
    module.to_empty(device=torch.get_default_device()).apply(_initialise)
    head = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)][-1]
    if pretrained:
        load_weights(module, head, find_weights(name, pretrained))
    return cut(module, head)


def _torchvision(name: str, classes: int) -> nn.Module:
    module: nn.Module = import_module("torchvision.models").get_model(name, num_classes=classes)
    return module


def _resnet(stages: int, classes: int) -> nn.Module:
    """Return torchvision's ResNet with one block in each of the first stages, and without the other stages."""
    resnet = import_module("torchvision.models.resnet")
    module: nn.Module = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=classes)
    for number in range(stages + 1, 5):
        module.set_submodule(f"layer{number}", nn.Identity())
    module.set_submodule("fc", nn.Linear(64 * 2 ** (stages - 1), classes))
    return module


def _fit_stem(module: nn.Module, channels: int, small: bool) -> None:
    """Set the input channels of the first convolution, and make it keep the size of small images."""
    name, own = next((name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d))
    layout: dict[str, Any] = {"kernel_size": own.kernel_size, "stride": own.stride, "padding": own.padding}
    if small:
        layout = {"kernel_size": 3, "stride": 1, "padding": 1}
    module.set_submodule(name, nn.Conv2d(channels, own.out_channels, bias=own.bias is not None, **layout))


def _fit_small(module: Any, spec: DataSpec) -> None:
    """Adapt the layers after the first convolution to small images."""
    if hasattr(module, "maxpool"):
        module.maxpool = nn.Identity()
    linears = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if len(linears) == 3:
        module.features, features = trunk(spec.shape, module.features)
        module.avgpool = nn.Identity()
        widths = pairwise((features, SMALL_UNITS, SMALL_UNITS, spec.classes))
        for name, (inputs, outputs) in zip(linears, widths, strict=True):
            module.set_submodule(name, nn.Linear(inputs, outputs))


def _initialise(layer: nn.Module) -> None:
    """Initialize the weights of a layer, and set the momentum of batch norm."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, nn.Linear):
        layer.reset_parameters()
    elif isinstance(layer, nn.BatchNorm2d):
        layer.reset_parameters()
        layer.momentum = 0.1
