"""FedH2L, server side: relay the teaching signals of each client to its peers.

Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021.
"""

from collections.abc import Sequence
from logging import WARNING
from typing import Annotated

import numpy as np
from pydantic import Field

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    Dim,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    SampleLimits,
    Sharing,
    Upload,
    fractions,
    generator,
    log,
    max_drawn,
    probabilities,
    row_numbers,
)


def teaching_signal(rows: int, public: int, classes: int) -> PayloadSpec:
    """Declare the upload: posteriors on some of a client's public samples, (B, C), and the accuracy on them, ().

    The numbers of these rows among the client's public samples, (B,), come first.
    """
    return PayloadSpec(
        (
            row_numbers("indices", rows, public),
            probabilities("posteriors", (rows, classes)),
            fractions("accuracy", ()),
        )
    )


def relayed_signals(peers: int, rows: int, classes: int) -> PayloadSpec:
    """Declare the download: the signals of T teachers, one after the other.

    These are the id, the accuracy and the number of rows of each teacher, (T,); the numbers of the rows among the
    teacher's public samples, (M,); and the posteriors on them, (M, C). M is the sum of the T numbers of rows.
    """
    teachers, received = Dim("T", peers), Dim("M", peers * rows)
    return PayloadSpec(
        (
            ArraySpec("teachers", (teachers,), "int32", minimum=0),
            fractions("accuracies", (teachers,)),
            ArraySpec("sizes", (teachers,), "int32", minimum=1, maximum=rows),
            ArraySpec("indices", (received,), "int32", minimum=0),
            probabilities("posteriors", (received, classes)),
        )
    )


class FedH2L(KnowledgeStrategy):
    """Relays each client's posteriors on some of its public samples, and their accuracy, to its peers.

    Algorithm 1, "Broadcast": the paper's decentralized exchange, through a server. The server computes nothing. In each
    round, it relays what it received in the round before.

    Wire   down: teachers (T,) int32, accuracies (T,) float32, sizes (T,) int32, indices (M,) int32,
                 posteriors (M, C) float32: 12 T + 4 M (C + 1) bytes, where M is the sum of the teachers' B
                 (4,260 with 3 peers at B = 32, C = 10); nothing in round 1
           up:   indices (B,) int32, posteriors (B, C) float32, accuracy () float32: 4 B (C + 1) + 4 bytes
                 (1,412 at B = 32, C = 10)
           B is ``batch-size``, or the client's number of public samples if it has fewer.
           Once, before round 1: each client's public samples, with their labels if ``public_labels``, up, and down to
           all others.
    Needs  equal classes, one shape of input
    State  for each client K that took part in the last round: indices.K (B,) int32, posteriors.K (B, C) float32,
           accuracy.K () float32.
    Departs from the paper: there is one message per round, so that the signals of a round are sent in the next one (see
    the client side). A client learns from the peers that took part in the last round. Without any, it trains locally,
    and a warning is logged.

    Parameters
    ----------
    teachers : int
        The number of peers that teach a client in a round, 0 or more, drawn again for each client and round (the
        paper's asynchronous variant, Table 7). 0, or at least the number of peers: all.
    public_labels : bool
        Whether public samples are shared with their labels. If False, clients learn from the posteriors only
        ("unlabelled").
    exchange_every : int
        As in `clients.fedh2l.FedH2LClient`. It limits the number of samples that a client may report.
    """

    sends = "public samples"

    def __init__(
        self,
        *,
        teachers: Annotated[int, Field(ge=0)] = 0,
        public_labels: bool = True,
        exchange_every: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.teachers = teachers
        self.exchange_every = exchange_every
        self.public_labels = public_labels
        self.sharing = Sharing(labelled=public_labels, to_clients=True)

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with different inputs or classes.

        Raises
        ------
        FederationError
            If there are such clients. The message names them.
        """
        roster.check_sharing("fedh2l")

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without signals."""
        return {}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect posteriors on a batch of the client's public samples, their numbers, and the accuracy on them."""
        public = self.roster.shared_rows(member)
        return teaching_signal(min(self.config.batch_size, public), public, member.classes)

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the number of training samples, and the largest number of samples seen in a round's local steps."""
        config = self.config.model_copy(update={"local_batches": self.exchange_every})
        return SampleLimits(member.train, max_drawn(config, member.train + self.roster.public_rows_of_others(member)))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Replace the previous round's signals with this round's."""
        return {f"{name}.{upload.client_id:06d}": array for upload in uploads for name, array in upload.arrays.items()}

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Relay the signals of a client's peers."""
        teachers = self._teachers(member, server_state, round)
        if round > 1 and not teachers:
            log(WARNING, "%s, round %d: no peer sent a signal in the last round, so it trains alone", member, round)
        indices, posteriors, accuracies = (
            [server_state[f"{name}.{teacher:06d}"] for teacher in teachers]
            for name in ("indices", "posteriors", "accuracy")
        )
        return {
            "teachers": np.array(teachers, np.int32),
            "accuracies": np.array(accuracies, np.float32),
            "sizes": np.array([len(rows) for rows in indices], np.int32),
            "indices": np.concatenate([np.zeros(0, np.int32), *indices]),
            "posteriors": np.concatenate([np.zeros((0, member.classes), np.float32), *posteriors]),
        }

    def _teachers(self, member: Member, server_state: Arrays, round: int) -> list[int]:
        """Return the ids of the peers that teach a client in a round, in order."""
        signals = (name.partition(".") for name in server_state)
        peers = [int(key) for kind, _, key in signals if kind == "accuracy" and int(key) != member.client_id]
        if not 0 < self.teachers < len(peers):
            return peers
        draw = generator(self.config.seed, member.client_id, round, "teachers")
        return sorted(draw.choice(peers, self.teachers, replace=False).tolist())
