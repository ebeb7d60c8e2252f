"""What leaves a client: how long an upload is, and how an imitated client's is clipped and noised as its own is."""

from collections.abc import Set
from dataclasses import replace
from math import sqrt
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.privacy import private_upload
from hetfl_flwr.wire.spec import Arrays, ArraySpec, PayloadSpec
from simulations.studies.audit.subject import KeptUpload, Subject


def upload_norm(subject: Subject) -> float:
    """Return the L2 norm of a client's uploads, the median over rounds: what a clipping norm is to be compared with.

    All arrays that clipping covers, together; of what was sent to the client in the same form, such as weights, the
    change. The median of unclipped norms is where Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private
    Learning with Adaptive Clipping", NeurIPS 2021, find clipping to work well.
    """
    return median(_norm(subject, one) for one in subject.kept)


def as_sent(subject: Subject, learnt: Arrays, rng: np.random.Generator) -> Arrays:
    """Return what an imitated client would upload: clipped and with noise, by the run config; see `pooled_upload`.

    Parameters
    ----------
    subject : Subject
        The client that is imitated. Arrays that are not given are as it has uploaded them.
    learnt : mapping of str to array
        What the imitation has learnt.
    rng : Generator
        What the noise is drawn from.
    """
    upload = {**subject.last.upload, **learnt}
    noise = subject.config.noise_multiplier / sqrt(len(read_together(subject)))
    config = subject.config.with_values({"noise-source": "seed", "noise-multiplier": noise})
    spec, sent_spec = _specs(subject, upload, subject.last.download)
    return private_upload(upload, spec, subject.last.download, sent_spec, config, "audit", int(rng.integers(2**62)))


def read_together(subject: Subject) -> list[KeptUpload]:
    """Return the uploads of a client that are read together; the last one is among them.

    That alone; but where its noise is longer than what it may hide (the standard deviation times the root of how many
    numbers there are is above the clipping norm), all that have its form and are about the same samples.
    """
    last, covered = subject.last, _covered(subject)
    length = subject.config.noise_multiplier * sqrt(sum(last.upload[one.name].size for one in covered))
    if length <= 1 or any(one.name.endswith((".left", ".right")) for one in covered):  # the mean of factors is none
        return [last]
    rest = last.upload.keys() - {one.name for one in covered}
    return [one for one in subject.kept if _is_like(one, last, rest)]


def pooled_upload(subject: Subject) -> Arrays:
    """Return the mean of the uploads that are read together: its noise is shorter by the root of their number.

    Of weights it is the mean of the changes. A mark of a class is 1 if most are.
    """
    last, together = subject.last, read_together(subject)
    if len(together) == 1:
        return last.upload
    _, sent = _specs(subject, last.upload, last.download)

    def mean(one: ArraySpec) -> NDArray[Any]:
        before = [each.download[one.name] if one in sent.arrays else 0 for each in (*together, last)]
        changes = [_amounts(each.upload[one.name], one) - own for each, own in zip(together, before[:-1], strict=True)]
        whole = np.mean(changes, axis=0) + before[-1]
        found: NDArray[Any] = (whole > 0.5 if one.sensitive else whole).astype(one.dtype)
        return found

    return {**last.upload, **{one.name: mean(one) for one in _covered(subject)}}


def _covered(subject: Subject) -> list[ArraySpec]:
    """Return the arrays of an upload that clipping and noise cover."""
    spec, _ = _specs(subject, subject.last.upload, subject.last.download)
    return [one for one in spec.arrays if _is_covered(one)]


def _is_covered(one: ArraySpec) -> bool:
    return one.sensitive or np.dtype(one.dtype).kind == "f"


def _is_like(one: KeptUpload, last: KeptUpload, rest: Set[str]) -> bool:
    """Whether an upload has the form of the last one, and is about the same: classes, and public samples."""
    same = {name: np.shape(array) for name, array in one.upload.items()} == {
        name: np.shape(array) for name, array in last.upload.items()
    }
    asked = np.array_equal(one.download.get("asked", 0), last.download.get("asked", 0))
    return same and asked and all(np.array_equal(one.upload[name], last.upload[name]) for name in rest)


def _norm(subject: Subject, kept: KeptUpload) -> float:
    spec, sent = _specs(subject, kept.upload, kept.download)
    total = 0.0
    for one in spec.arrays:
        if _is_covered(one):
            own = _amounts(kept.upload[one.name], one)
            change = own - kept.download[one.name].astype(np.float64) if one in sent.arrays else own
            total += float(np.square(change).sum())
    return sqrt(total)


def _amounts(array: NDArray[Any], spec: ArraySpec) -> NDArray[np.float64]:
    return ((array > 0) if spec.sensitive else array).astype(np.float64)


def _specs(subject: Subject, upload: Arrays, download: Arrays) -> tuple[PayloadSpec, PayloadSpec]:
    """Return the declarations of an upload and a download, of the sizes that they have."""
    up, down = subject.client.upload_spec().arrays, subject.client.download_spec().arrays
    own = tuple(replace(one, shape=np.shape(upload[one.name])) for one in up)
    same = {one.name for one in up if one in down}
    return PayloadSpec(own), PayloadSpec(tuple(one for one in own if one.name in same and one.name in download))
