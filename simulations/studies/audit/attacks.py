"""The attacks on the clients of a run: which payloads each fits, and what it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.runs.uploads import KeptUpload
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.spec import Arrays
from simulations.studies.audit import histogram, reconstruction
from simulations.studies.audit.measures import (
    Finding,
    Pictures,
    Scores,
    Separation,
    auc,
    chance_rate,
    confidences,
    likelihood_ratios,
    mean,
    pooled,
    psnr,
    total_variation,
    true_positive_rate,
)
from simulations.studies.audit.readings import ClassMeans, Head, Reading, Weights, class_means, reading_of
from simulations.studies.audit.sent import pooled_upload
from simulations.studies.audit.subject import Rows, Subject, joined
from simulations.studies.audit.training import Predictor, forward_of, logits_of, predicting

IMITATIONS = 24
"""Clients that an attacker imitates to learn how class histograms show, by default."""

LARGEST_BATCH, SHOWN = 8, 10
"""Samples of a step from whose gradient pictures are made, and pictures of a client; at most."""

T = TypeVar("T")


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
        """The last upload, or the mean of several where noise drowns one."""
        return pooled_upload(self.subject)

    @cached_property
    def predictor(self) -> Predictor:
        """What the upload predicts."""
        return self.reading.predictor(self.upload)

    @cached_property
    def whole(self) -> Predictor:
        """What the client's whole model predicts: all that there is to know."""
        own = isinstance(self.reading, Weights) and self.reading.payload == "its model"
        return self.predictor if own else predicting(self.subject.model)

    @cached_property
    def imitations(self) -> list[Predictor]:
        """Predictors of uploads as clients without this client's samples would send them."""
        known, found = self.subject.known, []
        for number in range(self.shadows):
            rng = self.subject.rng("shadow", number)
            size = min(len(self.subject.trained_on), max(len(known) // 2, 2))
            found.append(self.reading.imitated(known.some(rng.permutation(len(known))[:size]), rng))
        return found

    def instead(self, other: "Case") -> Predictor:
        """Return what another client's upload predicts in place of this one's."""
        if isinstance(self.reading, Head | ClassMeans):
            return self.reading.predictor(other.upload)
        return other.predictor


def cases_of(subjects: Sequence[Subject], shadows: int, mimics: int = IMITATIONS) -> list[Case]:
    """Return the clients whose payload can be read.

    Raises
    ------
    ConfigError
        There is none: names the algorithm, and what it uploads.
    """
    found = [Case(one, reading, shadows, mimics) for one in subjects if (reading := reading_of(one))]
    if not found:
        names = ", ".join(list(subjects[0].last.upload)[:5]) or "nothing"
        algorithm = subjects[0].config.algorithm
        raise ConfigError(f"no attack reads what {algorithm} uploads ({names}): hetfl audit cannot measure it")
    return found


class Found(NamedTuple):
    """What one attack on all clients has found."""

    findings: Sequence[Finding] = ()
    pictures: Sequence[Pictures] = ()


class Attack(NamedTuple):
    """An attack: what is found out and how, the attack itself, and why it does not fit a payload (or an empty text)."""

    name: str
    run: Callable[[str, Sequence[Case]], Found]
    fits: Callable[[Case], str] = lambda case: ""


# --- membership ----------------------------------------------------------------------------------


def separation(scores: Callable[[Rows], Scores], subject: Subject) -> Separation:
    """Return scores of a client's private samples, and of samples that it has not trained on.

    All are scored together, so that what a score is scaled by does not tell on which side a sample is.
    """
    found = scores(joined([subject.members, subject.strangers]))
    return Separation(*np.split(found, [len(subject.members)]))


def by_likelihood(name: str, cases: Sequence[Case]) -> Found:
    """Call members whose confidence is high beside that of shadow models."""

    def of(case: Case, predictor: Predictor) -> Separation:
        def scores(rows: Rows) -> Scores:
            shadows = [confidences(logits_of(one, rows), rows.labels) for one in case.imitations]
            return likelihood_ratios(confidences(logits_of(predictor, rows), rows.labels), shadows)

        return separation(scores, case.subject)

    own = [of(case, case.predictor) for case in cases]
    without = [of(case, case.instead(other)) for case, other in zip(cases, _next(cases), strict=False)]
    best = [of(case, case.whole) for case in cases if case.whole is case.predictor]
    knows = f"{cases[0].reading.knows}; {cases[0].shadows} shadow models"
    areas = [mean([auc(*one) for one in several]) for several in (own, without, best)]
    rates = [pooled(true_positive_rate, several) for several in (own, without, best)]
    guessed = chance_rate(sum(len(one.negative) for one in own))
    reads = cases[0].reading.payload
    area = Finding(name, reads, knows, "AUC", areas[0], areas[1], 0.5, areas[2])
    return Found([area, Finding(name, reads, knows, "TPR at 1 % FPR", rates[0], rates[1], guessed, rates[2])])


# --- labels --------------------------------------------------------------------------------------


def of_histograms(
    name: str, reads: str, knows: str, cases: Sequence[Case], found: Sequence[Scores], without: Sequence[Scores]
) -> Found:
    """Return how far estimated histograms are from the truth, and how well they tell which classes there are."""
    subjects = [case.subject for case in cases]
    truth = [histogram.shares_of([one.counts]) for one in subjects]
    prior = [histogram.shares_of([np.bincount(one.known.labels.cpu(), minlength=one.classes)]) for one in subjects]
    even = [np.full(one.classes, 1 / one.classes) for one in subjects]

    def distance(estimates: Sequence[Scores]) -> float | None:
        return mean([total_variation(one, its) for one, its in zip(estimates, truth, strict=False)])

    def presence(estimates: Sequence[Scores]) -> float | None:
        pairs = [(one, its > 0) for one, its in zip(estimates, truth, strict=False)]
        return pooled(auc, [Separation(one[has], one[~has]) for one, has in pairs])

    guessed = min((one for one in (distance(prior), distance(even)) if one is not None), default=None)
    error = Finding(name, reads, knows, "histogram error (TV)", distance(found), distance(without), guessed, 0.0)
    return Found(
        [error, Finding(name, reads, knows, "class present (AUC)", presence(found), presence(without), 0.5, 1.0)]
    )


def sent_shares(kept: Sequence[KeptUpload], classes: int) -> Scores | None:
    """Return the class histogram that counts, or marks, in a client's uploads say; None if it sends none.

    None, too, where it is not known how many `classes` there are: 0.
    """
    said = []
    for one in kept if classes else ():
        counts = np.zeros(classes, np.int64)
        marks = one.upload.get("counts", one.upload.get("present"))
        if marks is not None:
            counts[one.upload.get("classes", np.arange(classes))] = marks
        elif "classes" in one.upload:
            counts[:] = one.upload["classes"]
        else:
            return None
        said.append(counts)
    return histogram.shares_of(said) if said else None


def bias_shares(kept: Sequence[KeptUpload], classes: int) -> Scores | None:
    """Return the class histogram that the bias of the head has grown for; None if it does not go both ways."""
    for key in ("head.bias", "bias"):
        if all(key in one.upload and key in one.download and "heads" not in one.download for one in kept):
            changes = [one.upload[key].astype(np.float32) - one.download[key].astype(np.float32) for one in kept]
            return histogram.shares_of_changes(changes)
    return None


class Said(NamedTuple):
    """What uploads say of a class histogram by themselves, given the number of classes (None: nothing), and of whom."""

    shares: Callable[[Sequence[KeptUpload], int], Scores | None]
    lack: str
    reads: str
    knows: str
    author: str = ""

    def run(self, name: str, cases: Sequence[Case]) -> Found:
        """Read the class histograms of all cases, which have them."""
        said = [self.shares(case.subject.kept, case.subject.classes) for case in cases]
        found = [one for one in said if one is not None]
        return of_histograms(name, self.reads, self.knows, cases, found, _next(found))

    def fits(self, case: Case) -> str:
        """Return why there is nothing to read."""
        return self.lack if self.shares(case.subject.kept, case.subject.classes) is None else ""


SAID = {
    "as sent": Said(sent_shares, "sends no counts", "counts or marks of classes", "nothing"),
    "bias of the head": Said(
        bias_shares,
        "no bias of a head goes both ways",
        "the change of the head's bias",
        "what the client was sent",
        " (Wainakh et al. 2022)",
    ),
}
"""What is read without the clients' data, too."""


class Estimate(NamedTuple):
    """What a client's uploads say of its class histogram, shares (C,), with no truth to measure it against."""

    client: int
    attack: str
    shares: Scores


def estimates(kept: Sequence[KeptUpload]) -> list[Estimate]:
    """Return what uploads say of their clients' classes to an attacker without any data."""
    found = []
    for client in sorted({one.client_id for one in kept}):
        own = [one for one in kept if one.client_id == client]
        read = {name: said.shares(own, _classes(own[-1])) for name, said in reversed(SAID.items())}
        found += [Estimate(client, name, shares) for name, shares in read.items() if shares is not None]
    return found


def _classes(one: KeptUpload) -> int:
    """Return how many classes there are by the form of what is exchanged; 0 if it does not tell."""
    if "known" in one.download:
        return len(one.download["known"])
    if "averages" in one.upload:
        return int(one.upload["averages"].shape[1])
    names = (name for name in ("head.bias", "bias", "counts", "present") if name in one.upload)
    return len(one.upload.get(next(names, ""), ()))


def by_imitation(name: str, cases: Sequence[Case]) -> Found:
    """Compare what uploads predict with those of imitated clients whose histograms are known."""

    def features(case: Case, predictor: Predictor) -> Scores:
        to_ask = case.subject.to_ask
        return histogram.features_of(logits_of(predictor, to_ask), to_ask.labels, case.subject.classes)

    found, without = [], []
    for place, case in enumerate(cases):
        subject, imitated, truth = case.subject, [], []
        labels = subject.to_train.labels.cpu().numpy()
        for number in range(case.mimics):
            rng = subject.rng("imitation", number)
            drawn = rng.dirichlet(np.full(subject.classes, 10 ** rng.uniform(-1, 1)))  # as uneven as clients may be
            rows = subject.to_train.some(histogram.drawn_rows(labels, drawn, len(subject.trained_on), rng))
            imitated.append(features(case, case.reading.imitated(rows, rng)))
            truth.append(histogram.shares_of([np.bincount(rows.labels.cpu(), minlength=subject.classes)]))
        found.append(histogram.calibrated(features(case, case.predictor), imitated, truth))
        for other in _next(cases)[place : place + 1]:
            without.append(histogram.calibrated(features(case, case.instead(other)), imitated, truth))
    knows = f"{cases[0].reading.knows}; {cases[0].mimics} imitated clients"
    return of_histograms(name, cases[0].reading.payload, knows, cases, found, without)


# --- pictures ------------------------------------------------------------------------------------

Made = tuple[Tensor, Tensor, Tensor]
"""What was found, the originals, and the guess of an attacker who has read nothing: inputs (N, ...) each."""


def of_pictures(
    name: str, reads: str, knows: str, cases: Sequence[Case], make: Callable[[Case], Made], of: str
) -> Found:
    """Return how like the originals pictures are, and those of the first client; `of` says what they are of."""
    figures, guesses, shown = list[float](), list[float](), list[Pictures]()
    for case in cases:
        found, originals, guessed = (case.subject.picture(one) for one in make(case))
        figures += map(psnr, found, originals)
        guesses += map(psnr, guessed, originals)
        if not shown and len(found):
            shown.append(Pictures(name, originals[:SHOWN], found[:SHOWN]))
    return Found([Finding(name, reads, knows, f"PSNR, dB, {of}", mean(figures), None, mean(guesses), None)], shown)


def by_means(name: str, cases: Sequence[Case]) -> Found:
    """Invert the mean embedding, or the mean output, of each class."""

    def make(case: Case) -> Made:
        assert isinstance(case.reading, ClassMeans)
        subject = case.subject
        targets, sent = case.reading.by_class(case.upload)
        truth, there = class_means(subject.trained_on.inputs, subject.trained_on.labels, subject.classes)
        guess, known = class_means(subject.known.inputs, subject.known.labels, subject.classes)
        both = sent & there & known
        found = reconstruction.invert_outputs(case.reading.outputs, targets[both], subject.centre)
        return found, truth[both], guess[both]

    reads = cases[0].reading.payload
    return of_pictures(name, reads, "the client's model (worst case)", cases, make, "class mean")


def fits_means(case: Case) -> str:
    """Return why there are no mean embeddings of pictures."""
    if not case.subject.pictures:
        return "inputs are no images"
    return "" if isinstance(case.reading, ClassMeans) else "no means of classes"


def fits_gradient(case: Case) -> str:
    """Return why the change of the weights is not the gradient of a small batch."""
    subject, config, reading = case.subject, case.subject.config, case.reading
    if not subject.pictures:
        return "inputs are no images"
    if not isinstance(reading, Weights) or reading.factors:
        return "no weights"
    if reading.payload == "a small model" or getattr(subject.client, "mask", False):
        return "a step is not of plain cross-entropy"
    if any("BatchNorm" in type(layer).__name__ for layer in reading.model.modules()):
        return "batch norm: what it has computed with in a step is not sent"
    rolling = config.momentum > 0 and config.moments == "kept" and len(subject.kept) > 1
    steps = subject.client.local_steps(len(subject.trained_on))
    if config.optimizer != "sgd" or config.weight_decay or rolling or steps != 1:
        return "a round is not one step of plain SGD (optimizer = sgd, local-batches = 1)"
    if min(config.batch_size, len(subject.trained_on)) > LARGEST_BATCH:
        return f"a step is of more than {LARGEST_BATCH} samples (batch-size)"
    return ""


def by_gradient(name: str, cases: Sequence[Case]) -> Found:
    """Invert the gradient of a round of one step."""

    def make(case: Case) -> Made:
        subject, reading = case.subject, case.reading
        assert isinstance(reading, Weights)
        last, config = subject.last, subject.config
        before, after = reading.model_of(last.download), reading.model_of(last.upload)
        gradient = [(one - other).detach() for one, other in zip(before.parameters(), after.parameters(), strict=True)]
        rng = generator(config.seed, subject.client_id, last.round, "batches")
        rows = next(draw_batches(rng, len(subject.trained_on), config.batch_size, epochs=1, batches=1))
        batch = subject.trained_on.some(rows.numpy())
        labels = batch.labels
        if len(batch) == 1 and before.head.bias is not None:
            labels = torch.tensor([reconstruction.inferred_label(gradient[-1])], device=labels.device)
        forward = forward_of(before.eval(), subject)
        found = reconstruction.invert_gradient(forward, [*before.parameters()], gradient, labels, subject.centre)
        ordered = reconstruction.matched(subject.picture(found), subject.picture(batch.inputs))
        found = torch.from_numpy(ordered).float().to(subject.centre.device) - subject.centre
        return found, batch.inputs, subject.known.inputs.mean(0, keepdim=True).expand_as(batch.inputs)

    first = cases[0].subject
    given = min(first.config.batch_size, len(first.trained_on)) > 1 or first.model.head.bias is None
    knows = "what the client was sent" + ("; the labels of the batch (worst case)" if given else "")
    return of_pictures(name, "the change of weights in one step", knows, cases, make, "private sample")


def _next(values: Sequence[T]) -> list[T]:
    """Return for each client's value that of another client; nothing if there is one client."""
    return [*values[1:], values[0]] if len(values) > 1 else []


ATTACKS = (
    Attack("membership: LiRA, offline (Carlini et al. 2022)", by_likelihood),
    *(Attack(f"labels: {name}{said.author}", said.run, said.fits) for name, said in SAID.items()),
    Attack("labels: imitated clients", by_imitation),
    Attack("pictures: class means (He et al. 2019)", by_means, fits_means),
    Attack("pictures: gradient (Geiping et al. 2020)", by_gradient, fits_gradient),
)
"""All attacks, in the order of the table."""
