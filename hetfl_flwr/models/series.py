"""Models for time series: one-dimensional convolutions over (B, channels, length), in three sizes."""

from types import MappingProxyType
from typing import NamedTuple

from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.models.zoo import trunk, with_hidden_layers

KERNEL = 9
"""Points in time that a convolution sees."""


class Size(NamedTuple):
    """Filters of each convolution, and units of each hidden layer."""

    filters: tuple[int, ...]
    units: tuple[int, ...]


CONV1D_SIZES = MappingProxyType(
    {"small": Size((8, 16), (32,)), "medium": Size((16, 32), (128,)), "large": Size((32, 64), (1024, 512))}
)
"""The three networks."""


def conv1d(size: str, spec: DataSpec) -> SplitModel:
    """One of three convolutional networks for time series: two convolutions, and one or two hidden layers.

    Convolutions of 9 points in time, not padded, each followed by ReLU and max pooling by 2. The large one is
    ``HARCNN`` of HtFLlib (Zhang et al., KDD 2025, arXiv 2506.03954), which has it from Jindong Wang's
    Deep-learning-activity-recognition: 32 and 64 filters, 1024 and 512 units. There it is for windows of
    accelerometers; 9 channels of length 128 give it 2.3 million weights. The other two have half and a quarter of its
    filters, and one hidden layer of 128 and of 32 units: sizes of our own, with a twentieth and less than a
    hundredth of its weights. Short series: see `trunk`.

    Parameters
    ----------
    size : {"small", "medium", "large"}
        Which one of `CONV1D_SIZES`.
    spec : DataSpec
        Channels and length of the series, and number of classes.

    Raises
    ------
    ModelError
        If the data are not time series.

    Examples
    --------
    >>> conv1d("large", DataSpec(shape=(9, 128), classes=6)).width
    512
    """
    if not spec.is_series:
        raise ModelError(
            "it needs time series (channels, length); for images use lenet5, for a table mlp, for texts lstm1"
        )
    filters, units = CONV1D_SIZES[size]
    channels, layers = spec.shape[0], list[nn.Module]()
    for count in filters:
        layers += nn.Conv1d(channels, count, KERNEL), nn.ReLU(), nn.MaxPool1d(2)
        channels = count
    return with_hidden_layers(*trunk(spec.shape, layers), units, spec)
