"""How much an attack has found out: rates of a test, distances of histograms, likeness of pictures."""

from math import inf, log10

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter  # type: ignore[attr-defined]
from sklearn.metrics import roc_auc_score, roc_curve

Scores = NDArray[np.float64]

LOW_RATE = 0.01
"""The false positive rate at which true positives are counted: few wrong accusations, as Carlini et al. advise."""


def auc(positive: Scores, negative: Scores) -> float | None:
    """Return the probability that a positive scores higher than a negative, ties half: in [0, 1]; None without both.

    Examples
    --------
    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not (len(positive) and len(negative)):
        return None
    truth = np.repeat([1, 0], [len(positive), len(negative)])
    return float(roc_auc_score(truth, np.concatenate([positive, negative])))


def true_positive_rate(positive: Scores, negative: Scores, rate: float = LOW_RATE) -> float | None:
    """Return the largest part of the positives that a threshold finds with at most `rate` false positives.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, section IV.

    Examples
    --------
    >>> true_positive_rate(np.array([5.0, 4.0, 0.0]), np.array([1.0, 2.0]))
    0.6666666666666666
    """
    if not (len(positive) and len(negative)):
        return None
    truth = np.repeat([1, 0], [len(positive), len(negative)])
    false, true, _ = roc_curve(truth, np.concatenate([positive, negative]), drop_intermediate=False)
    return float(true[false <= rate].max())


def chance_rate(others: int, rate: float = LOW_RATE) -> float:
    """Return the mean of `true_positive_rate` where positives and others, so many of them, have one distribution.

    The threshold is the highest score of n others but for the k false positives that are allowed: (k + 1) / (n + 1).

    Examples
    --------
    >>> chance_rate(199)
    0.01
    """
    return (int(others * rate) + 1) / (others + 1)


def total_variation(one: Scores, other: Scores) -> float:
    """Return half the sum of absolute differences of two distributions (C,): in [0, 1].

    Examples
    --------
    >>> total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.abs(one - other).sum() / 2)


def psnr(picture: Scores, original: Scores) -> float:
    """Return the peak signal-to-noise ratio of a picture with values in [0, 1], in decibels; infinite where equal.

    Examples
    --------
    >>> round(psnr(np.full((4, 4), 0.6), np.full((4, 4), 0.5)), 6)
    20.0
    """
    error = float(np.square(picture - original).mean())
    return inf if error == 0 else -10 * log10(error)


def ssim(picture: Scores, original: Scores) -> float:
    """Return the mean structural similarity of two pictures (channels, H, W) with values in [0, 1]: at most 1.

    Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity",
    IEEE TIP 2004, Eq. (13), with its window, a Gaussian of 1.5 pixels over 11 x 11, and its K1 = 0.01, K2 = 0.03. At
    the border the picture is mirrored, so that pictures smaller than the window have one, too.

    Examples
    --------
    >>> flat = np.zeros((1, 8, 8))
    >>> ssim(flat, flat)
    1.0
    """

    def mean(values: Scores) -> Scores:
        blurred: Scores = gaussian_filter(values, sigma=(0, 1.5, 1.5), truncate=3.5)
        return blurred

    first, second = 0.01**2, 0.03**2
    mean_x, mean_y = mean(picture), mean(original)
    variance_x, variance_y = mean(picture**2) - mean_x**2, mean(original**2) - mean_y**2
    covariance = mean(picture * original) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + first) * (2 * covariance + second)
    return float((likeness / ((mean_x**2 + mean_y**2 + first) * (variance_x + variance_y + second))).mean())
