"""Skeleton, server side: the server state, the downloads and the aggregation of uploads.

Put the citation here: authors, title, venue, year.
"""

from collections.abc import Sequence

import numpy as np

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    learnt,
    sample_counts,
)


def uploaded(classes: int) -> PayloadSpec:
    """Declare the upload: names, shapes, dtypes and ranges. An upload that differs is rejected."""
    return PayloadSpec((learnt("logits", (classes, classes)), sample_counts("counts", (classes,))))


def downloaded(classes: int) -> PayloadSpec:
    """Declare the download."""
    return PayloadSpec((learnt("logits", (classes, classes)), ArraySpec("known", (classes,), "bool")))


class Skeleton(KnowledgeStrategy):
    """Averages the clients' logits by class.

    Wire   down: logits (C, C) float32, known (C,) bool
           up:   logits (C, C) float32, counts (C,) int64
    State  logits (C, C) float32, known (C,) bool.
    """

    sends = "logits"

    def initial(self, roster: Roster) -> Arrays:
        """Return the server state before round 1. The server keeps nothing else between rounds."""
        classes = roster.classes
        return {"logits": np.zeros((classes, classes), np.float32), "known": np.zeros(classes, bool)}

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return a client's download for a round: here the whole server state."""
        return server_state

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Return the declaration of a client's upload."""
        return uploaded(member.classes)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return the server state after a round.

        Put the paper's aggregation here. This one takes the mean over all samples of a class, from all clients.
        """
        # ``upload.samples`` is the number of training samples that the client reports; ``member.train`` of each member
        # in ``self.roster`` is the number that it registered. An array per client has the client's number in its name:
        # f"logits.{upload.client_id}". A server that trains takes random numbers from
        # ``generator(self.config.seed, round, "purpose")``.
        counts = np.stack([upload.arrays["counts"] for upload in uploads])  # (K, C)
        logits = np.stack([upload.arrays["logits"] for upload in uploads])  # (K, C, C)
        total = counts.sum(0)
        mean = (counts[:, :, None] * logits).sum(0) / np.maximum(total, 1)[:, None]
        seen = total > 0
        averages = np.where(seen[:, None], mean, server_state["logits"]).astype(np.float32)
        return {"logits": averages, "known": server_state["known"] | seen}
