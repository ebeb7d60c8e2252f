"""Architectures that adapt to the shape of the data: `Stack`, which most models use, and networks of two papers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel

FEDHE_TABLE: tuple[tuple[tuple[int, ...], float], ...] = (
    ((128, 256), 0.2),
    ((128, 384), 0.2),
    ((128, 512), 0.2),
    ((256, 256), 0.3),
    ((256, 512), 0.4),
    ((64, 128, 256), 0.2),
    ((64, 128, 192), 0.2),
    ((128, 192, 256), 0.2),
    ((128, 128, 128), 0.3),
    ((128, 128, 192), 0.3),
)
"""Filters of each convolution, and dropout rate, of FedHe's ten networks (Table II)."""

FEDPROTO_CHANNELS = (18, 20, 22)
"""Filters of the second convolution of FedProto's networks."""


@dataclass(frozen=True)
class Stack:
    """Convolutions, each followed by max pooling by 2 and ReLU, then hidden linear layers with ReLU, then the head.

    Without `filters` it is a perceptron for tables, images and time series. `padding` is that of the first convolution;
    `relu` is whether a ReLU follows each pooling. With `series`, convolutions are one-dimensional, over time series
    (channels, length). For small images and short series, see `trunk`.

    Examples
    --------
    >>> Stack((6, 16), (120,)).build(DataSpec(shape=(3, 32, 32), classes=10)).width
    120
    """

    filters: tuple[int, ...]
    units: tuple[int, ...]
    kernel: int = 3
    padding: int = 0
    relu: bool = True
    series: bool = False

    def build(self, spec: DataSpec) -> SplitModel:
        """Build the model for the data, with PyTorch's initial weights; raise ModelError for other kinds of data."""
        self._check(spec)
        convolution: Any = nn.Conv1d if self.series else nn.Conv2d
        pooling: Any = nn.MaxPool1d if self.series else nn.MaxPool2d
        channels, padding, layers = spec.shape[0], self.padding, list[nn.Module]()
        for count in self.filters:
            layers += convolution(channels, count, self.kernel, padding=padding), pooling(2)
            layers += [nn.ReLU()] * self.relu
            channels, padding = count, 0
        return with_hidden_layers(*trunk(spec.shape, layers), self.units, spec)

    def _check(self, spec: DataSpec) -> None:
        if not self.filters:
            if spec.kind == "text":
                raise ModelError("a perceptron needs images, tables or time series; for texts use lstm1, lstm2 or bag")
        elif not self.series:
            image_channels(spec)
        elif spec.kind != "series":
            raise ModelError(
                "it needs time series (channels, length); for images use lenet5, for a table mlp, for texts lstm1"
            )


def fedproto(channels: int, spec: DataSpec) -> SplitModel:
    """Build FedProto's CNN for MNIST: two 5x5 convolutions and two linear layers, the second of which is the head.

    Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022: homogeneous clients
    have 20 filters in the second convolution, heterogeneous clients 18, 20 or 22 (`channels`). The 10 filters of the
    first convolution, the 50 units, and the dropout of whole channels (rate 0.5) after the second convolution are those
    of the authors' code. For small images, see `trunk`. Raises ModelError if the data are not images.

    Departs from the authors' code, which also applies dropout (rate 0.5) to the 50 units between the embedding, used
    for prototypes, and the head. Here the head reads the embedding itself.

    Examples
    --------
    >>> fedproto(20, DataSpec(shape=(1, 28, 28), classes=10)).width
    50
    """
    layers = [
        *(nn.Conv2d(image_channels(spec), 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, channels, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU()),
    ]
    return with_hidden_layers(*trunk(spec.shape, layers), (50,), spec)


def fedhe(number: int, spec: DataSpec) -> SplitModel:
    """Build one of FedHe's ten convolutional networks, the same as FedMD's.

    Chan and Ngai, MSN 2021, Table II, rows 0 to 9 (`number`); Li and Wang 2019 (arXiv 1910.03581). Each convolution is
    followed by batch norm, ReLU and dropout. The first convolution is 3x3 with stride 1, and is followed by 2x2 average
    pooling with stride 1; both keep the size of the image. Numbers 0 to 4 continue with a 3x3 convolution with stride
    2. Numbers 5 to 9 continue with a 2x2 convolution with stride 2, 2x2 average pooling, and a 3x3 convolution with
    stride 2. For small images, see `trunk`. Raises ModelError if the data are not images.

    Departs from the paper: number 9 has 192 filters in its third convolution, as in FedMD; Table II says 198. The
    numbers of weights in Tables III and IV (324,672 on MNIST, 326,976 on CIFAR-10) are exact for 192 filters, including
    the running statistics of batch norm, and a head with 20 outputs and no bias. Here the head has a bias
    (``head-bias``), and one output for each class.

    Examples
    --------
    >>> fedhe(9, DataSpec(shape=(1, 28, 28), classes=10)).width
    1728
    """
    filters, dropout = FEDHE_TABLE[number]

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> Iterator[nn.Module]:
        yield nn.Conv2d(inputs, outputs, kernel, stride, padding)
        yield nn.BatchNorm2d(outputs)
        yield nn.ReLU()
        yield nn.Dropout(dropout)

    layers = [*convolution(image_channels(spec), filters[0], 3, padding=1), _same_average_pooling()]
    if len(filters) == 2:
        layers += convolution(filters[0], filters[1], 3, stride=2)
    else:
        layers += [*convolution(filters[0], filters[1], 2, stride=2), nn.AvgPool2d(2)]
        layers += convolution(filters[1], filters[2], 3, stride=2)
    body, width = trunk(spec.shape, layers)
    return SplitModel(body, nn.Linear(width, spec.classes))


def image_channels(spec: DataSpec) -> int:
    """Return the number of channels of images (channels, height, width); raise ModelError for other data."""
    if spec.kind != "image":
        raise ModelError(
            "it needs images (channels, height, width); for a table use mlp, for texts lstm1, for series conv1d"
        )
    return spec.shape[0]


KEEPS_SIZE = (nn.ReLU, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d, nn.Identity, nn.Sequential)
"""Layers that keep the size of an image; the Sequential is that of `_same_average_pooling`."""


def trunk(shape: tuple[int, ...], layers: Iterable[nn.Module]) -> tuple[nn.Sequential, int]:
    """Chain convolutional layers and flatten; return them with the number of features D.

    One rule adapts the layers to small images and short series: if the input of a layer is smaller than its kernel, a
    convolution is padded by half its kernel, and a pooling is left out. On 8x8 images, LeNet-5 pads its second
    convolution, and FedHe's networks 5 to 9 their third. Kernels must be square.
    """
    fitted, size = nn.Sequential(), shape
    layer: Any
    for layer in layers:
        if not isinstance(layer, KEEPS_SIZE):  # a pass on the meta device would import sympy
            own = (layer.kernel_size, layer.stride, layer.padding)
            kernel, stride, padding = (each if isinstance(each, int) else each[0] for each in own)
            channels, *sides = size
            if min(sides) < kernel and not hasattr(layer, "out_channels"):
                continue
            if min(sides) < kernel:
                padding = kernel // 2
                layer.padding = (padding,) * len(sides)
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
            size = (getattr(layer, "out_channels", channels), *sides)
        fitted.append(layer)
    return fitted.append(nn.Flatten()).train(), prod(size)


def with_hidden_layers(layers: nn.Sequential, width: int, units: Iterable[int], spec: DataSpec) -> SplitModel:
    """Append hidden linear layers with ReLU and a head to layers that return `width` features."""
    for count in units:
        layers.extend((nn.Linear(width, count), nn.ReLU()))
        width = count
    return SplitModel(layers, nn.Linear(width, spec.classes))


def _same_average_pooling() -> nn.Sequential:
    """Return a 2x2 average pooling with stride 1 that keeps the size and does not average padding."""
    pooling = nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(pooling, nn.ZeroPad2d((-1, 0, -1, 0)))  # removes the first row and column
