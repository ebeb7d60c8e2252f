"""Models for texts: the state at the last token, the mean of embeddings, and what fills a text up."""

import pytest
import torch
from fixtures.zoo import assert_is_a_model_of_the_zoo
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models import build_model, parameter_count, split

TEXT = DataSpec(shape=(6,), classes=3, vocabulary=11)
TOKENS = torch.tensor([[4, 9, 1, 0, 0, 0], [2, 2, 7, 10, 3, 5], [8, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
NAMES = ["lstm1", "lstm2", "bag"]


@pytest.mark.parametrize("name", NAMES)
def test_trains_splits_and_survives_a_state(name):
    assert_is_a_model_of_the_zoo(name, TEXT)


@pytest.mark.parametrize("name", NAMES)
def test_what_fills_a_text_up_changes_nothing(name):
    """Nor do the other texts of a batch, or a text that is nothing but filling."""
    model = build_model(name, TEXT, seed=0).eval()
    logits = model(TOKENS)
    assert logits.isfinite().all()
    longer = torch.cat([TOKENS, torch.zeros(4, 5, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(longer), logits)
    for row, length in enumerate((3, 6, 1, 1)):
        torch.testing.assert_close(model(TOKENS[row : row + 1, :length])[0], logits[row])


@pytest.mark.parametrize("name", NAMES)
def test_filling_is_not_learned_and_tokens_that_occur_are(name):
    model = build_model(name, TEXT, seed=0)
    model(TOKENS).sum().backward()
    (embedding,) = (weight for weight in model.parameters() if weight.shape == (11, 100))
    learned = embedding.grad.abs().sum(1) > 0
    assert learned.nonzero().flatten().tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10]


@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_gives_the_state_of_its_last_layer_at_the_last_token(layers):
    """The reference reads one text at a time, without what fills it up, and takes PyTorch's own final state."""
    reader = build_model(f"lstm{layers}", TEXT, seed=0).body[0]
    assert reader.lstm.num_layers == layers
    for text, state in zip(TOKENS[:3], reader(TOKENS[:3]), strict=True):
        _, (final, _) = reader.lstm(reader.embedding(text[text > 0])[None])
        torch.testing.assert_close(state, final[-1, 0])


def test_a_bag_is_the_mean_of_its_tokens_embeddings():
    """Text [4, 9, 1] is (e4 + e9 + e1) / 3, text [8] is e8, and a text without a token 0."""
    reader = build_model("bag", TEXT, seed=0).body[0]
    embeddings = reader.weight
    means = torch.stack([embeddings[[4, 9, 1]].sum(0) / 3, embeddings[8], torch.zeros(100)])
    torch.testing.assert_close(reader(TOKENS[[0, 2, 3]]), means)


def test_parameters_by_hand():
    """Embedding 11 * 100; an LSTM's layer has 4 gates of 100 x (100 + 100) and two biases; linear layers 100 and 3."""
    linear = (100 * 100 + 100) + (100 * 3 + 3)
    layer = 4 * (100 * 200 + 2 * 100)
    counts = [1100 + layer + linear, 1100 + 2 * layer + linear, 1100 + linear]
    assert [parameter_count(build_model(name, TEXT, seed=0)) for name in NAMES] == counts


@pytest.mark.parametrize(
    ("name", "spec", "other"),
    [
        *((name, spec, "mlp") for name in ("lstm2", "bag") for spec in (DataSpec((1, 8, 8), 3), DataSpec((6,), 3))),
        *((name, TEXT, "lstm1") for name in ("mlp", "tabular:3", "lenet5", "resnet18")),
        *((name, DataSpec((30,), 2), "mlp") for name in ("fedhe:3", "resnet18")),
        *((name, DataSpec((9, 128), 6), "conv1d") for name in ("lenet5", "resnet18")),
        ("lstm1", DataSpec((9, 128), 6), "text"),
        *(("conv1d:small", spec, "series") for spec in (DataSpec((1, 8, 8), 3), DataSpec((6,), 3), TEXT)),
    ],
)
def test_a_model_refuses_data_of_another_kind_and_names_one_that_takes_it(refusal, name, spec, other):
    line = refusal(ModelError, build_model, name, spec, seed=0)
    assert (f"'{name}'" in line, other in line) == (True, True)


def test_a_model_of_the_user_s_own_is_tried_with_tokens_of_the_vocabulary(refusal):
    own, small = (nn.Sequential(nn.Embedding(words, 2), nn.Flatten(), nn.Linear(12, 3)) for words in (11, 2))
    assert split(own, spec=TEXT).width == 12
    assert "(2, 6)" in refusal(ModelError, split, small, spec=TEXT)
