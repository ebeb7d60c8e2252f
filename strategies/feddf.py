"""FedDF, server side: the mean of each architecture's weights, then distillation from the ensemble of all models.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020 (arXiv 2006.07242).
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from logging import INFO, WARNING
from math import cos, inf, isfinite, pi
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hetfl_flwr import (
    Arrays,
    DivergedError,
    Guard,
    Member,
    PublicSamples,
    Roster,
    Samples,
    Sharing,
    Upload,
    bounded,
    draw_batches,
    generator,
    kl_divergence,
    loaded,
    log,
    measure_learnt,
    model_arrays,
    outputs,
    prefixed,
    seeded,
    torch_threads,
    train,
    under,
    weights,
)
from strategies.base_models import ModelsStrategy

Logits = NDArray[np.float32]

BATCH = 128
"""Batch size of a step on the server."""


class FedDF(ModelsStrategy):
    """Averages the weights of each architecture's clients, and distills the ensemble of all models into each mean.

    Algorithms 1 and 3: the clients of one architecture are a group. Their weights are averaged by their numbers of
    training samples, as in FedAvg. On the server, a student of each group then starts from this mean, and is trained
    toward the mean logits of *all* uploaded models f_k, of all groups, on public samples x without labels. Steps of
    Adam minimize ``KL(softmax(mean_k f_k(x)) || softmax(student(x)))``. A group of one client starts from that client's
    weights. With a single upload there is no ensemble and no step. A group without uploads does not change. Logits that
    are far larger than those of the other models, by ``outlier-factor``, are left out of the mean, and the log names
    the client.

    Wire   both ways the floating-point entries of the state dict of the client's model: 4 bytes per parameter and
           running statistic. They are sent once more for evaluation, and counted as evaluation.
           Once, before round 1, up: public samples, without labels.
    Needs  one shape of input, equal classes; models of the zoo or of the run config's list
    State  MODEL/NAME, the weights of each group, by the name of its model.
    Robust the weights of a group, and the logits of all models. "multikrum" leaves out the models with logits farthest
           from the others', of all groups; a group without remaining models does not change before distillation.
    Departs from the paper: its public samples come from another data set, and distillation stops when the accuracy on
    labeled samples of the server, measured every 100 steps, has not risen for 1,000 of at most 10,000 steps. Here the
    clients' own public samples are used, without labels. The criterion is the agreement with the ensemble on a held-out
    fifth of them, and all numbers of steps are a twentieth. The best student is kept, and the mean is one of the
    candidates; in the authors' published code it is not, by default. That code averages with equal weights and clips
    the student's gradient to a norm of 5. The server scales inputs like a client that has only the public samples.

    Parameters
    ----------
    server_steps : int
        The maximum number of steps for each group in a round, 0 or more. With 0, it is FedAvg in each group, bit for
        bit.
    server_learning_rate : float
        The initial learning rate of Adam, above 0. It follows a cosine to 0 over ``server_steps``.
    patience : int
        The number of steps without a larger agreement after which training of a group stops, 1 or more. Agreement is
        measured ten times in so many steps. Most groups take only a few more steps than this.
    """

    sharing = Sharing(labelled=False, to_clients=False)
    sends = "weights"

    def __init__(
        self,
        *,
        server_steps: Annotated[int, Field(ge=0)] = 500,
        server_learning_rate: Annotated[float, Field(gt=0)] = 1e-3,
        patience: Annotated[int, Field(ge=1)] = 50,
    ) -> None:
        super().__init__()
        self.server_steps, self.server_learning_rate, self.patience = server_steps, server_learning_rate, patience

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with different inputs or classes."""
        roster.check_sharing("feddf", labelled=False)
        super().check(roster)

    def initial(self, roster: Roster) -> Arrays:
        """Draw the initial weights of each group's model."""
        self._public = PublicSamples(roster, self.config.normalize)
        for member in roster:
            if sum(one.model == member.model for one in roster) == 1:
                log(INFO, "feddf: no other client has the model of %s: only distillation links it to them", member)
        return _with_group_prefix({name: model_arrays(model) for name, model in self.build(roster).items()})

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the weights of the client's group, or the initial weights of a new group; send nothing if left out."""
        model, known = self.models.get(member.model), under(f"{member.model}/", server_state)
        return known or ({} if model is None else model_arrays(model))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the weights of each group, and distill the ensemble of all models into each mean."""
        model_of, groups = {member.client_id: member.model for member in self.roster}, dict[str, list[Upload]]()
        for upload in (one for one in uploads if one.arrays):
            groups.setdefault(model_of[upload.client_id], []).append(upload)
        sent = [(name, upload) for name, group in groups.items() for upload in group]
        teachers, rows = [loaded(self.models[name], upload.arrays) for name, upload in sent], self._public.all()
        with torch_threads(self.config.threads):
            answers = [outputs(teacher, rows).numpy() for teacher in teachers]
        logits = self._kept({upload.client_id: array for (_, upload), array in zip(sent, answers, strict=True)}, round)
        before = {member.model: self.download_for(member, server_state, round) for member in self.roster}
        means = {
            name: self._mean([one for one in group if one.client_id in logits]) or before[name]
            for name, group in groups.items()
        }
        if self.server_steps and len(logits) > 1:
            students = {name: loaded(self.models[name], arrays) for name, arrays in means.items()}
            targets = torch.from_numpy(self.robust.among_kept.mean(self._without_outliers(logits))).float()
            scope = (self.config.seed, round, "distillation")
            with seeded(*scope), torch_threads(self.config.threads):
                for student in students.values():  # each in the same order of samples
                    self.distil(student, rows, targets, generator(*scope))
            means = {name: bounded(model_arrays(student), weights(student)) for name, student in students.items()}
        return {**server_state, **_with_group_prefix(means)}

    def distil(self, student: nn.Module, samples: Samples, targets: Tensor, draw: np.random.Generator) -> int:
        """Train a student toward logits (N, C) while its agreement on held-out samples rises; return the steps.

        ``draw`` draws a random fifth of the samples, which is held out, and the order of the others; with fewer than 5
        samples, all are used for training and for measuring. The agreement is the share of the held-out samples for
        which student and logits predict the same class. A divergence would keep falling slightly with every step. The
        student ends in training mode, in the state with the largest agreement; if there are several, in the one with
        the smallest divergence. This may be its initial state, for example if the logits or the student are not finite.
        """
        order = torch.from_numpy(draw.permutation(len(samples)))
        held, rows = order[: len(order) // 5], order[len(order) // 5 :]
        held = held if len(held) else rows
        optimizer = torch.optim.Adam(student.parameters(), lr=self.server_learning_rate, fused=True)
        batches = draw_batches(draw, len(rows), BATCH, epochs=0, batches=self.server_steps)
        best, rose, state = _agreement(student, samples, targets, held), 0, deepcopy(student.state_dict())
        every, step = max(1, self.patience // 10), 0
        student.train()
        for batch in batches:
            for group in optimizer.param_groups:
                group["lr"] = self.server_learning_rate * (1 + cos(pi * step / self.server_steps)) / 2
            chosen = rows[batch]

            def loss(inputs: Tensor, labels: Tensor, chosen: Tensor = chosen) -> Tensor:
                return kl_divergence(targets[chosen], student(inputs))

            try:
                train(samples, [chosen], optimizer, loss)
            except DivergedError:
                break
            step += 1
            if step % every == 0 or step == self.server_steps:
                found = _agreement(student, samples, targets, held)
                if found[0] > best[0]:
                    rose = step
                if found > best:
                    best, state = found, deepcopy(student.state_dict())
                if step - rose >= self.patience:
                    break
        student.load_state_dict(state)
        return step

    def _kept(self, logits: Mapping[int, Logits], round: int) -> dict[int, Logits]:
        """Return the logits (R, C) by client; with "multikrum", only those of the models that it keeps."""
        if self.robust.form != "multikrum" or not logits:
            return dict(logits)
        with np.errstate(invalid="ignore"):
            centred = np.stack([array - array.mean(1, np.float64, keepdims=True) for array in logits.values()])
        kept = self.left_out.kept(logits, [centred])
        return {one: logits[one] for one, its in zip(logits, kept, strict=True) if its}

    def _mean(self, group: Sequence[Upload]) -> Arrays:
        """Average the weights of a group; return an empty mapping without uploads."""
        if not group:
            return {}
        return self.robust.among_kept.weighted_by_name([one.arrays for one in group], [one.samples for one in group])

    def _without_outliers(self, logits: Mapping[int, Logits]) -> list[Logits]:
        """Return the logits that are not far larger than those of the other teachers.

        The arrays of a client with a unique model cannot be compared with others, so its logits are compared here.
        """
        sizes = {one: measure_learnt("logits", array) for one, array in logits.items()}
        far = Guard(self.config.outlier_factor).reject_outliers(sizes)
        for member in self.roster:
            if member.client_id in far:
                log(WARNING, "feddf: %s: %s on public samples: left out of the ensemble", member, far[member.client_id])
        return [array for client_id, array in logits.items() if client_id not in far]


def _with_group_prefix(groups: Mapping[str, Arrays]) -> Arrays:
    return {name: array for group, arrays in groups.items() for name, array in prefixed(f"{group}/", arrays).items()}


def _agreement(student: nn.Module, samples: Samples, targets: Tensor, rows: Tensor) -> tuple[float, float]:
    """Return a student's agreement with logits on some rows, and the negative divergence, in evaluation mode."""
    logits = outputs(student, samples, rows)
    divergence = float(kl_divergence(targets[rows].double(), logits.double()))
    if not isfinite(divergence):
        return 0.0, -inf
    return float((logits.argmax(1) == targets[rows].argmax(1)).double().mean()), -divergence
