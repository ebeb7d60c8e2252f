import logging
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
import torch
from fixtures.data.columns import lay
from fixtures.data.loading import load_client, load_clients
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.data.partitions import Partition, parse_partition, split
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

FOUR_CLASSES = np.repeat(np.arange(4), 15)


def cut(labels, text, clients, seed=0, owners=None):
    owned = None if owners is None else np.asarray(owners)
    return split(np.asarray(labels), parse_partition(text), clients, seed, owners=owned)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        *((form, ()) for form in ("iid", "square", "all")),
        *(("dirichlet:0.5", (0.5,)), ("classes:2", (2,)), ("shards:3", (3,)), ("ways:3:2:100", (3, 2, 100))),
        ("natural:user:id", ("user:id",)),
    ],
)
def test_a_partition_reads_back_as_it_was_written(text, values):
    assert parse_partition(text) == Partition(text.partition(":")[0], values)
    assert str(parse_partition(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "idd", "iid:2", "dirichlet", "dirichlet:0", "dirichlet:nan", "dirichlet:1e7", "classes:0", "classes:1.5"),
        *("shards:two", "ways:3", "ways:3:2:1", "ways:0:0:5", "ways:3:-1:5", "ways:3:2:x", f"ways:3:2:1{'0' * 21}"),
        *("natural", "linear:2"),
    ],
)
def test_any_other_text_is_refused(text, refusal):
    assert repr(text) in refusal(ConfigError, parse_partition, text)


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("iid", "9a3c8581f17d846c"),
        ("dirichlet:0.5", "cbcb535330a8a45d"),
        ("classes:2", "0dab1de821abfcc8"),
        ("shards:3", "0d33c03fbb476dc9"),
        ("all", "783d0b9118f53e66"),
    ],
)
def test_the_rows_are_those_of_earlier_versions(text, digest):
    """Results that were published rest on them; 2,000 rows of ten classes over 20 clients."""
    labels = generator(0, "labels").integers(0, 10, 2000)
    rows = b"|".join(part.astype("<i8").tobytes() for part in split(labels, parse_partition(text), 20, 3, 1))
    assert sha256(rows).hexdigest()[:16] == digest


def test_partitions_by_hand(caplog):
    """Five clients may share three rows, for they do not share them out. Six rows over four clients: the run's own
    order, in runs of 2, 2, 1, 1. Sorted by label and cut in three, 0 1 2 0 1 2 gives the pairs {0, 3}, {1, 4}, {2, 5}.
    Clients 0 and 1 take classes 0 and 1; row 4, the only one of class 2, falls to nobody and is logged.
    """
    assert [sorted(part) for part in cut([0, 1, 1], "all", 5)] == [[0, 1, 2]] * 5
    order = generator(7, "partition").permutation(6)
    assert [[*part] for part in cut([0] * 6, "iid", 4, seed=7)] == [[*part] for part in np.array_split(order, 4)]
    assert sorted(sorted(part) for part in cut([0, 1, 2, 0, 1, 2], "shards:1", 3)) == [[0, 3], [1, 4], [2, 5]]
    with caplog.at_level(logging.WARNING):
        assert [sorted(part) for part in cut([0, 1, 0, 1, 2], "classes:1", 2)] == [[0, 2], [1, 3]]
    assert "1 of 5" in caplog.text
    counts = [np.bincount(FOUR_CLASSES[part]).tolist() for part in cut(FOUR_CLASSES, "dirichlet:1e6", 2)]
    assert sorted(map(sorted, counts)) == [[7, 7, 7, 7], [8, 8, 8, 8]]


def test_each_owner_s_rows_stay_together_and_owners_are_dealt_round_robin():
    """Sorted, owners 2, 5, 7, 9 and 11 go to clients 0, 1, 0, 1 and 0."""
    owners = np.array([7, 2, 2, 11, 9, 5, 5, 7])
    parts = cut(np.zeros(8), "natural:user", 2, owners=owners)
    assert [sorted(owners[part].tolist()) for part in parts] == [[2, 2, 7, 7, 11], [5, 5, 9]]


@pytest.mark.parametrize(
    ("text", "rows", "sizes"),
    [
        ("linear", 20, [2, 4, 6, 8]),
        ("linear", 22, [2, 4, 6, 10]),
        ("square", 60, [2, 8, 18, 32]),
        ("exponential", 100, [3, 8, 23, 66]),
    ],
)
def test_a_client_s_share_grows_with_its_number(text, rows, sizes):
    """Of 1 + 2 + 3 + 4 = 10 units of 2.2 rows, the first three make 2, 4 and 6 (rounded down); the last has the rest.

    Squares: 1, 4, 9, 16 of 30. Exponentials: e, e^2, e^3, e^4 are 3.2, 8.7, 23.7 and 64.4 % of their sum. The mix of
    classes does not grow: of 160 rows about 40 are of each of four.
    """
    assert [len(part) for part in cut(np.zeros(rows), text, 4)] == sizes
    labels = np.repeat(np.arange(4), 100)
    assert np.bincount(labels[cut(labels, "linear", 4)[3]]).min() > 25


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 4),
    text=st.sampled_from(["iid", "dirichlet:2", "classes:1", "classes:3", "shards:1", "shards:4", "square"]),
)
def test_partitions_are_disjoint_and_give_out_what_they_promise(seed, clients, text):
    parts = cut(FOUR_CLASSES, text, clients, seed)
    rows = np.concatenate(parts)
    form = parse_partition(text)
    assert len(parts) == clients
    assert len(np.unique(rows)) == len(rows)
    if form.form == "classes":
        assert [len(set(FOUR_CLASSES[part])) for part in parts] == [*form.values] * clients
        assert len(rows) == 15 * len(set(FOUR_CLASSES[rows]))
    elif form.form == "shards":
        shards = form.values[0] * clients
        assert len(rows) == shards * (60 // shards)
    else:
        assert len(rows) == 60


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "clients", "line"),
    [
        *(("iid", 61, "60 clients"), ("linear", 11, "10 clients"), ("exponential", 60, "4 clients")),
        *(("classes:5", 2, "4 classes"), ("classes:4", 16, "classes:4"), ("shards:16", 4, "15 shards")),
        *(("dirichlet:0.01", 10, "dirichlet:0.01"), ("natural:user", 2, "natural:user")),
        *(("ways:5:0:1", 1, "4 classes"), ("ways:4:0:10", 2, "client 1")),
    ],
)
def test_what_cannot_be_shared_out_is_refused(text, clients, line, refusal):
    assert line in refusal(ConfigError, cut, FOUR_CLASSES, text, clients)
    assert "2 owners" in refusal(ConfigError, cut, [0, 1, 0, 1], "natural:user", 3, owners=[4, 4, 8, 8])


def halved(fraction, client=None, **changes):
    keys = {"dataset": "digits", "num_partitions": 5, "seed": 2, "half_data_fraction": fraction} | changes
    return [load_client(**keys, partition_id=one) for one in (range(5) if client is None else [client])]


def test_halved_clients_keep_the_first_half_of_their_training_rows_and_all_others():
    """Two of five are drawn; of odd 251 rows 126 stay, and with them all 36 public ones: no more than are left."""
    whole, some = halved(0.0), halved(0.4)
    shrunk = [len(part.train) < len(full.train) for part, full in zip(some, whole, strict=True)]
    assert sum(shrunk) == 2
    for part, full, half in zip(some, whole, shrunk, strict=True):
        kept = -(-len(full.train) // 2) if half else len(full.train)
        assert part.train.rows.tolist() == full.train.rows.tolist()[:kept]
        for name in ("public", "test", "validation"):
            assert torch.equal(getattr(part, name).rows, getattr(full, name).rows)
    [data] = halved(1.0, 0, public_fraction=0.9)
    assert data.public_rows == len(data.train) == 126


def test_a_larger_fraction_halves_the_same_clients_and_more():
    """Of five clients with 251 or 252 training rows each."""
    sizes = [[len(data.train) for data in halved(fraction)] for fraction in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    drawn = [{client for client, size in enumerate(of_all) if size < 200} for of_all in sizes]
    assert list(map(len, drawn)) == [0, 1, 2, 3, 4, 5]
    assert all(fewer < more for fewer, more in pairwise(drawn))


@pytest.mark.parametrize("test", ["client", "global"])
def test_even_tests_have_all_classes_whatever_a_client_trains_on(test):
    """Of 1,797 digits, or the 1,438 of the training split, 30 or 10 % are dealt out; no row is in two parts."""
    keys = {"dataset": "digits", "num_partitions": 5, "seed": 2, "partition": "classes:2", "iid_evaluation": True}
    clients = [load_client(**keys, test=test, partition_id=client) for client in range(5)]
    whole = load_client(**keys | {"iid_evaluation": False}, test=test, partition_id=0)
    assert len(set(whole.validation.labels.tolist())) == 2  # as in training, by default
    for data in clients:
        assert len(set(data.train.labels.tolist())) == 2
        assert len(set(data.validation.labels.tolist())) > 6  # about 30 rows
        assert len(set(data.test.labels.tolist())) == 10
        assert abs(len(data.validation) - (36 if test == "client" else 29)) <= 1
        assert abs(len(data.test) - (72 if test == "client" else 359)) <= 1
    parts = [
        part for data in clients for part in (data.train, data.validation, *([data.test] if test == "client" else []))
    ]
    rows = [row for part in parts for row in part.rows.tolist()]
    assert len(rows) == len(set(rows))


@pytest.fixture
def own_rows(tmp_path):
    """A table of 12 training and 4 test rows; users a, b and c have 6, 4 and 2 of the former."""
    for name, users in (("train", "abacabacabab"), ("test", "abca")):
        lay(tmp_path, {f"{name}.csv": {"x": range(len(users)), "y": [0, 1] * (len(users) // 2), "user": [*users]}})
    return {"dataset": tmp_path, "label_column": "y", "test": "global"}


def test_a_column_of_the_data_set_owns_the_rows(own_rows):
    """User a is client 0, user b is client 1; the column may be ignored as it is."""
    clients = load_clients(3, **own_rows, partition="natural:user")
    shares = [sorted(data.train.rows.tolist() + data.validation.rows.tolist()) for data in clients]
    assert shares == [[0, 2, 4, 6, 8, 10], [1, 5, 9, 11], [3, 7]]
    ignored = load_client(**own_rows, num_partitions=3, partition="natural:user", ignore_columns="user")
    assert ignored.spec == clients[0].spec


def test_clients_share_what_all_of_them_test_on(own_rows):
    """Else memory and time of a client would grow with the number of clients."""
    one, two = load_clients(2, **own_rows)
    assert one.test.rows is two.test.rows
    first, *_, fifth = load_clients(8, dataset="rotated-digits")[:5]
    assert all(some.rows is same.rows for some, same in zip(first.others, fifth.others, strict=True))
    assert len(first.others) == 3


def test_ways_give_each_client_a_few_classes_and_as_many_samples_of_each():
    """Without deviation all are alike, and one class is possible."""
    labels = generator(0, "labels").integers(0, 10, 20_000)
    parts = cut(labels, "ways:3:2:100", 20)
    classes = [np.unique(labels[part], return_counts=True) for part in parts]
    assert {len(found) for found, _ in classes} == {2, 3, 4, 5}
    assert all(len(set(counts.tolist())) == 1 for _, counts in classes)
    assert {99, 100, 101} >= {int(counts[0]) for _, counts in classes} > {100}
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together) < len(labels)
    alike = cut(FOUR_CLASSES, "ways:1:0:5", 3)
    assert [(len(part), len(np.unique(FOUR_CLASSES[part]))) for part in alike] == [(5, 1)] * 3
