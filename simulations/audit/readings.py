"""Readings: how an attacker turns a client's upload into a predictor.

A reading is chosen by the names of the arrays in the upload, not by the algorithm. It turns an upload into logits for
any input, from which membership and class histograms are inferred, and can imitate the upload of a client with other
samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.training import EVALUATION_BATCH, take_statistics
from hetfl_flwr.models import SplitModel
from hetfl_flwr.wire.factors import multiplied
from hetfl_flwr.wire.spec import Arrays
from hetfl_flwr.wire.weights import loaded, weights
from simulations.audit.imitation import (
    as_sent,
    distilled,
    fresh,
    logits_of,
    pooled_upload,
    specs_of,
    trained,
    with_head,
)
from simulations.audit.subject import Predictor, Rows, Subject

T = TypeVar("T")

FAR = -1e4
"""Logit of a class that the payload does not cover."""


class PayloadReading(ABC):
    """A way to read what the client under attack sends; `name` is the array that is read, if it has one main array."""

    payload: str
    """What is read, in words."""
    knows: str
    """What the attacker is assumed to know, in addition to the run config and samples of the same distribution."""
    lends_model: ClassVar[bool] = False
    """Whether reading an upload takes a part of the client's model that is not sent."""

    def __init__(self, subject: Subject, name: str = "") -> None:
        self.subject, self.name = subject, name

    @abstractmethod
    def predictor(self, upload: Arrays) -> Predictor:
        """Return the predictor that an upload amounts to."""

    @abstractmethod
    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Return the arrays that a client with these samples would have learned. Extra arrays are ignored."""

    @cached_property
    def upload(self) -> Arrays:
        """The last upload, or the mean of several if the noise of one is too large."""
        return pooled_upload(self.subject)

    @cached_property
    def own(self) -> Predictor:
        """The predictor of the client's upload."""
        return self.predictor(self.upload)

    def instead(self, other: "PayloadReading") -> Predictor:
        """Return the predictor of another client's upload, read in place of this client's."""
        return self.predictor(other.upload) if self.lends_model else other.own

    def imitated(self, rows: Rows, rng: np.random.Generator) -> Predictor:
        """Return the predictor of the upload that a client with these samples would send."""
        upload, tensors = self.subject.last.upload, self.learnt(rows, rng)
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items() if name in upload}
        own = {name: array.astype(upload[name].dtype) for name, array in arrays.items()}
        return self.predictor(as_sent(self.subject, own, rng))

    def begins(self) -> tuple[Arrays, int]:
        """Return the download that an imitated client starts from, and its rounds; 0: as many as the client.

        This is the first download of the run. If changes are clipped and noised, it is that of the client's last round,
        and the imitation trains for one round.
        """
        one_round = bool(self.subject.config.clipping_norm)
        return (self.subject.last if one_round else self.subject.kept[0]).download, int(one_round)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return an array as a float32 tensor on the device of the attacks."""
        return torch.from_numpy(np.asarray(array, np.float32)).to(self.subject.known.inputs.device)


class Weights(PayloadReading):
    """All weights of a model, either the client's or a small shared one, or their change in low-rank factors.

    `model` is the client's model with these weights, `under` the prefix that turns names of the payload into names of
    the model, and `lacks` whether the payload is without batch norm's statistics.
    """

    def __init__(self, subject: Subject, model: SplitModel, under: str = "", *, lacks: bool = False) -> None:
        super().__init__(subject)
        self.model, self.under, self.lacks = model, under, lacks
        self.factors = any(name.endswith(".left") for name in subject.last.upload)
        self.payload = "its model" if model is subject.model else "a small model"
        self.knows = "the architecture"
        if lacks:
            self.payload += " without batch norm's statistics"
            self.knows += "; statistics for batch norm, from its own samples"

    def predictor(self, upload: Arrays) -> Predictor:
        """Return the predictions of the uploaded model."""
        return self._predicting(self.model_of(upload))

    def model_of(self, upload: Arrays) -> SplitModel:
        """Return the model with the weights of an upload of the last round."""
        sent = self._whole(upload)
        if self.factors:
            origin = self._followed()
            sent = {name: origin[name] + change for name, change in sent.items()}
        return loaded(self.model, sent).eval()

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train the model for as long as the client did."""
        download, rounds = self.begins()
        state = trained(loaded(self.model, self._whole(download)), rows, self.subject, rng, rounds=rounds).state_dict()
        return {name[len(self.under) :]: tensor for name, tensor in state.items() if name.startswith(self.under)}

    def imitated(self, rows: Rows, rng: np.random.Generator) -> Predictor:
        """Train the model; with factors, skip the factorization of its change."""
        if not self.factors:
            return super().imitated(rows, rng)
        start = loaded(self.model, self._whole(self.subject.kept[0].download, "global."))
        return self._predicting(trained(start, rows, self.subject, rng))

    def _predicting(self, model: SplitModel) -> Predictor:
        """Return the predictions of a model.

        If batch norm's statistics are not sent, they are computed on the attacker's samples.
        """
        if self.lacks:
            inputs = self.subject.known.inputs
            batches = inputs.tensor_split(-(-len(inputs) // EVALUATION_BATCH))
            take_statistics(model, batches, self.subject.forward_of(model))
        return self.subject.forward_of(model)

    def _followed(self) -> dict[str, NDArray[Any]]:
        """Return the model that the client started the last round with, from all its downloads."""
        known: dict[str, NDArray[Any]] = {}
        for one in self.subject.kept:
            sent = self._whole(one.download, "global.")
            is_change = int(one.download.get("before", -1)) != -1
            known = {name: known.get(name, 0) + array for name, array in sent.items()} if is_change else sent
        return known

    def _whole(self, arrays: Arrays, prefix: str = "") -> dict[str, NDArray[Any]]:
        if self.factors:
            return multiplied(arrays, weights(self.model), prefix)
        named, wanted = {f"{self.under}{name}": array for name, array in arrays.items()}, self.model.state_dict()
        return {name: array for name, array in named.items() if name in wanted}


class Body(Weights):
    """A body without its head: the attacker fits a head to it."""

    def __init__(self, subject: Subject, model: SplitModel, under: str = "") -> None:
        super().__init__(subject, model, under)
        self.payload = "a body"
        self.knows += "; a head fitted on its own samples, and for imitations the client's (worst case)"

    def _predicting(self, model: SplitModel) -> Predictor:
        return with_head(model, self.subject)


class Head(PayloadReading):
    """A head without its body: in the worst case, the attacker has the client's body."""

    payload, knows = "its head", "the client's body (worst case)"
    lends_model = True

    def predictor(self, upload: Arrays) -> Predictor:
        """Return the predictions of the head on the client's body."""
        weight, bias = self.tensor(upload["weight"]), upload.get("bias")
        offset = None if bias is None else self.tensor(bias)
        return lambda inputs: functional.linear(self.subject.model.body(inputs), weight, offset)

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train a head on other samples, with the client's body frozen.

        If the server does not send heads, training starts from zeros and lasts as long as the client's: such a head has
        no change that is clipped.
        """
        subject, model = self.subject, deepcopy(self.subject.model)
        shared, (download, rounds) = specs_of(subject, subject.last)[1].names, self.begins()
        model.body.requires_grad_(False)
        with torch.no_grad():
            for name, parameter in model.head.named_parameters():
                parameter.copy_(self.tensor(download[name] if name in shared else np.zeros(parameter.shape)))
        return trained(model, rows, subject, rng, rounds=rounds * bool(shared)).head.state_dict()


class ClassMeans(PayloadReading):
    """The mean embedding or output of each class: in the worst case, the attacker has the client's model.

    The array holds embeddings (``prototypes``), logits (``logits``), or logits or softmax scores (``averages``).
    """

    lends_model = True

    def __init__(self, subject: Subject, name: str) -> None:
        super().__init__(subject, name)
        self.payload = "prototypes" if name == "prototypes" else "class outputs"
        self.knows = f"the client's {'body' if name == 'prototypes' else 'model'} (worst case)"

    def predictor(self, upload: Arrays) -> Predictor:
        """Score each class by how close the model's output is to its mean; `FAR` if it was not sent."""
        means, has = self.by_class(upload)
        far = torch.tensor(FAR, device=means.device)

        def nearness(inputs: Tensor) -> Tensor:
            values = self.outputs(inputs)
            return torch.where(has, -torch.cdist(values, means).square() / values.shape[1], far)

        return nearness

    def by_class(self, upload: Arrays) -> tuple[Tensor, Tensor]:
        """Return the means in an upload (C, D), and which classes have one (C,)."""
        values, classes = upload[self.name], self.subject.classes
        behind = upload.get("counts", upload.get("present"))
        there = np.ones(len(values), bool) if behind is None else behind > 0
        rows = upload.get("classes", np.arange(classes))[there]
        means = torch.zeros(classes, values.shape[1], device=self.subject.known.inputs.device)
        has = torch.zeros(classes, dtype=torch.bool, device=means.device)
        means[rows], has[rows] = self.tensor(values[there]), True
        return means, has

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Return the class means of other samples, with their counts and presence flags."""
        subject, last = self.subject, self.subject.last.upload
        means, has = class_means(self.outputs(rows.inputs), rows.labels, subject.classes)
        all_sent = "classes" not in last or bool(subject.config.clipping_norm)
        sent = torch.arange(subject.classes, device=has.device) if all_sent else has.nonzero()[:, 0]
        counts = torch.bincount(rows.labels, minlength=subject.classes)[sent]
        return {self.name: means[sent], "classes": sent, "counts": counts, "present": counts > 0}

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the model outputs that are averaged: embeddings, logits or softmax scores."""
        if self.name == "prototypes":
            features: Tensor = self.subject.model.body(inputs)
            return features
        logits: Tensor = self.subject.model(inputs)
        sums = self.subject.last.upload[self.name].sum(1)
        scores = self.name == "averages" and bool(((np.abs(sums - 1) < 1e-2) | (sums == 0)).all())
        return logits.softmax(1) if scores else logits


class Answers(PayloadReading):
    """Predictions or embeddings of public samples: the attacker distills them into a model.

    Embeddings train only the body; the attacker then fits a head.
    """

    payload, knows = "answers on public samples", "the architecture; the public samples"

    def __init__(self, subject: Subject, name: str) -> None:
        super().__init__(subject, name)
        if name == "representations":
            self.payload = "representations of public samples"
            self.knows += "; a head fitted on its own samples"

    def predictor(self, upload: Arrays) -> Predictor:
        """Return the predictions of a model that was distilled from an upload."""
        targets, public = self.tensor(upload[self.name]), self._public_rows()
        student = fresh(self.subject, self.subject.rng("student"))
        if self.name == "representations":
            distilled(student, lambda: functional.mse_loss(student.body(public.inputs), targets))
            return with_head(student, self.subject)
        scores = targets.softmax(1) if self.name == "logits" else targets

        def divergence() -> Tensor:
            return functional.kl_div(student(public.inputs).log_softmax(1), scores, reduction="batchmean")

        return distilled(student, divergence)

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train a model on other samples, and return its outputs on the public samples."""
        teacher, public = trained(fresh(self.subject, rng), rows, self.subject, rng), self._public_rows()
        if self.name == "representations":
            return {self.name: teacher.body(public.inputs)}
        logits = logits_of(teacher, public)
        return {self.name: logits if self.name == "logits" else logits.softmax(1)}

    def _public_rows(self) -> Rows:
        """Return the public samples that the last upload is about, in its order."""
        subject, last = self.subject, self.subject.last
        if subject.public_start is None:
            raise ConfigError(
                f"what {subject.config.algorithm} uploads is about the public samples of all clients: name all nodes"
            )
        if "indices" in last.upload:
            return subject.public.some(last.upload["indices"].astype(np.int64) + subject.public_start)
        return subject.public.some(last.download["asked"].astype(np.int64))


_FORMS: tuple[tuple[set[str], type[ClassMeans | Answers | Head], str], ...] = (
    ({"classes", "prototypes"}, ClassMeans, "prototypes"),
    ({"logits", "counts"}, ClassMeans, "logits"),
    ({"classes", "averages"}, ClassMeans, "averages"),
    ({"representations"}, Answers, "representations"),
    ({"indices", "posteriors"}, Answers, "posteriors"),
    ({"logits"}, Answers, "logits"),
    ({"softmax"}, Answers, "softmax"),
    ({"weight"}, Head, "weight"),
)
"""Arrays that identify a payload, how it is read, and its main array. One more array may be present."""


def readings_of(subjects: Sequence[Subject]) -> list[PayloadReading]:
    """Return the readings of all clients whose uploads can be read.

    Raises a `ConfigError` that names the algorithm and its arrays if there is none.
    """
    found = [reading for one in subjects if (reading := reading_of(one))]
    if not found:
        names = ", ".join(list(subjects[0].last.upload)[:5]) or "nothing"
        algorithm = subjects[0].config.algorithm
        raise ConfigError(f"no attack reads what {algorithm} uploads ({names}): hetfl audit cannot measure it")
    return found


def reading_of(subject: Subject) -> PayloadReading | None:
    """Return the reading that fits a client's uploads, or None."""
    names = set(subject.last.upload)
    for marks, kind, name in _FORMS:
        if marks <= names and len(names) <= len(marks) + 1:
            return kind(subject, name)
    small = [value for value in vars(subject.client).values() if isinstance(value, SplitModel)]
    models = [*(model.to(subject.known.inputs.device) for model in small), subject.model]
    bare = {name.removesuffix(".left").removesuffix(".right") for name in names} - {"classes"}
    for model in models:
        if bare in (set(weights(model).names), set(model.state_dict())):
            return Weights(subject, model)
        if bare == {name for name, _ in model.named_parameters()}:
            return Weights(subject, model, lacks=True)
    for model in models:
        body = set(weights(model.body).names)
        if body in (names, {name.removeprefix("body.") for name in names}):
            return Body(subject, model, "body." if body & names else "")
    return None


def compared(
    readings: Sequence[PayloadReading], scorer: Callable[[PayloadReading], Callable[[Predictor], T]]
) -> tuple[list[T], list[T]]:
    """Score each client's upload, and another client's upload in its place.

    The second list is empty if there is only one client.
    """
    found, without = list[T](), list[T]()
    for reading, other in zip(readings, [*readings[1:], readings[0]], strict=True):
        score = scorer(reading)
        found.append(score(reading.own))
        without += [score(reading.instead(other))] if other is not reading else []
    return found, without


def class_means(values: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of values (N, ...) for each class (C, ...), and which classes have samples (C,)."""
    counts, values = torch.bincount(labels, minlength=classes), values.detach()
    sums = torch.zeros(classes, *values.shape[1:], device=values.device, dtype=values.dtype)
    sums.index_add_(0, labels, values)
    return sums / counts.clamp(min=1).reshape(-1, *[1] * (values.dim() - 1)), counts > 0
