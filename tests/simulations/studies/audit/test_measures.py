"""How much was found out: known values and limits."""

from math import inf

import numpy as np
import pytest

from simulations.studies.audit.measures import (
    auc,
    chance_rate,
    psnr,
    true_positive_rate,
)


def test_without_both_kinds_there_is_no_rate():
    assert auc(np.array([]), np.array([1.0])) is None
    assert true_positive_rate(np.array([1.0]), np.array([])) is None


def test_true_positives_are_counted_below_the_rate_alone():
    """100 others, one of which may be taken for a member: the threshold is the second highest of them."""
    others = np.arange(100.0)
    assert true_positive_rate(np.array([200.0, 98.5, 97.5, 0.0]), others) == 0.5
    assert true_positive_rate(np.array([200.0, 98.5, 97.5, 0.0]), others, rate=0.02) == 0.75


@pytest.mark.parametrize("others", [40, 140])
def test_the_rate_by_chance_is_what_scores_of_one_distribution_give(others):
    """Of 2,000 draws the mean has a standard deviation of about 0.0005."""
    rng = np.random.default_rng(0)
    found = [true_positive_rate(rng.normal(size=300), rng.normal(size=others)) for _ in range(2000)]
    assert np.mean(found) == pytest.approx(chance_rate(others), abs=0.001)


def test_psnr_of_equal_pictures_is_infinite_and_falls_by_twenty_decibels_a_tenth():
    picture = np.full((1, 8, 8), 0.5)
    assert psnr(picture, picture) == inf
    assert psnr(picture + 0.01, picture) == pytest.approx(40)
