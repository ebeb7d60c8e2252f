"""Imitated clients: how they train, and how their uploads are clipped and noised."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import sqrt
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.learning.training import descend, draw_batches, make_optimizer
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.uploads import KeptUpload
from hetfl_flwr.wire.privacy import private_upload
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from simulations.audit.measures import NotFittedError
from simulations.audit.subject import Predictor, Rows, Subject

M = TypeVar("M", bound=nn.Module)

DISTILLING = 300
"""Steps of distilling a client's predictions on public samples into the attacker's model."""

MAX_STEPS = 2_000
"""Maximum number of local steps that an attacker imitates."""


def trained(
    model: SplitModel, rows: Rows, subject: Subject, rng: np.random.Generator, *, rounds: int = 0
) -> SplitModel:
    """Train a model as the run config says, for some rounds; 0: as many as the client had by its last upload.

    The weights of the model are as in payloads.
    """
    config = subject.config
    steps = min(subject.client.local_steps(len(rows)) * (rounds or len(subject.kept)), MAX_STEPS)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, forward = make_optimizer(config, parameters), subject.forward_of(model)
    model.train()
    for batch in draw_batches(rng, len(rows), config.batch_size, epochs=1, batches=steps):
        descend(optimizer, functional.cross_entropy(forward(rows.inputs[batch]), rows.labels[batch]))
    return model.eval()


def distilled(model: M, loss: Callable[[], Tensor], *, steps: int = 0, rate: float = 2e-3) -> M:
    """Train a model in place by Adam on a loss over all samples, and return it; 0 steps: `DISTILLING`."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps or DISTILLING):
        descend(optimizer, loss())
    return model.eval()


@torch.no_grad()
def logits_of(predictor: Predictor, rows: Rows) -> Tensor:
    """Return the predicted logits (N, C); raises `NotFittedError` if they are not finite."""
    logits = predictor(rows.inputs)
    if not logits.isfinite().all():
        raise NotFittedError("its predictions are not finite")
    return logits


def with_head(model: SplitModel, subject: Subject) -> Predictor:
    """Return the predictions of a body with a linear head of the attacker.

    The head is fitted by Adam on standardized embeddings of the attacker's samples, with all classes weighted equally.
    """
    features, labels = model.body(subject.to_train.inputs).detach(), subject.to_train.labels
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-3)
    head = nn.Linear(features.shape[1], subject.classes).to(features.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    scaled, counts = (features - mean) / deviation, torch.bincount(labels, minlength=subject.classes)
    weight = len(labels) / (counts.clamp(min=1) * (counts > 0).sum())
    distilled(head, lambda: functional.cross_entropy(head(scaled), labels, weight), steps=100, rate=0.05)
    return lambda inputs: head((model.body(inputs) - mean) / deviation)


def fresh(subject: Subject, rng: np.random.Generator) -> SplitModel:
    """Return a model of the client's architecture with newly initialized weights."""
    model = deepcopy(subject.model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**62)))
        for layer in model.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


# --- sending -------------------------------------------------------------------------------------


def as_sent(subject: Subject, learnt: Arrays, rng: np.random.Generator) -> Arrays:
    """Return the upload of an imitated client, clipped and noised by the run config.

    Arrays that are not in `learnt` are those of the client's last upload. The noise is that of the mean of the uploads
    that are read together; see `pooled_upload`.
    """
    last, upload = subject.last, {**subject.last.upload, **learnt}
    noise = subject.config.noise_multiplier / sqrt(len(read_together(subject)))
    config = subject.config.with_values({"noise-source": "seed", "noise-multiplier": noise})
    spec, sent_spec = specs_of(subject, replace(last, upload=upload))
    return private_upload(upload, spec, last.download, sent_spec, config, "audit", int(rng.integers(2**62)))


def read_together(subject: Subject) -> list[KeptUpload]:
    """Return the uploads of a client that are read together, the last one included.

    This is only the last one, unless its noise outweighs its content: the standard deviation times the root of the
    number of values exceeds the clipping norm. Then it is all uploads of the same form about the same samples.
    """
    last, covered = subject.last, _covered(subject, subject.last)
    length = subject.config.noise_multiplier * sqrt(sum(array.size for array in covered.values()))
    if length <= 1 or any(name.endswith((".left", ".right")) for name in covered):  # a mean of factors has no meaning
        return [last]
    shapes = {name: np.shape(array) for name, array in last.upload.items()}

    def alike(one: KeptUpload) -> bool:
        same = {name: np.shape(array) for name, array in one.upload.items()} == shapes
        asked = np.array_equal(one.download.get("asked", 0), last.download.get("asked", 0))
        rest = last.upload.keys() - covered.keys()
        return same and asked and all(np.array_equal(one.upload[name], last.upload[name]) for name in rest)

    return [one for one in subject.kept if alike(one)]


def pooled_upload(subject: Subject) -> Arrays:
    """Return the mean of the uploads that are read together, which reduces the noise by the root of their number.

    For weights, it is the mean of the changes. A presence flag is 1 if most are.
    """
    last, together = subject.last, read_together(subject)
    if len(together) == 1:
        return last.upload
    spec, sent = specs_of(subject, last)
    changes = [_covered(subject, one) for one in together]
    found = dict(last.upload)
    for one in spec.arrays:
        if one.name in changes[-1]:
            whole = np.mean([change[one.name] for change in changes], axis=0)
            whole = whole + last.download[one.name] if one in sent.arrays else whole
            found[one.name] = (whole > 0.5 if one.sensitive else whole).astype(one.dtype)
    return found


def specs_of(subject: Subject, kept: KeptUpload) -> tuple[PayloadSpec, PayloadSpec]:
    """Return the declaration of an upload with its actual sizes, and that of the arrays sent as changes."""
    up, down = subject.client.upload_spec().arrays, subject.client.download_spec().arrays
    own = tuple(replace(one, shape=np.shape(kept.upload[one.name])) for one in up)
    changes = {one.name for one in up if one in down and one.name in kept.download}
    return PayloadSpec(own), PayloadSpec(tuple(one for one in own if one.name in changes))


def _covered(subject: Subject, kept: KeptUpload) -> dict[str, NDArray[np.float64]]:
    """Return the arrays that are clipped and noised: presence flags as 1 or 0, and changes relative to the download."""
    spec, sent = specs_of(subject, kept)
    found = {}
    for one in spec.arrays:
        if one.sensitive or np.dtype(one.dtype).kind == "f":
            array = kept.upload[one.name]
            found[one.name] = (array > 0 if one.sensitive else array).astype(np.float64)
            if one in sent.arrays:
                found[one.name] -= kept.download[one.name]
    return found
