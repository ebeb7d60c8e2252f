"""Files of a folder: none is left out without a word, and each is read as what it is."""

import gzip

import pandas as pd
import pyarrow as pa
import pytest
from fixtures.data.loading import arrays_of
from pyarrow import parquet

from hetfl_flwr.errors import DataError

ROWS = "age,sick\n" + "".join(f"{age},{'no' if age % 2 else 'yes'}\n" for age in range(30, 40))
AGES = [*range(30, 40)]


def test_files_beside_rows_that_are_not_read_are_named(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS)
    for name in ("b.txt", "c.zip", "README", "README.md", "license.txt", "load.py"):
        (tmp_path / name).write_text(ROWS)
    [note] = [note for note in arrays_of(tmp_path, label_column="sick").notes if "not read" in note]
    assert note == f"not read in '{tmp_path}': b.txt, c.zip"


def test_copies_of_a_file_under_other_names_are_named(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("train.csv", "test.csv", "old/train.csv"):
        (tmp_path / name).write_text(ROWS.replace("30", "50") if name == "test.csv" else ROWS)
    assert any(
        note.endswith("'" + str(tmp_path) + "': train.csv") for note in arrays_of(tmp_path, label_column="sick").notes
    )


@pytest.mark.parametrize(
    "names",
    [
        *(("train.csv", "test.csv"), ("training set.csv", "test set.csv"), ("my trainset.csv", "my testset.csv")),
        *(("wine_train_data.csv", "wine_test_data.csv"), ("TrainData.csv", "TestData.csv")),
    ],
)
def test_names_say_the_split(names, tmp_path):
    for name, rows in zip(names, (ROWS, "age,sick\n70,no\n"), strict=True):
        (tmp_path / name).write_text(rows)
    arrays = arrays_of(tmp_path, label_column="sick")
    assert (arrays.train_rows, arrays.inputs[10:].tolist()) == (10, [[70]])


@pytest.mark.parametrize("names", [("train.csv", "train.tsv"), ("a.csv", "a.csv.gz")])
def test_copies_of_a_file_in_two_forms_do_not_count_twice(names, tmp_path, refusal):
    packed = gzip.compress(ROWS.encode())
    for name in names:
        (tmp_path / name).write_bytes(packed if name.endswith("gz") else ROWS.replace(",", "\t").encode())
    said = refusal(DataError, arrays_of, tmp_path, label_column="sick")
    assert ", ".join(names) in said


@pytest.mark.parametrize("name", ["a.psv", "a.pq", "packed.csv", "a.xlsm", "frame.json"])
def test_rows_are_read_by_what_a_file_holds(name, tmp_path):
    """What pandas writes as a frame is an object of columns, each an object of cells by the names of their rows."""
    table = {"age": AGES, "sick": ["no" if age % 2 else "yes" for age in AGES]}
    path = tmp_path / name
    if name == "a.psv":
        path.write_text(ROWS.replace(",", "|"))
    elif name == "a.pq":
        parquet.write_table(pa.table(table), path)
    elif name == "packed.csv":
        path.write_bytes(gzip.compress(ROWS.encode()))
    elif name == "a.xlsm":
        pytest.importorskip("openpyxl")
        pd.DataFrame(table).to_excel(tmp_path / "a.xlsx", index=False)
        (tmp_path / "a.xlsx").rename(path)
    else:
        pd.DataFrame(table).to_json(path)
    for place in (path, tmp_path):
        arrays = arrays_of(place, label_column="sick")
        assert arrays.inputs.flatten().tolist() == AGES
        assert arrays.labels.tolist() == [1, 0] * 5
