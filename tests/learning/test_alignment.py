"""CKA against its textbook form, and factors of kernel means against the kernels themselves."""

from math import inf, nan, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.learning.alignment import kernel_cka, linear_cka, rbf_cka, rbf_to_factor_cka
from hetfl_flwr.seeding import generator
from strategies.mean_kernel import (
    mean_rbf_kernel,
    stack_factor,
    thin_factor,
    thin_factor_of_kernel,
)

SIGMA = 2.0
SHAPES = st.tuples(st.integers(4, 12), st.integers(1, 15), st.integers(1, 15), st.integers(0, 1000))
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


def textbook_rbf(x, sigma):
    return np.array([[np.exp(-sum((a - b) ** 2) / (2 * sigma**2)) for b in x] for a in x])


def linear(x, y):
    return linear_cka(x, y)


def rbf(x, y):
    return rbf_cka(x, y, SIGMA)


def kernels(x, y):
    return kernel_cka(x @ x.mT, y @ y.mT)


def rbf_to_factor(x, y):
    return rbf_to_factor_cka(x, y, SIGMA)


MEASURES = [linear, rbf, kernels, rbf_to_factor]


def test_linear_cka_by_hand():
    """The rows of X are the ends of a cross, (1, 0), (0, 1), (-1, 0), (0, -1): centred as they stand. Y is its first
    column plus 3, so centred (1, 0, -1, 0).

    X^T X = 2 I, of squared norm 8; Y^T Y = 2, squared 4; X^T Y = (2, 0), squared 4. CKA = 4 / sqrt(8 * 4) = 0.7071.
    """
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    found = linear_cka(x, x[:, :1] + 3)
    assert found.shape == ()
    assert float(found) == pytest.approx(1 / sqrt(2))


def test_rbf_cka_by_hand():
    """Samples (0, 0, c, c) against (0, c, 0, c) with exp(-c^2 / (2 sigma^2)) = 1/3: both kernels are 2/3 + 1/3 s s^T,
    with s = (1, 1, -1, -1) and t = (1, -1, 1, -1), which are orthogonal: CKA 0. Against itself: CKA 1. Against
    u = (0, 0, c, far away), whose rows 1 and 2 are one point:

    K centred is s s^T / 3, of norm 4/3. L has ones in the block of rows 1 and 2 and at the ends of the diagonal, 1/3
    between row 3 and these two, 0 at row 4. With s: <s s^T, L> = s^T L s = 4 (first block) + 2 (diagonal) - 4/3
    (row 3 against 1 and 2, twice two entries) = 14/3. The mean of L's rows: (7/3, 7/3, 5/3, 1) / 4, of all 22/48.
    ||HLH||^2 = ||L||^2 - 8 sum(row means^2) + 16 mean^2 = (4 + 2 + 4/9) - 8 (49 + 49 + 25 + 9) / 144 + 16 (22/48)^2
    = 58/9 - 22/3 + 121/36 = 89/36. CKA = (14/9) / ((4/3) sqrt(89) / 6) = 7 / sqrt(89).
    """
    c = SIGMA * sqrt(2 * np.log(3))
    x = torch.tensor([[0.0], [0.0], [c], [c]], dtype=torch.float64)
    y = torch.tensor([[0.0], [c], [0.0], [c]], dtype=torch.float64)
    u = torch.tensor([[0.0, 0.0], [0.0, 0.0], [c, 0.0], [0.0, 1e3]], dtype=torch.float64)
    assert float(rbf(x, y)) == pytest.approx(0, abs=1e-12)
    assert float(rbf(x, x)) == pytest.approx(1)
    assert float(rbf(x, u)) == pytest.approx(7 / sqrt(89))


@given(SHAPES)
@settings(max_examples=50)
def test_cka_is_the_textbook_s(shape):
    n, first, second, seed = shape
    x, y = matrix(n, first, seed, "x") + 1, matrix(n, second, seed, "y") - 2
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    expected = textbook_cka(x @ x.T, y @ y.T)
    assert float(linear(*tensors)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert float(kernels(*tensors)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    widths = textbook_rbf(x, SIGMA), textbook_rbf(y, SIGMA)
    assert float(rbf(*tensors)) == pytest.approx(textbook_cka(*widths), rel=1e-9, abs=1e-12)
    assert float(rbf_to_factor(*tensors)) == pytest.approx(textbook_cka(widths[0], y @ y.T), rel=1e-9, abs=1e-12)


@given(SHAPES)
@settings(max_examples=30)
def test_cka_is_symmetric_within_0_and_1_and_1_against_itself(shape):
    n, first, second, seed = shape
    x, y = tensor(n, first, seed, "x").float(), tensor(n, second, seed, "y").float()
    for measure in (linear, rbf, kernels):
        assert float(measure(x, y)) == pytest.approx(float(measure(y, x)), abs=1e-5)
        assert 0 <= float(measure(x, y)) <= 1
        assert 1 - 1e-5 < float(measure(x, x)) <= 1


def test_a_turned_or_moved_representation_is_the_same_and_a_scaled_one_is_under_the_linear_kernel():
    x, y = tensor(9, 4, "x"), tensor(9, 6, "y")
    turned = x @ torch.linalg.qr(tensor(4, 4, "turn"))[0]
    for measure in (linear, rbf):
        assert float(measure(turned, y)) == pytest.approx(float(measure(x, y)), rel=1e-9)
        assert float(measure(x + 100, y - tensor(1, 6, "move"))) == pytest.approx(float(measure(x, y)), rel=1e-9)
    assert float(linear(3 * x, -0.1 * y)) == pytest.approx(float(linear(x, y)), rel=1e-9)
    assert float(rbf(3 * x, y)) != pytest.approx(float(rbf(x, y)), rel=0.01)
    stretched = x * torch.tensor([1.0, 1.0, 1.0, 5.0])
    assert float(linear(stretched, y)) != pytest.approx(float(linear(x, y)), rel=0.01)


def test_the_order_of_the_samples_matters_and_a_common_order_does_not():
    x, y, order = tensor(9, 4, "x"), tensor(9, 6, "y"), torch.from_numpy(generator(0).permutation(9))
    for measure in MEASURES:
        assert float(measure(x[order], y[order])) == pytest.approx(float(measure(x, y)), rel=1e-9)
        assert float(measure(x[order], y)) != pytest.approx(float(measure(x, y)), rel=0.01)


def test_a_wide_rbf_kernel_is_the_linear_one_also_in_float32():
    """exp(-d^2 / (2 sigma^2)) is 1 - 1e-8 d^2 here: all ones in float32."""
    x, y = tensor(9, 4, "x").float(), tensor(9, 6, "y").float()
    assert float(rbf_cka(x, y, 7e3)) == pytest.approx(float(linear(x, y)), rel=1e-4)


def test_a_narrow_rbf_kernel_tells_all_samples_apart_and_stays_finite():
    """Both kernels are the identity."""
    x = tensor(9, 4, "x").float().requires_grad_()
    found = rbf_cka(x, tensor(9, 6, "y").float(), 1e-6)
    found.backward()
    assert found.item() == pytest.approx(1)
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
@pytest.mark.parametrize("which", ["first", "second", "both"])
def test_a_constant_representation_has_cka_0_and_gradient_0(measure, value, which):
    """Also where the mean of the rows is not quite the row, as for nine times 0.1 in float32."""
    x, y = tensor(9, 3, "x").float(), tensor(9, 5, "y").float()
    x = (value * torch.linspace(1, 0.3, 3)).repeat(9, 1) if which != "second" else x
    y = (value * torch.linspace(1, 0.3, 5)).repeat(9, 1) if which != "first" else y
    x, y = x.requires_grad_(), y.requires_grad_()
    found = measure(x, y)
    found.backward()
    assert found.item() == 0
    for leaf in (x,) if measure is rbf_to_factor else (x, y):
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_a_kernel_that_is_constant_up_to_rounding_counts_as_constant():
    """Products of one row with itself, with the last bit of some of them off by one."""
    constant = torch.full((6, 6), 0.1)
    constant[2, 3] = constant[3, 2] = torch.nextafter(constant[0, 0], torch.tensor(1.0))
    other = tensor(6, 3).float()
    assert float(kernel_cka(constant, other @ other.mT)) == 0


def test_a_kernel_that_is_almost_constant_is_not():
    """1 + y y^T / 1e4: four digits of it are left in float32."""
    y, other = tensor(6, 2, "y").float(), tensor(6, 3, "x").float()
    found = kernel_cka(1 + y @ y.mT / 1e4, other @ other.mT)
    assert float(found) == pytest.approx(float(linear(y, other)), rel=5e-3)


def test_repeated_samples_keep_their_kernel_entry_of_1_a_hundred_widths_away():
    """Between the two of each pair the distance is 0, to all others so large that the kernel is 0."""
    x, y = torch.cat([tensor(6, 3, "x")] * 2).float(), tensor(12, 2, "y").float()
    blocks = torch.eye(6).repeat(2, 2)
    expected = kernel_cka(blocks, torch.exp(-(torch.cdist(y, y) ** 2) / 2))
    assert float(rbf_cka(100 * x, y, 1.0)) == pytest.approx(float(expected), rel=1e-2)


def test_a_distance_that_rounding_makes_negative_does_not_make_the_kernel_infinite():
    """Half a million widths away, the squares are beyond the digits of float32."""
    x = (5e5 * torch.cat([tensor(6, 3, "x")] * 2).float()).requires_grad_()
    found = rbf_cka(x, tensor(12, 2, "y").float(), 1.0)
    found.backward()
    assert 0 <= found.item() <= 1
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("measure", [linear, rbf, kernels])
def test_gradients_reach_both_representations(measure):
    x, y = tensor(6, 3, "x").requires_grad_(), tensor(6, 4, "y").requires_grad_()
    assert torch.autograd.gradcheck(measure, (x, y))


@pytest.mark.parametrize(("n", "width"), [(6, 3), (5, 9)])
def test_the_gradient_is_that_of_the_dense_form(n, width):
    x, y = tensor(n, width, "x").requires_grad_(), tensor(n, 4, "y")
    centring = torch.eye(n, dtype=torch.float64) - 1 / n
    first, second = centring @ x @ x.mT @ centring, centring @ y @ y.mT @ centring
    dense = (first * second).sum() / (first.norm() * second.norm())
    (expected,) = torch.autograd.grad(dense, x)
    (found,) = torch.autograd.grad(linear_cka(x, y), x)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert expected.abs().max() > 0.01


def test_a_factor_received_is_not_learned():
    x, factor = tensor(6, 3, "x").requires_grad_(), tensor(6, 4, "y").requires_grad_()
    rbf_to_factor(x, factor).backward()
    assert factor.grad is None
    fixed = tensor(6, 4, "y")
    assert torch.autograd.gradcheck(lambda x: rbf_to_factor(x, fixed), (x,))


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_no_scale_is_too_small_or_too_large_for_float32(scale):
    x, y = tensor(9, 4, "x").float(), tensor(9, 6, "y").float()
    assert float(linear(scale * x, y)) == pytest.approx(float(linear(x, y)), rel=1e-5)
    assert float(linear(x, scale * y)) == pytest.approx(float(linear(x, y)), rel=1e-5)
    assert float(kernel_cka(scale * (x @ x.mT), y @ y.mT)) == pytest.approx(float(linear(x, y)), rel=1e-5)
    assert float(rbf_to_factor(x, scale * y)) == pytest.approx(float(rbf_to_factor(x, y)), rel=1e-5)
    assert float(rbf_cka(scale * x, scale * y, scale)) == pytest.approx(float(rbf_cka(x, y, 1.0)), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("measure", [linear, rbf, rbf_to_factor])
def test_the_dtype_stays_and_half_precision_is_summed_in_float32(measure, dtype):
    """Entries of 100 over 300 samples: their products, summed and squared, are beyond float16."""
    x, y = (tensor(300, 5, "x") * 100).to(dtype), (tensor(300, 7, "y") * 100).to(dtype)
    found = measure(x, y)
    assert found.dtype == dtype
    rough = 1e-2 if dtype == torch.bfloat16 else 1e-3
    assert float(found) == pytest.approx(float(measure(x.double(), y.double())), rel=rough, abs=1e-6)


def test_samples_without_number_need_no_kernel_over_them():
    """A kernel of 300,000 samples would take 360 GB."""
    x = tensor(300_000, 2).float()
    assert float(linear_cka(x, 2 * x)) == pytest.approx(1, abs=1e-4)
    thin = thin_factor(x.numpy())
    assert thin.shape == x.shape


def test_features_without_number_need_no_product_of_them():
    """A product of 300,000 features with each other would take 360 GB."""
    x = tensor(4, 300_000).float()
    assert 0 < float(linear_cka(x, tensor(4, 2).float())) < 1
    thin = thin_factor(x.numpy())
    assert thin.shape == (4, 4)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("bad", [nan, inf])
def test_values_that_are_not_finite_are_passed_on_not_hidden(measure, bad):
    x = tensor(6, 3)
    x[2, 1] = bad
    assert measure(x, tensor(6, 4)).isnan()


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
    from_kernel = thin_factor_of_kernel(dense)
    assert np.allclose(from_kernel, thin, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_the_largest_entry_of_each_column_is_positive_and_equal_input_gives_equal_bits(shape):
    factor = matrix(*shape)
    thin = thin_factor(factor)
    largest = np.abs(thin).argmax(0)
    assert (thin[largest, np.arange(thin.shape[1])] > 0).all()
    assert (thin < 0).any()
    assert thin.tobytes() == thin_factor(factor.copy()).tobytes()
    assert np.allclose(thin, thin_factor(-factor), atol=1e-12)


def test_a_mean_of_nothing_but_zeros_is_one_column_of_zeros():
    for shape in ((5, 3), (3, 5)):
        assert thin_factor(np.zeros(shape)).tolist() == np.zeros((shape[0], 1)).tolist()


def test_what_rounding_leaves_of_a_kernel_of_zeros_is_one_column_of_zeros():
    assert thin_factor_of_kernel(-1e-20 * np.eye(4)).tolist() == [[0]] * 4


def test_float32_from_the_wire_is_averaged_in_float64_and_left_as_it_is():
    representations = [matrix(6, 2).astype(np.float32), matrix(6, 3).astype(np.float32)]
    before = [representation.tobytes() for representation in representations]
    stacked = stack_factor(representations, [0.5, 0.5])
    assert stacked.dtype == mean_rbf_kernel(representations, [0.5, 0.5], 1.0).dtype == np.float64
    assert thin_factor(stacked.astype(np.float32)).dtype == np.float64
    assert [representation.tobytes() for representation in representations] == before


@given(st.integers(1, 10), WIDTHS, st.integers(0, 1000))
@settings(max_examples=25)
def test_the_mean_of_rbf_kernels_is_the_slow_one_s(n, widths, seed):
    representations = [matrix(n, width, seed, place) for place, width in enumerate(widths)]
    weights = [float(weight) for weight in generator(seed).random(len(widths))]
    expected = sum(w * textbook_rbf(a, SIGMA) for a, w in zip(representations, weights, strict=True))
    found = mean_rbf_kernel(representations, weights, SIGMA)
    assert np.allclose(found, expected, rtol=1e-10)
    factor = thin_factor_of_kernel(found)
    assert np.allclose(factor @ factor.T, expected, atol=1e-10)


@pytest.mark.parametrize("rows", [slice(None), [7, 2, 4, 0, 9]])
@pytest.mark.parametrize("widths", [[2, 3], [8, 9]])
def test_a_client_s_cka_against_the_factor_is_that_against_the_mean_kernel(widths, rows):
    """Of all alignment samples, and of some rows of both sides: linear and RBF."""
    representations = [matrix(10, width) for width in widths]
    own, weights = matrix(10, 4), [0.3, 0.7]
    mean = sum(weight * a @ a.T for a, weight in zip(representations, weights, strict=True))
    factor = torch.from_numpy(thin_factor(stack_factor(representations, weights)))
    found = linear_cka(torch.from_numpy(own[rows]), factor[rows])
    assert float(found) == pytest.approx(textbook_cka(own[rows] @ own[rows].T, mean[rows][:, rows]), rel=1e-9)

    mean = sum(weight * textbook_rbf(a, SIGMA) for a, weight in zip(representations, weights, strict=True))
    factor = torch.from_numpy(thin_factor_of_kernel(mean_rbf_kernel(representations, weights, SIGMA)))
    found = rbf_to_factor_cka(torch.from_numpy(own[rows]), factor[rows], SIGMA)
    expected = textbook_cka(textbook_rbf(own[rows], SIGMA), mean[rows][:, rows])
    assert float(found) == pytest.approx(expected, rel=1e-7)
