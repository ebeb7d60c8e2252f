"""Data sets that come with scikit-learn, or are made of random numbers: nothing to download."""

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

_SIDE = 16  # of a coloured digit, in pixels
_WAVES, _POINTS = 5000, 21
_BRIGHTEST = 160  # of a coloured ground: a ground near white would swallow the digit's strokes


def read_digits() -> Arrays:
    """Return the 1,797 handwritten digits, 8x8 pixels of 0..16.

    A fixed stratified fifth of them (360) is the test split, the same for every seed.
    """
    images, labels = _digits()
    return _arrays(images.astype(np.uint8)[:, None], labels, peak=16.0)


def read_digits_colour() -> Arrays:
    """Return the same 1,797 digits in the same order, 3x16x16 pixels of 0..255, on coloured grounds.

    What MNIST-M is to MNIST: each digit is enlarged to twice its size and blended onto a ground of its own by
    the absolute difference. A ground runs smoothly between four corners whose colours are drawn by a fixed seed.
    Coloured digit i is digit i of `read_digits`, and the test split is the same.
    """
    images, labels = _digits()
    digits = functional.interpolate(torch.from_numpy(images)[:, None], scale_factor=2, mode="bilinear").numpy()
    grounds = _grounds(len(labels))
    return _arrays(np.abs(grounds - np.rint(digits * 255 / 16)).astype(np.uint8), labels, peak=255.0)


def read_breast_cancer() -> Arrays:
    """Return the 569 tumours of the Wisconsin diagnostic table: 30 features, malignant (0) or benign (1).

    A fixed stratified fifth of them (114) is the test split, the same for every seed.
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

    Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984, section 2.6.2: each wave lies
    between two of three triangles, at a place drawn evenly, with normal noise of deviation 1 on each point. The best
    possible classifier is right in 86 % of the cases. The waves are drawn by a fixed seed; a stratified fifth of them
    (1,000) is the test split.
    """
    rng, time = generator(0, "waveform"), np.arange(1, _POINTS + 1)
    triangles = np.array([np.maximum(6 - np.abs(time - peak), 0) for peak in (11, 15, 7)])
    labels = rng.integers(3, size=_WAVES)
    first, second = triangles[[0, 0, 1]][labels], triangles[[1, 2, 2]][labels]
    place = rng.uniform(size=(_WAVES, 1))
    waves = place * first + (1 - place) * second + rng.normal(size=(_WAVES, _POINTS))
    return _arrays(waves.astype(np.float32)[:, None], labels)


def resized(arrays: Arrays, size: int) -> Arrays:
    """Return images of another height and width, bilinear, of pixels 0..255; tables, and all of size 0, as they are."""
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
    """Return the images (1797, 8, 8) and their labels, from scikit-learn's file: its import takes longer than a run."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _grounds(count: int) -> npt.NDArray[np.int64]:
    """Return coloured grounds (count, 3, 16, 16), each between four corners; whole numbers all the way."""
    corners = generator(0, "digits-colour").integers(_BRIGHTEST, size=(count, 3, 2, 2))
    ramp = np.arange(_SIDE)
    weights = np.stack([_SIDE - 1 - ramp, ramp])
    grounds: npt.NDArray[np.int64] = np.einsum("ncij,iy,jx->ncyx", corners, weights, weights) // (_SIDE - 1) ** 2
    return grounds


def _stratified(labels: npt.NDArray[np.int64], test: int) -> npt.NDArray[np.int64]:
    """Return all rows, the training split's first, as scikit-learn's ``train_test_split`` draws them by seed 0.

    Each class has its share of the test rows. Places that rounding down leaves go to the largest remainders.
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
    """Put a stratified fifth of the rows last, as the test split."""
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
