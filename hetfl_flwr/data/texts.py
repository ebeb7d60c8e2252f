"""Decode texts: words become tokens by a hash that all clients share, or by their frequency."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.decode import cells_of, decode
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.labels import check_filled
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import parse_vocabulary
from hetfl_flwr.data.roles import in_words, is_text
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DataError

_BETWEEN_WORDS = r"[^\pL\pN_]+"
_BATCH = 50_000  # how many texts are split into words at a time
_FILL, _UNKNOWN, _FIRST = 0, 1, 2


@dataclass(frozen=True)
class Tokens:
    """How texts become rows of `length` tokens from a vocabulary of `size` V.

    `words` returns the words with tokens from 2 on, in order; if it is None, the token of a word is its hash.
    """

    length: int
    size: int
    words: Callable[[], pa.Array] | None = None
    dtype = np.int32
    batch = _BATCH

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        return (self.length,)

    def read(self, cells: pa.Array) -> tuple[npt.NDArray[np.int32], Mapping[int, str]]:
        """Return the tokens (B, length), 0..V-1, of texts (B,), none of which is missing."""
        words, rows = _words(cells.cast(pa.large_string()))
        places = np.arange(len(rows)) - np.searchsorted(rows, rows)
        fit = places < self.length
        coded = words.filter(fit).dictionary_encode()
        numbers = self._numbers(coded.dictionary)
        tokens = np.full((len(cells), self.length), _FILL, np.int32)
        tokens[rows[fit], places[fit]] = numbers[coded.indices]
        return tokens, {}

    def _numbers(self, words: pa.Array) -> IntArray:
        if self.words is None:
            hashes = [mmh3.hash(word, signed=False) for word in words.to_pylist()]
            return 1 + np.array(hashes, np.int64) % (self.size - 1)
        ranks: IntArray = pc.index_in(words, value_set=self.words()).fill_null(_UNKNOWN - _FIRST).to_numpy()
        return _FIRST + ranks


def read_texts(source: Source, rows: IntArray) -> Arrays:
    """Decode each text of a data set to a row of tokens.

    A word is a run of letters, digits and underscores, in lower case. Token 0 pads short texts at the end. With
    ``vocabulary = "hashed:V"`` the token of a word is 1 + its MurmurHash3 (32 bits, seed 0) modulo V - 1. It is the
    same in every run, on every node and for all data, so clients learn nothing about each other's words. With
    ``"shared:V"`` token 1 is an unknown word, and 2..V-1 are the V - 2 most frequent words of the training split, the
    most frequent first and ties in alphabetical order. Such clients know which words are frequent in all data, and need
    the same training split; `Arrays.words` shows whether they have it.
    """
    reading, [column] = source.reading, source.inputs
    found = check_filled(source, column, source.frame[column])
    if not is_text(found.type):
        raise DataError(
            f"column '{column}' of {source.place} holds {in_words(found.type)}, not texts: set text-column to a column "
            "of texts"
        )
    kind, size = parse_vocabulary(reading.vocabulary)
    words = partial(source.once, _frequent, size) if kind == "shared" else None
    form = Tokens(reading.text_length, size, words)
    named = (lambda: words().to_pylist()) if words else None
    arrays = decode(source, form, rows, (reading.vocabulary, source.train_rows), vocabulary=size, words=named)
    counts = (
        (
            int((arrays.inputs[:, -1] != _FILL).sum()),
            f"have {form.length} words or more: cut to that length (text-length)",
        ),
        (int((arrays.inputs[:, 0] == _FILL).sum()), "have no word"),
    )
    notes = [f"{count:,} of {len(source):,} texts of {source.place} {what}" for count, what in counts if count]
    return arrays if source.is_catalogued else replace(arrays, notes=(*notes,))


def _words(texts: pa.Array) -> tuple[pa.Array, IntArray]:
    """Return the words of texts in order, and the index of each word's text."""
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), _BETWEEN_WORDS)
    words = pc.list_flatten(lists)
    real = pc.not_equal(words, "")  # texts may begin or end with a separator
    return words.filter(real), pc.list_parent_indices(lists).filter(real).to_numpy()


def _frequent(source: Source, size: int) -> pa.Array:
    """Return the most frequent words of the training split, most frequent first, one for each token from 2 on."""
    counts: Counter[str] = Counter()
    cells = cells_of(source)[: source.train_rows]
    for first in range(0, len(cells), _BATCH):
        texts = cells[first : first + _BATCH].combine_chunks().cast(pa.large_string())
        counted = pc.value_counts(_words(texts)[0])
        counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return pa.array(ranked[: size - _FIRST], pa.large_string())
