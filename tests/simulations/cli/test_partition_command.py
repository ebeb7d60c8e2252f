"""`hetfl partition`: what it counts is what clients get; its table, picture and JSON; its refusals."""

import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.datasets import load_digits

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import load_client_data
from simulations.reports.partition import KINDS, ClientRows, load_split, split_table

PNG = b"\x89PNG\r\n\x1a\n"


def counted(**keys):
    return load_split(RunConfig.from_flat({key.replace("_", "-"): value for key, value in keys.items()}))


def shown(split):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(split_table(split))
    return [line.split() for line in captured.get().splitlines() if line.strip()]


def test_the_counts_are_those_of_what_each_client_trains_with():
    config = RunConfig(dataset="digits", clients=3, partition="dirichlet:0.5", half_data_fraction=0.4, seed=4)
    split = load_split(config)
    for number in range(3):
        data = load_client_data(config.split(3), number)
        rows = [len(part) for part in (data.train, data.validation, data.test, data.public)]
        assert split.shares.loc[number, KINDS].tolist() == rows
        assert split.counts.loc[number].tolist() == [(data.train.labels == label).sum() for label in range(10)]


def test_what_nobody_has_is_counted_and_what_all_have_counts_once():
    """Two clients with one class each have the digits 0 and 1; of the others nobody has any."""
    split = counted(clients=2, partition="classes:1")
    assert (split.rows, split.unused) == (1797, int((load_digits().target > 1).sum()))
    assert (split.counts > 0).sum(axis=1).tolist() == [1, 1]
    split = counted(clients=4, partition="all", dataset="digits,digits-colour")
    assert (split.rows, split.unused) == (2 * 1797, 0)


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        ("rotated-digits", ["0°", "20°", "40°", "60°", "0°"]),
        ("digits,rotated-digits", ["digits", *(f"rotated-digits {angle}°" for angle in (0, 20, 40, 60))]),
    ],
)
def test_domains_bear_names(dataset, names):
    assert counted(clients=5, dataset=dataset).shares.domain.tolist() == names


def test_a_table_with_few_classes_has_a_column_for_each():
    """Of domains with 2 and 3 classes; the sum adds what there is."""
    shares = pd.DataFrame([("a", 1200, 2, 1, 1, ""), ("b", 18, 2, 1, 1, "")], columns=["domain", *KINDS, "name"])
    counts = pd.DataFrame([[1200, 0, np.nan], [5, 6, 7]], columns=["0", "1", "2"])
    split = ClientRows("t", shares, counts, own_tests=True, rows=1250, unused=26)
    title, head, _, *lines, caption = shown(split)
    assert title == ["t"]
    assert head == ["client", "domain", *KINDS, "classes", "0", "1", "2"]
    assert lines == [
        ["0", "a", "1,200", "2", "1", "1", "1", "1,200", "·"],
        ["1", "b", "18", "2", "1", "1", "3", "5", "6", "7"],
        ["sum", "1,218", "4", "2", "2", "3", "1,205", "6", "7"],
    ]
    assert caption[:4] == ["1,250", "rows,", "26", "unused;"]


def test_the_command_shows_and_writes_what_was_counted(hetfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('partition = "classes:2"\nclients = 9\n')
    options = ("--recipe", "mine.toml", "--clients", 3, "--seed", 5, "--set", "seed=6")
    done = hetfl("partition", *options, "--out", "new/split.png")
    assert (done.status, "digits, classes:2, 3 clients, seed 6" in done.out) == (0, True)
    assert (tmp_path / "new" / "split.png").read_bytes().startswith(PNG)
    split = counted(clients=3, partition="classes:2", seed=6)
    written = json.loads(hetfl("partition", *options, "--json").out)
    assert written["unused"] == split.unused
    assert [part["histogram"] for part in written["shares"]] == split.counts.to_numpy().tolist()
