"""`hetfl partition`: what it counts is what clients get; its table, picture and JSON; its refusals."""

import json

from rich.console import Console
from sklearn.datasets import load_digits

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import load_client_data
from simulations.reports.partition import Share, Split, load_split, split_table

KINDS = ["training", "validation", "test", "public", "classes"]
PNG = b"\x89PNG\r\n\x1a\n"


def counted(**keys):
    return load_split(RunConfig.from_flat({key.replace("_", "-"): value for key, value in keys.items()}))


def share(client, domain="d", histogram=(3, 0)):
    return Share(client, domain, sum(histogram), validation=2, test=1, public=1, histogram=histogram)


def shown(split):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(split_table(split))
    return [line.split() for line in captured.get().splitlines() if line.strip()]


def test_the_counts_are_those_of_what_each_client_trains_with():
    config = RunConfig(dataset="digits", clients=3, partition="dirichlet:0.5", half_data_fraction=0.4, seed=4)
    split = load_split(config)
    for number, part in enumerate(split.shares):
        data = load_client_data(config.split(3), number)
        assert part.client == number
        assert (part.training, part.validation, part.test) == tuple(map(len, (data.train, data.validation, data.test)))
        assert part.public == len(data.public)
        assert part.histogram == tuple((data.train.labels == label).sum().item() for label in range(10))


def test_what_nobody_has_is_counted():
    """Two clients with one class each have the digits 0 and 1; of the others nobody has any."""
    split = counted(clients=2, partition="classes:1")
    assert (split.rows, split.unused) == (1797, int((load_digits().target > 1).sum()))
    assert [part.classes for part in split.shares] == [1, 1]


def test_rows_that_all_clients_have_count_once():
    split = counted(clients=4, partition="all", dataset="digits,digits-colour")
    assert (split.rows, split.unused) == (2 * 1797, 0)


def test_domains_bear_names():
    domains = [part.domain for part in counted(clients=5, dataset="rotated-digits").shares]
    assert domains == ["0°", "20°", "40°", "60°", "0°"]
    assert counted(clients=5, dataset="digits,rotated-digits").domains == (
        "digits",
        *(f"rotated-digits {angle}°" for angle in (0, 20, 40, 60)),
    )


def test_a_table_with_few_classes_has_a_column_for_each():
    """Of domains with 2 and 3 classes; the sum adds what there is."""
    split = Split("t", (share(0, "a", (1200, 0)), share(1, "b", (5, 6, 7))), own_tests=True, rows=1250, unused=26)
    title, head, _, *lines, caption = shown(split)
    assert title == ["t"]
    assert head == ["client", "domain", *KINDS, "0", "1", "2"]
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
    assert [part["histogram"] for part in written["shares"]] == [list(part.histogram) for part in split.shares]
