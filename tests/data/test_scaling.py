"""One scale for all rows: colours, and public samples as the server sees them."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, Samples, load_client_data
from hetfl_flwr.data.samples import Arrays, _shifted
from hetfl_flwr.data.scaling import scaled, scaled_alone


@pytest.mark.parametrize("normalize", ["mean-image", "mean-training-image", "standard", "imagenet", "none"])
def test_images_are_scaled_as_clients_scale_theirs(normalize):
    """The rows that a client's images are scaled by, as its own and as shown to somebody who has no others: its own
    training samples, or all of the training split."""
    config = RunConfig(dataset="digits", clients=1, normalize=normalize, test_fraction=0.3, validation_fraction=0.0)
    own = load_client_data(config.split(1), 0).train
    arrays = own.arrays
    its = own if normalize == "mean-training-image" else Samples(arrays, torch.arange(arrays.train_rows))
    theirs, rows = scaled_alone(its.stored()[0].numpy(), arrays.spec, normalize), torch.arange(50)
    torch.testing.assert_close(theirs.batch(rows)[0], its.batch(rows)[0], rtol=1e-4, atol=1e-5)


def test_columns_are_scaled_by_the_samples_shown_and_tokens_stay():
    rows = np.float32([[1, 5], [3, 5], [5, 5]])
    found = scaled_alone(rows, DataSpec((2,), 2), "mean-image").batch(torch.arange(3))[0]
    np.testing.assert_allclose(found, [[-1.2247, 0], [0, 0], [1.2247, 0]], atol=1e-3)
    assert scaled_alone(rows, DataSpec((2,), 2), "none").batch(torch.arange(3))[0].tolist() == rows.tolist()
    tokens = np.int32([[1, 2], [0, 3]])
    assert (
        scaled_alone(tokens, DataSpec((2,), 2, 9), "mean-image").batch(torch.arange(2))[0].tolist() == tokens.tolist()
    )


@pytest.mark.parametrize("spec", [DataSpec((2,), 2), DataSpec((2, 3), 2), DataSpec((1, 2, 3), 2)])
def test_public_samples_are_kept_no_longer_than_they_are_used(spec):
    """A server is shown others in each round."""
    samples = scaled_alone(np.ones((4, *spec.shape), np.float32), spec, "mean-image")
    held, moved = ref(samples.arrays), ref(samples.to("meta").arrays)
    assert held() is samples.arrays
    del samples
    gc.collect()
    assert (held(), moved()) == (None, None)


def test_standard_colours_have_mean_0_and_deviation_1_over_the_training_split():
    draw = np.random.default_rng(0)
    pixels = torch.from_numpy(draw.integers(0, 256, (30, 3, 4, 5)).astype(np.uint8))
    pixels[:, 2] = 7  # a colour that never changes
    arrays = Arrays(DataSpec((3, 4, 5), 2), pixels, torch.zeros(30, dtype=torch.int64), 20, 255.0, torch.zeros(1))
    [own] = scaled((arrays,), "standard")
    inputs, _ = Samples(own, torch.arange(20)).batch(torch.arange(20))
    expected = pixels[:20].double().numpy() / 255
    for colour in (0, 1):
        right = (expected[:, colour] - expected[:, colour].mean()) / expected[:, colour].std()
        np.testing.assert_allclose(inputs[:, colour], right, rtol=1e-4, atol=1e-5)
    assert not inputs[:, 2].any()


@pytest.mark.parametrize("shape", [(2,), (2, 5)], ids=["table", "series"])
def test_large_numbers_on_a_device_without_float64_have_the_same_batches_and_are_shown_alike(shape):
    """Numbers of one second among seconds since 1970, in float32 counted from their mean."""
    draw, axes = np.random.default_rng(0), (0, 2)[: len(shape)]
    stored = 1_700_000_000 + draw.normal(size=(40, *shape))
    if len(shape) == 1:
        stored[3, 0] = np.nan
    table = Arrays(DataSpec(shape, 2), torch.from_numpy(stored), torch.arange(40) % 2, 40, 1.0, torch.zeros(shape))
    rows = torch.arange(40)
    [own] = scaled((table,), "mean-image", [(table, rows)])
    here = Samples(own, rows)
    there = Samples(replace(own, inputs=_shifted(own.inputs, own.origin)), rows)
    assert there.arrays.inputs.dtype == here.to("meta").arrays.inputs.dtype == torch.float32
    torch.testing.assert_close(there.batch(rows)[0], here.batch(rows)[0], rtol=0, atol=0)
    mean, deviation = (moment(stored, axis=axes, keepdims=True) for moment in (np.nanmean, np.nanstd))
    expected = (stored - mean) / deviation
    np.testing.assert_allclose(here.batch(rows)[0], np.nan_to_num(expected), atol=1e-4)
    for one, other in zip(here.stored(), there.stored(), strict=True):
        assert torch.equal(one, other)
    others = here.stored()
    torch.testing.assert_close(there.like(*others).batch(rows)[0], here.like(*others).batch(rows)[0], rtol=0, atol=0)
