"""Model layouts, sized by the shape of the data."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.seeding import generator

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
"""Filters of each convolution and dropout rate of the ten networks (FedHe, Table II)."""

TABULAR_TABLE: tuple[tuple[int, ...], ...] = tuple(
    tuple(rng.integers(16, 128, size=rng.integers(1, 4, endpoint=True), endpoint=True).tolist())
    for rng in (generator(number, "perceptron") for number in range(10))
)
"""Hidden units, layer by layer, of the ten random perceptrons: 1 to 4 layers of 16 to 128 units."""

FEDHENN_TABLE: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((16,), ()),
    ((16,), (128,)),
    ((16, 32), (128,)),
    ((16, 32), (128, 64)),
    ((16, 32, 64), (128, 64)),
)
"""Filters of each convolution and units of each hidden layer of FedHeNN's five networks."""

FEDPROTO_CHANNELS = (18, 20, 22)
"""Filters of the second convolution of FedProto's networks."""


def mlp(spec: DataSpec) -> SplitModel:
    """Multi-layer perceptron: two hidden layers of 200 units with ReLU, for tables, images and time series alike.

    Raises
    ------
    ModelError
        If the data are texts.

    Examples
    --------
    >>> mlp(DataSpec(shape=(30,), classes=2)).width
    200
    """
    return with_hidden_layers(nn.Sequential(nn.Flatten()), _inputs(spec), (200, 200), spec)


def tabular(number: int, spec: DataSpec) -> SplitModel:
    """One of ten multi-layer perceptrons with ReLU whose depth and widths were drawn at random.

    For tables, images and time series.

    Liu et al., "Completely Heterogeneous Federated Learning" (CHFL), section 5.2, gives each client a random one and
    does not say from which range. Here the ten are drawn once for all: they are the same in every run.

    Parameters
    ----------
    number : int
        Row of `TABULAR_TABLE`, 0 to 9.
    spec : DataSpec
        Shape of one input and number of classes.

    Raises
    ------
    ModelError
        If the data are texts.

    Examples
    --------
    >>> tabular(0, DataSpec(shape=(30,), classes=2)).width == TABULAR_TABLE[0][-1]
    True
    """
    return with_hidden_layers(nn.Sequential(nn.Flatten()), _inputs(spec), TABULAR_TABLE[number], spec)


def lenet5(spec: DataSpec) -> SplitModel:
    """LeNet-5 in its modern form: ReLU and max pooling.

    Convolution 5x5 with 6 filters (padding 2), pooling, convolution 5x5 with 16 filters, pooling, 120 units,
    84 units. Small images: see `trunk`.

    It is what FedHeNN's homogeneous model is said to be (Makhija et al., ICML 2022, section 4.1): two convolutions,
    each followed by max pooling, and three linear layers.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> lenet5(DataSpec(shape=(1, 28, 28), classes=10)).width
    84
    """
    channels = image_channels(spec)
    convolutions, features = trunk(
        spec.shape,
        [
            *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        ],
    )
    return with_hidden_layers(convolutions, features, (120, 84), spec)


def lenet(spec: DataSpec) -> SplitModel:
    """LeNet as Caffe's MNIST example has it, seven times LeNet-5: 431,080 weights on MNIST.

    Convolution 5x5 with 20 filters, max pooling 2x2, convolution 5x5 with 50 filters, max pooling, 500 units with
    ReLU. Small images: see `trunk`.

    It may be FedH2L's (Li et al., 2021, "Evaluation on Rotated MNIST"): its weights are to be over 1000 times what a
    node makes known in a round, and these are 1,343 times as many numbers; LeNet-5's are 192 times as many.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> lenet(DataSpec(shape=(1, 28, 28), classes=10)).width
    500
    """
    channels = image_channels(spec)
    layers = nn.Conv2d(channels, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)
    return with_hidden_layers(*trunk(spec.shape, layers), (500,), spec)


def cnn1(spec: DataSpec) -> SplitModel:
    """CNN1 of FML: two convolutions and two linear layers, the second of which is the head.

    Shen et al., "Federated Mutual Learning", section 5.1: convolutions 3x3 with 6 and 16 filters, each followed by
    max pooling 2x2 and ReLU. The paper says neither how wide the hidden layer is nor whether convolutions are padded:
    here it has 120 units, and they are not. Small images: see `trunk`.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> cnn1(DataSpec(shape=(3, 32, 32), classes=10)).width
    120
    """
    return with_hidden_layers(*_pooled_convolutions(spec, (6, 16)), (120,), spec)


def cnn2(spec: DataSpec) -> SplitModel:
    """CNN2 of FML: three convolutions with 128 filters each, and one linear layer, the head.

    Shen et al., "Federated Mutual Learning", section 5.1: as in `cnn1`. Its body is its convolutions alone.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> cnn2(DataSpec(shape=(3, 32, 32), classes=10)).width
    512
    """
    return with_hidden_layers(*_pooled_convolutions(spec, (128, 128, 128)), (), spec)


def cnn64(spec: DataSpec) -> SplitModel:
    """FedHeNN's homogeneous model as its authors' scripts have it: two convolutions 5x5 with 64 filters each.

    Makhija et al., ICML 2022, section 4.1: two convolutions, each followed by max pooling, and three linear layers. The
    filters and the hidden units, 120 and 64, are of the scripts. Small images: see `trunk`.

    Departs from the scripts: they drop out 60 % of the logits, here none. As published, they take the cross-entropy of
    the 64 features and align the logits' softmax; here it is the other way round, as in the paper.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> cnn64(DataSpec(shape=(3, 32, 32), classes=10)).width
    64
    """
    return with_hidden_layers(*_pooled_convolutions(spec, (64, 64), kernel=5), (120, 64), spec)


def cnn4(spec: DataSpec) -> SplitModel:
    """Four-layer CNN of HtFLlib, ``FedAvgCNN`` there: two convolutions and two linear layers, the second the head.

    Zhang et al., KDD 2025 (arXiv 2506.03954), and their FedTGP (AAAI 2024): convolutions 5x5 with 32 and 64 filters,
    each followed by max pooling 2x2 and ReLU, and 512 units. The layout is McMahan et al.'s (AISTATS 2017, section 3),
    whose convolutions are padded. Small images: see `trunk`.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> cnn4(DataSpec(shape=(3, 32, 32), classes=10)).width
    512
    """
    return with_hidden_layers(*_pooled_convolutions(spec, (32, 64), kernel=5), (512,), spec)


def fedproto(channels: int, spec: DataSpec) -> SplitModel:
    """FedProto's CNN for MNIST: two convolutions 5x5 and two linear layers, the second of which is the head.

    Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022: homogeneous clients
    have 20 filters in the second convolution, heterogeneous ones 18, 20 or 22. The 10 filters of the first convolution,
    the 50 units, and the dropout of whole channels (rate 0.5) behind the second convolution are of the authors' code.
    Small images: see `trunk`.

    Departs from the authors' code: it also drops half of the 50 units between the embedding, which makes the
    prototypes, and the head. Here the head reads the embedding itself.

    Parameters
    ----------
    channels : int
        Filters of the second convolution.
    spec : DataSpec
        Shape of the images and number of classes.

    Raises
    ------
    ModelError
        If the data are not images.

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


def fedhenn(number: int, spec: DataSpec) -> SplitModel:
    """One of the five convolutional networks of FedHeNN, from the simplest to the most complex.

    Makhija et al., "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022, section 4.1: from one
    convolution and one linear layer to three and three, each convolution followed by max pooling. The three between
    these ends, filters and units are not in the text. Here it is 1 + 1, 1 + 2, 2 + 2, 2 + 3 and 3 + 3 layers, with the
    last linear one as head, convolutions 3x3 and the numbers of `FEDHENN_TABLE`. Small images: see `trunk`.

    Parameters
    ----------
    number : int
        Row of `FEDHENN_TABLE`, 0 to 4.
    spec : DataSpec
        Shape of the images and number of classes.

    Raises
    ------
    ModelError
        If the data are not images.

    Examples
    --------
    >>> [fedhenn(number, DataSpec(shape=(3, 32, 32), classes=10)).width for number in range(5)]
    [3600, 128, 128, 64, 64]
    """
    filters, units = FEDHENN_TABLE[number]
    return with_hidden_layers(*_pooled_convolutions(spec, filters), units, spec)


def _pooled_convolutions(spec: DataSpec, filters: Iterable[int], kernel: int = 3) -> tuple[nn.Sequential, int]:
    """Return convolutions, each followed by max pooling 2x2 and ReLU, and the number of features they give."""
    channels, layers = image_channels(spec), list[nn.Module]()
    for count in filters:
        layers += nn.Conv2d(channels, count, kernel), nn.MaxPool2d(2), nn.ReLU()
        channels = count
    return trunk(spec.shape, layers)


def fedhe(number: int, spec: DataSpec) -> SplitModel:
    """One of the ten convolutional networks of FedHe, which are those of FedMD.

    Chan and Ngai, MSN 2021, Table II; Li and Wang 2019 (arXiv 1910.03581).
    Each convolution is followed by batch norm, ReLU and dropout. The first is 3x3 with stride 1, followed by
    an average pooling 2x2 with stride 1; both keep the image's size. Numbers 0 to 4 go on with one 3x3 with
    stride 2. Numbers 5 to 9 go on with one 2x2 with stride 2, an average pooling 2x2, and one 3x3 with
    stride 2. Small images: see `trunk`.

    Departs from the paper: number 9 has 192 filters in its third convolution, as in FedMD; Table II says 198.
    The weights of Tables III and IV (324,672 on MNIST, 326,976 on CIFAR-10) come out exactly with 192, the
    running statistics of batch norm counted, and a head of 20 outputs without bias. Here the head has a bias
    (``head-bias``), and as many outputs as there are classes.

    Parameters
    ----------
    number : int
        Row of Table II, 0 to 9.
    spec : DataSpec
        Shape of the images and number of classes.

    Raises
    ------
    ModelError
        If the data are not images.

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
    """Return the number of channels of images (channels, height, width); other data raise ModelError."""
    if not spec.is_image:
        raise ModelError(
            "it needs images (channels, height, width); for a table use mlp, for texts lstm1, for series conv1d"
        )
    return spec.shape[0]


KEEPS_SIZE = (nn.ReLU, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d, nn.Identity, nn.Sequential)
"""Layers that keep an image's size; of the last, `_same_average_pooling`."""


def trunk(shape: tuple[int, ...], layers: Iterable[nn.Module]) -> tuple[nn.Sequential, int]:
    """Chain convolutional layers and flatten: the standard layout, adapted to small images by one rule.

    Where the image, or the series, has become smaller than the kernel, a convolution is padded by half its kernel and
    a pooling is left out. On 8x8 images LeNet-5 pads its second convolution, FedHe's 5 to 9 their third.

    Parameters
    ----------
    shape : tuple of int
        Channels, height and width of the images, or channels and length of the series, each 1 or more.
    layers : iterable of nn.Module
        Convolutions with square kernels, poolings whose kernel is one number, and layers that keep the image's size.

    Returns
    -------
    tuple of nn.Sequential and int
        The layers that fit, ending in a flattening, and the number of features D that they give.
    """
    fitted, size = nn.Sequential(), shape
    layer: Any
    for layer in layers:
        if not isinstance(layer, KEEPS_SIZE):  # asked on its meta device, torch imports sympy
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


def _inputs(spec: DataSpec) -> int:
    """Return how many numbers one image, series or row of a table has; texts raise ModelError."""
    if spec.is_text:
        raise ModelError("a perceptron needs images, tables or time series; for texts use lstm1, lstm2 or bag")
    return prod(spec.shape)


def with_hidden_layers(layers: nn.Sequential, width: int, units: Iterable[int], spec: DataSpec) -> SplitModel:
    """Put hidden linear layers with ReLU, and then a head, behind layers that give ``width`` features."""
    for count in units:
        layers.extend((nn.Linear(width, count), nn.ReLU()))
        width = count
    return SplitModel(layers, nn.Linear(width, spec.classes))


def _same_average_pooling() -> nn.Sequential:
    """Return a 2x2 average pooling with stride 1 that keeps the size and averages only pixels."""
    pooling = nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(pooling, nn.ZeroPad2d((-1, 0, -1, 0)))  # without its first row and column
