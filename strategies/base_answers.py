"""Base of the server sides to which clients send answers on public samples: what they ask, expect and average."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.strategy import KnowledgeStrategy, Upload
from hetfl_flwr.wire.answers import Answers, public_answers
from hetfl_flwr.wire.samples import Numbers, PublicIndex
from hetfl_flwr.wire.spec import Arrays, PayloadSpec


class AnswersStrategy(KnowledgeStrategy):
    """A strategy that asks all clients for answers on a random subset of the public samples, a new one each round.

    The public set is the union of the clients' public samples; all hold it. An algorithm writes `consensus_of`.

    Parameters
    ----------
    algorithm : str
        Its name, for errors.
    public_samples : int
        Rows of a subset, 1 or more; all public samples where there are fewer.
    robust : str
        As in `hetfl_flwr.learning.aggregation.parse_robust`.
    answers : {"logits", "softmax"}
        What clients answer with.

    Raises
    ------
    ConfigError
        ``robust`` is none of what it may be.
    """

    sends = "public samples"

    def __init__(self, algorithm: str, public_samples: int, robust: str, answers: Answers) -> None:
        self._algorithm, self._answers = algorithm, answers
        self.public_samples = public_samples
        self.robust = parse_robust(robust)
        self._left_out = LeftOut(algorithm, self.robust)

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
        roster.check_sharing(self._algorithm)

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
        kept, average = self._left_out.kept(client_ids, [sent]), self.robust.among_kept
        answers = list(sent[kept])
        if self._answers == "softmax":
            mixed = average.mixture(answers, told=lambda weights: self._left_out.note(client_ids, weights > 0))
            mean = np.maximum(mixed, np.finfo(np.float32).tiny)  # scores may all be 0
            mean /= mean.sum(axis=1, keepdims=True)
        else:
            mean = average.mean(answers)
        self._left_out.tell(round)
        return {
            "consensus": self.consensus_of(mean).astype(np.float32),
            "rows": self._index.places(self._asked(server_state)),
            "subsets": server_state["subsets"] + 1,
        }

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the consensus and the numbers, in the pool as it is now, of its rows and of those to answer next.

        A subset that nobody has answered is asked for again. Numbers change when a client joins, client ids and
        positions do not; rows that are in the pool no longer are left out.
        """
        rows = server_state["rows"]
        held = self._index.held(rows)
        return {
            "digested": self._index.numbers(rows[held]).astype(np.int32),
            "consensus": server_state["consensus"][held],
            "asked": self._asked(server_state).astype(np.int32),
        }

    def _asked(self, server_state: Arrays) -> Numbers:
        """Draw the next subset: numbers in the pool, ascending."""
        pool = len(self._index)
        draw = generator(self.config.seed, int(server_state["subsets"][0]) + 1, "public")
        return np.sort(draw.choice(pool, min(self.public_samples, pool), replace=False))

    @property
    def _index(self) -> PublicIndex:
        """The pool as it is now."""
        return PublicIndex.of(self.roster.public_samples)
