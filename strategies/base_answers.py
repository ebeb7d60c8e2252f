"""Base class of server sides that receive clients' predictions on public samples, and their payloads."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    Dim,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    PublicIndex,
    Roster,
    Upload,
    generator,
    learnt,
    probabilities,
    row_numbers,
)

Answers = Literal["logits", "softmax"]
"""The kind of predictions that clients send: logits or softmax scores."""


def public_consensus(pool: int, classes: int, of: Answers) -> PayloadSpec:
    """Declare the download: the consensus on R rows of the pool, (R, C), and the numbers of the next rows, (A,).

    The numbers of the R rows, (R,), come first. The next rows are those on which predictions are requested.
    """
    rows = Dim("R", pool)
    form = (rows, classes)
    return PayloadSpec(
        (
            row_numbers("digested", rows, pool),
            ArraySpec("consensus", form, "float32") if of == "logits" else probabilities("consensus", form),
            row_numbers("asked", Dim("A", pool), pool),
        )
    )


def public_answers(rows: int | Dim, classes: int, of: Answers) -> PayloadSpec:
    """Declare the upload: predictions (A, C) on the requested rows, in order, named ``logits`` or ``softmax``."""
    form = (rows, classes)
    return PayloadSpec((learnt("logits", form) if of == "logits" else probabilities("softmax", form),))


class AnswersStrategy(KnowledgeStrategy):
    """A strategy that requests predictions on a random subset of the public samples, drawn again in each round.

    The public set is the union of the clients' public samples, and all clients have it. An algorithm implements
    `consensus_of`.

    Parameters
    ----------
    public_samples : int
        Number of rows in a subset, 1 or more. If there are fewer public samples, all are used.
    answers : {"logits", "softmax"}
        The kind of predictions that clients send.
    """

    sends = "public samples"
    averages = True

    def __init__(self, public_samples: int, answers: Answers) -> None:
        self.public_samples, self._answers = public_samples, answers

    @abstractmethod
    def consensus_of(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the consensus (R, C) to send, given the mean prediction (R, C); rows of softmax scores sum to 1."""

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with different inputs or classes.

        Raises
        ------
        FederationError
            If there are such clients. The message names them.
        """
        roster.check_sharing(self.name)

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without a consensus."""
        return {
            "consensus": np.zeros((0, roster.classes), np.float32),
            "rows": np.zeros((0, 2), np.int64),
            "subsets": np.zeros(1, np.int64),
        }

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect predictions on all rows of the subset."""
        return public_answers(min(self.public_samples, len(self._index)), member.classes, self._answers)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the predictions, with the same weight for each client."""
        sent = np.stack([upload.arrays[self._answers] for upload in uploads])
        client_ids = [upload.client_id for upload in uploads]
        kept, average = self.left_out.kept(client_ids, [sent]), self.robust.among_kept
        answers = list(sent[kept])
        if self._answers == "softmax":
            mixed = average.mixture(answers, on_weights=lambda weights: self.left_out.note(client_ids, weights > 0))
            mean = np.maximum(mixed, np.finfo(np.float32).tiny)  # scores may all be 0
            mean /= mean.sum(axis=1, keepdims=True)
        else:
            mean = average.mean(answers)
        return {
            "consensus": self.consensus_of(mean).astype(np.float32),
            "rows": self._index.places(self._asked(server_state)),
            "subsets": server_state["subsets"] + 1,
        }

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the consensus, the numbers of its rows in the current pool, and the numbers of the requested rows.

        A subset without any predictions is requested again. When a client joins, numbers change, but client ids and
        positions do not. Rows that are no longer in the pool are left out.
        """
        rows = server_state["rows"]
        held = self._index.held(rows)
        return {
            "digested": self._index.numbers(rows[held]).astype(np.int32),
            "consensus": server_state["consensus"][held],
            "asked": self._asked(server_state).astype(np.int32),
        }

    def _asked(self, server_state: Arrays) -> NDArray[np.int64]:
        """Draw the next subset, as ascending numbers in the pool."""
        pool = len(self._index)
        draw = generator(self.config.seed, int(server_state["subsets"][0]) + 1, "public")
        return np.sort(draw.choice(pool, min(self.public_samples, pool), replace=False))

    @property
    def _index(self) -> PublicIndex:
        """The index of the current pool."""
        return PublicIndex.of(self.roster.public_samples)
