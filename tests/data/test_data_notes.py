"""What is said of a data set: once a run, in its folder, on a node in its own log, and of unlike nodes."""

from html import unescape

import pytest
from fixtures.data.columns import write_csv
from fixtures.federations.members import member, roster

from hetfl_flwr.errors import FederationError
from hetfl_flwr.node.registration import _notes
from hetfl_flwr.wire.naming import Naming

HOSPITAL = "patient,age,seen,ward,label\n" + "".join(
    f"P{row},{'?!' if row == 5 else row % 60},2024-{row % 12 + 1:02d}-0{row % 9 + 1},{'ab'[row % 3 % 2]},{row % 2}\n"
    for row in range(120)
)
KEYS = ["--rounds", "1", "--set", "label-column=label", "--set", "models=mlp"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_line_is_said_once_a_run_and_kept_in_its_folder(tmp_path, hetfl, workers):
    folder, out = write_csv(tmp_path / "data", train=HOSPITAL), tmp_path / "out"
    keys = ["--dataset", folder, "--clients", 3, "--workers", workers, "--out", out, *KEYS]
    done = hetfl("run", "fedavg", *keys)
    assert done.status == 0, done.err
    lines = (out / "notes.txt").read_text().splitlines()
    assert [line.split("'")[1] for line in lines] == [*[str(folder)] * 5, "patient", "age", "seen"]
    assert [done.err.count(f"hetfl: {line}\n") for line in lines] == [1] * 8


@pytest.mark.slow
def test_a_sweep_says_each_line_once(tmp_path, hetfl):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    done = hetfl(
        "run", "local", "--dataset", folder, "--clients", 2, "--sweep", "seed=0:2", "--out", tmp_path / "out", *KEYS
    )
    assert (done.status, done.err.count("column 'patient'")) == (0, 1)


def test_on_a_node_they_stay_in_its_own_log(tmp_path, make_config, make_node, caplog):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    node = make_node(make_config(algorithm="fedavg", dataset=folder, label_column="label", models="mlp"))
    assert _notes(node, share=False) == ()
    assert "patient" in caplog.text
    assert len(_notes(node, share=True)) == 8


@pytest.mark.parametrize(
    ("names", "share", "said"),
    [
        ((("age", "patient", "bmi"), ("age", "bmi")), True, ["client 0 has 'patient', which client 1 lacks: "]),
        (
            (("age", "patient", "bmi"), ("age", "size")),
            False,
            ["client 0 has columns 1, 2 (its log", "client 1 has columns 1 (its log", "which client 0 lacks"],
        ),
        (
            (("age", "crp_"), ("age", "crp", "ward=ER"), ("age", "crp", "ward=ER")),
            True,
            ["client 0 has 'crp_', which clients 1, 2 lack; clients 1, 2 have 'crp', 'ward', which client 0 lacks: "],
        ),
        (
            (("age", "ward=ER"), ("age", "ward=ER", "ward=ICU", "ward=OP"), ("age",)),
            True,
            ["column 'ward' has other values at client 1 than at client 0 (and 1 more client differs): "],
        ),
        (
            (("age", "crp"), ("age", "crp"), ("crp", "age"), ("age", "crp_")),
            True,
            ["client 3 has 'crp_', which clients 0, 1 lack; ", "(and 1 more client differs): "],
        ),
    ],
)
def test_columns_that_one_node_lacks_are_named_where_names_are_shown_else_by_number(names, share, said, refusal):
    some = roster(0)
    for number, own in enumerate(names):
        naming = Naming.of(own, share=share)
        some.add(member(number, shape=(len(own),), input_digests=naming.digests, input_names=naming.shown))
    line = refusal(FederationError, lambda: some.shape)
    assert [words for words in said if words not in line] == []
    assert any(repr(name.partition("=")[0]) in line for own in names for name in own) == share


def test_a_misspelt_column_is_among_the_warnings_of_a_run_of_a_comparison_and_of_a_report(tmp_path, hetfl):
    """Clients whose columns have nothing in common have other tasks: that is no warning."""
    heads = {"north": "age,crp,sick", "south": "age,crp,sick", "west": "age,CRP,sick", "ships": "tons,decks,sick"}
    rows = "".join(f"{row % 13},{row % 7},{row % 2}\n" for row in range(40))
    paths = []
    for name, head in heads.items():
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text(f"{head}\n{rows}")
    out, report = tmp_path / "out", tmp_path / "report.html"
    keys = ("--rounds", 1, "--dataset", ",".join(map(str, paths)), "--set", "label-column=sick")
    done = hetfl("run", "fedhe", "--against", "local", *keys, "--out", out)
    said = "client 2 (west) has 'CRP', which clients 0, 1 lack; clients 0, 1 have 'crp', which client 2 (west) lacks"
    warnings = [done.out, hetfl("compare", out).out]
    assert [text.count(f"  clients have different columns: {said}: ") for text in warnings] == [1, 1]
    assert hetfl("report", out, "--out", report).status == 0
    assert unescape(report.read_text()).count(said) == 5  # in the warnings, in each run's table and notes
