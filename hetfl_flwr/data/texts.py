"""Texts: words become tokens, by a hash that is the same for everybody, or by how frequent they are."""

from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.cache import kept
from hetfl_flwr.data.labels import IntArray, filled, read_labels
from hetfl_flwr.data.reading import parse_vocabulary
from hetfl_flwr.data.roles import in_words, is_text
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from hetfl_flwr.data.opening import Source

_BETWEEN_WORDS = r"[^\pL\pN_]+"
_BATCH = 50_000  # texts that are cut into words at a time
_FILL, _UNKNOWN, _FIRST = 0, 1, 2


def read_texts(source: "Source") -> Arrays:
    """Turn each text of a data set into a row of tokens; a large one is turned once a machine, see `kept`.

    A word is a run of letters, digits and underscores, in lower case. Token 0 fills a short text up at its end; a text
    without words is 0 throughout. With ``vocabulary = "hashed:V"`` a word is 1 + its MurmurHash3 (32 bits, seed 0)
    modulo V - 1, the same in every run, on every node and for all data: nobody learns anything of the words of others.
    With ``"shared:V"`` 1 is an unknown word, and 2..V-1 are the V - 2 most frequent words of the training split, the
    most frequent first, of equally frequent ones the alphabetically first: clients that number words so know which are
    frequent in the data of all, and need the same training split at hand. `Arrays.words` tells whether they have it.

    Parameters
    ----------
    source : Source
        It has one column of texts.

    Returns
    -------
    Arrays
        Inputs (N, text-length) int32, 0..V-1.

    Raises
    ------
    DataError
        If the column holds no texts, or a row none, or the labels are not as they should be.
    """
    length = source.reading.text_length
    kind, size = parse_vocabulary(source.reading.vocabulary)
    classes, labels = read_labels(source)
    _check(source)
    inputs = kept(
        (source.digest, source.reading.vocabulary),
        (len(source), length),
        np.int32,
        partial(_batches, source),
    )
    return Arrays(
        spec=DataSpec((length,), classes, vocabulary=size),
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))),
        train_rows=len(labels["train"]),
        peak=1.0,
        centre=torch.zeros(length),
        words=partial(_frequent_words, source, size) if kind == "shared" else None,
    )


def _check(source: "Source") -> None:
    """Refuse a column of anything but texts, and rows without one."""
    [column] = source.inputs
    for found in filled(source, column).values():
        if not is_text(found.type):
            raise DataError(
                f"column '{column}' of {source.place} holds {in_words(found.type)}, not texts: set text-column to one "
                "that does"
            )


def _batches(source: "Source") -> Iterator[npt.NDArray[np.int32]]:
    """Turn all texts into tokens, batch by batch: each (B, text-length)."""
    kind, size = parse_vocabulary(source.reading.vocabulary)
    known = None if kind == "hashed" else _frequent(source, size)
    for split in source.splits:
        for texts in _texts(source, split):
            yield tokens(texts, size, source.reading.text_length, known)


def tokens(texts: pa.Array, size: int, length: int, known: pa.Array | None = None) -> npt.NDArray[np.int32]:
    """Return texts as rows of tokens, as `read_texts` says.

    Parameters
    ----------
    texts : Array
        B large strings, none missing.
    size : int
        V, tokens in all.
    length : int
        Tokens of a text.
    known : Array, optional
        The words that have a token from 2 on, in order; None: a word's token is its hash.

    Returns
    -------
    ndarray
        (B, length) int32, 0..V-1.
    """
    words, rows = _words(texts)
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept_words = places < length
    coded = words.filter(kept_words).dictionary_encode()
    numbers = _hashed(coded.dictionary, size) if known is None else _ranked(coded.dictionary, known)
    batch = np.full((len(texts), length), _FILL, np.int32)
    batch[rows[kept_words], places[kept_words]] = numbers[coded.indices]
    return batch


def _texts(source: "Source", split: str) -> Iterator[pa.Array]:
    """Return the texts of a split, batch by batch."""
    [column] = source.inputs
    texts = source.splits[split][column]
    for first in range(0, len(texts), _BATCH):
        yield texts.slice(first, _BATCH).combine_chunks().cast(pa.large_string())


def _words(texts: pa.Array) -> tuple[pa.Array, IntArray]:
    """Return all words of some texts, one after the other, and the text that each is from, ascending."""
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), _BETWEEN_WORDS)
    words = pc.list_flatten(lists)
    real = pc.not_equal(words, "")  # a text may begin and end between words
    return words.filter(real), pc.list_parent_indices(lists).filter(real).to_numpy()


def _hashed(words: pa.Array, size: int) -> IntArray:
    hashes = [mmh3.hash(word, signed=False) for word in words.to_pylist()]
    return 1 + np.array(hashes, np.int64) % (size - 1)


def _ranked(words: pa.Array, known: pa.Array) -> IntArray:
    ranks: IntArray = pc.index_in(words, value_set=known).fill_null(_UNKNOWN - _FIRST).to_numpy()
    return _FIRST + ranks


def _frequent_words(source: "Source", size: int) -> list[str]:
    words: list[str] = _frequent(source, size).to_pylist()
    return words


@cache
def _frequent(source: "Source", size: int) -> pa.Array:
    """Return the most frequent words of the training split, the most frequent first, as many as have a token."""
    counts: Counter[str] = Counter()
    for texts in _texts(source, "train"):
        counted = pc.value_counts(_words(texts)[0])
        counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return pa.array(ranked[: size - _FIRST], pa.large_string())
