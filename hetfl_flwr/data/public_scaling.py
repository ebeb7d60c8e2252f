"""Public samples of others, scaled as a model takes them where nobody has samples of its own to scale them by."""

from typing import Any

import torch
from numpy.typing import NDArray

from hetfl_flwr.data.clients import WHOLE_SPLIT
from hetfl_flwr.data.domains import centred
from hetfl_flwr.data.samples import Arrays, Samples
from hetfl_flwr.data.series import standardised_channels
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.data.tables import standardised


def scaled(inputs: NDArray[Any], spec: DataSpec, normalize: str) -> Samples:
    """Return public samples scaled as a client would scale them that had these alone.

    Parameters
    ----------
    inputs : array
        (N, *shape), as they are stored, N at least 1. The largest value of images stands for 1.0; a missing value of a
        table is its column's mean.
    spec : DataSpec
        What they are.
    normalize : str
        The run config's.

    Returns
    -------
    Samples
        All of them, in order; their labels are 0.
    """
    stored = torch.from_numpy(inputs)
    peak = max(float(stored.max()), 1.0) if spec.is_image else 1.0
    labels = torch.zeros(len(stored), dtype=torch.int64)
    arrays = Arrays(spec, stored, labels, len(stored), peak, torch.zeros(spec.shape))
    if spec.is_image and normalize != "none":
        (arrays,) = WHOLE_SPLIT.get(normalize, centred)((arrays,))
    elif (spec.is_table or spec.is_series) and normalize != "none":
        arrays = (standardised if spec.is_table else standardised_channels)(arrays, tuple(range(len(stored))))
    return Samples(arrays, torch.arange(len(stored)))
