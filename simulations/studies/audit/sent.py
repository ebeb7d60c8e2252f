"""What leaves a client: how an imitated client's upload is clipped and noised, and uploads that noise drowns."""

from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.runs.uploads import KeptUpload
from hetfl_flwr.wire.privacy import private_upload
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from simulations.studies.audit.subject import Subject


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


def sent_as_changes(subject: Subject) -> tuple[str, ...]:
    """Return the arrays of an upload that are the client's version of what it was sent: the change is clipped."""
    return _specs(subject, subject.last.upload, subject.last.download)[1].names


def read_together(subject: Subject) -> list[KeptUpload]:
    """Return the uploads of a client that are read together; the last one is among them.

    That alone; but where its noise is longer than what it may hide (the standard deviation times the root of how many
    numbers there are is above the clipping norm), all that have its form and are about the same samples.
    """
    last, covered = subject.last, _covered(subject, subject.last)
    length = subject.config.noise_multiplier * sqrt(sum(array.size for array in covered.values()))
    if length <= 1 or any(name.endswith((".left", ".right")) for name in covered):  # the mean of factors is none
        return [last]
    shapes = {name: np.shape(array) for name, array in last.upload.items()}

    def alike(one: KeptUpload) -> bool:
        same = {name: np.shape(array) for name, array in one.upload.items()} == shapes
        asked = np.array_equal(one.download.get("asked", 0), last.download.get("asked", 0))
        rest = last.upload.keys() - covered.keys()
        return same and asked and all(np.array_equal(one.upload[name], last.upload[name]) for name in rest)

    return [one for one in subject.kept if alike(one)]


def pooled_upload(subject: Subject) -> Arrays:
    """Return the mean of the uploads that are read together: its noise is shorter by the root of their number.

    Of weights it is the mean of the changes. A mark of a class is 1 if most are.
    """
    last, together = subject.last, read_together(subject)
    if len(together) == 1:
        return last.upload
    spec, sent = _specs(subject, last.upload, last.download)
    changes = [_covered(subject, one) for one in together]
    found = dict(last.upload)
    for one in spec.arrays:
        if one.name in changes[-1]:
            whole = np.mean([change[one.name] for change in changes], axis=0)
            whole = whole + last.download[one.name] if one in sent.arrays else whole
            found[one.name] = (whole > 0.5 if one.sensitive else whole).astype(one.dtype)
    return found


def _covered(subject: Subject, kept: KeptUpload) -> dict[str, NDArray[np.float64]]:
    """Return what clipping and noise cover of an upload: marks as 1 or 0, and the change of what was sent before."""
    spec, sent = _specs(subject, kept.upload, kept.download)
    found = {}
    for one in spec.arrays:
        if one.sensitive or np.dtype(one.dtype).kind == "f":
            array = kept.upload[one.name]
            found[one.name] = (array > 0 if one.sensitive else array).astype(np.float64)
            if one in sent.arrays:
                found[one.name] -= kept.download[one.name]
    return found


def _specs(subject: Subject, upload: Arrays, download: Arrays) -> tuple[PayloadSpec, PayloadSpec]:
    """Return the declarations of an upload and a download, of the sizes that they have."""
    up, down = subject.client.upload_spec().arrays, subject.client.download_spec().arrays
    own = tuple(replace(one, shape=np.shape(upload[one.name])) for one in up)
    same = {one.name for one in up if one in down}
    return PayloadSpec(own), PayloadSpec(tuple(one for one in own if one.name in same and one.name in download))
