"""Base of the server sides to which clients send answers on public samples: what they ask, expect and average."""

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
"""What clients answer with: logits, or softmax scores."""


def public_consensus(pool: int, classes: int, of: Answers) -> PayloadSpec:
    """Declare what goes down: the mean answer on some rows of the pool, (R, C), and the numbers of others, (A,).

    The rows' own numbers, (R,), come first; the others are those whose answers are asked for next.
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
    """Declare what goes up: answers on public samples, in the order in which they were asked for, (A, C).

    They are called ``logits`` or ``softmax``, as what they are.
    """
    form = (rows, classes)
    return PayloadSpec((learnt("logits", form) if of == "logits" else probabilities("softmax", form),))


class AnswersStrategy(KnowledgeStrategy):
    """A strategy that asks all clients for answers on a random subset of the public samples, a new one each round.

    The public set is the union of the clients' public samples; all hold it. An algorithm implements `consensus_of`.

    Parameters
    ----------
    public_samples : int
        Rows of a subset, 1 or more; all public samples where there are fewer.
    answers : {"logits", "softmax"}
        What clients answer with.
    """

    sends = "public samples"
    averages = True

    def __init__(self, public_samples: int, answers: Answers) -> None:
        self.public_samples, self._answers = public_samples, answers

    @abstractmethod
    def consensus_of(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what clients are sent, (R, C), of the mean answer (R, C); of softmax scores rows sum to 1."""

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with inputs or classes different from the others'.

        Raises
        ------
        FederationError
            Names the clients.
        """
        roster.check_sharing(self.name)

    def initial(self, roster: Roster) -> Arrays:
        """Have no consensus yet."""
        return {
            "consensus": np.zeros((0, roster.classes), np.float32),
            "rows": np.zeros((0, 2), np.int64),
            "subsets": np.zeros(1, np.int64),
        }

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect answers on all rows of the subset."""
        return public_answers(min(self.public_samples, len(self._index)), member.classes, self._answers)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the answers, each client with the same weight."""
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
        """Send the consensus and the numbers, in the pool as it is now, of its rows and of those to answer next.

        A subset that no client has answered is requested again. Numbers change when a client joins, client ids and
        positions do not; rows that are in the pool no longer are left out.
        """
        rows = server_state["rows"]
        held = self._index.held(rows)
        return {
            "digested": self._index.numbers(rows[held]).astype(np.int32),
            "consensus": server_state["consensus"][held],
            "asked": self._asked(server_state).astype(np.int32),
        }

    def _asked(self, server_state: Arrays) -> NDArray[np.int64]:
        """Draw the next subset: numbers in the pool, ascending."""
        pool = len(self._index)
        draw = generator(self.config.seed, int(server_state["subsets"][0]) + 1, "public")
        return np.sort(draw.choice(pool, min(self.public_samples, pool), replace=False))

    @property
    def _index(self) -> PublicIndex:
        """The pool as it is now."""
        return PublicIndex.of(self.roster.public_samples)
