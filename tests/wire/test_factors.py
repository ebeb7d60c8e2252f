"""Matrices as factors: against NumPy's decomposition, and their bytes."""

from typing import Any

import numpy as np
import pytest
from fixtures.federations.loops import slow_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hetfl_flwr.common.arithmetic import torch_threads
from hetfl_flwr.errors import DivergedError
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.factors import factor, factored, leading, multiplied
from hetfl_flwr.wire.spec import ArraySpec, PayloadSpec
from hetfl_flwr.wire.weights import weights


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 10**6), st.floats(0.01, 0.999))
@settings(max_examples=60)
def test_leading_factors_are_the_fewest_that_hold_the_share_and_the_nearest_of_their_rank(rows, columns, seed, share):
    """Against NumPy's decomposition: the squared distance is that of the values left out (Eckart and Young)."""
    matrix = generator(seed, "matrix").normal(size=(rows, columns))
    squares = np.square(np.linalg.svd(matrix, compute_uv=False))
    left, right = leading(matrix, share)
    rank = left.shape[1]
    assert squares[:rank].sum() >= share * squares.sum() * (1 - 1e-9)
    assert squares[: rank - 1].sum() < share * squares.sum()
    assert np.square(matrix - left @ right).sum() == pytest.approx(squares[rank:].sum(), abs=1e-9)


def some_weights(seed: int) -> tuple[PayloadSpec, dict[str, Any]]:
    """A convolution and a linear layer with biases; of low rank and noise."""
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(20, 9))
    draw = generator(seed, "weights")
    spec = weights(model)
    arrays = {one.name: draw.normal(size=one.shape).astype(np.float32) for one in spec.arrays}
    arrays["0.weight"] = np.outer(draw.normal(size=8), draw.normal(size=18)).reshape(8, 2, 3, 3).astype(np.float32)
    return spec, arrays


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_share_of_1_changes_no_bit_and_costs_nothing_and_what_cannot_be_decomposed_is_named(value):
    spec, arrays = some_weights(4)
    packed = factor(arrays, spec, 1.0, "x.")
    back = multiplied(packed, spec, "x.")
    assert all((back[name] == array).all() for name, array in arrays.items())
    assert sum(array.nbytes for array in packed.values()) == spec.nbytes
    arrays["2.weight"][3, 3] = value
    with pytest.raises(DivergedError, match=r"'2\.weight'"):
        factor(arrays, spec, 0.95)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95, 0.999])
def test_the_bytes_are_those_of_the_smaller_form(share):
    spec, arrays = some_weights(5)
    arrays["2.bias"][:] = 0
    packed = factor(arrays, spec, share)
    factored(spec).check_named(packed, "client 0")
    assert sum(array.nbytes for array in packed.values()) == slow_bytes(arrays, share)
    arrays["2.weight"][:] = 0
    nothing = factor(arrays, spec, share)
    assert sum(nothing[f"2.weight{part}"].nbytes for part in ("", ".left", ".right")) == 0


def test_factors_and_their_products_are_the_same_bits_on_any_number_of_threads():
    """Server and clients add the same, whatever process they are in."""
    spec = PayloadSpec((ArraySpec("w", (200, 784), "float32", -99, 99),))
    arrays, found = {"w": np.random.default_rng(1).normal(size=(200, 784)).astype(np.float32)}, []
    for threads in (1, 2):
        with torch_threads(threads):
            packed = factor(arrays, spec, 0.7)
            assert len(packed["w"]) == 0
            found.append({**packed, **multiplied(packed, spec)})
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
