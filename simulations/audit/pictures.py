"""Reconstruction of inputs by optimization, from embeddings, outputs and gradients."""

from collections.abc import Callable, Sequence
from math import inf, isfinite, log10

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator
from simulations.audit.measures import AttackResult, NotFittedError, Scores
from simulations.audit.readings import Body, ClassMeans, PayloadReading, Weights, class_means
from simulations.audit.subject import Predictor, Rows
from simulations.reports.runs import mean_of

STEPS, RATE = 400, 0.05
"""Steps of Adam on pixels in [0, 1], and its learning rate."""

STARTS, LONG = 4, 1000
"""Random starts of gradient inversion, of which the best is kept, and its steps."""

SMOOTH_OUTPUTS, SMOOTH_GRADIENT = 1e-2, 1e-3
"""Weights of the total variation in the inversion of outputs, and of gradients."""

LARGEST_BATCH, SHOWN = 8, 10
"""Largest batch whose gradient is inverted, and maximum number of pictures of a client."""

Made = tuple[Tensor, Tensor, Tensor]
"""Reconstructions, originals, and the guess of an attacker who reads nothing: inputs (N, ...) each."""


def by_means(readings: Sequence[PayloadReading]) -> AttackResult:
    """Invert the mean embedding or output of each class."""

    def make(reading: PayloadReading) -> Made:
        assert isinstance(reading, ClassMeans)
        subject = reading.subject
        targets, sent = reading.by_class(reading.upload)
        truth, there = class_means(subject.trained_on.inputs, subject.trained_on.labels, subject.classes)
        guess, known = class_means(subject.known.inputs, subject.known.labels, subject.classes)
        both = sent & there & known
        return invert_outputs(reading.outputs, targets[both], subject.centre), truth[both], guess[both]

    knows = "the client's model (worst case)"
    return _of_pictures(readings[0].payload, knows, readings, make, "class mean")


def fits_means(reading: PayloadReading) -> str:
    """Return why there are no class means of images to invert, or an empty text."""
    if not reading.subject.centre.numel():
        return "inputs are not images"
    return "" if isinstance(reading, ClassMeans) else "no class means"


def by_gradient(readings: Sequence[PayloadReading]) -> AttackResult:
    """Invert the gradient of a round with one step."""

    def make(reading: PayloadReading) -> Made:
        assert isinstance(reading, Weights)
        subject, last, config = reading.subject, reading.subject.last, reading.subject.config
        before, after = reading.model_of(last.download), reading.model_of(last.upload)
        gradient = [(one - other).detach() for one, other in zip(before.parameters(), after.parameters(), strict=True)]
        rng = generator(config.seed, subject.client_id, last.round, "batches")
        rows = next(draw_batches(rng, len(subject.samples), config.batch_size, epochs=1, batches=1))
        batch = Rows(*subject.samples.batch(rows))
        labels = batch.labels
        if len(batch) == 1 and before.head.bias is not None:
            labels = torch.tensor([inferred_label(gradient[-1])], device=labels.device)
        outputs, parameters = subject.forward_of(before), [*before.parameters()]
        found = subject.picture(invert_gradient(outputs, parameters, gradient, labels, subject.centre))
        ordered = torch.from_numpy(matched(found, subject.picture(batch.inputs))).float().to(labels.device)
        return (
            ordered - subject.centre,
            batch.inputs,
            subject.known.inputs.mean(0, keepdim=True).expand_as(batch.inputs),
        )

    first = readings[0].subject
    given = min(first.config.batch_size, len(first.samples)) > 1 or first.model.head.bias is None
    knows = "what the client was sent" + ("; the labels of the batch (worst case)" if given else "")
    return _of_pictures("the change of weights in one step", knows, readings, make, "private sample")


def fits_gradient(reading: PayloadReading) -> str:
    """Return why the change of the weights is not the gradient of a small batch, or an empty text."""
    subject, config = reading.subject, reading.subject.config
    if not subject.centre.numel():
        return "inputs are not images"
    if not isinstance(reading, Weights) or isinstance(reading, Body) or reading.factors:
        return "no weights"
    if reading.payload == "a small model" or getattr(subject.client, "mask", False):
        return "the loss of a step is not plain cross-entropy"
    if any("BatchNorm" in type(layer).__name__ for layer in reading.model.modules()):
        return "batch norm: its statistics in a step are not sent"
    rolling = config.momentum > 0 and config.moments == "kept" and len(subject.kept) > 1
    steps = subject.client.local_steps(len(subject.samples))
    if config.optimizer != "sgd" or config.weight_decay or rolling or steps != 1:
        return "a round is not one step of plain SGD (optimizer = sgd, local-batches = 1)"
    if config.augment != "none":
        return "a step is on augmented images (augment)"
    if min(config.batch_size, len(subject.samples)) > LARGEST_BATCH:
        return f"a step is of more than {LARGEST_BATCH} samples (batch-size)"
    return ""


def _of_pictures(
    reads: str, knows: str, readings: Sequence[PayloadReading], make: Callable[[PayloadReading], Made], of: str
) -> AttackResult:
    """Measure how similar pictures of something (`of`) are to the originals; show the first client's."""
    figures, guesses, shown = list[float](), list[float](), None
    for reading in readings:
        found, originals, guessed = (reading.subject.picture(one) for one in make(reading))
        figures += map(psnr, found, originals)
        guesses += map(psnr, guessed, originals)
        if shown is None and len(found):
            shown = originals[:SHOWN], found[:SHOWN]
    return AttackResult(reads, knows, [(f"PSNR, dB, {of}", mean_of(figures), None, mean_of(guesses), None)], shown)


def psnr(picture: Scores, original: Scores) -> float:
    """Return the peak signal-to-noise ratio, in dB, of a picture with values in [0, 1]; infinite if equal.

    Examples
    --------
    >>> round(psnr(np.full((4, 4), 0.6), np.full((4, 4), 0.5)), 6)
    20.0
    """
    error = float(np.square(picture - original).mean())
    return inf if error == 0 else -10 * log10(error)


def invert_outputs(outputs: Predictor, targets: Tensor, centre: Tensor) -> Tensor:
    """Return inputs (N, *shape) whose outputs, such as embeddings or logits, are closest to targets (N, D).

    He, Zhang and Lee, "Model Inversion Attacks Against Collaborative Inference", ACSAC 2019, Eq. (3)-(5): white-box
    regularized maximum likelihood estimation. If the target is the mean embedding or logits of a class, the result is a
    picture of the class. See `descended` for `centre`.
    """
    scale = targets.square().mean().clamp(min=1e-12)

    def loss(inputs: Tensor) -> Tensor:
        return functional.mse_loss(outputs(inputs), targets) / scale

    grey = torch.full((len(targets), *centre.shape), 0.5)
    return descended(loss, [grey], centre, smooth=SMOOTH_OUTPUTS, signed=False, steps=STEPS)


def invert_gradient(
    outputs: Predictor,
    parameters: Sequence[Tensor],
    gradient: Sequence[Tensor],
    labels: Tensor,
    centre: Tensor,
) -> Tensor:
    """Return the batch (B, *shape) whose gradient points in the same direction as a known one.

    Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
    learning?", NeurIPS 2020, Eq. (4): cosine distance and total variation, Adam on signed gradients, the best of
    several random starts.

    `outputs` maps inputs to the logits of the model before the step, computed with `parameters`. `gradient` may have
    any positive factor. The labels (B,) are known. See `descended` for `centre`.
    """
    wanted = torch.cat([one.flatten() for one in gradient])

    def loss(inputs: Tensor) -> Tensor:
        value = functional.cross_entropy(outputs(inputs), labels)
        found = torch.cat([one.flatten() for one in torch.autograd.grad(value, parameters, create_graph=True)])
        return 1 - functional.cosine_similarity(found, wanted, dim=0)

    random = torch.Generator().manual_seed(0)
    starts = [torch.rand((len(labels), *centre.shape), generator=random) for _ in range(STARTS)]
    return descended(loss, starts, centre, smooth=SMOOTH_GRADIENT, signed=True, steps=LONG)


def descended(
    loss: Callable[[Tensor], Tensor],
    starts: Sequence[Tensor],
    centre: Tensor,
    *,
    smooth: float,
    signed: bool,
    steps: int,
) -> Tensor:
    """Minimize a loss of inputs (N, channels, H, W) by Adam, with pixels in [0, 1]; return the best result.

    Pixels minus `centre` (channels, H, W) are inputs, which `loss` maps to a scalar. `starts` are pixels; the result
    with the least loss is kept. `smooth` weights the anisotropic total variation. If `signed`, Adam gets the sign of
    the gradient, as in Geiping et al. Raises `NotFittedError` if no start leads to a finite loss.
    """
    ends = list[tuple[float, Tensor]]()
    for start in starts:
        pixels, value = start.to(centre.device).requires_grad_(True), torch.zeros(())
        optimizer = torch.optim.Adam([pixels], lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            reached = loss(pixels - centre)
            across = (pixels[..., 1:] - pixels[..., :-1]).abs().mean()
            down = (pixels[..., 1:, :] - pixels[..., :-1, :]).abs().mean()
            value = reached + smooth * (across + down)
            pixels.grad = torch.autograd.grad(value, pixels)[0]
            if signed:
                pixels.grad.sign_()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                pixels.clamp_(0, 1)
        if isfinite(value.item()) and pixels.isfinite().all():
            ends.append((value.item(), (pixels - centre).detach()))
    if not ends:
        raise NotFittedError("the loss of its pictures is not finite")
    return min(ends, key=lambda end: end[0])[1]


def inferred_label(bias_gradient: Tensor) -> int:
    """Return the label of a batch of one: the only class whose bias has a negative gradient.

    Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.

    Examples
    --------
    >>> inferred_label(torch.tensor([0.2, -0.9, 0.7]))
    1
    """
    return int(bias_gradient.argmin())


def matched(found: NDArray[np.float64], originals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return pictures (B, ...) reordered to match the closest originals, one to one."""
    flat_found, flat = found.reshape(len(found), -1), originals.reshape(len(originals), -1)
    costs = np.square(flat[:, None] - flat_found[None]).mean(-1)
    return np.asarray(found[linear_sum_assignment(costs)[1]])
