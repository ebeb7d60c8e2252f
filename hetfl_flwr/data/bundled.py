"""Data sets that come with scikit-learn: nothing to download."""

import numpy as np
import torch

from hetfl_flwr.data.samples import Arrays, DataSpec


def read_digits() -> Arrays:
    """Return the 1,797 handwritten digits, 8x8 pixels of 0..16.

    A fixed stratified fifth of them (360) is the test split, the same for every seed.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train, test = train_test_split(np.arange(len(bunch.target)), test_size=0.2, random_state=0, stratify=bunch.target)
    order = np.concatenate([train, test])
    return Arrays(
        spec=DataSpec(shape=(1, 8, 8), classes=10),
        inputs=torch.from_numpy(bunch.images[order].astype(np.uint8)[:, None]),
        labels=torch.from_numpy(bunch.target[order].astype(np.int64)),
        train_rows=len(train),
        peak=16.0,
        centre=torch.zeros(1, 8, 8),
    )
