"""Base of the server sides to which clients send prototypes: what they check and expect."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.models.bounds import check_size
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.strategy import KnowledgeStrategy, Upload
from hetfl_flwr.wire.prototypes import by_class, local_prototypes
from hetfl_flwr.wire.spec import PayloadSpec

ClassMeans = tuple[NDArray[np.float32], NDArray[np.int64]]
"""A client's prototypes (C, D), and how many samples are behind each, (C,); 0: it has none of that class."""


class PrototypeStrategy(KnowledgeStrategy):
    """A strategy whose clients send the mean embedding of each class that they have.

    Parameters
    ----------
    algorithm : str
        Its name, for errors.
    robust : str
        As in `hetfl_flwr.learning.aggregation.parse_robust`.
    counted : bool
        Whether clients say how many samples are behind each prototype.

    Raises
    ------
    ConfigError
        ``robust`` is none of what it may be.
    """

    sends = "prototypes"
    width = 64
    usual_size = 1.0
    """Size up to which no prototype is far from the others': `hetfl_flwr.wire.spec.ArraySpec.usual`."""

    def __init__(self, algorithm: str, robust: str, *, counted: bool = False) -> None:
        self._algorithm, self._counted = algorithm, counted
        self.robust = parse_robust(robust)
        self._left_out = LeftOut(algorithm, self.robust)

    def check(self, roster: Roster) -> None:
        """Refuse clients that differ in their classes or embedding widths, and prototypes that the server cannot keep.

        Raises
        ------
        FederationError
            One line that names who differs, or how many prototypes there are.
        """
        super().check(roster)
        roster.check_same_width(self._algorithm, self.width)
        first = next(iter(roster))
        check_size(f"{self._algorithm}: the prototypes of {first}", first.classes, first.width)

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect the prototypes of some classes."""
        return local_prototypes(
            member.classes, member.width, counted=self._counted, most=member.train, usual=self.usual_size
        )

    def class_means(self, uploads: Sequence[Upload]) -> list[ClassMeans]:
        """Return what each client has sent, by class."""
        return [by_class(upload.arrays, self.roster.classes) for upload in uploads]

    def averaged(
        self, client_ids: Sequence[int], uploads: Iterable[ClassMeans]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Average prototypes class by class, each over the clients that have it.

        Parameters
        ----------
        client_ids : sequence of int
            Whose they are, K clients.
        uploads : iterable of tuple of array
            What each has sent, as `class_means` returns it.

        Returns
        -------
        tuple of array
            Means (C, D), weighted by the samples behind them if these are counted and no average is ``robust``, and for
            which classes there is one, (C,). The others are 0.
        """
        prototypes, counts = (np.stack(one) for one in zip(*uploads, strict=True))  # (K, C, D), (K, C)
        has = counts > 0
        known = np.asarray(has.any(0))
        if self.robust.form == "none":
            weights = (counts if self._counted else has).astype(np.float64)
            sums = (weights[:, :, None] * prototypes).sum(0)
            return sums / np.maximum(weights.sum(0), 1)[:, None], known
        means = np.zeros(prototypes.shape[1:])
        for label in np.flatnonzero(known):
            its = has[:, label]
            rows = self._left_out.rows_of_class(np.array(client_ids)[its].tolist(), int(label), prototypes[its, label])
            means[label] = self.robust.among_kept.mean(rows)
        return means, known

    def pairs(self, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """Return the prototypes of all clients, (N, D), and their classes, (N,), by client and class.

        What a server is trained on. With ``robust``, each is the robust mean of its class.
        """
        sent = self.class_means(uploads)
        client_ids = [upload.client_id for upload in uploads]
        means = self.averaged(client_ids, sent)[0].astype(np.float32) if self.robust.form != "none" else None
        labels = [np.flatnonzero(counts) for _, counts in sent]
        points = [
            (prototypes if means is None else means)[own] for (prototypes, _), own in zip(sent, labels, strict=True)
        ]
        return torch.from_numpy(np.concatenate(points)), torch.from_numpy(np.concatenate(labels))
