"""`hetfl data`: what a data set is taken for, before anybody trains. What is right was counted by hand."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures.data.columns import lay
from fixtures.data.hub import encoded, grey
from fixtures.data.loading import arrays_of

from hetfl_flwr.data import Reading, Split, load_client_data
from hetfl_flwr.data.domains import overview
from hetfl_flwr.errors import DataError

ROWS = 60


@pytest.fixture
def patients(tmp_path):
    frame = pd.DataFrame(
        {
            "id": range(ROWS),
            "age": [["", "n.a.", str(20 + row % 31)][min(row % 10, 2)] for row in range(ROWS)],
            "cost": [f"${1000 + 37 * row:,}.50" for row in range(ROWS)],
            "seen": [f"{row % 28 + 1}.3.2024" for row in range(ROWS)],
            "ward": [["north", "south", "west"][row % 3] for row in range(ROWS)],
            "smoker": [["yes", "YES", "no"][row % 7 % 3] for row in range(ROWS)],
            "floor": 3,
            "sick": ["ill" if row % 4 else "well" for row in range(ROWS)],
        }
    )
    frame.to_csv(tmp_path / "p.csv", index=False)
    return tmp_path / "p.csv"


def test_columns_classes_and_owners(patients):
    """A table is not rotated."""
    found = overview(str(patients), Reading(label_column="sick", id_column="ward"))
    columns = {one.name: one for one in found.columns}
    assert {name: one.becomes for name, one in columns.items()} == {
        **{"id": "nothing", "age": "number", "cost": "number", "seen": "date", "ward": "owner"},
        **{"smoker": "category", "floor": "nothing", "sick": "label"},
    }
    assert {name: one.missing for name, one in columns.items() if one.missing} == {"age": 12}
    assert [columns[name].example for name in ("age", "cost", "smoker")] == ["n.a.", "$1,000.50", "yes"]
    assert [word in columns[name].why for name, word in (("id", "numeric-columns"), ("cost", "'$'"))] == [True] * 2
    assert (found.rows, found.classes) == ({"train": 60}, {"ill": 45, "well": 15})
    assert found.owners == {"north": 20, "south": 20, "west": 20}
    assert (found.standardised, found.problem) == (("age", "cost", "seen"), "")
    arrays = arrays_of(patients, label_column="sick", ignore_columns="ward")
    assert sum(one.inputs for one in found.columns) == arrays.spec.shape[0]
    turned = overview(f"rotated-{patients}", Reading(label_column="sick"))
    assert ("rotated" in turned.problem, len(turned.columns)) == (True, 8)


def test_a_run_a_split_and_the_table_of_columns_say_it_in_the_same_five_lines(patients, tmp_path, hetfl):
    """The table shows what its JSON tells."""
    keys = ["--set", "label-column=sick", "--set", "partition=natural:ward"]
    lines = [
        "60 rows, 8 columns: 2 numbers, 1 date, 1 category, label 'sick', owner 'ward'",
        "missing: 'age' 12",
        "left out: 'id', 'floor'",
        "standardized: 'age', 'cost', 'seen'",
        "2 classes: ill 45, well 15; 3 owners: north 20, south 20, west 20",
    ]
    said = [f"'{patients}': {line}" for line in lines]
    run = hetfl("run", "local", "--dataset", patients, *keys, "--rounds", "1", "--out", tmp_path / "r")
    split = hetfl("partition", "--dataset", patients, *keys)
    shown, told = (hetfl("data", patients, *keys, *more) for more in ([], ["--json"]))
    assert run.err.splitlines()[:5] == [f"hetfl: {line}" for line in said]
    assert (tmp_path / "r" / "notes.txt").read_text().splitlines()[:5] == said
    assert (split.out.splitlines()[:5], shown.out.splitlines()[-5:]) == (said, said)
    assert not any(line in told.out + told.err for line in said)
    columns = {one["name"]: one for one in json.loads(told.out)["columns"]}
    assert [line.split()[:4] for line in shown.out.splitlines() if line.startswith(tuple(columns))] == [
        [name, one["becomes"], str(one["inputs"]), str(one["missing"])] for name, one in columns.items()
    ]


def test_what_cannot_be_learnt_from_is_shown_and_refused(patients, hetfl):
    frame = pd.concat([pd.read_csv(patients)] * 2)
    frame.assign(note=[f"many words of day {row} in a row" for row in range(120)]).to_csv(patients)
    done = hetfl("data", patients, "--set", "label-column=sick")
    assert (done.status != 0, "refused" in done.out, "text-column" in done.err) == (True, True, True)


def test_columns_that_are_left_out_are_listed_with_why(tmp_path):
    rows = "".join(f"{row},,{row % 7}.5,{row % 3}.5,{'ab'[row % 2]}\n" for row in range(30))
    (tmp_path / "p.csv").write_text(",,age,shoe,sick\n" + rows)
    found = overview(str(tmp_path / "p.csv"), Reading(label_column="sick", ignore_columns="shoe"))
    assert {one.name: (one.becomes, one.why) for one in found.columns if one.becomes != "number"} == {
        "Unnamed: 0": ("nothing", "row names"),
        "Unnamed: 1": ("nothing", "unnamed and empty"),
        "shoe": ("nothing", "ignore-columns"),
        "sick": ("label", ""),
    }
    missing, left = found.lines[1:3]
    assert missing.endswith("missing: nothing")
    assert all(name in left for name in ("'Unnamed: 0'", "'Unnamed: 1'", "'shoe'"))


def test_images_and_bundled_data(tmp_path):
    found = overview(str(lay(tmp_path, {f"{'ab'[n % 2]}/{n}.png": encoded(grey(n)) for n in range(6)})), Reading())
    assert [(one.name, one.becomes) for one in found.columns] == [("image", "image"), ("label", "label")]
    assert (found.kind, found.classes) == ("image", {"a": 3, "b": 3})
    digits = overview("digits", Reading())
    assert (digits.rows, sum(digits.classes.values())) == ({"train": 1437, "test": 360}, 1797)


def test_missing_cells_are_counted_once_however_they_are_written(tmp_path):
    """Of 40 weights 4 are -9 kg and one is NA; an owner NA is one, and the owners that are missing are refused."""
    frame = pd.DataFrame(
        {
            "weight": ["-9 kg"] * 4 + ["NA"] + [f"{50 + row} kg" for row in range(35)],
            "ward": ["NA", "-9", "-9", *["north", "south", "west"] * 12, "north"],
            "y": ["NA", "v"] * 20,
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    keys = {"label_column": "y", "classes": "NA,v", "missing_values": "-9"}
    found = overview(str(tmp_path / "t.csv"), Reading(id_column="ward", **keys))
    assert [(one.name, one.missing, one.example) for one in found.columns] == [
        ("weight", 5, "-9 kg"),
        ("ward", 2, "NA"),
        ("y", 0, "NA"),
    ]
    assert "ward" in found.problem


TWENTY = {"age": [row / 7 for row in range(20)], "y": ["u", "v"] * 10}


@pytest.mark.parametrize(
    ("columns", "keys", "word"),
    [
        ({"age": [*range(1, 20), float("inf")]}, {}, "row 20"),
        ({"age": range(20)}, {}, "age"),
        ({"ward": ["n", None] * 10}, {"domain_column": "ward"}, "row 2"),
        ({"ward": [1.5, 2.5] * 10}, {"domain_column": "ward"}, "ward"),
        ({"note": [*["a good day"] * 19, None]}, {"text_column": "note"}, "row 20"),
        ({"signal": [[0.5, float("nan") if row == 7 else 1.0] for row in range(20)]}, {}, "row 8"),
        ({"y": ["u"] * 20}, {}, "'y'"),
    ],
)
def test_what_a_run_refuses_is_shown_with_what_it_says(tmp_path, columns, keys, word, refusal):
    pd.DataFrame(TWENTY | columns).to_parquet(tmp_path / "t.parquet")
    reading = Reading(label_column="y", **keys)
    split = Split(dataset=str(tmp_path / "t.parquet"), clients=1, seed=0, reading=reading)
    found = overview(split.dataset, reading)
    assert found.problem == refusal(DataError, load_client_data, split, 0)
    assert (word in found.problem, [one.name for one in found.columns]) == (True, [*(TWENTY | columns)])


def test_a_column_that_is_left_out_may_hold_anything(tmp_path):
    texts = pa.array([b"\xff\xfe"] * 20).view(pa.string())
    columns = {name: pa.array(cells) for name, cells in TWENTY.items()} | {"old": texts, "more": [{"a": [1]}] * 20}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = overview(str(tmp_path / "t.parquet"), Reading(label_column="y", ignore_columns="old,more"))
    assert [(one.name, one.becomes, one.missing) for one in found.columns[2:]] == [
        ("old", "nothing", 0),
        ("more", "nothing", 0),
    ]
    assert found.problem == ""


def test_rows_are_called_after_their_split_where_there_are_two(tmp_path):
    """Of a file alone, each client holds some rows out: not all of them are trained on."""
    rows = "a,sick\n" + "".join(f"{row},{row % 2}\n" for row in range(40))
    for path in ("one/data.csv", "two/train.csv", "two/test.csv"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(rows)
    said = [overview(str(tmp_path / name), Reading(label_column="sick")).lines[0] for name in ("one", "two")]
    assert ["40 rows, " in said[0], "40 train and 40 test rows, " in said[1]] == [True, True]
