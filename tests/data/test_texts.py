"""Texts: cut into words, and words into tokens."""

import json
import os

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, List, Value
from fixtures.data.columns import lay, own, read, write_csv
from fixtures.data.loading import load_client
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils import murmurhash3_32

from hetfl_flwr.data import DataSpec, cache, texts
from hetfl_flwr.errors import DataError

ANALYSE = CountVectorizer(token_pattern=r"\w+").build_analyzer()
LETTERS = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\u0130\u03a3")
"""All but two capitals, I with a dot and sigma, whose small letters depend on what follows, or are two, in Python."""


def decoded(train, test=None, **reading):
    wanted = {"text_column": "text", "text_length": 4, "vocabulary": "shared:9"} | reading
    splits = [
        None if split is None else {"text": split, "y": [0, 1, *[0] * (len(split) - 2)]} for split in (train, test)
    ]
    return read(*splits, form="parquet", **wanted)


def tokens(train, test=None, **reading):
    return decoded(train, test, **reading).inputs.tolist()


def hashed(word, size):
    return 1 + murmurhash3_32(word, positive=True) % (size - 1)


class TestShared:
    def test_words_are_numbered_from_the_most_frequent_and_ties_by_the_alphabet(self, monkeypatch):
        """Of the training split: b three times, a and c twice, d once. Tokens 2 to 4 are b, a and c.

        They are counted over all batches, and a vocabulary may be larger than the words.
        """
        for batch in (1000, 2):
            monkeypatch.setattr(texts.Tokens, "batch", batch)
            assert tokens(["c b a", "b a d", "c b"], ["d d e", "a d b"], vocabulary="shared:5") == [
                *([4, 2, 3, 0], [2, 3, 1, 0], [4, 2, 0, 0]),
                *([1, 1, 1, 0], [3, 1, 2, 0]),
            ]
        found = decoded(["x y", "x"], vocabulary="shared:9")
        assert (found.inputs.tolist(), found.spec) == ([[2, 3, 0, 0], [2, 0, 0, 0]], DataSpec((4,), 2, vocabulary=9))


class TestHashed:
    def test_a_word_is_its_hash_whatever_else_there_is(self):
        """MurmurHash3 of 32 bits with seed 0, unsigned: "hello" is 613153351, so 1 + 613153351 mod 99 = 1 + 58.

        All tokens are used, and none is the filling.
        """
        assert tokens(["hello", "x"], vocabulary="hashed:100")[0] == [1 + 613153351 % 99, 0, 0, 0]
        assert tokens(["x", "y z hello"], vocabulary="hashed:100")[1][2] == 1 + 613153351 % 99
        words = " ".join(f"word{number}" for number in range(400))
        assert set(tokens([words, ""], vocabulary="hashed:9", text_length=400)[0]) == set(range(1, 9))

    @given(st.lists(st.text(LETTERS, max_size=20), min_size=2, max_size=6), st.integers(3, 50))
    def test_it_is_that_of_scikit_learn_on_the_words_of_scikit_learn(self, written, size):
        found = [[hashed(word, size) for word in ANALYSE(text)][:6] for text in written]
        expected = [row + [0] * (6 - len(row)) for row in found]
        assert tokens(written, vocabulary=f"hashed:{size}", text_length=6) == expected


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("  Don't, STOP! ", ["don", "t", "stop"]),
            ("@user it's 2morrow &amp; http://x.y/_z", ["user", "it", "s", "2morrow", "amp", "http", "x", "y", "_z"]),
            ("ÉTÉ straße 日本語 Ωmega", ["été", "straße", "日本語", "ωmega"]),
            (" ...\n\t", []),
        ],
    )
    def test_they_are_runs_of_letters_digits_and_underscores_in_lower_case(self, text, words):
        got = tokens([text, ""], vocabulary="hashed:50000", text_length=9)
        assert got == [[hashed(word, 50000) for word in words] + [0] * (9 - len(words)), [0] * 9]

    def test_a_long_text_keeps_its_first_words_and_a_line_counts_such_and_those_without_any(self):
        found = decoded(["a a b b a c c", "a", "", "b b", "..."], text_length=3)
        assert found.inputs.tolist() == [[2, 2, 3], [2, 0, 0], [0, 0, 0], [3, 3, 0], [0, 0, 0]]
        assert [note[:6] for note in found.notes if " of 5" in note] == ["1 of 5", "2 of 5"]


def test_a_client_has_tokens_however_it_normalises(tmp_path):
    lines = 'said,mood\n"Good, good day",4\n"bad day",0\nday,4\n'
    folder = write_csv(tmp_path / "moods", train=lines, test="said,mood\nbad unknown,0\n")
    keys = {"dataset": folder, "text_column": "said", "label_column": "mood", "text_length": 3, "partition": "all"}
    keys |= {"vocabulary": "shared:6", "partition_id": 0, "num_partitions": 1, "seed": 0, "test": "global"}
    arrays = load_client(**keys, normalize="none").train.arrays
    for normalize in ("mean-image", "none"):
        data = load_client(**keys, normalize=normalize, validation_fraction=0, public_fraction=0.9)
        assert data.train.arrays is arrays
        assert data.spec == DataSpec((3,), 2, vocabulary=6)
        inputs, labels = data.train.batch(torch.argsort(data.train.rows))
        assert inputs.dtype == torch.int64
        assert inputs.tolist() == [[3, 3, 2], [4, 2, 0], [2, 0, 0]]
        assert labels.tolist() == [1, 0, 1]
        assert data.test.batch(torch.arange(1))[0].tolist() == [[4, 1, 0]]
        assert data.public.stored()[0].dtype == torch.int32


def test_a_large_set_is_turned_once_and_its_file_is_of_its_own_vocabulary_and_length(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SMALL", 0)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    first = decoded(["a b", "b"]).inputs
    monkeypatch.setattr(texts, "_words", None)
    assert torch.equal(decoded(["a b", "b"]).inputs, first)
    for text, keys in (("c", {}), ("b", {"vocabulary": "shared:8"}), ("b", {"text_length": 5})):
        with pytest.raises(TypeError, match="NoneType"):
            decoded(["a b", text], **keys)


def test_the_words_of_a_file_that_becomes_the_test_split_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SMALL", 0)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    first, second = "text,y\na b,0\nb,1\n", "text,y\nc c,0\nc,1\n"
    keys = {"text_column": "text", "text_length": 4, "vocabulary": "shared:9"}
    found = [
        own(write_csv(tmp_path / other, **{"train-1": first, other: second}), **keys) for other in ("train-2", "test-2")
    ]
    assert found[0].inputs.tolist() == [[4, 3, 0, 0], [3, 0, 0, 0], [2, 2, 0, 0], [2, 0, 0, 0]]
    assert found[1].inputs.tolist() == [[3, 2, 0, 0], [2, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]


class TestRefusals:
    def test_a_missing_text_names_its_row(self, refusal, monkeypatch):
        monkeypatch.setattr(texts.Tokens, "batch", 2)
        assert "row 4 of split 'test'" in refusal(DataError, decoded, ["a", "b"], ["a", "b", "c", None])

    @pytest.mark.parametrize(("values", "feature"), [([1, 2], Value("int64")), ([["a"], ["b"]], List(Value("string")))])
    def test_a_column_of_anything_else(self, values, feature, refusal):
        features = Features({"text": feature, "y": Value("int64")})
        other = Dataset.from_dict({"text": values, "y": [0, 1]}, features=features)
        assert "column 'text'" in refusal(DataError, read, other, form="parquet", text_column="text")


def test_texts_cross_the_wire_as_tokens_to_unlike_models(tmp_path, make_config, run_federation):
    written = [f"{'good' if row % 2 else 'bad'} word{row % 7} and so on" for row in range(40)]
    data = str(lay(tmp_path / "data", {"train.parquet": {"text": written, "mood": [row % 2 for row in range(40)]}}))
    keys = {"dataset": data, "text_column": "text", "label_column": "mood", "text_length": 6, "vocabulary": "hashed:50"}
    config = make_config(algorithm="agg", models="lstm1,bag", public_fraction=0.3, **keys)
    summary = json.loads((run_federation(config) / "summary.json").read_text())
    assert summary["failures"] == 0
    assert summary["bytes_up"] == 2 * 6 * (6 * 4 + 8)  # six public texts each, six tokens of int32, and the label


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no stanfordnlp/sentiment140")
def test_sentiment140_has_the_words_of_scikit_learn():
    folder = os.environ["HETFL_DATA_DIR"]
    arrays = load_client(dataset="sentiment140", data_dir=folder, partition_id=0, num_partitions=2, seed=0).train.arrays
    assert arrays.spec == DataSpec((32,), 2, vocabulary=20_000)
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(f"{folder}/stanfordnlp/sentiment140/train-00000-of-00001.parquet")[:2000]
    assert arrays.labels[:2000].tolist() == (frame.sentiment == 4).astype(int).tolist()
    expected = np.zeros((2000, 32), np.int32)
    for row, text in enumerate(frame.text):
        found = [hashed(word, 20_000) for word in ANALYSE(text)][:32]
        expected[row, : len(found)] = found
    assert np.array_equal(arrays.inputs[:2000], expected)
