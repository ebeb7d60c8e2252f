"""Models for texts: inputs are tokens (B, T), int64 from 0 to V - 1, where 0 pads short texts at the end.

All begin with an embedding of width 100 and end in two linear layers, the second of which is the head.
"""

import torch
from torch import Tensor, nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.models.zoo import with_hidden_layers

UNITS = 100
"""Width of the token embedding, the state of an LSTM, and the hidden linear layer."""


class LastState(nn.Module):
    """Embedding and LSTM that return the state at the last token of each text, before the padding.

    The vocabulary V includes the padding token. For a text without tokens, the state after one padding token is
    returned.

    Examples
    --------
    >>> texts = torch.tensor([[5, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    >>> LastState(vocabulary=6, layers=1)(texts).shape
    torch.Size([3, 100])
    """

    def __init__(self, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, UNITS, padding_idx=0)
        self.lstm = nn.LSTM(UNITS, UNITS, layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the states (B, 100) of texts (B, T)."""
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        last = (tokens.count_nonzero(dim=1) - 1).clamp(min=0)
        return states[torch.arange(tokens.shape[0], device=tokens.device), last]


def lstm(layers: int, spec: DataSpec) -> SplitModel:
    """Build an embedding, an LSTM of one or more layers, and two linear layers.

    Makhija et al. (FedHeNN), ICML 2022, section 4.1, use one or two layers for Sentiment140 and do not report their
    width; here embedding, state and hidden layer have width 100. Raises ModelError if the data are not texts.

    Examples
    --------
    >>> lstm(1, DataSpec(shape=(25,), classes=2, vocabulary=5000)).width
    100
    """
    return with_hidden_layers(nn.Sequential(LastState(_vocabulary(spec), layers)), UNITS, (UNITS,), spec)


def bag(spec: DataSpec) -> SplitModel:
    """Build a bag of words: the mean of the token embeddings, 0 for a text without tokens, and two linear layers.

    Raises ModelError if the data are not texts.

    Examples
    --------
    >>> bag(DataSpec(shape=(25,), classes=2, vocabulary=5000)).width
    100
    """
    embeddings = nn.EmbeddingBag(_vocabulary(spec), UNITS, mode="mean", padding_idx=0)
    return with_hidden_layers(nn.Sequential(embeddings), UNITS, (UNITS,), spec)


def _vocabulary(spec: DataSpec) -> int:
    if spec.kind != "text":
        raise ModelError("a model for texts needs tokens; for images and tables use mlp")
    return spec.vocabulary
