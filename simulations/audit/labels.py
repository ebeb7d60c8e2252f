"""Label inference: how many samples of each class a client has, and which classes it has."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr.runs.uploads import KeptUpload
from simulations.audit.imitation import logits_of
from simulations.audit.measures import AttackResult, ScorePair, Scores, auc, pooled
from simulations.audit.readings import PayloadReading, class_means, compared
from simulations.audit.subject import Predictor, Subject
from simulations.reports.runs import mean_of

PENALTY = 1.0
"""Penalty of the ridge regression from features to class histograms, above 0."""

IMITATIONS = 24
"""Default number of clients that an attacker imitates to learn how uploads reflect class histograms."""


def shares_of(values: Scores | NDArray[np.int64]) -> Scores:
    """Normalize values (C,) to a class histogram with sum 1; even shares if all are 0.

    Examples
    --------
    >>> shares_of(np.array([3, 1])).tolist(), shares_of(np.array([0, 0])).tolist()
    ([0.75, 0.25], [0.5, 0.5])
    """
    found: Scores = values / values.sum() if values.sum() > 0 else np.full(len(values), 1 / len(values))
    return found


def of_histograms(
    reads: str, knows: str, subjects: Sequence[Subject], found: Sequence[Scores], without: Sequence[Scores]
) -> AttackResult:
    """Measure how far estimated histograms are from the truth, and how well they tell which classes exist."""
    truth = [shares_of(one.counts) for one in subjects]
    prior = [shares_of(np.bincount(one.known.labels.cpu(), minlength=one.classes)) for one in subjects]
    even = [np.full(one.classes, 1 / one.classes) for one in subjects]

    def distance(estimates: Sequence[Scores]) -> float | None:
        """Return the mean total variation distance, in [0, 1]."""
        return mean_of([float(np.abs(one - its).sum() / 2) for one, its in zip(estimates, truth, strict=False)])

    def presence(estimates: Sequence[Scores]) -> float | None:
        pairs: list[ScorePair] = [(one[its > 0], one[its == 0]) for one, its in zip(estimates, truth, strict=False)]
        return pooled(auc, pairs)

    guessed = min((one for one in (distance(prior), distance(even)) if one is not None), default=None)
    error = ("histogram error (TV)", distance(found), distance(without), guessed, 0.0)
    return AttackResult(reads, knows, [error, ("class present (AUC)", presence(found), presence(without), 0.5, 1.0)])


# --- uploads alone -------------------------------------------------------------------------------


def sent_shares(kept: Sequence[KeptUpload], classes: int) -> Scores | None:
    """Return the class histogram from the class counts or presence flags in a client's uploads.

    A presence flag counts as one sample. None if the uploads have neither, or the number of `classes` is unknown (0).
    """
    counts = np.zeros(classes, np.int64)
    for one in kept if classes else ():
        marks = one.upload.get("counts", one.upload.get("present"))
        if marks is not None:
            counts[one.upload.get("classes", np.arange(classes))] += marks.astype(np.int64)
        elif "classes" in one.upload:
            counts += one.upload["classes"]
        else:
            return None
    return shares_of(counts) if classes else None


def bias_shares(kept: Sequence[KeptUpload], classes: int) -> Scores | None:
    """Return the class histogram from the changes of the head's bias; None if it is not sent both ways."""
    for key in ("head.bias", "bias"):
        if all(key in one.upload and key in one.download and "heads" not in one.download for one in kept):
            changes = [one.upload[key].astype(np.float32) - one.download[key].astype(np.float32) for one in kept]
            return shares_of_changes(changes)
    return None


def shares_of_changes(changes: Sequence[NDArray[np.float32]]) -> Scores:
    """Return the class histogram (C,) from the changes of a head's bias, one (C,) for each round.

    The gradient of cross-entropy with respect to the bias of class c is the mean probability of c minus its share in
    the batch, so the bias of present classes grows and that of absent ones shrinks: Zhao, Mopuri and Bilen, "iDLG:
    Improved Deep Leakage from Gradients", 2020, for one sample; Wainakh et al., "User-Level Label Leakage from
    Gradients in Federated Learning", PoPETs 2022, for batches. Here the class whose bias shrinks most is assumed to
    have no samples.

    Examples
    --------
    >>> shares_of_changes([np.float32([0.5, -0.5, 0.0])]).round(3).tolist()
    [0.667, 0.0, 0.333]
    """
    change = np.sum(changes, axis=0, dtype=np.float64)
    return shares_of(change - change.min())


class UploadReader(NamedTuple):
    """A way to read uploads alone.

    `shares` maps uploads and C to class shares, or to None if they do not show; `lack` says why.
    """

    shares: Callable[[Sequence[KeptUpload], int], Scores | None]
    lack: str
    reads: str
    knows: str
    authors: str = ""

    def run(self, readings: Sequence[PayloadReading]) -> AttackResult:
        """Infer the class histograms of clients from their uploads."""
        subjects = [reading.subject for reading in readings]
        said = [self.shares(one.kept, one.classes) for one in subjects]
        found = [one for one in said if one is not None]
        without = [*found[1:], found[0]] if len(found) > 1 else []  # another client's
        return of_histograms(self.reads, self.knows, subjects, found, without)

    def fits(self, reading: PayloadReading) -> str:
        """Return why there is nothing to read, or an empty text."""
        return self.lack if self.shares(reading.subject.kept, reading.subject.classes) is None else ""


UPLOAD_READERS = {
    "as sent": UploadReader(sent_shares, "sends no counts", "class counts or presence flags", "nothing"),
    "bias of the head": UploadReader(
        bias_shares,
        "the bias of the head is not exchanged in both directions",
        "the change of the head's bias",
        "what the client was sent",
        " (Wainakh et al. 2022)",
    ),
}


class HistogramEstimate(NamedTuple):
    """The class histogram (C,) that a client's uploads show, without ground truth."""

    client: int
    attack: str
    shares: Scores


def estimates(kept: Sequence[KeptUpload]) -> list[HistogramEstimate]:
    """Return the class histograms that uploads show to an attacker without any data."""
    found = []
    for client in sorted({one.client_id for one in kept}):
        own = [one for one in kept if one.client_id == client]
        read = {name: said.shares(own, _classes(own[-1])) for name, said in reversed(UPLOAD_READERS.items())}
        found += [HistogramEstimate(client, name, shares) for name, shares in read.items() if shares is not None]
    return found


def _classes(one: KeptUpload) -> int:
    """Infer the number of classes from the form of the payloads; 0 if unknown."""
    if "known" in one.download:
        return len(one.download["known"])
    if "averages" in one.upload:
        return int(one.upload["averages"].shape[1])
    names = (name for name in ("head.bias", "bias", "counts", "present") if name in one.upload)
    return len(one.upload.get(next(names, ""), ()))


# --- imitated clients ----------------------------------------------------------------------------


def by_imitation(readings: Sequence[PayloadReading], imitations: int = IMITATIONS) -> AttackResult:
    """Compare predictions of uploads with those of imitated clients (one or more) of known class histograms."""

    def scorer(reading: PayloadReading) -> Callable[[Predictor], Scores]:
        subject, imitated, truth = reading.subject, list[Scores](), list[Scores]()
        labels, asked = subject.to_train.labels.cpu().numpy(), subject.to_ask

        def shown(predictor: Predictor) -> Scores:
            return features_of(logits_of(predictor, asked), asked.labels, subject.classes)

        for number in range(imitations):
            rng = subject.rng("imitation", number)
            drawn = rng.dirichlet(np.full(subject.classes, 10 ** rng.uniform(-1, 1)))  # from even to skewed
            rows = subject.to_train.some(drawn_rows(labels, drawn, len(subject.trained_on), rng))
            imitated.append(shown(reading.imitated(rows, rng)))
            truth.append(shares_of(np.bincount(rows.labels.cpu(), minlength=subject.classes)))
        return lambda predictor: calibrated(shown(predictor), imitated, truth)

    found, without = compared(readings, scorer)
    knows, subjects = f"{readings[0].knows}; {imitations} imitated clients", [one.subject for one in readings]
    return of_histograms(readings[0].payload, knows, subjects, found, without)


def features_of(logits: Tensor, labels: Tensor, classes: int) -> Scores:
    """Return how a predictor shows the classes it has learned, from logits (N, C) and labels (N,): (C, 2).

    The features, on samples of the attacker, are the mean probability of each class, which grows with its share in
    training, and the mean probability of the right class on samples of that class, which is high for classes in
    training. All classes that the attacker has count equally: if clients split one pool, the attacker has most of what
    a client lacks, and its class shares would reveal the client's.
    """
    means, has = class_means(logits.double().softmax(1), labels, classes)
    found: Scores = torch.stack([means[has].mean(0), means.diagonal()], 1).cpu().numpy()
    return found


def calibrated(features: Scores, imitated: Sequence[Scores], truth: Sequence[Scores]) -> Scores:
    """Return the class histogram (C,) of features (C, F), calibrated on imitations of known histograms.

    A ridge regression (penalty `PENALTY`, on standardized features) over all classes and imitations, at least one,
    predicts a class's share from its features; the result is projected to the simplex. Features that do not vary give
    all classes the mean share.

    Examples
    --------
    >>> shares = [np.array([0.7, 0.3]), np.array([0.1, 0.9])] * 100
    >>> calibrated(np.array([[0.6], [0.4]]), [one[:, None] for one in shares], shares).round(2).tolist()
    [0.6, 0.4]
    """
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model: Any = make_pipeline(StandardScaler(), Ridge(alpha=PENALTY))  # type: ignore[no-untyped-call]
    model.fit(np.concatenate(imitated), np.concatenate(truth))
    return shares_of(np.clip(model.predict(features), 0, None))


def drawn_rows(labels: NDArray[np.int64], shares: Scores, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw positions (size,) of samples, with replacement, by class shares.

    Classes without samples are left out; if none remains, all samples are equally likely.
    """
    counts = np.bincount(labels, minlength=len(shares))
    weights = (shares / np.maximum(counts, 1))[labels]
    chances = weights / weights.sum() if weights.sum() > 0 else None
    chosen: NDArray[np.int64] = rng.choice(len(labels), size, replace=True, p=chances)
    return chosen
