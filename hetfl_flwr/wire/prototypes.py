"""Prototypes as payloads: the mean embedding of each class, of a client's samples or of all clients'."""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import Arrays, ArraySpec, Dim, PayloadSpec, learnt, row_numbers, sample_counts


def local_prototypes(
    classes: int, width: int, *, counted: bool, most: int | None = None, usual: float = 1.0
) -> PayloadSpec:
    """Declare what goes up: prototypes of S classes, (S, D), which classes these are, (S,), and what is behind each.

    ``counts`` (S,) says how many samples are behind each prototype. Where nothing is weighted by them it is ``present``
    (S,), a mark of 1. Where uploads are clipped all C classes are sent, whatever a client has, and counts and marks are
    1 or 0, with noise: so which classes a client has is as private as the prototypes are.

    Parameters
    ----------
    classes, width : int
        C and D.
    counted : bool
        Whether the server is told how many samples there are.
    most : int, optional
        How many samples an honest client may count in all. Noise may say one of each class.
    usual : float
        Size up to which prototypes are never far from the others': see `hetfl_flwr.wire.spec.ArraySpec`.
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
    """Declare what goes down: a prototype of each class, (C, D), and for which classes there is one, (C,)."""
    return PayloadSpec((ArraySpec("prototypes", (classes, width), "float32"), ArraySpec("known", (classes,), "bool")))


def packed(means: NDArray[Any], counts: NDArray[Any], *, counted: bool, hidden: bool) -> Arrays:
    """Return an upload as `local_prototypes` declares it.

    Parameters
    ----------
    means, counts : array
        Prototypes (C, D), and the samples behind them, (C,).
    counted : bool
        As in `local_prototypes`.
    hidden : bool
        Whether all classes are sent, so that the upload's size does not tell which ones there are.

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
    """Return an upload's prototypes (C, D) and what is behind them, (C,); rows of 0 for classes that it lacks.

    Of a class that it names twice, the last row counts.

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
