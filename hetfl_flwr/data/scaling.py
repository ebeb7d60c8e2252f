"""Scale and center inputs as ``normalize`` sets it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hetfl_flwr.data.samples import Arrays, Samples
from hetfl_flwr.data.spec import DataSpec

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Means and standard deviations of red, green and blue in ImageNet, in [0, 1], from torchvision's documentation."""

_STILL = 1e-7
"""A channel is constant, up to rounding, if its standard deviation divided by its mean is at most this."""

_AT_ONCE = 2**16  # how many numbers of adjacent columns are processed at a time

SHARP = 1e-4
"""The largest rounding error of float32 in a column or channel, as a fraction of its standard deviation."""

_Float: TypeAlias = npt.NDArray[np.float64]
_Parts: TypeAlias = Sequence[tuple[Arrays, Tensor | slice]]
_Scale: TypeAlias = dict[str, Any]


def scaled(
    domains: tuple[Arrays, ...], normalize: str, trained: Sequence[tuple[Arrays, Tensor]] = ()
) -> tuple[Arrays, ...]:
    """Give data sets of the same form a common scale, without copying values; equal arguments return the same objects.

    Numeric columns of a table, and channels of a series, get mean 0 and standard deviation 1; missing values do not
    count. Categories and texts do not change. Images are centered on the mean image, to which each domain contributes
    equally, or scaled by color. Constant inputs become 0.

    `trained` has data sets with the indices (N,) int64 of the rows to train on, which determine the scale. The scale of
    images comes from all rows of the training splits, unless `normalize` is ``"mean-training-image"``.
    """
    kind: str = domains[0].spec.kind
    if normalize == "none" or kind == "text":
        return domains
    kind = normalize if kind == "image" else kind
    by_split = kind in ("mean-image", "standard", "imagenet")
    parts: tuple[tuple[Arrays, tuple[int, ...] | None], ...] = (
        tuple((arrays, None) for arrays in domains)
        if by_split
        else tuple((arrays, tuple(rows.tolist())) for arrays, rows in trained if len(rows))
    )
    fitted = parts[0][0].once(_fitted, kind, parts)
    return tuple(scaled_as(arrays, fitted) for arrays in domains)


def scaled_as(arrays: Arrays, other: Arrays) -> Arrays:
    """Give a data set the scale of another one of the same form, without copying values."""
    return arrays.once(_rescaled, other)


def _rescaled(arrays: Arrays, other: Arrays) -> Arrays:
    return replace(arrays, peak=other.peak, centre=other.centre, origin=other.origin)


def scaled_alone(inputs: npt.NDArray[Any], spec: DataSpec, normalize: str) -> Samples:
    """Return public samples as a client that has only these would scale them; their labels are 0.

    `inputs` (N, *shape) are as stored, N at least 1. The largest value of images becomes 1.0; a missing value of a
    table becomes the mean of its column.
    """
    stored = torch.from_numpy(inputs)
    peak = max(float(stored.max()), 1.0) if spec.kind == "image" else 1.0
    labels = torch.zeros(len(stored), dtype=torch.int64)
    arrays = Arrays(spec, stored, labels, len(stored), peak, torch.zeros(spec.shape))
    rows = torch.arange(len(stored))
    return Samples(scaled((arrays,), normalize, [(arrays, rows)])[0], rows)


def _fitted(first: Arrays, kind: str, parts: tuple[tuple[Arrays, tuple[int, ...] | None], ...]) -> Arrays:
    """Return the first data set with the scale that all given rows determine."""
    chosen = [
        (arrays, slice(arrays.train_rows) if rows is None else torch.tensor(rows, dtype=torch.int64))
        for arrays, rows in parts
    ]
    return replace(first, **_FITS[kind](chosen))


def _mean_image(parts: _Parts) -> _Scale:
    means = [arrays.inputs[rows].numpy().mean(0, dtype=np.float64) / float(arrays.peak) for arrays, rows in parts]
    return {"centre": _float32(np.mean(means, axis=0))}


def _standard(parts: _Parts) -> _Scale:
    """Scale each color by its mean and standard deviation over all pixels."""
    moments = [_colour_moments(arrays, rows) for arrays, rows in parts]
    mean = np.mean([first for first, _ in moments], axis=0)
    deviation = np.sqrt(np.maximum(np.mean([second for _, second in moments], axis=0) - mean**2, 0.0))
    deviation[deviation < 1e-9] = np.inf
    return _of_channels(parts[0][0], mean, deviation)


def _colour_moments(arrays: Arrays, rows: Tensor | slice) -> tuple[_Float, _Float]:
    """Return the means of each color and of its square, in [0, 1]: (channels, 1, 1) each."""
    images = arrays.inputs[rows].numpy()
    mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
    square = np.mean([np.square(image, dtype=np.float64).mean(axis=(1, 2)) for image in images], axis=0)
    peak = float(arrays.peak)
    return (mean / peak).reshape(-1, 1, 1), (square / peak**2).reshape(-1, 1, 1)


def _imagenet(parts: _Parts) -> _Scale:
    """Scale each color as torchvision's pretrained networks expect; gray uses the averages over colors."""
    first = parts[0][0]
    mean, deviation = (torch.tensor(values).reshape(3, 1, 1) for values in IMAGENET)
    if first.spec.shape[0] == 1:
        mean, deviation = mean.mean(0, keepdim=True), deviation.mean(0, keepdim=True)
    return {"peak": first.peak * deviation, "centre": (mean / deviation).expand(first.spec.shape)}


def _channels(parts: _Parts) -> _Scale:
    """Scale each channel by its mean and standard deviation over time, after a shift by its mean if it is float64."""
    [(series, rows)] = parts
    moments = []
    for number in range(series.inputs.shape[1]):
        values = series.inputs[rows, number].numpy()
        origin = values.mean() if values.dtype == np.float64 else 0.0
        shifted = (values - origin).astype(np.float32) if origin else values
        moments.append([shifted.mean(dtype=np.float64), shifted.std(dtype=np.float64), origin])
    mean, deviation, origins = np.array(moments).T[..., None]
    deviation[(deviation < _STILL * np.abs(mean)) | (deviation == 0)] = np.inf
    return _of_channels(series, mean, deviation) | _shifted_by(origins)


def _of_channels(arrays: Arrays, mean: _Float, deviation: _Float) -> _Scale:
    centre = _float32(mean / deviation).expand(arrays.spec.shape)
    return {"peak": arrays.peak * _float32(deviation), "centre": centre.contiguous()}


def _columns(parts: _Parts) -> _Scale:
    """Scale each numeric column, after a shift by its origin if float32 is not exact enough."""
    [(table, rows)] = parts
    width = max(1, _AT_ONCE // len(table.inputs))
    blocks = (table.inputs[:, first : first + width] for first in range(0, table.inputs.shape[1], width))
    peaks, centres, origins = map(
        np.concatenate, zip(*(_moments(block[rows].numpy()) for block in blocks), strict=True)
    )
    numeric = table.numeric.numpy()
    scale = {"peak": _float32(np.where(numeric, peaks, 1)), "centre": _float32(np.where(numeric, centres, 0))}
    return scale | _shifted_by(origins)


def _moments(stored: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.float32], _Float, _Float]:
    """Return the standard deviation, the mean divided by it, and the origin of each column."""
    values = stored.astype(np.float64)
    values[:, np.isnan(values).all(axis=0)] = 0
    lost = np.nanmax(np.abs(values - values.astype(np.float32)), axis=0)
    origin = np.where(lost > SHARP * np.nanstd(values, axis=0), np.nanmean(values, axis=0), 0.0)
    shifted = (values - origin).astype(np.float32).astype(np.float64)
    deviation = np.nanstd(shifted, axis=0).astype(np.float32)
    deviation[deviation == 0] = np.inf
    return deviation, np.nanmean(shifted, axis=0) / deviation, origin


def _shifted_by(origins: _Float) -> _Scale:
    return {"origin": torch.from_numpy(np.ascontiguousarray(origins)) if origins.any() else None}


def _float32(values: npt.NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


_FITS: Mapping[str, Callable[[_Parts], _Scale]] = {
    **{"mean-image": _mean_image, "mean-training-image": _mean_image, "standard": _standard, "imagenet": _imagenet},
    **{"table": _columns, "series": _channels},
}
"""The functions that fit a scale: for images by the value of ``normalize``, for tables and for series."""
