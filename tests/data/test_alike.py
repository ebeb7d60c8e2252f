"""What is one however it is written, and what is not read as it looks: values that are known beforehand."""

import numpy as np
import pandas as pd
import pytest

from hetfl_flwr.data import Reading
from hetfl_flwr.data.labels import class_names, read_owners
from hetfl_flwr.data.opening import open_source
from hetfl_flwr.data.tables import read_table
from hetfl_flwr.errors import DataError

ROWS = 60
BIG = ("9007199254740992", "9007199254740993", "123456789012345678901", "123456789012345678902")


def opened(place, **keys):
    return open_source(str(place), Reading(**{"label_column": "y"} | keys))


def table(place, **keys):
    source = opened(place, **keys)
    return read_table(source, np.arange(len(source)))


def rows_of(*cells, names="x,y"):
    """Return a csv file, of which each row's cells are made from its number."""
    return "\n".join([names, *(",".join(str(cell(row)) for cell in cells) for row in range(ROWS))])


def label(row):
    return "ab"[row % 2]


@pytest.fixture
def file(tmp_path):
    def write(text, name="rows.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


class TestWholeNumbers:
    @pytest.mark.parametrize("two", [BIG[:2], BIG[2:]])
    def test_long_ones_are_owners_and_labels_of_their_own(self, file, two):
        """Float64 holds neither pair apart."""
        owned = opened(
            file(rows_of(lambda row: two[row // 30], lambda row: row / 7, label, names="o,x,y")), id_column="o"
        )
        names, owners = read_owners(owned, np.arange(ROWS))
        assert (names, np.bincount(owners).tolist()) == (two, [30, 30])
        assert tuple(map(str, class_names(opened(file(rows_of(lambda row: row / 7, lambda row: two[row % 2])))))) == two


class TestMissing:
    """``missing-values=-999`` where a program has written -999.0, as pandas does beside empty cells."""

    def test_a_number_is_missing_however_it_is_written(self, file):
        path = file(rows_of(lambda row: "-999.0" if row % 9 == 0 else row / 7, label))
        expected = pd.read_csv(path, na_values=[-999])["x"]
        assert np.array_equal(table(path, missing_values="-999").inputs[:, 0], expected, equal_nan=True)

    def test_so_is_a_label_and_an_owner_but_no_code_with_a_zero_in_front(self, file):
        path = file(rows_of(lambda row: row / 7, lambda row: ["1.0", "2.0", "9.0"][row % 3]))
        assert (class_names(opened(path, missing_values="9")), len(opened(path, missing_values="9"))) == (
            ("1", "2"),
            40,
        )
        path = file(rows_of(lambda row: row / 7, lambda row: ["1", "2", "009"][row % 3]))
        assert class_names(opened(path, missing_values="9")) == ("009", "1", "2")


class TestNumbersUnlike:
    @pytest.mark.parametrize(
        ("one", "other"), [("{}.5", "{},5"), ("{} kg", "{}000 g"), ("{}.5", "({}.5)"), ("{}.5", "<{}.5")]
    )
    def test_a_column_of_numbers_in_two_notations_is_no_column_of_ids(self, file, one, other):
        """Each is another number, as ids are; half of them, or nearly so, can be read in no one way."""
        path = file(rows_of(lambda row: (other if row % 3 == 0 else one).format(row).join('""'), label))
        with pytest.raises(DataError, match=r"'x'.*not all written alike.*numeric-columns"):
            table(path)

    def test_one_number_without_the_unit_of_the_others_is_missing(self, file):
        read = table(file(rows_of(lambda row: row if row == 3 else f"{row} kg", label)))
        assert read.input_names == ("x (kg)",)
        assert np.array_equal(read.inputs[:, 0], [np.nan if row == 3 else row for row in range(ROWS)], equal_nan=True)
        assert any("1 of 60 values is no number (row 5)" in note for note in read.notes)

    def test_ids_of_which_some_have_letters_are_ids(self, file):
        read = table(
            file(
                rows_of(
                    lambda row: f"A{row}" if row % 3 == 0 else 1000 + row, lambda row: row / 7, label, names="x,z,y"
                )
            )
        )
        assert read.input_names == ("z",)

    def test_sentences_that_all_differ_are_no_category(self, file):
        """Of 60 rows, they would be 60 inputs."""
        path = file(rows_of(lambda row: f"the patient came {row} times", label))
        with pytest.raises(DataError, match=r"'x'.*60 different values in 60 training rows.*text-column"):
            table(path)
        assert opened(path, text_column="x").kind == "text"


def test_dates_may_have_blanks_behind_their_dots(file):
    days = pd.date_range("2024-01-01", periods=ROWS, freq="3D")
    read = table(file(rows_of(lambda row: days[row].strftime("%d. %m. %Y"), label)))
    assert read.inputs[:, 0].tolist() == [(day - pd.Timestamp(1970, 1, 1)).days for day in days]


class TestPlaces:
    def test_folders_of_spark_say_what_is_missing_and_hold_letters_of_any_kind(self, file, tmp_path):
        """Of pyspark: null is ``__HIVE_DEFAULT_PARTITION__``, and a blank is ``%20``."""
        for name in ("__HIVE_DEFAULT_PARTITION__", "St%20Anna", "Rome"):
            file(rows_of(lambda row: row / 7, label), f"own/ward={name}/rows.csv")
        assert table(tmp_path / "own").input_names == ("x", "ward=Rome", "ward=St Anna", "ward=None")

    @pytest.mark.parametrize(
        ("titles", "sizes"), [(("train", "test"), [60, 20]), (("ward", "unit"), [80]), (("test", "unit"), None)]
    )
    def test_sheets_are_splits_where_their_names_say_so(self, tmp_path, titles, sizes):
        """As the names of files in a folder do."""
        path = tmp_path / "rows.xlsx"
        with pd.ExcelWriter(path) as book:
            for title, rows in zip(titles, (60, 20), strict=True):
                frame = pd.DataFrame({"x": np.arange(rows) / 7, "y": [label(row) for row in range(rows)]})
                frame.to_excel(book, sheet_name=title, index=False)
        if sizes is None:
            with pytest.raises(DataError, match="'test' beside 'unit'"):
                opened(path)
            return
        source = opened(path)
        assert [len(split) for split in source.splits.values()] == sizes
        assert any("put together" in note for note in source.notes) == (len(sizes) == 1)

    @pytest.mark.parametrize(("name", "between"), [("rows.tsv", "\t"), ("rows.csv", ",")])
    def test_quotes_within_words_separate_nothing(self, file, name, between):
        path = file(
            "\n".join(
                f"{text}{between}{cls}"
                for text, cls in [("note", "y"), *((f'he said "hi" {row}', label(row)) for row in range(ROWS))]
            ),
            name,
        )
        source = opened(path, text_column="note")
        assert source.splits["train"]["note"].to_pylist()[3] == 'he said "hi" 3'


class TestLongTables:
    def long(self, series, time="{}", value="{}"):
        lines = (
            f"{series(p, t)},{time.format(t)},{value.format(t + 0.5)},{label(p)}" for p in range(12) for t in range(8)
        )
        return "\n".join(["p,t,v,y", *lines])

    def test_a_series_is_one_whether_its_number_is_whole_or_has_a_point(self, file):
        path = file(self.long(lambda p, t: f"{p}.0" if t % 2 else p))
        assert opened(path, pivot="p,t,v").splits["train"]["v"].to_pylist() == [[t + 0.5 for t in range(8)]] * 12

    def test_an_infinite_value_is_named_by_its_row(self, file):
        with pytest.raises(DataError, match="has in row 2 an infinite v"):
            opened(file(self.long(lambda p, t: p, value="{}e39")), pivot="p,t,v")
