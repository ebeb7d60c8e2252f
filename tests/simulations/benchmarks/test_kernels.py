"""The dense ways that FedHeNN's server is measured against give the kernel that it gives."""

import numpy as np
import pytest

from simulations.benchmarks.speed.kernels import WAYS, drawn


@pytest.mark.parametrize(("way", "rank"), [("dense", 0), ("Cholesky", 0), ("dense", 128)])
@pytest.mark.slow
def test_same_kernel(way, rank):
    uploads = drawn(900)
    ours, theirs = (WAYS[name](uploads, rank) for name in ("factored", way))
    kernel = ours @ ours.T
    assert theirs.shape == ours.shape == (900, rank or 840)
    np.testing.assert_allclose(theirs @ theirs.T, kernel, atol=1e-5 * np.abs(kernel).max())
