"""Label inference: how many samples of each class a client has, and whether it has a class at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Shares = NDArray[np.float64]


def shares_of(counts: Sequence[NDArray[np.int64]]) -> Shares:
    """Return the class histogram (C,) of counts (C,) of some rounds, in which marks count as one sample.

    Examples
    --------
    >>> shares_of([np.array([3, 1]), np.array([3, 1])]).tolist(), shares_of([np.array([0, 0])]).tolist()
    ([0.75, 0.25], [0.5, 0.5])
    """
    return _normed(np.asarray(np.sum(counts, axis=0), np.float64))


def _normed(values: Shares) -> Shares:
    """Return shares with a sum of 1; all alike where nothing is there."""
    return values / values.sum() if values.sum() > 0 else np.full(len(values), 1 / len(values))


def features_of(logits: Tensor, labels: Tensor, classes: int) -> Shares:
    """Return what a predictor shows of the classes that it has learnt: (C, 2).

    On samples of the attacker's, the mean probability of each class, which grows with its share in training; and the
    mean probability of the right class on samples of that class, which a class has that was trained on. All classes
    that the attacker has count alike: where clients share out one pool, it has most of what a client lacks, and its own
    shares would speak for the client's.

    Parameters
    ----------
    logits, labels : Tensor
        (N, C) and (N,) int64.
    classes : int
        C.
    """
    scores = logits.double().softmax(1)
    counts = torch.bincount(labels, minlength=classes)
    means = torch.zeros(classes, classes, dtype=torch.float64, device=scores.device).index_add_(0, labels, scores)
    means /= counts.clamp(min=1)[:, None]
    found: Shares = torch.stack([means[counts > 0].mean(0), means.diagonal()], 1).cpu().numpy()
    return found


def shares_of_changes(changes: Sequence[NDArray[np.float32]]) -> Shares:
    """Return the class histogram that the changes of a head's bias point to.

    The gradient of cross-entropy by the bias of class c is the mean probability of c less its share in the batch, so
    the bias grows for classes that are there and sinks for others: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage
    from Gradients", 2020, Eq. (3), for one sample; Wainakh et al., "User-Level Label Leakage from Gradients in
    Federated Learning", PoPETs 2022, for batches. Here the class that sinks most is taken to have no samples.

    Parameters
    ----------
    changes : sequence of array
        After less before, of each round, (C,).

    Returns
    -------
    array
        Shares (C,) with a sum of 1.

    Examples
    --------
    >>> shares_of_changes([np.float32([0.5, -0.5, 0.0])]).round(3).tolist()
    [0.667, 0.0, 0.333]
    """
    change = np.sum(changes, axis=0, dtype=np.float64)
    return _normed(change - change.min())


def calibrated(features: Shares, imitated: Sequence[Shares], truth: Sequence[Shares], penalty: float = 1.0) -> Shares:
    """Return the class histogram that features point to, by what imitations of known histograms have shown.

    A ridge regression over classes and imitations alike: a share is a linear function of the class's features. It is
    then brought to the simplex. Features that show nothing get all classes the mean share.

    Parameters
    ----------
    features : array
        Of the client, (C, F).
    imitated : sequence of array
        Of imitations, (C, F) each; at least one.
    truth : sequence of array
        Their histograms, (C,) each.
    penalty : float
        Of the ridge, on standardised features, above 0.

    Returns
    -------
    array
        Shares (C,) with a sum of 1.

    Examples
    --------
    >>> shares = [np.array([0.7, 0.3]), np.array([0.1, 0.9])]
    >>> calibrated(np.array([[0.6], [0.4]]), [one[:, None] for one in shares], shares, 1e-6).round(3).tolist()
    [0.6, 0.4]
    """
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model: Any = make_pipeline(StandardScaler(), Ridge(alpha=penalty))  # type: ignore[no-untyped-call]
    model.fit(np.concatenate(imitated), np.concatenate(truth))
    return _normed(np.clip(model.predict(features), 0, None))


def drawn_rows(labels: NDArray[np.int64], shares: Shares, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw positions (size,) of samples, with replacement, whose classes have some shares.

    Classes of which there is no sample are left out; where that leaves nothing, all samples are alike.
    """
    counts = np.bincount(labels, minlength=len(shares))
    weights = (shares / np.maximum(counts, 1))[labels]
    chances = weights / weights.sum() if weights.sum() > 0 else None
    chosen: NDArray[np.int64] = rng.choice(len(labels), size, replace=True, p=chances)
    return chosen
