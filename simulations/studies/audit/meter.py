"""The attacks that fit a run's payload, run on each of its clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.wire.spec import Arrays
from simulations.studies.audit import histogram, membership
from simulations.studies.audit.findings import Finding, Pictures, Separation, mean, of_membership, pooled
from simulations.studies.audit.measures import auc, total_variation
from simulations.studies.audit.readings import ClassOutputs, Head, Prototypes, Reading, Weights, reading_of
from simulations.studies.audit.sent import pooled_upload
from simulations.studies.audit.subject import Rows, Subject, joined
from simulations.studies.audit.training import Predictor, logits_of, predicting
from simulations.studies.audit.uploads import KeptUpload

Scores = NDArray[np.float64]

IMITATIONS = 24
"""Clients that an attacker imitates to learn how class histograms show, where nothing else is said."""


@dataclass(eq=False)
class Case:
    """A client and what its payload is to an attacker.

    Parameters
    ----------
    subject : Subject
        The client.
    reading : Reading
        What is read of it.
    shadows : int
        Models that an attacker trains for LiRA, 2 or more.
    mimics : int
        Clients that an attacker imitates to learn how class histograms show, 1 or more.
    """

    subject: Subject
    reading: Reading
    shadows: int
    mimics: int = IMITATIONS

    @cached_property
    def upload(self) -> Arrays:
        """What is read: the last upload, or where noise drowns one, what the uploads say together."""
        return pooled_upload(self.subject)

    @cached_property
    def predictor(self) -> Predictor:
        """What the upload predicts."""
        return self.reading.predictor(self.upload)

    @cached_property
    def whole(self) -> Predictor:
        """What the client's whole model predicts: what there is to know at most."""
        own = isinstance(self.reading, Weights) and self.reading.payload == "its model"
        return self.predictor if own else predicting(self.subject.model)

    @cached_property
    def imitations(self) -> list[Predictor]:
        """Predictors of uploads as clients would send them that have none of this client's samples."""
        known, found = self.subject.known, []
        for number in range(self.shadows):
            rng = self.subject.rng("shadow", number)
            size = min(len(self.subject.trained_on), max(len(known) // 2, 2))
            found.append(self.reading.imitated(known.some(rng.permutation(len(known))[:size]), rng))
        return found

    def instead(self, other: "Case") -> Predictor:
        """Return what another client's upload predicts in place of this one's."""
        if isinstance(self.reading, Head | Prototypes | ClassOutputs):
            return self.reading.predictor(other.upload)
        return other.predictor


class Found(NamedTuple):
    """What one attack on all clients has come to."""

    findings: list[Finding]
    pictures: list[Pictures]


class Attack(NamedTuple):
    """An attack.

    Parameters
    ----------
    name : str
        What is found out, and how.
    fits : callable
        Returns why an attack does not fit a client's payload; an empty text where it does.
    run : callable
        Runs it on clients, all of which it fits.
    """

    name: str
    fits: Callable[[Case], str]
    run: Callable[[str, Sequence[Case]], Found]


def separation(scores: Callable[[Rows], Scores], subject: Subject) -> Separation:
    """Return scores of a client's private samples, and of samples that it has not trained on.

    All are scored together: what a score is scaled by must not tell on which side a sample is.
    """
    found = scores(joined([subject.members, subject.strangers]))
    return Separation(found[: len(subject.members)], found[len(subject.members) :])


def next_of(cases: Sequence[Case]) -> list[Case]:
    """Return for each client another one, if there is one."""
    return [*cases[1:], cases[0]] if len(cases) > 1 else []


def by_threshold(name: str, cases: Sequence[Case]) -> Found:
    """Call members whose loss is low."""

    def scores(predictor: Predictor) -> Callable[[Rows], Scores]:
        return lambda rows: membership.threshold_scores(logits_of(predictor, rows), rows.labels)

    own = [separation(scores(case.predictor), case.subject) for case in cases]
    others = zip(cases, next_of(cases), strict=False)
    without = [separation(scores(case.instead(other)), case.subject) for case, other in others]
    best = [separation(scores(case.whole), case.subject) for case in cases]
    reading = cases[0].reading
    return Found(of_membership(name, reading.payload, reading.knows, own, without, best), [])


def by_likelihood(name: str, cases: Sequence[Case]) -> Found:
    """Call members whose confidence is high beside that of shadow models."""

    def scores(case: Case, predictor: Predictor) -> Callable[[Rows], Scores]:
        def ratios(rows: Rows) -> Scores:
            shadows = [membership.confidences(logits_of(one, rows), rows.labels) for one in case.imitations]
            return membership.likelihood_ratios(
                membership.confidences(logits_of(predictor, rows), rows.labels), shadows
            )

        return ratios

    own = [separation(scores(case, case.predictor), case.subject) for case in cases]
    others = zip(cases, next_of(cases), strict=False)
    without = [separation(scores(case, case.instead(other)), case.subject) for case, other in others]
    whole = [case for case in cases if case.whole is case.predictor]  # shadows of a part say nothing of the whole
    best = [separation(scores(case, case.whole), case.subject) for case in whole]
    reading, shadows = cases[0].reading, f"{cases[0].shadows} shadow models"
    return Found(of_membership(name, reading.payload, f"{reading.knows}; {shadows}", own, without, best), [])


def shares(counts: NDArray[np.int64]) -> Scores:
    """Return counts (C,) as shares."""
    return np.asarray(counts / max(int(counts.sum()), 1))


def of_histograms(
    name: str, reads: str, knows: str, cases: Sequence[Case], found: Sequence[Scores], without: Sequence[Scores]
) -> Found:
    """Return how far estimated histograms are from the truth, and how well they tell which classes there are."""
    truth = [shares(case.subject.counts) for case in cases]
    prior = [
        shares(np.bincount(case.subject.known.labels.cpu().numpy(), minlength=case.subject.classes)) for case in cases
    ]

    def distance(estimates: Sequence[Scores]) -> float | None:
        return mean([total_variation(one, its) for one, its in zip(estimates, truth, strict=False)])

    def presence(estimates: Sequence[Scores]) -> float | None:
        pairs = [(one, its > 0) for one, its in zip(estimates, truth, strict=False)]
        return pooled(auc, [Separation(one[has], one[~has]) for one, has in pairs])

    even = [np.full(case.subject.classes, 1 / case.subject.classes) for case in cases]
    error, others = distance(found), distance(without)
    guessed = min((one for one in (distance(prior), distance(even)) if one is not None), default=None)
    return Found(
        [
            Finding(name, reads, knows, "histogram error (TV)", error, others, guessed, 0.0),
            Finding(name, reads, knows, "class present (AUC)", presence(found), presence(without), 0.5, 1.0),
        ],
        [],
    )


def said_counts(kept: Sequence[KeptUpload], classes: int) -> list[NDArray[np.int64]]:
    """Return the counts, or the marks, of each class that a client has said, a round each; none where it says none."""
    said = []
    for one in kept:
        counts = np.zeros(classes, np.int64)
        marks = one.upload.get("counts", one.upload.get("present"))
        if marks is not None:
            counts[one.upload.get("classes", np.arange(classes))] = marks
        elif "classes" in one.upload:
            counts[:] = one.upload["classes"]
        else:
            return []
        said.append(counts)
    return said


def said_by(subject: Subject) -> list[NDArray[np.int64]]:
    """Return what a client under attack has said: see `said_counts`."""
    return said_counts(subject.kept, subject.classes)


def by_counts(name: str, cases: Sequence[Case]) -> Found:
    """Read counts that are sent."""
    found = [histogram.open_counts(said_by(case.subject)) for case in cases]
    without = [found[cases.index(other)] for other in next_of(cases)]
    return of_histograms(name, "counts or marks of classes", "nothing", cases, found, without)


def bias_changes(kept: Sequence[KeptUpload]) -> list[NDArray[np.float32]]:
    """Return the change of the head's bias in each round; none where head or download have none of it."""
    for key in ("head.bias", "bias"):
        if all(key in one.upload and key in one.download and "heads" not in one.download for one in kept):
            return [one.upload[key].astype(np.float32) - one.download[key].astype(np.float32) for one in kept]
    return []


def by_bias(name: str, cases: Sequence[Case]) -> Found:
    """Read which classes the bias of the head has grown for."""
    found = [histogram.shares_of_changes(bias_changes(case.subject.kept)) for case in cases]
    without = [found[cases.index(other)] for other in next_of(cases)]
    return of_histograms(name, "the change of the head's bias", "what the client was sent", cases, found, without)


class Estimate(NamedTuple):
    """What a client's uploads say by themselves of its class histogram, with no truth to measure it against.

    Parameters
    ----------
    client : int
        Which client.
    attack : str
        How it is read.
    shares : array
        (C,), with a sum of 1.
    """

    client: int
    attack: str
    shares: Scores


def estimates(kept: Sequence[KeptUpload]) -> list[Estimate]:
    """Return what uploads say of their clients' classes to who has no data at all; empty where they do not."""
    found = []
    for client in sorted({one.client_id for one in kept}):
        own = [one for one in kept if one.client_id == client]
        if changes := bias_changes(own):
            found.append(Estimate(client, "bias of the head", histogram.shares_of_changes(changes)))
        if (classes := _classes(own[-1])) and (said := said_counts(own, classes)):
            found.append(Estimate(client, "as sent", histogram.open_counts(said)))
    return found


def _classes(one: KeptUpload) -> int:
    """Return how many classes there are by the form of what is exchanged; 0 where it does not tell."""
    upload = one.upload
    if "known" in one.download:
        return len(one.download["known"])
    if "averages" in upload:
        return int(upload["averages"].shape[1])
    name = next((name for name in ("head.bias", "bias", "counts", "present") if name in upload), "")
    return len(upload[name]) if name else 0


def by_imitation(name: str, cases: Sequence[Case]) -> Found:
    """Compare what uploads predict with those of imitated clients whose histograms are known."""

    def features(case: Case, predictor: Predictor) -> Scores:
        to_ask = case.subject.to_ask
        return histogram.features_of(logits_of(predictor, to_ask), to_ask.labels, case.subject.classes)

    found, without = [], []
    others: list[Case | None] = [*next_of(cases)] or [None]
    for case, other in zip(cases, others, strict=True):
        subject, imitated, truth = case.subject, [], []
        to_train = subject.to_train
        labels = to_train.labels.cpu().numpy()
        for number in range(case.mimics):
            rng = subject.rng("imitation", number)
            drawn = histogram.drawn_shares(subject.classes, rng)
            rows = to_train.some(histogram.drawn_rows(labels, drawn, len(subject.trained_on), rng))
            imitated.append(features(case, case.reading.imitated(rows, rng)))
            truth.append(shares(np.bincount(rows.labels.cpu().numpy(), minlength=subject.classes)))
        found.append(histogram.calibrated(features(case, case.predictor), imitated, truth))
        if other is not None:
            without.append(histogram.calibrated(features(case, case.instead(other)), imitated, truth))
    reading = cases[0].reading
    knows = f"{reading.knows}; {cases[0].mimics} imitated clients"
    return of_histograms(name, reading.payload, knows, cases, found, without)


def class_means(rows: Rows, classes: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return the mean input of each class (C, *shape), and of which classes there are samples (C,)."""
    counts = torch.bincount(rows.labels, minlength=classes)
    sums = torch.zeros(classes, *rows.inputs.shape[1:], device=rows.inputs.device, dtype=rows.inputs.dtype)
    sums.index_add_(0, rows.labels, rows.inputs)
    return sums / counts.clamp(min=1).reshape(-1, *[1] * (rows.inputs.dim() - 1)), (counts > 0).cpu().numpy()


def check_any(cases: Sequence[Case | None], subjects: Sequence[Subject]) -> list[Case]:
    """Return the clients whose payload can be read.

    Raises
    ------
    ConfigError
        There is none: names the algorithm, and what it uploads.
    """
    if readable := [case for case in cases if case is not None]:
        return readable
    first = subjects[0]
    names = ", ".join(list(first.last.upload)[:5]) or "nothing"
    raise ConfigError(f"no attack reads what {first.config.algorithm} uploads ({names}): hetfl audit cannot measure it")


def cases_of(subjects: Sequence[Subject], shadows: int, mimics: int = IMITATIONS) -> list[Case]:
    """Return the clients with what their payloads are to an attacker; raises as `check_any`."""
    found = [(subject, reading_of(subject)) for subject in subjects]
    return check_any(
        [None if reading is None else Case(subject, reading, shadows, mimics) for subject, reading in found], subjects
    )
