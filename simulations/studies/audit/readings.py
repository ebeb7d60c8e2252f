"""What a payload is to an attacker: something that predicts, and that the attacker can imitate on samples of its own.

Which reading fits is told from the names of the arrays that a client has declared, whatever the algorithm is called. A
reading turns an upload into logits for any input, from which membership and class histograms are read, and says what
the attacker must know for that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

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
from simulations.studies.audit.sent import as_sent, sent_as_changes
from simulations.studies.audit.subject import UNKNOWN, Rows, Subject
from simulations.studies.audit.training import (
    Predictor,
    distilled,
    embedded,
    fitted_head,
    forward_of,
    fresh,
    logits_of,
    predicting,
    trained,
)

FAR = -1e4
"""The logit of a class that a payload says nothing of."""


class Reading(ABC):
    """A way to read a payload.

    Attributes
    ----------
    payload : str
        What is read, in words.
    knows : str
        What the attacker is assumed to know beside the run config and samples of the same distribution.
    """

    subject: Subject
    payload: str
    knows: str

    @abstractmethod
    def predictor(self, upload: Arrays) -> Predictor:
        """Return what an upload predicts."""

    @abstractmethod
    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Return the arrays that a client with these samples would have learnt, as tensors."""

    def imitated(self, rows: Rows, rng: np.random.Generator) -> Predictor:
        """Return what the upload of a client with these samples would predict."""
        upload, kinds = self.subject.last.upload, self.learnt(rows, rng)
        own = {name: tensor.detach().cpu().numpy() for name, tensor in kinds.items()}
        changed = {name: array.astype(upload[name].dtype) for name, array in own.items() if name in upload}
        return self.predictor(as_sent(self.subject, changed, rng))

    def begins(self) -> tuple[Arrays, int]:
        """Return what an imitated client is sent first, and its rounds; 0: as many as the client has had.

        That with which the run began; where changes are clipped and get noise, the client's last round.
        """
        one_round = bool(self.subject.config.clipping_norm)
        return (self.subject.last if one_round else self.subject.kept[0]).download, int(one_round)


def reading_of(subject: Subject) -> Reading | None:
    """Return the reading that fits what a client sends; None where there is none."""
    names = set(subject.last.upload)
    for marks, kind in _MARKS:
        if marks <= names and (len(names) <= len(marks) + 1):
            return kind(subject)
    return Weights.of(subject) or Body.of(subject)


@dataclass
class Weights(Reading):
    """All weights of a model, its own one or a small one, or the change of them in factors.

    Parameters
    ----------
    lacks : bool
        Whether batch norm's statistics do not come with them.
    """

    subject: Subject
    model: SplitModel
    factors: bool = False
    payload: str = "a model"
    knows: str = "the architecture"
    lacks: bool = False

    @classmethod
    def of(cls, subject: Subject) -> "Weights | None":
        """Return the reading where an upload has the names of all weights of a model that the client works with."""
        names = {name.removesuffix(".left").removesuffix(".right") for name in subject.last.upload} - {"classes"}
        for model in _models(subject):
            own = "its model" if model is subject.model else "a small model"
            if names in (set(weights(model).names), set(model.state_dict())):
                factors = any(name.endswith(".left") for name in subject.last.upload)
                return cls(subject, model, factors, own)
            if names == {name for name, _ in model.named_parameters()}:
                knows = f"{cls.knows}; its own statistics for batch norm, of its own samples"
                return cls(subject, model, False, f"{own} without batch norm's statistics", knows, lacks=True)
        return None

    def start(self) -> SplitModel:
        """Return the model as the client was first sent it."""
        return loaded(self.model, self._whole(self.subject.kept[0].download, "global."))

    def predictor(self, upload: Arrays) -> Predictor:
        """Return what the model predicts."""
        return self._predicting(self.model_of(upload))

    def model_of(self, upload: Arrays) -> SplitModel:
        """Return the model that an upload, of the last round, has brought."""
        sent = self._whole(upload)
        if self.factors:
            origin = self._followed()
            sent = {name: origin[name] + change for name, change in sent.items()}
        return loaded(self.model, sent)

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train the model as long as the client has."""
        download, rounds = self.begins()
        return trained(loaded(self.model, self._whole(download)), rows, self.subject, rng, rounds=rounds).state_dict()

    def imitated(self, rows: Rows, rng: np.random.Generator) -> Predictor:
        """Do not imitate how a change becomes factors."""
        if self.factors:
            return self._predicting(trained(self.start(), rows, self.subject, rng))
        return super().imitated(rows, rng)

    def _predicting(self, model: SplitModel) -> Predictor:
        """Return what a model predicts, with batch norm's statistics of the attacker's samples where none were sent."""
        if self.lacks:
            inputs = self.subject.known.inputs
            batches = inputs.tensor_split(-(-len(inputs) // EVALUATION_BATCH))
            take_statistics(model, batches, forward_of(model, self.subject))
        return predicting(model, forward_of(model, self.subject))

    def _followed(self) -> dict[str, NDArray[Any]]:
        """Return the model that the client has begun the last round with, from what it was sent so far."""
        known: dict[str, NDArray[Any]] = {}
        for one in self.subject.kept:
            sent = self._whole(one.download, "global.")
            is_change = int(one.download.get("before", -1)) != -1
            known = {name: known.get(name, 0) + array for name, array in sent.items()} if is_change else sent
        return known

    def _whole(self, arrays: Arrays, prefix: str = "") -> dict[str, NDArray[Any]]:
        if self.factors:
            return multiplied(arrays, weights(self.model), prefix)
        wanted = set(self.model.state_dict())
        return {name: np.asarray(array) for name, array in arrays.items() if name in wanted}


@dataclass
class Body(Reading):
    """A body without its head: the attacker puts a head of its own on it."""

    subject: Subject
    prefix: str = ""
    payload: str = "a body"
    knows: str = "the architecture; its own head, fitted on its own samples"

    @classmethod
    def of(cls, subject: Subject) -> "Body | None":
        """Return the reading where an upload has the names of all weights of the body."""
        names = set(subject.last.upload)
        bodies = [(model, set(weights(model.body).names)) for model in _models(subject)]
        found = [model for model, own in bodies if own in (names, {name.removeprefix("body.") for name in names})]
        return cls(subject, "body." * (not names & set(weights(found[0].body).names))) if found else None

    def predictor(self, upload: Arrays) -> Predictor:
        """Return what the body predicts with a head of the attacker's."""
        return _with_head(loaded(self._model, self._named(upload)), self.subject)

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train a whole model from the body that the client was sent."""
        download, rounds = self.begins()
        model = trained(loaded(self._model, self._named(download)), rows, self.subject, rng, rounds=rounds)
        return (model if self.prefix else model.body).state_dict()

    @property
    def _model(self) -> SplitModel:
        wanted = {name.removeprefix(self.prefix) for name in self.subject.last.upload}
        return next(one for one in _models(self.subject) if set(weights(one.body).names) == wanted)

    def _named(self, arrays: Arrays) -> Arrays:
        return {f"body.{name.removeprefix(self.prefix)}": array for name, array in arrays.items()}


@dataclass
class Head(Reading):
    """A head: the worst case is an attacker who has the body, too."""

    subject: Subject
    payload: str = "its head"
    knows: str = "the client's body (worst case)"

    def predictor(self, upload: Arrays) -> Predictor:
        """Return what the head predicts on the client's body."""
        weight, bias = _tensor(upload["weight"], self.subject), upload.get("bias")
        offset = None if bias is None else _tensor(bias, self.subject)
        return lambda inputs: functional.linear(embedded(self.subject.model, inputs), weight, offset)

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train a head on other samples, the client's body standing still; where heads are not sent down, from zeros.

        Such heads have no change that is clipped: they are trained as long as the client has.
        """
        subject, shared, model = self.subject, sent_as_changes(self.subject), deepcopy(self.subject.model)
        download, rounds = self.begins()
        model.body.requires_grad_(False)
        with torch.no_grad():
            for name, parameter in model.head.named_parameters():
                parameter.copy_(_tensor(download[name] if name in shared else np.zeros(parameter.shape), subject))
        return trained(model, rows, subject, rng, rounds=rounds * bool(shared)).head.state_dict()


@dataclass
class ClassMeans(Reading):
    """The mean embedding or output of each class: the worst case is an attacker who has the client's model.

    Parameters
    ----------
    name : str
        The array that has the means: embeddings (``prototypes``), logits, or logits or softmax scores (``averages``).
    """

    subject: Subject
    name: str
    payload: str
    knows: str

    @classmethod
    def of(cls, subject: Subject) -> "ClassMeans":
        """Return the reading of what a client has uploaded."""
        name = next(name for name in ("prototypes", "averages", "logits") if name in subject.last.upload)
        if name == "prototypes":
            return cls(subject, name, "prototypes", "the client's body (worst case)")
        return cls(subject, name, "class outputs", "the client's model (worst case)")

    def predictor(self, upload: Arrays) -> Predictor:
        """Return how near the model's output is to each class's mean; far from one that was not sent."""
        means, has = self.by_class(upload)
        far = torch.tensor(FAR, device=means.device)

        def nearness(inputs: Tensor) -> Tensor:
            values = self.outputs(inputs)
            return torch.where(has, -torch.cdist(values, means).square() / values.shape[1], far)

        return nearness

    def by_class(self, upload: Arrays) -> tuple[Tensor, Tensor]:
        """Return the means that an upload has (C, D), and of which classes (C,)."""
        values, subject = upload[self.name], self.subject
        behind = upload.get("counts", upload.get("present"))
        rows = upload.get("classes", np.arange(subject.classes))
        means = torch.zeros(subject.classes, values.shape[1], device=subject.known.inputs.device)
        has = torch.zeros(subject.classes, dtype=torch.bool, device=means.device)
        there = np.asarray(behind) > 0 if behind is not None else np.ones(len(rows), bool)
        means[rows[there]] = _tensor(values[there], subject)
        has[rows[there]] = True
        return means, has

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Take the means of other samples, with their counts or marks."""
        subject, last = self.subject, self.subject.last.upload
        means, has = class_means(self.outputs(rows.inputs), rows.labels, subject.classes)
        all_sent = "classes" not in last or bool(subject.config.clipping_norm)
        sent = torch.arange(subject.classes, device=has.device) if all_sent else has.nonzero()[:, 0]
        counts = torch.bincount(rows.labels, minlength=subject.classes)[sent]
        return {self.name: means[sent], "classes": sent, "counts": counts, "present": counts > 0}

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return what the model gives in the form that is averaged: embeddings, logits, or softmax scores."""
        if self.name == "prototypes":
            return embedded(self.subject.model, inputs)
        logits = predicting(self.subject.model)(inputs)
        sums = self.subject.last.upload[self.name].sum(1)
        scores = self.name == "averages" and bool(((np.abs(sums - 1) < 1e-2) | (sums == 0)).all())
        return logits.softmax(1) if scores else logits


@dataclass
class Answers(Reading):
    """Logits, posteriors or embeddings of public samples: an attacker's model learns to give the same.

    Parameters
    ----------
    name : str
        The array that has them. Of embeddings the body alone is learnt, and gets a head of the attacker's.
    """

    subject: Subject
    name: str
    payload: str = "answers on public samples"
    knows: str = "the architecture; the public samples"

    @classmethod
    def of(cls, subject: Subject) -> "Answers":
        """Return the reading of what a client has uploaded."""
        names = ("representations", "logits", "softmax", "posteriors")
        name = next(name for name in names if name in subject.last.upload)
        if name != "representations":
            return cls(subject, name)
        knows = f"{cls.knows}; its own head, fitted on its own samples"
        return cls(subject, name, "representations of public samples", knows)

    def predictor(self, upload: Arrays) -> Predictor:
        """Return what a model predicts that has learnt what was sent."""
        subject, targets = self.subject, _tensor(upload[self.name], self.subject)
        public, student = public_rows(subject), fresh(subject, subject.rng("student"))
        if self.name == "representations":
            distilled(student, lambda: functional.mse_loss(student.body(public.inputs), targets))
            return _with_head(student, subject)
        scores = targets.softmax(1) if self.name == "logits" else targets

        def divergence() -> Tensor:
            return functional.kl_div(student(public.inputs).log_softmax(1), scores, reduction="batchmean")

        return predicting(distilled(student, divergence))

    def learnt(self, rows: Rows, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Train a model on other samples, and let it answer."""
        teacher, public = trained(fresh(self.subject, rng), rows, self.subject, rng), public_rows(self.subject)
        if self.name == "representations":
            return {self.name: embedded(teacher, public.inputs)}
        logits = logits_of(predicting(teacher), public)
        return {self.name: logits if self.name == "logits" else logits.softmax(1)}


_MARKS: tuple[tuple[set[str], Callable[[Subject], Reading]], ...] = (
    ({"classes", "prototypes"}, ClassMeans.of),
    ({"logits", "counts"}, ClassMeans.of),
    ({"classes", "averages"}, ClassMeans.of),
    ({"representations"}, Answers.of),
    ({"indices", "posteriors"}, Answers.of),
    ({"logits"}, Answers.of),
    ({"softmax"}, Answers.of),
    ({"weight"}, Head),
)
"""Arrays by which a payload is known, of which it may have one more."""


def public_rows(subject: Subject) -> Rows:
    """Return the public samples that the last upload answers on, in its order.

    Raises
    ------
    ConfigError
        Not all clients' data are here, so what it answers on is not known.
    """
    if subject.public_start == UNKNOWN:
        raise ConfigError(
            f"what {subject.config.algorithm} uploads is about the public samples of all clients: name all nodes"
        )
    last = subject.last
    if "indices" in last.upload:
        return subject.public.some(last.upload["indices"].astype(np.int64) + subject.public_start)
    return subject.public.some(last.download["asked"].astype(np.int64))


def class_means(values: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of values (N, ...) over each class (C, ...), and of which classes there are samples (C,)."""
    counts, values = torch.bincount(labels, minlength=classes), values.detach()
    sums = torch.zeros(classes, *values.shape[1:], device=values.device, dtype=values.dtype)
    sums.index_add_(0, labels, values)
    return sums / counts.clamp(min=1).reshape(-1, *[1] * (values.dim() - 1)), counts > 0


def _with_head(model: SplitModel, subject: Subject) -> Predictor:
    """Return what a body predicts with a head of the attacker's."""
    head = fitted_head(embedded(model, subject.to_train.inputs), subject.to_train.labels, subject.classes)
    return lambda inputs: head(embedded(model, inputs))


def _tensor(array: NDArray[Any], subject: Subject) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float32)).to(subject.known.inputs.device)


def _models(subject: Subject) -> list[SplitModel]:
    """Return the models that a client works with, small ones first: what it has beside its own."""
    small = [value for value in vars(subject.client).values() if isinstance(value, SplitModel)]
    device = subject.known.inputs.device
    return [*(model.to(device) for model in small), subject.model]
