"""Csv files as spreadsheets write them: separators, encodings, decimal commas; and rows without a label."""

import pandas as pd
import pytest

from hetfl_flwr.data import Reading, Split, load_client_data
from hetfl_flwr.data.text_tables import dialect_of, read_text_table
from hetfl_flwr.errors import DataError

ROWS = 40
FRAME = pd.DataFrame(
    {
        "age": [row + 0.5 for row in range(ROWS)],
        "city": ["Zürich", "Genève"] * (ROWS // 2),
        "sick": ["nein", "ja", "ja", "nein"] * (ROWS // 4),
    }
)


def arrays(path, clients=1, client=0, **keys):
    reading = {key: keys.pop(key) for key in ("classes", "ignore_columns") if key in keys}
    wanted = Split(dataset=str(path), clients=clients, seed=0, reading=Reading(label_column="sick", **reading), **keys)
    return load_client_data(wanted, client).train.arrays


def said(found):
    return list(found.notes)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    path = tmp_path_factory.mktemp("usual") / "t.csv"
    FRAME.to_csv(path, index=False)
    return arrays(path)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("train.csv", {"sep": ";"}, "semicolons"),
        ("train.csv.gz", {"sep": "\t"}, "tabs"),
        ("train.tsv", {"sep": "\t"}, ""),
        ("train.tsv", {"sep": "|"}, "bars"),
        ("train.csv", {"encoding": "utf-16"}, "UTF-16"),
        ("train.csv", {"encoding": "utf-16-be"}, "UTF-16-BE"),
        ("train.csv", {"encoding": "cp1252"}, "'Zürich'"),
        ("train.csv", {"encoding": "utf-8-sig"}, ""),
    ],
)
def test_it_is_read_as_the_plain_file_is_and_what_is_not_plain_is_said(tmp_path, usual, name, options, line):
    folder = tmp_path / "data"
    folder.mkdir()
    FRAME.to_csv(folder / name, index=False, **options)
    found = arrays(folder)
    assert found.inputs.tolist() == usual.inputs.tolist()
    assert found.labels.tolist() == usual.labels.tolist()
    assert found.input_names == usual.input_names == ("age", "city=Zürich")
    assert [line in note for note in said(found)] == [True] * bool(line)


def test_each_file_is_read_as_it_is_written_and_several_alike_are_said_in_one_line(tmp_path, usual):
    for name, separator in (("north", ";"), ("south", ";"), ("west", ",")):
        FRAME.to_csv(tmp_path / f"{name}.csv", sep=separator, index=False)
    [line] = said(arrays(tmp_path, 3, partition="files"))
    assert f"'{tmp_path}/north.csv' and 1 more" in line
    assert arrays(tmp_path).inputs.tolist() == usual.inputs.tolist() * 3


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2\n", ";"),
        ("a, in m;b\n1,5;2,5\n", ";"),  # by commas, a row has three cells and the header two
        ("a,b\n1;2,3\n", ","),
        ('"a;b",c\n"x;y",1\n', ","),
        ("a\n1\n", ","),
        ("a;b\n1;2;3\n", ";"),
        ("a,b\n", ","),
        ("a,b;c\n", ","),
    ],
)
def test_what_separates_cells(text, separator):
    assert dialect_of(text)[0].separator == separator


def test_a_blank_row_before_the_header_hides_nothing_of_it(tmp_path, refusal):
    path = tmp_path / "t.csv"
    path.write_text("\nage;sick\n1;ja\n")
    assert read_text_table(path).table.to_pydict() == {"age": ["1"], "sick": ["ja"]}
    path.write_text("\nage,sick,sick\n1,ja,ja\n")
    assert "column 'sick'" in refusal(DataError, arrays, path)
    path.write_text("\nage,sick\n1,ja,2\n")
    assert "row 3" in refusal(DataError, arrays, path)


@pytest.mark.parametrize("ends", [",", ",,"])
@pytest.mark.parametrize("names", [("train", "test"), ("a", "b")])
def test_one_file_of_several_may_have_columns_without_name_and_cells(tmp_path, usual, names, ends):
    lines = FRAME.to_csv(index=False).splitlines()
    for place, folder in enumerate(("first", "second")):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            text = "\n".join(line + ends * (number == place) for line in lines)
            (tmp_path / folder / f"{name}.csv").write_text(text)
        found = arrays(tmp_path / folder)
        assert found.inputs.shape == (2 * ROWS, *usual.inputs.shape[1:])
        assert found.input_names == usual.input_names
        [note] = [note for note in said(found) if "Unnamed" in note]
        assert note.count("'Unnamed: ") == len(ends)


class TestPoints:
    """1.250 may be 1250 where other columns have decimal commas."""

    def notes(self, tmp_path, ignore_columns="", **columns):
        path = tmp_path / "t.csv"
        whole = {name: (cells * ROWS)[:ROWS] for name, cells in columns.items()}
        pd.DataFrame({**whole, "sick": FRAME.sick}).to_csv(path, sep=";", index=False)
        found = said(arrays(path, ignore_columns=ignore_columns))
        return [note.split("': ", 1)[1] for note in found if "decimal commas" in note]

    @pytest.mark.parametrize("costs", [["1.250", "3.400"], ["850", "1.250"]])
    def test_they_are_doubted(self, tmp_path, costs):
        [note] = self.notes(tmp_path, dose=["1,5", "2,25", "3"], cost=costs)
        assert "1250" in note

    @pytest.mark.parametrize(
        ("doses", "costs"),
        [(["1.5", "2.25"], ["1.250", "2.300"]), (["1,5", "2,5"], ["36.6", "1.250"]), (["1,5", "2,5"], ["12", "13"])],
    )
    def test_unless_nothing_speaks_for_commas_or_one_is_no_group_of_three(self, tmp_path, doses, costs):
        assert self.notes(tmp_path, dose=doses, cost=costs) == []


class TestLabels:
    @pytest.fixture
    def wards(self, tmp_path):
        for name in ("north", "south", "west"):
            FRAME.to_csv(tmp_path / f"{name}.csv", index=False)
        return tmp_path

    def test_a_question_mark_is_none_unless_it_is_declared(self, tmp_path):
        path = tmp_path / "t.csv"
        labels = ["?", " ? ", *FRAME.sick[2:]]
        FRAME.assign(sick=labels).to_csv(path, index=False)
        found = arrays(path)
        assert found.class_names == ("ja", "nein")
        assert ["row 2 and 1 more" in note for note in said(found)] == [True]
        assert arrays(path, classes="ja,nein,?").class_names == ("ja", "nein", "?")

    @pytest.mark.parametrize("empty", [None, "?"])
    @pytest.mark.parametrize("name", ["north", "west"])
    def test_a_file_without_any_is_named_with_its_rows_and_the_way_out(self, wards, empty, name):
        """The first file of three, or the last; its column has no type, or that of words."""
        FRAME.assign(sick=empty).to_csv(wards / f"{name}.csv", index=False)
        found = arrays(wards, 2, partition="files")
        others = [one for one in ("north", "south", "west") if one != name]
        assert [load_name(wards, client) for client in (0, 1)] == others
        assert found.class_names == ("ja", "nein")
        assert f"file '{name}'" in said(found)[-1]
        assert f"row 2 of file '{name}' and 39 more" in said(found)[0]

    def test_an_owner_without_any_is_named_with_its_rows(self, tmp_path):
        path = tmp_path / "t.csv"
        owners = ["a"] * 10 + ["b"] * 18 + ["c"] * 12
        FRAME.assign(ward=owners, sick=[*[""] * 10, *FRAME.sick[10:]]).to_csv(path, index=False)
        found = arrays(path, 2, partition="natural:ward")
        assert "owner 'a'" in said(found)[-1]
        assert not any("'b'" in note for note in said(found))

    @pytest.mark.parametrize("blank", ["", "  "])
    def test_blank_rows_count_as_they_do_in_a_spreadsheet(self, tmp_path, refusal, blank):
        """One before the header, one after it, and two after the first row of cells."""
        header, *rows = FRAME.assign(sick=["", *FRAME.sick[1:]]).to_csv(index=False).splitlines()
        path = tmp_path / "t.csv"
        path.write_text("\n".join([blank, header, blank, rows[0], blank, blank, *rows[1:], ""]))
        assert ["(row 4)" in note for note in said(arrays(path))] == [True]
        line = refusal(DataError, arrays, path, classes="nein,nie")
        assert ("row 7 of split 'train'" in line, "19 more have sick ja" in line) == (True, True)

    def test_rows_are_called_by_their_file_and_their_number_in_it(self, wards, refusal):
        """The header is row 1: a cell in the spreadsheet's row 7."""
        labels = list(FRAME.sick)
        labels[5] = "vielleicht"
        FRAME.assign(sick=labels).to_csv(wards / "south.csv", index=False)
        line = refusal(DataError, arrays, wards, 3, partition="files", classes="ja,nein")
        assert f"row 7 of file 'south' of '{wards}' has sick vielleicht" in line
        assert "row 7 of file 'south.csv'" in refusal(DataError, arrays, wards, classes="ja,nein")


def load_name(folder, client):
    reading = Reading(label_column="sick")
    return load_client_data(
        Split(dataset=str(folder), clients=2, seed=0, reading=reading, partition="files"), client
    ).name
