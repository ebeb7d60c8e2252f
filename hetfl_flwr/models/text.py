"""Models for texts: inputs are tokens (B, T), int64 from 0 to V-1, where 0 fills a short text up at its end.

All begin with an embedding of 100 numbers a token and end in two linear layers, the second of which is the head.
"""

import torch
from torch import Tensor, nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.models.zoo import with_hidden_layers

UNITS = 100
"""Numbers in an embedding of a token, in the state of an LSTM, and units of the hidden linear layer."""


class LastState(nn.Module):
    """Embedding and LSTM: gives the state at the last token of each text, whatever fills the text up behind it.

    A text without any token has the state after one filling token.

    Parameters
    ----------
    vocabulary : int
        V, the number of different tokens, the filling one among them.
    layers : int
        Layers of the LSTM, 1 or more.

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
    """Long short-term memory: embedding, LSTM of one or more layers, two linear layers.

    Makhija et al. (FedHeNN), ICML 2022, section 4.1, take one or two layers for Sentiment140 and do not say how wide
    they are; here embedding, state and hidden layer have 100 numbers each.

    Parameters
    ----------
    layers : int
        Layers of the LSTM, 1 or more.
    spec : DataSpec
        Length of the texts, vocabulary and number of classes.

    Raises
    ------
    ModelError
        If the data are not texts.

    Examples
    --------
    >>> lstm(1, DataSpec(shape=(25,), classes=2, vocabulary=5000)).width
    100
    """
    return with_hidden_layers(nn.Sequential(LastState(_vocabulary(spec), layers)), UNITS, (UNITS,), spec)


def bag(spec: DataSpec) -> SplitModel:
    """Bag of words: the mean of the tokens' embeddings, two linear layers.

    A text without any token has the mean 0.

    Raises
    ------
    ModelError
        If the data are not texts.

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
