"""Robust averages: by hand, by their definitions, and how far wrong uploads can move them."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as some_arrays
from scipy.optimize import minimize

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.aggregation import geometric_median, multikrum, parse_robust
from hetfl_flwr.seeding import generator

FORMS = ["none", "median", "trimmed:0.2", "trimmed:0.45", "multikrum:1", "multikrum:12"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "krum", "median:0.1", "none:"),
        *(f"trimmed{share}" for share in ("", ":", ":0", ":0.5", ":-0.1", ":nan")),
        *(f"multikrum{count}" for count in ("", ":", ":0", ":-1", ":1.5", ":1000000000")),
        "multikrum:\u0661",  # a digit, but of no number that a program writes
    ],
)
def test_what_is_no_average_is_refused(text, refusal):
    assert f"robust = '{text}'" in refusal(ConfigError, parse_robust, text)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("none", [1, 2, 6], 3.0),
        ("median", [900, 2, 1], 2.0),
        ("median", [900, 2, 1, 4], 3.0),  # the middle two are 2 and 4
        ("median", [7, 8], 7.5),
        ("trimmed:0.2", [-900, 1, 5, 6, 900], 4.0),  # int(0.2 * 5) = 1 off either end: (1 + 5 + 6) / 3
        ("trimmed:0.2", [0, 1, 2, 9], 3.0),  # int(0.2 * 4) = 0
        ("trimmed:0.45", [0, 1, 3, 900], 2.0),  # int(0.45 * 4) = 1: (1 + 3) / 2
        ("multikrum:1", [1, 900, 2, 6, 3], 3.0),  # the two nearest others: 900 has 894^2 + 897^2, the most
        ("multikrum:2", [1, 900, 2, 6, 3], 2.0),  # the nearest other: 6 has 3^2, the others 1^2
        ("multikrum:1", [1, 2, 900], 1.5),
        ("multikrum:9", [1, 2, 900], 1.5),  # less than half of three is one
        ("multikrum:1", [7, 8], 7.5),
    ],
)
def test_the_mean_by_hand(text, values, expected):
    """Each coordinate by itself: in the second one all signs are turned."""
    arrays = [np.array([value, -value], np.float32) for value in values]
    assert parse_robust(text).mean(arrays).tolist() == [expected, -expected]


@pytest.mark.parametrize("text", FORMS)
def test_one_client_is_its_own_mean_in_double_precision(text):
    value = np.array([[1e-8, 3e38]], np.float32)
    mean = parse_robust(text).mean([value])
    assert mean.dtype == np.float64
    np.testing.assert_array_equal(mean, value)


@pytest.mark.parametrize("text", FORMS)
@given(stack=some_arrays(np.float32, (5, 2), elements=st.floats(-1e3, 1e3, width=32)), order=st.permutations(range(5)))
def test_the_order_of_clients_changes_nothing_but_rounding(text, stack, order):
    """And the mean lies between the smallest and the largest value. Multi-Krum keeps the first of equal scores."""
    average = parse_robust(text)
    mean = average.mean(list(stack))
    if average.form != "multikrum":
        np.testing.assert_allclose(average.mean(list(stack[order])), mean, atol=1e-9)
    assert (stack.min(0) - 1e-9 <= mean).all()
    assert (mean <= stack.max(0) + 1e-9).all()


@pytest.mark.parametrize("text", ["median", "trimmed:0.3"])
@given(wrong=some_arrays(np.float64, (2, 1), elements=st.floats(-1e30, 1e30)))
def test_a_minority_cannot_move_it_out_of_what_the_others_say(text, wrong):
    """Two of seven, and int(0.3 * 7) = 2."""
    honest = [np.array([value]) for value in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert 1 <= parse_robust(text).mean([*honest, *wrong]).item() <= 5


@given(
    honest=some_arrays(np.float64, st.tuples(st.integers(5, 9), st.just(3)), elements=st.floats(-1, 1)),
    seed=st.integers(0, 10**6),
)
def test_multi_krum_leaves_out_liars_who_agree_with_each_other(honest, seed):
    """Two liars far from 5 honest points or more, at one place of their own: K >= 2 * 2 + 3."""
    draw = generator(seed, "liars")
    points = np.concatenate([honest, np.full((2, 3), 50.0)])
    order = draw.permutation(len(points))
    kept = parse_robust("multikrum:2").kept([points[order][:, :1], points[order][:, 1:]])
    assert sorted(order[kept]) == list(range(len(honest)))


def test_multi_krum_keeps_those_that_flower_s_does():
    draw = generator(0, "points")
    for count, wrong in [(5, 1), (7, 2), (9, 1), (10, 3), (3, 1)] * 20:
        points = draw.normal(size=(count, 4)).astype(np.float32)
        contents = [RecordDict({"arrays": ArrayRecord({"w": Array(point)})}) for point in points]
        theirs = select_multikrum(contents, wrong, count - wrong)
        kept = multikrum(np.square(points[:, None].astype(float) - points).sum(-1), wrong)
        assert {id(one) for one in theirs} == {id(one) for one, its in zip(contents, kept, strict=True) if its}
        weights = parse_robust(f"multikrum:{wrong}").weights(products(points.astype(float)))
        np.testing.assert_allclose(weights, kept / kept.sum())


def test_uploads_are_compared_where_both_have_something():
    """The first has one entry, the others two. The third lies in the second: it is far from all but the first. What
    stands where the first has nothing does not count.

    Who has few entries is no nearer for that: of four uploads of 100 entries, a deviation of 1.4 apart in each, one has
    a single entry, and is 5 apart there.
    """
    values = np.array([[1.0, -9e9], [1.1, 5.0], [1.0, -70.0], [0.9, 5.1], [1.2, 4.9]])
    has = np.array([[True, False], *[[True, True]] * 4])
    assert parse_robust("multikrum:1").kept([values], [has]).tolist() == [True, True, False, True, True]
    values, has = generator(0, "wide").normal(size=(5, 100)), np.ones((5, 100), bool)
    has[4, 1:] = False
    values[:4, 0], values[4, 0] = 0, 5
    assert parse_robust("multikrum:1").kept([values], [has]).tolist() == [True] * 4 + [False]


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300])
def test_what_is_not_finite_is_infinitely_far(value):
    points = [np.array([1.0]), np.array([2.0]), np.array([value]), np.array([4.0]), np.array([1.5])]
    assert parse_robust("multikrum:1").kept([np.stack(points)]).tolist() == [True, True, False, True, True]


def products(points: np.ndarray) -> np.ndarray:
    return points @ points.T


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_geometric_median_has_the_least_summed_distance(scale):
    """Against SciPy's minimiser over the coordinates, which Weiszfeld's weights never see."""
    points = generator(0, "points").normal(size=(7, 3))
    points[0] += 40
    least = minimize(lambda x: np.linalg.norm(points - x, axis=1).sum(), points.mean(0), tol=1e-10).x
    weights = geometric_median(products(points * scale))
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights @ points, least, atol=1e-4)
    np.testing.assert_allclose(geometric_median(np.zeros((4, 4))), 0.25)
