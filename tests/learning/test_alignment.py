"""CKA against its textbook form, and factors of kernel means against the kernels themselves."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.learning.alignment import linear_cka
from hetfl_flwr.seeding import generator
from strategies.mean_kernel import stack_factor, thin_factor

SHAPES = st.tuples(st.integers(4, 12), st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
WIDTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def matrix(rows, columns, *scope):
    return generator(0, "alignment", rows, columns, *scope).normal(size=(rows, columns))


def tensor(rows, columns, *scope):
    return torch.from_numpy(matrix(rows, columns, *scope))


def textbook_hsic(first, second):
    centring = np.eye(len(first)) - np.ones_like(first) / len(first)
    return np.trace(first @ centring @ second @ centring) / (len(first) - 1) ** 2


def textbook_cka(first, second):
    return textbook_hsic(first, second) / sqrt(textbook_hsic(first, first) * textbook_hsic(second, second))


@given(SHAPES)
@settings(max_examples=50)
def test_cka_is_the_textbook_s(shape):
    n, first, second, seed = shape
    x, y = matrix(n, first, seed, "x") + 1, matrix(n, second, seed, "y") - 2
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    assert float(linear_cka(*tensors)) == pytest.approx(textbook_cka(x @ x.T, y @ y.T), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
@pytest.mark.parametrize("which", ["first", "second", "both"])
def test_a_constant_representation_has_cka_0_and_gradient_0(value, which):
    """Also where the mean of the rows is not quite the row, as for nine times 0.1 in float32."""
    x, y = tensor(9, 3, "x").float(), tensor(9, 5, "y").float()
    x = (value * torch.linspace(1, 0.3, 3)).repeat(9, 1) if which != "second" else x
    y = (value * torch.linspace(1, 0.3, 5)).repeat(9, 1) if which != "first" else y
    x, y = x.requires_grad_(), y.requires_grad_()
    found = linear_cka(x, y)
    found.backward()
    assert found.item() == 0
    for leaf in (x, y):
        assert leaf.grad is not None
        assert not leaf.grad.any()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_no_scale_is_too_small_or_too_large_for_float32(scale):
    x, y = tensor(9, 4, "x").float(), tensor(9, 6, "y").float()
    assert float(linear_cka(scale * x, y)) == pytest.approx(float(linear_cka(x, y)), rel=1e-5)
    assert float(linear_cka(x, scale * y)) == pytest.approx(float(linear_cka(x, y)), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays_and_half_precision_is_summed_in_float32(dtype):
    """Entries of 100 over 300 samples: their products, summed and squared, are beyond float16."""
    x, y = (tensor(300, 5, "x") * 100).to(dtype), (tensor(300, 7, "y") * 100).to(dtype)
    found = linear_cka(x, y)
    assert found.dtype == dtype
    rough = 1e-2 if dtype == torch.bfloat16 else 1e-3
    assert float(found) == pytest.approx(float(linear_cka(x.double(), y.double())), rel=rough, abs=1e-6)


@pytest.mark.parametrize("other", [2, 300_000])
def test_features_without_number_need_no_product_of_them(other):
    """A product of 300,000 features with each other would take 360 GB."""
    x = tensor(4, 300_000).float()
    assert 0 < float(linear_cka(x, tensor(4, other, "other").float())) < 1
    thin = thin_factor(x.numpy())
    assert thin.shape == (4, 4)


@given(st.integers(1, 12), WIDTHS, st.integers(0, 1000))
@settings(max_examples=40)
def test_the_thin_factor_is_that_of_the_mean_kernel(n, widths, seed):
    """With more samples than features and with fewer, also where representations repeat."""
    representations = [matrix(n, width, seed % 3, place % 2) for place, width in enumerate(widths)]
    weights = [float(weight) for weight in generator(seed).random(len(widths))]
    dense = sum(weight * a @ a.T for a, weight in zip(representations, weights, strict=True))
    stacked = stack_factor(representations, weights)
    assert stacked.shape == (n, sum(widths))
    assert np.allclose(stacked @ stacked.T, dense, rtol=1e-12, atol=1e-12)
    thin = thin_factor(stacked)
    assert thin.shape == (n, np.linalg.matrix_rank(dense, hermitian=True))
    assert np.allclose(thin @ thin.T, dense, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_the_largest_entry_of_each_column_is_positive_and_equal_input_gives_equal_bits(shape):
    factor = matrix(*shape)
    thin = thin_factor(factor)
    largest = np.abs(thin).argmax(0)
    assert (thin[largest, np.arange(thin.shape[1])] > 0).all()
    assert (thin < 0).any()
    assert thin.tobytes() == thin_factor(factor.copy()).tobytes()
    assert np.allclose(thin, thin_factor(-factor), atol=1e-12)
    assert thin_factor(np.zeros(shape)).tolist() == np.zeros((shape[0], 1)).tolist()
