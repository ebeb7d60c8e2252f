"""What is wrong with a data set is told in one line: which rows, how many, and the way out."""

from dataclasses import replace
from datetime import time

import numpy as np
import pandas as pd
import pytest
from fixtures.data.columns import source_of

from hetfl_flwr.data import Reading, Split, load_client_data, most_clients
from hetfl_flwr.data.labels import read_labels
from hetfl_flwr.errors import DataError
from simulations.engine.objects import stored

SPLIT = Split(
    dataset="", clients=2, seed=0, reading=Reading(label_column="sick"), partition="natural:ward", test_fraction=0.5
)


@pytest.fixture
def frame():
    """Return 40 rows in which the ward is missing twice, a number is infinite, and a label is written in two ways."""
    rows = pd.DataFrame(
        {
            "age": [row + 0.5 for row in range(40)],
            "ward": ["north", "south"] * 20,
            "sick": ["ill", "well", "well", "Ill"] * 10,
        }
    )
    rows.loc[[7, 9], "ward"] = [None, " \t"]
    rows.loc[11, "age"] = np.inf
    return rows


def refused(dataset, refusal, split=SPLIT, read=load_client_data):
    arguments = (0,) if read is load_client_data else ()
    return refusal(DataError, read, replace(split, dataset=str(dataset)), *arguments)


def lacking(line, *words):
    """Return the words that a line does not have one after the other."""
    missing = []
    for word in words:
        _, found, after = line.partition(word)
        missing += [] if found else [word]
        line = after if found else line
    return missing


def test_owners_are_told_of_a_file_and_of_frames_from_python(frame, tmp_path, refusal):
    """Rows have numbers from the 2 of the first on in a file, and from 0 on in a frame; blanks are no ward."""
    frame.to_csv(tmp_path / "p.csv", index=False)
    for read in (load_client_data, most_clients):
        assert lacking(refused(tmp_path / "p.csv", refusal, read=read), "row 9", "1 more", "ward") == []
    assert lacking(refused(stored(frame)[0], refusal), "row 7", "1 more", "ward") == []
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert lacking(refused(stored(polars.from_pandas(frame))[0], refusal), "row 7", "1 more", "ward") == []


def test_a_row_without_a_ward_is_counted_over_both_splits(frame, tmp_path, refusal):
    for name in ("train", "test"):
        frame.assign(age=1, sick=frame.sick.str.lower()).to_csv(tmp_path / f"{name}.csv", index=False)
    assert lacking(refused(tmp_path, refusal), "row 9 of split 'train'", "3 more", "ward") == []


def test_frames_by_name_keep_their_names(frame, refusal):
    sound = frame.assign(sick=frame.sick.str.lower())
    said = refused(stored({"North": sound, "South": sound})[0], refusal, replace(SPLIT, partition="files"))
    assert lacking(said, "row 11 of dataset['North']", "1 more", "infinite age", "write a number") == []


@pytest.mark.parametrize(
    ("changes", "keys", "words"),
    [
        ({}, {"domain_column": "ward"}, ("row 9", "1 more", "ward", "fill it in")),
        ({"ward": "a"}, {}, ("'Ill' and 'ill'", "write both alike")),
        ({"ward": "a"}, {"classes": "ill,well"}, ("row 5", "9 more", "Ill", "ill, well")),
        ({"ward": "a", "sick": ["ill", "well"] * 20}, {}, ("row 13", "infinite age", "write a number")),
        ({"ward": "a"}, {"label_column": "sic"}, ("'sic'", "'sick'", "label-column")),
        ({"ward": "a"}, {"ignore_columns": "agee,x"}, ("ignore-columns", "'agee', 'x'", "age")),
        ({"ward": "a"}, {"numeric_columns": "y"}, ("numeric-columns", "'y'", "age")),
        (
            {"ward": "a", "sick": ["ill", "well"] * 20, "text": [None, "good day"] * 20},
            {"text_column": "text"},
            ("row 2", "19 more", "text", "fill it in"),
        ),
    ],
)
def test_one_line_tells_rows_column_and_the_way_out(frame, tmp_path, refusal, changes, keys, words):
    frame.assign(**changes).to_csv(tmp_path / "p.csv", index=False)
    split = replace(SPLIT, reading=replace(SPLIT.reading, **keys))
    split = replace(split, partition="iid") if "domain_column" in keys else split
    assert lacking(refused(tmp_path / "p.csv", refusal, split), *words) == []


def test_all_labels_that_will_not_do_are_told(refusal):
    labels = ["Ill", "ill", "well", "WELL"] * 10
    line = refusal(DataError, read_labels, source_of({"a": labels, "label": labels}))
    assert lacking(line, "'Ill' and 'ill', 'WELL' and 'well'") == []
    train, test = ({"a": labels, "label": labels} for labels in (["ill", "x", "y"] * 4, ["well", "z"]))
    line = refusal(DataError, read_labels, source_of(train, test, classes="ill,well"))
    assert lacking(line, "row 2 of split 'train'", "8 more", "x, y, z", "ill, well") == []


def test_files_that_differ_are_told_at_once(frame, tmp_path, refusal):
    """All columns that a file lacks; else the first that holds other things."""
    first = frame.assign(age=1, bp=2, ward=3, sick=frame.sick.str.lower())
    split = replace(SPLIT, partition="files")
    first.to_csv(tmp_path / "a.csv", index=False)
    first.drop(columns=["age", "bp"]).to_csv(tmp_path / "b.csv", index=False)
    first.drop(columns="bp").to_csv(tmp_path / "c.csv", index=False)
    said = refused(tmp_path, refusal, split)
    assert lacking(said, "b.csv'", "'age', 'bp'", "a.csv'", "ignore-columns") == []
    for name in ("b", "c"):
        first.assign(age="old", ward="w").to_csv(tmp_path / f"{name}.csv", index=False)
    said = refused(tmp_path, refusal, split)
    assert lacking(said, "column 'age'", "numbers in file 'a'", "words in file 'b'", "ignore-columns") == []


@pytest.mark.parametrize("words", [1, 9])
def test_a_few_words_among_the_numbers_of_one_file_are_missing_numbers(frame, tmp_path, refusal, words):
    """1 of 80 is below 5 %; 9 of 80 are words of a column of words, as in one file."""
    folder = tmp_path / "wards"
    folder.mkdir()
    plain = frame.assign(age=frame.index + 0.5, sick=frame.sick.str.lower()).drop(columns="ward")
    plain.to_csv(folder / "a.csv", index=False)
    few = plain.astype({"age": object}).replace({"age": {row + 0.5: "<1" for row in range(words)}})
    few.to_csv(folder / "b.csv", index=False)
    split = replace(SPLIT, partition="files", dataset=str(folder))
    if words > 1:
        assert "column 'age'" in refused(folder, refusal, split)
        return
    arrays = load_client_data(split, 0).train.arrays
    numbers = [*plain.age, np.nan, *plain.age[1:]]
    assert np.array_equal(arrays.inputs[:, 0], np.array(numbers), equal_nan=True)
    assert any("1 of 80" in note and "row 2 of file 'b'" in note for note in arrays.notes)


def test_classes_that_are_truth_values_have_their_names(frame):
    truth = frame.assign(age=frame.index + 0.5, sick=frame.sick == "well").drop(columns="ward")
    arrays = load_client_data(replace(SPLIT, partition="iid", dataset=str(stored(truth)[0])), 0).train.arrays
    assert arrays.class_names == ("False", "True")
    assert arrays.labels.tolist() == truth.sick.astype(int).tolist()
    split = replace(SPLIT, partition="iid", dataset=str(stored(truth)[0]))
    named = replace(split, reading=replace(SPLIT.reading, classes="well:true,ill:False"))
    arrays = load_client_data(named, 0).train.arrays
    assert [arrays.class_names[label] for label in arrays.labels] == ["well" if one else "ill" for one in truth.sick]


@pytest.mark.parametrize(("unit", "word"), [("timedelta64[ns]", "durations"), ("time", "times of day")])
def test_what_dates_are_not_is_called_by_its_name(frame, refusal, unit, word):
    stay = [time(row) for row in range(20)] * 2 if unit == "time" else np.arange(40).astype(unit)
    sound = frame.assign(age=1, ward="a", sick=frame.sick.str.lower(), stay=stay)
    assert word in refused(stored(sound)[0], refusal)
