"""FML, server side: the mean of the clients' memes.

Shen et al., "Federated Mutual Learning", 2020 (arXiv 2006.16765).
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr import (
    AUTO,
    COUNTER_LIMIT,
    Arrays,
    Average,
    FederationError,
    KnowledgeStrategy,
    Member,
    ModelName,
    PayloadSpec,
    Roster,
    Upload,
    small_global_model,
    state_arrays,
    whole_state,
)


class FML(KnowledgeStrategy):
    """Averages the clients' memes, small models that all clients train in addition to their own.

    Algorithm 1: ``global = 1/K sum_k meme_k`` over the clients of a round, with the same weight for each client,
    whatever its number of samples (section 6: privacy and fairness). Running statistics are averaged, too; for integer
    buffers (batch norm's step counters), the largest is used. A client that joins late starts from the current global
    model.

    Wire   down: the global model: every entry of its state dict, 4 bytes per parameter and running statistic and 8 per
                 counter (85,544 for LeNet-5 on 8x8 images, 246,824 on 28x28); with "body", of its body
           up:   the trained meme, the same size
           The global model is sent once more for evaluation, and counted as evaluation.
    Needs  one shape of input; equal classes, unless ``share = "body"``
    State  the same as the download.

    Parameters
    ----------
    meme : str
        The name of one model, as in ``models``, that fits every client's data. "auto" is the first model of ``models =
        "auto"``: LeNet-5 for images, a perceptron for tables, an LSTM for texts. It has its own embedding width, and
        random initial weights, whatever ``width`` and ``pretrained`` are in the run config.
    share : {"model", "body"}
        "model": the whole meme is exchanged; clients must have the same classes and the same shape of input. "body":
        only its body is exchanged, and each client has its own head for it (the paper's "adaptor", section 4.2). Then
        only the shape of input must be the same, so that clients with 10 and with 100 classes can learn together.
    """

    sends = "small models"
    averages = True

    def __init__(self, *, meme: ModelName = AUTO, share: Literal["model", "body"] = "model") -> None:
        self.meme = meme
        self.share = share

    def check(self, roster: Roster) -> None:
        """Refuse clients that cannot share one meme.

        Raises
        ------
        FederationError
            If inputs have different shapes, or if numbers of classes differ and the whole meme is exchanged.
        """
        _ = roster.shape
        if self.share == "model":
            try:
                _ = roster.classes
            except FederationError as error:
                raise FederationError(f"{error}; to share only the meme's body, set fml.share = 'body'") from None

    def initial(self, roster: Roster) -> Arrays:
        """Draw the global model's initial weights."""
        meme = small_global_model(self.meme, roster, self.config)
        shared = meme if self.share == "model" else meme.body
        self._uploads = whole_state(shared)
        return state_arrays(shared)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the global model."""
        return server_state

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the global model."""
        return server_state

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect a meme or its body."""
        return self._uploads

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the memes: Algorithm 1, line 6."""
        memes = {name: np.stack([upload.arrays[name] for upload in uploads]) for name in server_state}
        floats = [sent for sent in memes.values() if np.issubdtype(sent.dtype, np.floating)]
        kept = self.left_out.kept([upload.client_id for upload in uploads], floats)
        own = memes if kept.all() else {name: sent[kept] for name, sent in memes.items()}
        return {name: _merged(sent, self.robust.among_kept) for name, sent in own.items()}


def _merged(sent: NDArray[Any], average: Average) -> NDArray[Any]:
    """Return the average of floating-point arrays, computed in float64, or the largest entries of others, bounded."""
    if not np.issubdtype(sent.dtype, np.floating):
        return np.asarray(np.minimum(np.max(sent, axis=0).astype(np.int64), COUNTER_LIMIT // 2), sent.dtype)
    return np.asarray(average.mean(sent), sent.dtype)
