"""Attacks that make pictures: which payloads they fit, and how near to the truth they come."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.training import draw_batches
from simulations.studies.audit import reconstruction
from simulations.studies.audit.findings import Finding, Pictures, mean
from simulations.studies.audit.measures import psnr, ssim
from simulations.studies.audit.meter import Case, Found, class_means
from simulations.studies.audit.readings import (
    Body,
    ClassOutputs,
    Head,
    Prototypes,
    Representations,
    Weights,
    by_class,
    public_rows,
)
from simulations.studies.audit.subject import Subject
from simulations.studies.audit.training import embedded, forward_of

Values = NDArray[np.float64]

LARGEST_BATCH = 8
"""Samples of a step from whose gradient pictures are made, at most."""

SHOWN = 10
"""Pictures of a client, at most."""


def of_pictures(
    name: str,
    reads: str,
    knows: str,
    cases: Sequence[Case],
    make: Callable[[Case], tuple[Tensor, Tensor, Tensor]],
    of: str,
) -> Found:
    """Return how like the originals pictures are, and those of the first client.

    Parameters
    ----------
    name, reads, knows : str
        As in `Finding`.
    cases : sequence of Case
        The clients.
    make : callable
        Returns what was found, the originals, and what an attacker would guess that has read nothing: inputs (N, ...).
    of : str
        What the pictures are of.
    """
    figures: list[list[float]] = [[], [], [], []]
    shown = list[Pictures]()
    for case in cases:
        found, originals, guessed = (case.subject.picture(one) for one in make(case))
        for column, (measure, pictures) in enumerate(((psnr, found), (psnr, guessed), (ssim, found), (ssim, guessed))):
            figures[column] += [measure(one, its) for one, its in zip(pictures, originals, strict=True)]
        if not shown and len(found):
            shown.append(Pictures(name, originals[:SHOWN], found[:SHOWN]))
    means = [mean(column) for column in figures]
    return Found(
        [
            Finding(name, reads, knows, f"PSNR, dB, {of}", means[0], None, means[1], None),
            Finding(name, reads, knows, f"SSIM, {of}", means[2], None, means[3], 1.0),
        ],
        shown,
    )


def fits_means(case: Case) -> str:
    """Say why there are no means of classes to invert."""
    return _no_pictures(case) or ("" if isinstance(case.reading, Prototypes | ClassOutputs) else "no means of classes")


def by_means(name: str, cases: Sequence[Case]) -> Found:
    """Invert the mean embedding, or the mean output, of each class."""

    def make(case: Case) -> tuple[Tensor, Tensor, Tensor]:
        subject, reading = case.subject, case.reading
        if isinstance(reading, ClassOutputs):
            outputs, width = reading.outputs, subject.classes
        else:
            outputs, width = (lambda inputs: embedded(subject.model, inputs)), subject.model.width
        targets, sent = by_class(case.upload, subject, width)
        truth, guess, there = _means_of(subject)
        both = sent.cpu().numpy() & there
        found = reconstruction.invert_outputs(outputs, targets[torch.from_numpy(both)], subject.centre)
        return found, truth[both], guess[both]

    reading = cases[0].reading
    return of_pictures(name, reading.payload, "the client's model (worst case)", cases, make, "class mean")


def fits_classes(case: Case) -> str:
    """Say why a payload has no predictor that could be asked for its classes."""
    return _no_pictures(case) or ("" if isinstance(case.reading, Weights | Body | Head) else "no weights")


def by_classes(name: str, cases: Sequence[Case]) -> Found:
    """Make the picture of each class that what was uploaded is surest of."""

    def make(case: Case) -> tuple[Tensor, Tensor, Tensor]:
        subject = case.subject
        truth, guess, there = _means_of(subject)
        found = reconstruction.class_pictures(case.predictor, subject.classes, subject.centre)
        return found[there], truth[there], guess[there]

    reading = cases[0].reading
    return of_pictures(name, reading.payload, reading.knows, cases, make, "class mean")


def fits_representations(case: Case) -> str:
    """Say why there are no representations to invert."""
    return _no_pictures(case) or ("" if isinstance(case.reading, Representations) else "no representations")


def by_representations(name: str, cases: Sequence[Case]) -> Found:
    """Invert the representations of public samples, of which the server has the originals."""

    def make(case: Case) -> tuple[Tensor, Tensor, Tensor]:
        subject = case.subject
        chosen = subject.rng("inverted").permutation(len(public_rows(subject)))[:SHOWN]
        targets = torch.from_numpy(case.upload["representations"][chosen]).float().to(subject.centre.device)
        found = reconstruction.invert_outputs(lambda inputs: embedded(subject.model, inputs), targets, subject.centre)
        originals = public_rows(subject).some(chosen).inputs
        return found, originals, subject.known.inputs.mean(0, keepdim=True).expand_as(originals)

    knows = "the client's body (worst case)"
    return of_pictures(name, cases[0].reading.payload, knows, cases, make, "public sample")


def fits_gradient(case: Case) -> str:
    """Say why the change of the weights is not the gradient of a small batch."""
    subject, config = case.subject, case.subject.config
    if why := _no_pictures(case):
        return why
    if not isinstance(case.reading, Weights) or case.reading.factors:
        return "no weights"
    if case.reading.payload == "a small model" or getattr(subject.client, "mask", False):
        return "a step is not of plain cross-entropy"
    if any("BatchNorm" in type(layer).__name__ for layer in case.reading.model.modules()):
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

    def make(case: Case) -> tuple[Tensor, Tensor, Tensor]:
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
    told = min(first.config.batch_size, len(first.trained_on)) > 1 or first.model.head.bias is None
    knows = "what the client was sent" + ("; the labels of the batch (worst case)" if told else "")
    return of_pictures(name, "the change of weights in one step", knows, cases, make, "private sample")


def _no_pictures(case: Case) -> str:
    return "" if case.subject.pictures else "inputs are no images"


def _means_of(subject: Subject) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
    """Return the client's mean input of each class, the attacker's own, and of which classes both have samples."""
    truth, there = class_means(subject.trained_on, subject.classes)
    guess, known = class_means(subject.known, subject.classes)
    return truth, guess, there & known
