import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.data.partitions import Partition, parse_partition, split
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

FOUR_CLASSES = np.repeat(np.arange(4), 15)


def cut(labels, text, clients, seed=0):
    return split(np.asarray(labels), parse_partition(text), clients, seed)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("iid", Partition("iid")),
        ("dirichlet:0.5", Partition("dirichlet", 0.5)),
        ("classes:2", Partition("classes", 2)),
        ("shards:3", Partition("shards", 3)),
        ("all", Partition("all")),
    ],
)
def test_a_partition_reads_back_as_it_was_written(text, partition):
    assert parse_partition(text) == partition
    assert str(partition) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "idd",
        "iid:2",
        "dirichlet",
        "dirichlet:0",
        "dirichlet:nan",
        "dirichlet:1e7",
        "classes:0",
        "classes:1.5",
        "shards:two",
    ],
)
def test_any_other_text_is_refused_with_the_valid_forms(text):
    with pytest.raises(ConfigError) as refused:
        parse_partition(text)
    assert str(refused.value) == (
        f"partition {text!r} is not one of: iid, dirichlet:ALPHA (0 < ALPHA <= 1e6), classes:N, shards:N (N >= 1), all"
    )


def test_all_gives_every_client_every_row():
    """Five clients may share three rows, for they do not share them out."""
    assert [sorted(part) for part in cut([0, 1, 1], "all", 5)] == [[0, 1, 2]] * 5


def test_iid_cuts_the_shuffled_rows_into_equal_runs():
    """Six rows over four clients: the run's own order, in runs of 2, 2, 1, 1."""
    order = generator(7, "partition").permutation(6)
    parts = cut([0] * 6, "iid", 4, seed=7)
    assert [part.tolist() for part in parts] == [
        order[0:2].tolist(),
        order[2:4].tolist(),
        order[4:5].tolist(),
        order[5:6].tolist(),
    ]


def test_one_shard_a_client_is_one_class_each_where_classes_are_equal():
    """Sorted by label and cut in three, 0 1 2 0 1 2 gives the pairs {0, 3}, {1, 4}, {2, 5} in some order."""
    parts = cut([0, 1, 2, 0, 1, 2], "shards:1", 3)
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 3], [1, 4], [2, 5]]


def test_one_class_a_client_is_the_class_of_its_number(caplog):
    """Clients 0 and 1 take classes 0 and 1; row 4, the only one of class 2, falls to nobody and is logged."""
    with caplog.at_level(logging.WARNING):
        parts = cut([0, 1, 0, 1, 2], "classes:1", 2)
    assert [sorted(part.tolist()) for part in parts] == [[0, 2], [1, 3]]
    assert "partition 'classes:1' leaves 1 of 5 samples unused" in caplog.text


def test_a_tiny_alpha_gives_each_class_to_one_client():
    parts = cut(FOUR_CLASSES, "dirichlet:1e-6", 2)
    held = [set(FOUR_CLASSES[part]) for part in parts]
    assert [len(part) % 15 for part in parts] == [0, 0]
    assert held[0].isdisjoint(held[1])


def test_a_huge_alpha_halves_each_class():
    counts = [np.bincount(FOUR_CLASSES[part]).tolist() for part in cut(FOUR_CLASSES, "dirichlet:1e6", 2)]
    assert sorted(map(sorted, counts)) == [[7, 7, 7, 7], [8, 8, 8, 8]]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 4),
    text=st.sampled_from(["iid", "dirichlet:2", "classes:1", "classes:3", "shards:1", "shards:4"]),
)
def test_partitions_are_disjoint_and_give_out_what_they_promise(seed, clients, text):
    parts = cut(FOUR_CLASSES, text, clients, seed)
    rows = np.concatenate(parts)
    form = parse_partition(text)
    assert len(parts) == clients
    assert len(np.unique(rows)) == len(rows)
    if form.form == "classes":
        assert [len(set(FOUR_CLASSES[part])) for part in parts] == [form.value] * clients
        assert len(rows) == 15 * len(set(FOUR_CLASSES[rows]))
    elif form.form == "shards":
        shards = form.value * clients
        assert len(rows) == shards * (60 // shards)
    else:
        assert len(rows) == 60


def test_the_seed_alone_decides():
    first, again, other = (np.concatenate(cut(FOUR_CLASSES, "classes:2", 4, seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert len(first) != len(other) or (first != other).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "clients", "line"),
    [
        ("iid", 61, "61 clients cannot share 60 samples: use 60 clients or fewer"),
        ("classes:5", 2, "partition 'classes:5': the data has 4 classes, ask for no more"),
        (
            "shards:16",
            4,
            "partition 'shards:16': 60 samples over 4 clients make at most 15 shards a client",
        ),
        (
            "dirichlet:0.01",
            10,
            "partition 'dirichlet:0.01' cannot share 60 samples over 10 clients: "
            "use fewer clients, or a more even partition (a higher ALPHA, a lower N)",
        ),
        (
            "classes:4",
            16,
            "partition 'classes:4' cannot share 60 samples over 16 clients: "
            "use fewer clients, or a more even partition (a higher ALPHA, a lower N)",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_in_one_line(text, clients, line):
    with pytest.raises(ConfigError) as refused:
        cut(FOUR_CLASSES, text, clients)
    assert str(refused.value) == line
