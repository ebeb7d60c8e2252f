"""Data sets without a download: from scikit-learn, or made from random numbers."""

import gzip
from dataclasses import replace
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from hetfl_flwr.data.cache import check_fits
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import Column, DataSpec
from hetfl_flwr.seeding import generator

_SIDE = 16  # height and width of a colored digit, in pixels
_WAVES, _POINTS = 5000, 21
_BRIGHTEST = 160  # of a colored background: on white the strokes of a digit would be invisible


def read_digits() -> Arrays:
    """Return the 1,797 handwritten digits, 8x8 pixels in 0..16.

    A fixed stratified fifth of them (360) is the test split for every seed.
    """
    images, labels = _digits()
    return _arrays(images.astype(np.uint8)[:, None], labels, peak=16.0)


def read_digits_colour() -> Arrays:
    """Return the digits of `read_digits` in the same order, 3x16x16 pixels in 0..255, on colored backgrounds.

    As MNIST-M does with MNIST, each digit is enlarged to twice its size and blended with a different background by the
    absolute difference. A background is a gradient between four corners whose colors are random with a fixed seed. The
    test split is the same.
    """
    images, labels = _digits()
    digits = functional.interpolate(torch.from_numpy(images)[:, None], scale_factor=2, mode="bilinear").numpy()
    backgrounds = _backgrounds(len(labels))
    return _arrays(np.abs(backgrounds - np.rint(digits * 255 / 16)).astype(np.uint8), labels, peak=255.0)


def read_breast_cancer() -> Arrays:
    """Return the 569 tumors of the Wisconsin diagnostic data set: 30 features, malignant (0) or benign (1).

    A fixed stratified fifth of them (114) is the test split for every seed.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    arrays = _arrays(bunch.data, bunch.target)
    names = tuple(map(str, bunch.feature_names))
    return replace(
        arrays,
        class_names=tuple(map(str, bunch.target_names)),
        input_names=names,
        columns=tuple(Column(name, "number", "1234.5") for name in names),
    )


def read_waveform() -> Arrays:
    """Return 5,000 noisy waves, one channel of length 21, in three classes.

    Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984, section 2.6.2: each wave is a
    random convex combination of two of three triangles, plus standard normal noise at each point. The best possible
    classifier has an accuracy of 86 %. The seed is fixed; a stratified fifth of the waves (1,000) is the test split.
    """
    rng, time = generator(0, "waveform"), np.arange(1, _POINTS + 1)
    triangles = np.array([np.maximum(6 - np.abs(time - peak), 0) for peak in (11, 15, 7)])
    labels = rng.integers(3, size=_WAVES)
    first, second = triangles[[0, 0, 1]][labels], triangles[[1, 2, 2]][labels]
    place = rng.uniform(size=(_WAVES, 1))
    waves = place * first + (1 - place) * second + rng.normal(size=(_WAVES, _POINTS))
    return _arrays(waves.astype(np.float32)[:, None], labels)


def resized(arrays: Arrays, size: int) -> Arrays:
    """Resize images to a square, bilinear, with pixels in 0..255; do nothing for other data, or if `size` is 0."""
    if not size or arrays.spec.kind != "image" or arrays.spec.shape[1:] == (size, size):
        return arrays
    check_fits((*arrays.inputs.shape[:2], size, size), 4, "set image-size lower")
    images = arrays.inputs.float() * (255 / arrays.peak)
    scaled = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    shape = (arrays.spec.shape[0], size, size)
    return replace(
        arrays,
        spec=DataSpec(shape, arrays.spec.classes),
        inputs=scaled.round().clamp(0, 255).to(torch.uint8),
        peak=255.0,
        brightest=255.0,
        centre=torch.zeros(shape),
    )


def _digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Read the images (1797, 8, 8) and their labels from scikit-learn's file: importing scikit-learn is slow."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _backgrounds(count: int) -> npt.NDArray[np.int64]:
    """Return colored backgrounds (count, 3, 16, 16), bilinear between four corners, in integer arithmetic."""
    corners = generator(0, "digits-colour").integers(_BRIGHTEST, size=(count, 3, 2, 2))
    ramp = np.arange(_SIDE)
    weights = np.stack([_SIDE - 1 - ramp, ramp])
    colours: npt.NDArray[np.int64] = np.einsum("ncij,iy,jx->ncyx", corners, weights, weights) // (_SIDE - 1) ** 2
    return colours


def _stratified(labels: npt.NDArray[np.int64], test: int) -> npt.NDArray[np.int64]:
    """Return all row indices, training rows first, as scikit-learn's stratified ``train_test_split`` does with seed 0.

    Shares of classes are rounded down, and the remaining rows go to the classes with the largest remainders.
    """
    rng, counts = np.random.RandomState(0), np.bincount(labels)
    shares = counts / counts.sum() * (len(labels) - test)
    training = np.floor(shares).astype(int)
    remainders = shares - training
    for remainder in np.unique(remainders)[::-1]:
        if open_places := len(labels) - test - training.sum():
            alike = np.flatnonzero(remainders == remainder)
            training[rng.choice(alike, size=min(len(alike), open_places), replace=False)] += 1
    drawn = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(counts))]
    parts = zip(*(np.split(rows, [count]) for rows, count in zip(drawn, training, strict=True)), strict=True)
    return np.concatenate([rng.permutation(np.concatenate(part)) for part in parts])


def _arrays(inputs: npt.NDArray[np.generic], labels: npt.NDArray[np.int64], peak: float = 1.0) -> Arrays:
    """Return a data set whose test split is a stratified fifth of the rows."""
    test, shape, classes = ceil(len(labels) / 5), inputs.shape[1:], int(labels.max()) + 1
    order = _stratified(labels, test)
    return Arrays(
        spec=DataSpec(shape, classes),
        inputs=torch.from_numpy(inputs[order]),
        labels=torch.from_numpy(labels[order].astype(np.int64)),
        train_rows=len(labels) - test,
        peak=peak,
        brightest=peak,
        centre=torch.zeros(shape),
        class_names=tuple(map(str, range(classes))),
    )
