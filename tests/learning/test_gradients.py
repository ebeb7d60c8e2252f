"""Projection and surgery of conflicting gradients against two solvers of the quadratic programme, and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import nnls
from torch import nn

from hetfl_flwr.learning.gradients import flat_gradient, pcgrad, project, set_gradient
from hetfl_flwr.seeding import generator

VECTORS = st.integers(1, 6).flatmap(
    lambda length: st.tuples(*[arrays(np.float64, length, elements=st.floats(-3, 3, width=16))] * 2)
)


def pair(length, *scope):
    rng = generator(0, "gradients", length, *scope)
    return torch.from_numpy(rng.normal(size=length)), torch.from_numpy(rng.normal(size=length))


def conflicting(length):
    gradient, reference = pair(length)
    return gradient, reference if torch.dot(gradient, reference) < 0 else -reference


def vector(*values):
    return torch.tensor(values, dtype=torch.float32)


def by_the_dual(gradient, reference):
    """Eq. (15): min over v >= 0 of v^2 <r, r> / 2 + v <g, r>, that is of ||v r - (-g)||^2."""
    factor, _ = nnls(reference[:, None], -gradient)
    return gradient + factor[0] * reference


@given(VECTORS)
@settings(max_examples=100)
def test_the_projection_solves_the_quadratic_programme(vectors):
    gradient, reference = vectors
    found = project(torch.from_numpy(gradient), torch.from_numpy(reference)).numpy()
    assert np.allclose(found, by_the_dual(gradient, reference), atol=1e-9)
    assert found @ reference >= -1e-12


@pytest.mark.parametrize(
    ("gradient", "reference"),
    [
        (vector(3, 1, -41), vector(0, 0, 0)),
        (vector(0.3, 0.1, -0.7), vector(0.9, 0.3, -2.1)),
        (vector(3, 1, -7), vector(1, -3, 0)),
        (vector(5, 1, -6), vector(0, 7, 1)),
    ],
    ids=["zeros", "parallel", "orthogonal", "agreeing"],
)
def test_without_conflict_the_gradient_stays_bit_for_bit(gradient, reference):
    """The first one would not survive a division by its largest entry and the way back: 3 / 41 * 41 is not 3."""
    found = project(gradient, reference)
    assert torch.equal(found, gradient)
    assert found is not gradient


@pytest.mark.parametrize("large", [1e-30, 1e-20, 1.0, 1e20, 1e30])
@pytest.mark.parametrize("small", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_no_scale_is_too_small_or_too_large_for_float32(large, small):
    """The projection is as long as the gradient makes it, whatever the length of the reference."""
    gradient, reference = (part.float() for part in conflicting(50))
    expected = project(gradient, reference)
    found = project(gradient * large, reference * small)
    assert torch.allclose(found / large, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, gradient, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays_and_half_precision_is_rounded_once(dtype):
    """The result is that in double precision, rounded: nothing on the way, such as 1 / sqrt(P), is."""
    gradient, reference = (part.to(dtype) for part in conflicting(20_000))
    gradient = gradient - 3 * reference
    found = project(gradient, reference)
    assert found.dtype == dtype
    exact = project(gradient.double(), reference.double())
    assert torch.allclose(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@given(VECTORS)
@settings(max_examples=50)
def test_pcgrad_is_symmetric_conflicts_with_neither_and_is_the_sum_without_conflict(vectors):
    gradient, reference = (torch.from_numpy(part) for part in vectors)
    found = pcgrad(gradient, reference)
    assert torch.equal(found, pcgrad(reference, gradient))
    assert torch.dot(found, gradient) >= -1e-9
    assert torch.dot(found, reference) >= -1e-9
    if torch.dot(gradient, reference) >= 0:
        assert torch.equal(found, gradient + reference)


def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3))


def test_a_missing_gradient_counts_as_zeros_and_a_frozen_parameter_does_not_count():
    network = model()
    network[0].weight.requires_grad_(False)
    network[2].bias.grad = torch.tensor([1.0, 2.0, 3.0])
    assert flat_gradient(network.parameters()).tolist() == [0.0] * 2 + [0.0] * 6 + [1.0, 2.0, 3.0]
    set_gradient(network.parameters(), torch.arange(11.0))
    assert network[0].weight.grad is None
    assert network[0].bias.grad.tolist() == [0, 1]
    assert network[2].weight.grad.tolist() == [[2, 3], [4, 5], [6, 7]]
    assert network[2].bias.grad.tolist() == [8, 9, 10]


def test_the_flat_gradient_is_every_parameter_s_in_order_and_setting_undoes_it():
    """Whatever the layout of memory."""
    network = nn.Sequential(nn.Conv2d(2, 1, 2), nn.Conv2d(1, 2, 1)).to(memory_format=torch.channels_last)
    network(torch.arange(8.0).reshape(1, 2, 2, 2)).square().mean().backward()
    network[0].weight.grad = network[0].weight.grad.contiguous(memory_format=torch.channels_last)
    before = [part.grad.clone() for part in network.parameters()]
    flat = flat_gradient(network.parameters())
    assert flat.tolist() == [number for gradient in before for number in gradient.flatten().tolist()]
    assert flat.any()
    network.zero_grad()
    set_gradient(network.parameters(), flat)
    for part, gradient in zip(network.parameters(), before, strict=True):
        assert torch.equal(part.grad, gradient)


def test_a_vector_of_another_length_or_nothing_to_train_is_refused():
    for length in (18, 20):
        with pytest.raises(RuntimeError):
            set_gradient(model().parameters(), torch.ones(length))
    with pytest.raises(ValueError, match="trainable"):
        flat_gradient(model().requires_grad_(False).parameters())
