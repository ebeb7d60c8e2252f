"""Base class of server sides that receive prototypes, and their payloads."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    Dim,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    check_size,
    learnt,
    row_numbers,
    sample_counts,
)

ClassMeans = tuple[NDArray[np.float32], NDArray[np.int64]]
"""A client's prototypes (C, D), and the number of samples of each, (C,); 0 for classes that it does not have."""


def local_prototypes(
    classes: int, width: int, *, counted: bool, most: int | None = None, usual: float = 1.0
) -> PayloadSpec:
    """Declare the upload: prototypes of S classes, (S, D), the classes, (S,), and ``counts`` or ``present``, (S,).

    ``counts`` is the number of samples of each prototype. If prototypes are not weighted by it, ``present`` is sent
    instead, a flag of 1. If uploads are clipped, all C classes are sent, whichever a client has, and counts and flags
    are 1 or 0, with noise. Then the classes that a client has are as private as its prototypes.

    Parameters
    ----------
    classes, width : int
        C and D.
    counted : bool
        Whether clients send the numbers of their samples.
    most : int, optional
        The largest sum of counts of an honest client. With noise, it may be one for each class.
    usual : float
        The size of prototypes up to which the guard accepts them; see `hetfl_flwr.wire.spec.ArraySpec`.
    """
    rows = Dim("S", classes)
    total = None if most is None else max(most, classes)
    behind = ArraySpec("present", (rows,), "int8", minimum=0, maximum=1, sensitive=True)
    if counted:
        behind = sample_counts("counts", (rows,), usual=inf, total=total)
    return PayloadSpec(
        (
            row_numbers("classes", rows, classes),
            learnt("prototypes", (rows, width), usual=usual),
            behind,
        )
    )


def global_prototypes(classes: int, width: int) -> PayloadSpec:
    """Declare the download: a prototype of each class, (C, D), and for which classes there is one, (C,)."""
    return PayloadSpec((ArraySpec("prototypes", (classes, width), "float32"), ArraySpec("known", (classes,), "bool")))


def packed(means: NDArray[Any], counts: NDArray[Any], *, counted: bool, hidden: bool) -> Arrays:
    """Return an upload as `local_prototypes` declares it.

    Parameters
    ----------
    means, counts : array
        Prototypes (C, D), and their numbers of samples, (C,).
    counted : bool
        As in `local_prototypes`.
    hidden : bool
        Whether all classes are sent, so that the size of the upload does not reveal which classes the client has.

    Examples
    --------
    >>> upload = packed(np.float32([[1, 2], [0, 0]]), np.array([3, 0]), counted=True, hidden=False)
    >>> {name: array.tolist() for name, array in upload.items()}
    {'classes': [0], 'prototypes': [[1.0, 2.0]], 'counts': [3]}
    """
    sent = np.arange(len(counts)) if hidden else np.flatnonzero(counts)
    own = {"classes": sent.astype(np.int32), "prototypes": means[sent].astype(np.float32)}
    return own | ({"counts": counts[sent]} if counted else {"present": (counts[sent] > 0).astype(np.int8)})


def by_class(upload: Arrays, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return an upload's prototypes (C, D) and its counts or flags (C,), with 0 for missing classes.

    If a class occurs twice, the last row counts.

    Examples
    --------
    >>> upload = {"classes": [1], "prototypes": np.float32([[1, 2]]), "present": [1]}
    >>> means, counts = by_class(upload, 3)
    >>> means.tolist(), counts.tolist()
    ([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], [0, 1, 0])
    """
    rows, prototypes = upload["classes"], upload["prototypes"]
    means, counts = np.zeros((classes, prototypes.shape[1]), np.float32), np.zeros(classes, np.int64)
    means[rows] = prototypes
    counts[rows] = upload["counts"] if "counts" in upload else upload["present"]
    return means, counts


Predict = Literal["head", "prototype", "own-prototype"]
"""What predicts when a client is evaluated."""


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the distances (B, C) between points (B, D) and others (C, D); exactly 0 for equal points."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")


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
