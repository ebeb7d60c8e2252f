"""What is said of a data set: once a run, in its folder, on a node in its own log, and of unlike nodes."""

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
        ((("age", "patient", "bmi"), ("age", "bmi")), True, ["client 0 alone has 'patient'"]),
        (
            (("age", "patient", "bmi"), ("age", "size")),
            False,
            ["client 0 alone has columns 1, 2", "client 1 alone has columns 1 "],
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
    assert any(name in line for name in ("patient", "bmi", "size")) == share
