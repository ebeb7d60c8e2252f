"""Files that could be read wrongly without a word: each is read right, refused, or doubted in a line."""

import json

import pandas as pd
import pytest
from fixtures.data.columns import lay
from fixtures.data.loading import arrays_of, load_client

from hetfl_flwr.errors import DataError

ROWS = 40
LABELS = ["u", "v"] * (ROWS // 2)
HALVES = [row / 2 for row in range(ROWS)]


def of(place, **keys):
    return arrays_of(place, **{"label_column": "y"} | keys)


def text(*lines, header="day,grade,y"):
    return "\n".join([header, *lines]) + "\n"


def column(tmp_path, cells, **keys):
    """Read a column x of texts, beside one of numbers and the labels."""
    frame = pd.DataFrame({"a": HALVES, "x": (list(cells) * ROWS)[:ROWS], "y": LABELS})
    return of(lay(tmp_path, {"t.csv": frame}), **keys)


def notes_with(found, word):
    return [note for note in found.notes if word in note]


def rows_of(day, grade):
    return [f"{day(row)},{grade(row)},{'uv'[row % 2]}" for row in range(ROWS)]


class TestQuotes:
    @pytest.mark.parametrize("end", [7, 31])
    @pytest.mark.parametrize(
        ("day", "grade"),
        [
            (lambda row: f"2024-03-{row % 28 + 1:02}", lambda row: "mild"),
            (lambda row: f"{row} kg", lambda row: "mild"),
            (lambda row: "NA" if row % 5 == 0 else f"{row}", lambda row: "mild"),
            (lambda row: ["Rome", "New York", ""][row % 3], lambda row: ["mild", "very ill"][row % 2]),
        ],
    )
    def test_a_quote_that_rows_below_close_swallows_none(self, tmp_path, refusal, day, grade, end):
        lines = rows_of(day, grade)
        lines[4], lines[end] = lines[4].replace(",", ',"', 1), lines[end].replace(",u", '",u').replace(",v", '",v')
        lay(tmp_path, {"t.csv": text(*lines)})
        assert "row 6," in refusal(DataError, of, tmp_path)

    def test_a_text_of_two_lines_stays_one(self, tmp_path):
        lines = [f'{row}.5,"Main St {row}, Oslo\nNorway, see p. {row}",{LABELS[row]}' for row in range(ROWS)]
        found = of(lay(tmp_path, {"t.csv": text(*lines)}), ignore_columns="grade")
        assert found.inputs.flatten().tolist() == [row + 0.5 for row in range(ROWS)]


class TestNumbers:
    @pytest.mark.parametrize("cells", [["2.107", "114", "950"], ["1.107", "1037", "1.050"]])
    def test_points_before_three_digits_are_doubted_beside_large_whole_numbers(self, tmp_path, cells):
        [note] = notes_with(column(tmp_path, cells), "if that is meant")
        assert f"{cells[0]} is read as {float(cells[0]):g}" in note

    @pytest.mark.parametrize("cells", [["2.107", "1.14", "950"], ["1.107", "3", "12.050"]])
    def test_other_decimals_are_not(self, tmp_path, cells):
        found = column(tmp_path, cells)
        assert (found.inputs[:3, 1].tolist(), notes_with(found, "meant")) == ([*map(float, cells)], [])

    @pytest.mark.parametrize("cells", [["4,105", "5.14", "4,033"], ["1,107", "950"], ["3,103", "4.5", "7"]])
    def test_commas_that_may_be_decimal_are_refused(self, tmp_path, refusal, cells):
        assert "comma may be a decimal point" in refusal(DataError, column, tmp_path, cells)

    @pytest.mark.parametrize(
        ("cells", "numbers"),
        [
            (["1,107.5", "950", "12,050"], [1107.5, 950, 12050]),
            (["12,34,567.8", "950", "1,05,000"], [1234567.8, 950, 105000]),
            (["1\u2019234.50", "950.25", "2\u2019000"], [1234.5, 950.25, 2000]),
        ],
    )
    def test_groups_of_other_countries_are_read(self, tmp_path, cells, numbers):
        assert column(tmp_path, cells).inputs[:3, 1].tolist() == numbers

    @pytest.mark.parametrize("keys", [{}, {"numeric_columns": "x"}])
    @pytest.mark.parametrize(("north", "other"), [("{},5", "1.234,5"), ("{}.3.2024", "day.month.year")])
    def test_a_file_in_another_notation_is_not_lost(self, tmp_path, refusal, keys, north, other):
        written = {
            "north.csv": north,
            "south.csv": "{}.5" if "," in north else "2024-03-{}",
            "west.csv": "{}.25" if "," in north else "2024-04-{}",
        }
        rows = {
            name: {"x": [one.format(row % 9 + 10) for row in range(ROWS)], "y": LABELS} for name, one in written.items()
        }
        line = refusal(DataError, of, lay(tmp_path, rows), **keys)
        assert [word for word in ("'north.csv'" if "," in north else "dates", other) if word not in line] == []

    @pytest.mark.parametrize(("rows", "refused"), [(ROWS, True), (6, False)])
    def test_dates_of_a_file_that_all_may_be_turned_are_refused(self, tmp_path, refusal, rows, refused):
        written = {
            "north.csv": {"x": [f"{row % 28 + 1}/3/2024" for row in range(ROWS)], "y": LABELS},
            "south.csv": {"x": [f"{row % 12 + 1}/{row % 7 + 1}/2024" for row in range(rows)], "y": LABELS[:rows]},
        }
        place = lay(tmp_path, written)
        if refused:
            assert "'south.csv' may be month/day/year" in refusal(DataError, of, place)
        else:
            assert of(place).inputs.shape == (ROWS + rows, 1)

    def test_a_column_of_mostly_numbers_says_what_is_none(self, tmp_path, refusal):
        cells = ["k.A." if row % 10 == 0 else f"{60 + row / 4}" for row in range(200)]
        place = lay(tmp_path, {"t.csv": {"x": cells, "a": range(200), "y": LABELS * 5}})
        assert "'k.A.'" in refusal(DataError, of, place)
        for keys in ({"missing_values": "k.A."}, {"numeric_columns": "x"}):
            assert of(place, **keys).inputs[:, 0].isnan().sum() == 20

    @pytest.mark.parametrize("units", [("kg", "lb"), ("kg", "lb", "g")])
    def test_many_numbers_that_become_a_category_are_named(self, tmp_path, units):
        cells = [f"{row} {units[row % len(units)]}" for row in range(10, 26)]
        assert notes_with(column(tmp_path, [*cells, *cells[:3]]), "numbers")

    @pytest.mark.parametrize(
        ("cells", "codes"),
        [
            ([21, 35, 40, 33, 999], "999"),
            ([21, 35, 40, -888, -999], "-999,-888"),
            ([0.5, 0.25, 0.75, -2147483648], "-2147483648"),
            ([21, 35, 62, 47, 99], ""),
        ],
    )
    def test_numbers_that_may_mean_none_are_named(self, tmp_path, cells, codes):
        found = column(tmp_path, cells)
        assert notes_with(found, "missing-values") == notes_with(found, f"missing-values={codes} ")
        assert bool(notes_with(found, "missing-values")) == bool(codes)

    def test_all_months_have_their_names(self, tmp_path):
        days = pd.date_range("2024-01-05", periods=12, freq="MS")
        names = [day.strftime(form) for form in ("%d %B %Y", "%d %b %Y") for day in days]
        expected = [float((day - pd.Timestamp(0)).days) for day in days] * 2
        assert column(tmp_path, names).inputs[:24, 1].tolist() == expected

    def test_names_of_months_are_whole_or_begin_as_they_do(self, tmp_path):
        found = column(tmp_path, ["5 Mar 2024", "6 March 2024", "7 Sept 2024"])
        assert found.inputs[:3, 1].tolist() == [19787.0, 19788.0, 19973.0]
        other = column(tmp_path / "other", ["5 marraskuu 2024", "6 marraskuu 2024"])
        assert other.input_names[1:] == ("x=6 marraskuu 2024",)


@pytest.mark.parametrize("word", ["TRUE", "False", "Yes", "N"])
def test_a_word_for_truth_beside_missing_cells_is_known(tmp_path, word):
    """Of two values, one of them a missing cell, the input is 1 where it is missing."""
    found = column(tmp_path, [word, "", word])
    assert (found.inputs[:3, 1].tolist(), [note for note in found.notes if "column 'x'" in note]) == (
        [0.0, 1.0, 0.0],
        [],
    )


class TestRows:
    def test_a_header_in_another_order_begins_another_table(self, tmp_path, refusal):
        lines = rows_of(str, lambda row: "mild")
        lay(tmp_path, {"t.csv": text(*lines[:20], "y,day,grade", *lines[20:])})
        assert "row 22 of" in refusal(DataError, of, tmp_path)

    def test_a_header_shorter_than_its_rows_is_filled_up_where_a_key_names_it(self, tmp_path):
        place = lay(tmp_path, {"t.csv": text(*(f"{row}.5,x,{LABELS[row]},," for row in range(ROWS)))})
        assert of(place, header_row=1, ignore_columns="grade").inputs.flatten().tolist() == [
            row + 0.5 for row in range(ROWS)
        ]

    def test_zeros_at_the_end_are_no_letters(self, tmp_path):
        plain = text(*rows_of(lambda row: f"{row}.5", lambda row: "mild")).encode()
        found = of(lay(tmp_path, {"t.csv": plain + bytes(len(plain))}))
        assert found.inputs[:, 0].tolist() == [row + 0.5 for row in range(ROWS)]

    @pytest.mark.parametrize(("leaked", "noted"), [(3, True), (0, False)])
    def test_test_rows_that_are_training_rows_are_counted(self, tmp_path, leaked, noted):
        frame = pd.DataFrame({"a": HALVES, "b": [row * row % 17 for row in range(ROWS)], "y": LABELS})
        test = pd.concat([frame[:leaked], frame[leaked:10].assign(a=-1.0)])
        found = of(lay(tmp_path, {"train.csv": frame, "test.csv": test}))
        assert notes_with(found, "training rows, too") == notes_with(found, f"{leaked} of 10 test rows")
        assert bool(notes_with(found, "training rows, too")) == noted

    def test_rows_of_few_categories_are_alike_by_nature(self, tmp_path):
        frame = pd.DataFrame({"a": ["m", "f", "f", "m"] * 10, "b": ["x", "x", "z", "z"] * 10, "y": LABELS})
        assert not notes_with(of(lay(tmp_path, {"train.csv": frame, "test.csv": frame[:8]})), "training rows, too")

    def test_a_column_that_is_filled_for_one_class_alone_is_named(self, tmp_path):
        ends = [f"{row}.5" if label == "v" else "" for row, label in enumerate(LABELS)]
        assert notes_with(column(tmp_path, ends), "where it has a value")
        assert not notes_with(column(tmp_path / "few", [*ends[:4], *HALVES[4:]]), "where it has a value")


class TestSeries:
    def test_missing_values_hold_in_lists(self, tmp_path, refusal):
        rows = [{"x": [1.0, -999 if row == 7 else 2.0, row], "y": LABELS[row]} for row in range(ROWS)]
        place = lay(tmp_path, {"t.json": json.dumps(rows)})
        assert of(place).inputs[7, 0, 1] == -999
        assert "row 8" in refusal(DataError, of, place, missing_values="-999")

    def test_what_is_said_of_the_values_of_a_long_table(self, tmp_path):
        rows = [(row, time, [0.5, 1.5, 2.5, -999][(row + time) % 4]) for row in range(ROWS) for time in range(3)]
        frame = pd.DataFrame(rows, columns=["id", "time", "value"]).assign(y=lambda one: one["id"] % 2)
        found = of(lay(tmp_path, {"t.csv": frame}), pivot="id,time,value")
        assert [note for note in notes_with(found, "column 'value'") if "missing-values=-999" in note]


def test_hidden_rows_and_sheets_are_named(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for title, state in (("data", "visible"), ("old", "hidden")):
        sheet = book.create_sheet(title)
        sheet.sheet_state = state
        for row in [["a", "y"], *zip(HALVES, LABELS, strict=True)]:
            sheet.append(row)
    del book["Sheet"]
    book["data"].row_dimensions[5].hidden = True
    book.save(tmp_path / "t.xlsx")
    found = of(tmp_path)
    assert (len(found.labels), len(notes_with(found, "1 hidden rows")), len(notes_with(found, "'old'"))) == (ROWS, 1, 1)


@pytest.mark.parametrize("wards", [["1", "2", "1.0"], ["7.0", "7", "8"]])
def test_owners_that_are_one_number_are_refused(tmp_path, refusal, wards):
    rows = {"a": HALVES, "ward": [*wards, "ICU"] * 10, "y": LABELS}
    keys = {"dataset": lay(tmp_path, {"t.csv": rows}), "label_column": "y", "partition": "natural:ward"}
    assert "one number" in refusal(DataError, load_client, num_partitions=2, partition_id=0, **keys)
