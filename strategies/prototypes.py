"""Prototypes, the mean embeddings of classes: payloads, and distances."""

from math import inf
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr import Arrays, ArraySpec, Dim, PayloadSpec, learnt, row_numbers, sample_counts

Predict = Literal["head", "prototype", "own-prototype"]
"""What predicts when a client is evaluated."""


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


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the distances (B, C) between points (B, D) and others (C, D); exactly 0 for equal points."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")
