"""Base class of server sides that receive prototypes."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr import Arrays, KnowledgeStrategy, Member, PayloadSpec, Roster, Upload, check_size
from strategies.prototypes import Predict, by_class, local_prototypes

ClassMeans = tuple[NDArray[np.float32], NDArray[np.int64]]
"""A client's prototypes (C, D), and the number of samples of each, (C,); 0 for classes that it does not have."""


class PrototypeStrategy(KnowledgeStrategy):
    """A strategy whose clients send the mean embedding of each class that they have.

    Parameters
    ----------
    counted : bool
        Whether clients send the number of samples of each prototype.
    predict : {"head", "prototype", "own-prototype"}
        As in `clients.fedproto.FedProtoClient`. Prototypes are sent for evaluation, unless it is "head".
    """

    sends = "prototypes"
    averages = True
    width = 64
    usual_size = 1.0
    """The size of prototypes up to which the guard accepts them: `hetfl_flwr.wire.spec.ArraySpec.usual`."""

    def __init__(self, *, counted: bool = False, predict: Predict = "head") -> None:
        self._counted, self.predict = counted, predict

    def check(self, roster: Roster) -> None:
        """Refuse clients with different classes or embedding widths, and prototypes that are too large for the server.

        Raises
        ------
        FederationError
            If clients differ, or prototypes are too large. The message names the clients, or the size.
        """
        super().check(roster)
        roster.check_same_width(self.name, self.width)
        first = next(iter(roster))
        check_size(f"{self.name}: the prototypes of {first}", first.classes, first.width)

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect the prototypes of some classes."""
        return local_prototypes(
            member.classes, member.width, counted=self._counted, most=member.train, usual=self.usual_size
        )

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the same as for training if prototypes predict, else nothing."""
        return {} if self.predict == "head" else self.download_for(member, server_state, 0)

    def class_means(self, uploads: Sequence[Upload]) -> list[ClassMeans]:
        """Return the prototypes and counts that each client has sent, by class."""
        return [by_class(upload.arrays, self.roster.classes) for upload in uploads]

    def averaged(
        self, client_ids: Sequence[int], uploads: Iterable[ClassMeans]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Average prototypes class by class, each over the clients that have it: Eq. (6) of FedProto.

        Parameters
        ----------
        client_ids : sequence of int
            The ids of the K clients.
        uploads : iterable of tuple of array
            Their prototypes, as `class_means` returns them.

        Returns
        -------
        tuple of array
            The means (C, D), and for which classes there is one, (C,); other means are 0. The means are weighted by
            numbers of samples if these are counted and ``robust`` is not set.
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
            rows = self.left_out.kept_rows(np.array(client_ids)[its].tolist(), prototypes[its, label])
            means[label] = self.robust.among_kept.mean(rows)
        return means, known

    def pairs(self, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """Return the prototypes of all clients, (N, D), and their classes, (N,), for training on the server.

        They are ordered by client and class. With ``robust``, each prototype is replaced by the robust mean of its
        class.
        """
        sent = self.class_means(uploads)
        client_ids = [upload.client_id for upload in uploads]
        means = self.averaged(client_ids, sent)[0].astype(np.float32) if self.robust.form != "none" else None
        labels = [np.flatnonzero(counts) for _, counts in sent]
        points = [
            (prototypes if means is None else means)[own] for (prototypes, _), own in zip(sent, labels, strict=True)
        ]
        return torch.from_numpy(np.concatenate(points)), torch.from_numpy(np.concatenate(labels))
