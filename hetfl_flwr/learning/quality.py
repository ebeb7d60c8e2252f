"""Metrics of a classifier beyond accuracy, as fractions, and class weights for training.

They equal scikit-learn's, but use only NumPy, so that a node does not need scikit-learn.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hetfl_flwr.data import ClientData, Samples
from hetfl_flwr.learning.metrics import Metrics
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.wire.classes import MAX_CLASSES, RECALL, UNPREDICTED, UNTESTED, of_class
from hetfl_flwr.wire.messages import EXAMPLES

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.floating[Any]]

MAX_SCORES = 2**24
"""Maximum number of scores (samples times classes) for which the area under the ROC curve is computed."""


@dataclass(frozen=True)
class Hits:
    """Counts (C,) for each class: correctly predicted samples, samples of the class, and samples predicted as it.

    Examples
    --------
    >>> hits = Hits.of(np.array([0, 0, 1, 3]), np.array([0, 1, 1, 1]), classes=4)
    >>> hits.recall
    array([0.5, 1. , nan, 0. ])
    >>> hits.balanced_accuracy, round(hits.macro_f1, 3)
    (0.5, 0.389)
    """

    right: IntArray
    actual: IntArray
    predicted: IntArray

    @classmethod
    def of(cls, labels: IntArray, predictions: IntArray, classes: int) -> "Hits":
        """Count labels and predictions, both (N,), 0..C-1."""
        right = np.bincount(labels[labels == predictions], minlength=classes)
        return cls(right, np.bincount(labels, minlength=classes), np.bincount(predictions, minlength=classes))

    @property
    def recall(self) -> FloatArray:
        """The recall of each class, (C,); NaN for a class without samples."""
        return np.where(self.actual > 0, self.right / np.maximum(self.actual, 1), np.nan)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes with samples; there must be at least one."""
        return float(self.recall[self.actual > 0].mean())

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have samples or are predicted; there must be at least one."""
        either = self.actual + self.predicted
        return float((2 * self.right[either > 0] / either[either > 0]).mean())

    @property
    def unpredicted(self) -> IntArray:
        """The classes that have samples but are never predicted."""
        return np.flatnonzero((self.actual > 0) & (self.predicted == 0))


def auc(scores: FloatArray, labels: IntArray) -> float | None:
    """Return the mean area under the ROC curve of each class against the rest, from scores (N, C) and labels (N,).

    Only the order of scores matters; ties count half. The mean is over the classes with at least one positive and one
    negative sample; without such a class, it is None.

    Examples
    --------
    >>> auc(np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 0, 1, 1]))
    0.75
    >>> auc(np.array([[0.9, 0.1]]), np.array([0])) is None
    True
    """
    counts = np.bincount(labels, minlength=scores.shape[1])
    among = np.flatnonzero((counts > 0) & (counts < len(labels)))
    ordered = np.sort(np.ascontiguousarray(scores.T[among]), axis=1)
    areas = []
    for label, column in zip(among, ordered, strict=True):
        own, positives = scores[labels == label, label], int(counts[label])
        ranks = (np.searchsorted(column, own, "left") + np.searchsorted(column, own, "right") + 1) / 2
        beaten = ranks.sum() - positives * (positives + 1) / 2
        areas.append(beaten / (positives * (len(labels) - positives)))
    return float(np.mean(areas)) if areas else None


def measure(model: nn.Module, samples: Samples) -> Metrics:
    """Return the metrics of a model on some samples, in one pass over them.

    Parameters
    ----------
    model : Module
        A model from inputs to logits (B, C).
    samples : Samples
        The samples to evaluate on.

    Returns
    -------
    dict
        ``accuracy``, ``loss`` (mean cross-entropy) and ``num-examples``. With samples, also ``balanced-accuracy``,
        ``macro-f1`` and ``auc`` (if the samples have more than one class, and at most `MAX_SCORES` scores); with at
        most `MAX_CLASSES` classes, ``recall.C`` for each class C with samples, and ``unpredicted.C`` for each of these
        classes that is never predicted.
    """
    outputs: list[Tensor] = []
    measured = evaluate(model, samples, take=outputs.append)
    metrics: Metrics = {"accuracy": measured.accuracy, "loss": measured.loss, EXAMPLES: measured.samples}
    return metrics | (_qualities(torch.cat(outputs), samples.labels) if outputs else {})


def _qualities(logits: Tensor, labels: Tensor) -> Metrics:
    """Return the metrics of logits (N, C) in addition to loss and accuracy; N is 1 or more."""
    classes, actual = logits.shape[1], labels.cpu().numpy()
    hits = Hits.of(actual, logits.argmax(1).cpu().numpy(), classes)
    metrics: Metrics = {"balanced-accuracy": hits.balanced_accuracy, "macro-f1": hits.macro_f1}
    if logits.numel() <= MAX_SCORES:
        area = auc(logits.double().softmax(1).cpu().numpy(), actual)
        metrics |= {} if area is None else {"auc": area}
    if classes <= MAX_CLASSES:
        tested = np.flatnonzero(hits.actual).tolist()
        metrics |= {of_class(RECALL, label): float(hits.recall[label]) for label in tested}
        metrics |= {of_class(UNPREDICTED, label): 1 for label in hits.unpredicted.tolist()}
    return metrics


def baseline(data: ClientData) -> Metrics:
    """Return the metrics of a client's data, independent of the model; empty without test samples.

    ``majority`` is the test accuracy of always predicting the most frequent class of the training samples (the first,
    if there are several). With at most `MAX_CLASSES` classes, ``untested.C`` is set for each class C that has training
    but no test samples.
    """
    if not len(data.test):
        return {}
    trained, tested = data.class_counts
    metrics: Metrics = {"majority": float(tested[trained.argmax()] / tested.sum())}
    if data.spec.classes <= MAX_CLASSES:
        untested = np.flatnonzero((trained > 0) & (tested == 0)).tolist()
        metrics |= {of_class(UNTESTED, label): 1 for label in untested}
    return metrics


def balanced_weights(counts: Tensor) -> Tensor:
    """Return the sample weights (C,) that give all classes the same total weight, from their counts (C,).

    These are N / (classes with samples * samples of the class), float32, as in scikit-learn's ``"balanced"``; 1 for a
    class without samples.

    Examples
    --------
    >>> balanced_weights(torch.tensor([6, 2, 0]))
    tensor([0.6667, 2.0000, 1.0000])
    """
    present = counts > 0
    weights = counts.sum() / (present.sum() * counts.clamp(min=1))
    return torch.where(present, weights, 1.0).float()
