"""Text files of rows as programs and people write them; what is right comes from pandas, or from how each was made."""

import csv
import json
import subprocess
import sys
from datetime import timedelta
from random import Random
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures.tiers import exhaustive
from scipy.io import savemat

from hetfl_flwr.data import Reading, Split, load_client_data
from hetfl_flwr.data.columns import as_written
from hetfl_flwr.data.domains import own_data_sets
from hetfl_flwr.data.text_tables import read_sheets, read_text_table
from hetfl_flwr.errors import ConfigError, DataError

ROWS = 60
NAMES = ["age", "name", "y"]
CELLS = [[str(row % 40 + 20), ["Ann", "Bob, Jr.", "Eve"][row % 3], "ab"[row % 2]] for row in range(ROWS)]


def data_of(place, clients=1, client=0, **keys):
    reading = {"label_column": "y", **{key: keys.pop(key) for key in list(keys) if key in Reading.__dataclass_fields__}}
    split = Split(dataset=str(place), clients=clients, seed=0, reading=Reading(**reading), **keys)
    return load_client_data(split, client)


def written(path, rows, names=NAMES, **options):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, **options)
        writer.writerows([names, *rows] if names else rows)
    return path


def cells_of(path):
    return texts_of(read_text_table(path))


def texts_of(frame):
    return {name: [cell or "" for cell in cells] for name, cells in frame.table.to_pydict().items()}


def expected(rows=CELLS, names=NAMES):
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


class TestLayouts:
    """Each is read cell for cell as it was written."""

    @pytest.mark.parametrize("blanks", [" ", "   ", " \t"])
    def test_blanks_between_columns(self, tmp_path, blanks):
        """As `DataFrame.to_string` aligns them; pandas reads such files with ``sep=r"\\s+"``."""
        rows = [[row[0], row[1][:3], row[2]] for row in CELLS]
        path = tmp_path / "t.csv"
        path.write_text("".join(blanks.join(row) + "\n" for row in [NAMES, *rows]))
        frame = pd.read_csv(path, sep=r"\s+", dtype=str)
        assert cells_of(path) == frame.to_dict("list") == expected(rows)

    @pytest.mark.parametrize("words", ["good day", "a good day to all of you"])
    def test_sentences_of_equal_length_are_no_columns(self, tmp_path, words):
        lines = "".join(f"{words} {row % 3},{row % 2}\n" for row in range(40))
        (tmp_path / "train.csv").write_text("said,sick\n" + lines)
        cells = cells_of(tmp_path / "train.csv")
        assert list(cells) == ["said", "sick"]
        assert cells["said"][1] == f"{words} 1"

    def test_blanks_after_commas(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("age, y\n" + "".join(f'{row[0]}, "{row[2]},"\n' for row in CELLS))
        assert cells_of(path) == pd.read_csv(path, skipinitialspace=True, dtype=str).to_dict("list")

    @pytest.mark.parametrize(
        ("above", "row"),
        [("Exported 2024-03-31\n\nWard North; closed\n", 4), ("# made by hand\n# see the manual, p. 3\n", 3)],
        ids=["preamble", "comments"],
    )
    def test_lines_above_the_table_are_left_out_aloud(self, tmp_path, above, row):
        path = written(tmp_path / "t.csv", CELLS)
        path.write_text(above + path.read_text())
        table = read_text_table(path)
        assert texts_of(table) == expected()
        assert table.numbers.tolist() == list(range(row + 1, row + 1 + ROWS))
        assert ["above" in note for note in table.notes] == [True]

    def test_row_names_of_r_are_a_column_without_a_name(self, tmp_path):
        """`write.table` gives the header no name for them."""
        path = tmp_path / "t.csv"
        lines = [f'"{row + 1}" {cells[0]} "{cells[1]}" "{cells[2]}"' for row, cells in enumerate(CELLS)]
        path.write_text('"age" "name" "y"\n' + "\n".join(lines) + "\n")
        assert cells_of(path) == {"Unnamed: 0": [str(row + 1) for row in range(ROWS)], **expected()}

    def test_names_of_columns_may_be_years_beside_names_of_rows(self, tmp_path):
        """As `write.csv` of R has a matrix."""
        frame = pd.DataFrame({str(year): [f"{row + 0.5}" for row in range(9)] for year in (1940, 1945)}, dtype=str)
        frame.index = [f"row {row}" for row in range(9)]
        frame.to_csv(tmp_path / "t.csv")
        assert cells_of(tmp_path / "t.csv") == pd.read_csv(tmp_path / "t.csv", dtype=str).to_dict("list")

    @pytest.mark.parametrize("first", ["", "sep=;\n"])
    def test_a_separator_at_the_end_of_each_row_but_the_header_shifts_nothing(self, tmp_path, first):
        """As pandas reads it with ``index_col=False``."""
        path = tmp_path / "t.csv"
        path.write_text(first + "a;b;y\n" + "".join(f"{row};{row % 7};{row % 2};\n" for row in range(9)))
        found = cells_of(path)
        frame = pd.read_csv(path, sep=";", index_col=False, dtype=str, skiprows=int(bool(first)))
        assert {name: found[name] for name in "aby"} == frame.to_dict("list")

    @pytest.mark.parametrize("again", [NAMES, ["\ufeffage", "name", "y"], [" Age", "NAME ", "Y"]])
    def test_a_header_that_is_repeated_is_no_row(self, tmp_path, again):
        """As files that were put together with ``cat`` have it."""
        table = read_text_table(written(tmp_path / "t.csv", [*CELLS[:9], again, *CELLS[9:]]))
        assert texts_of(table) == expected()
        assert ["row 11" in note for note in table.notes] == [True]

    def test_a_name_above_rows_of_numbers_may_stand_behind_a_mark(self, tmp_path):
        """As `numpy.savetxt` writes a header."""
        path = tmp_path / "t.csv"
        path.write_text("# a,y\n" + "".join(f"{row}.5,{row % 2}\n" for row in range(9)))
        assert list(cells_of(path)) == ["a", "y"]

    def test_a_quote_that_is_not_closed_is_refused_with_its_row(self, tmp_path, refusal):
        """The next one closes it, a row below: both would be one row, whose cells are as many as they should be."""
        path = tmp_path / "t.csv"
        rows = [f'{row},b,"Eve"\n' for row in range(40)]
        path.write_text("age,y,name\n" + "".join([*rows[:9], '3,a,"Ann\n', *rows[9:]]))
        assert "row 11" in refusal(DataError, read_text_table, path)

    @pytest.mark.parametrize("text", ["two\nlines", 'two\n"quoted", lines\n\nor more'])
    def test_a_cell_may_have_several_lines(self, tmp_path, text):
        rows = [[row[0], text if row[0] == "25" else row[1], row[2]] for row in CELLS]
        assert cells_of(written(tmp_path / "t.csv", rows)) == expected(rows)

    def test_a_column_may_be_called_by_a_mark_of_remarks(self, tmp_path):
        """As pandas reads it; a remark above it is one all the same."""
        rows = [[str(row + 1), *cells] for row, cells in enumerate(CELLS)]
        path = written(tmp_path / "t.csv", rows, ["#", *NAMES])
        assert cells_of(path) == pd.read_csv(path, dtype=str).to_dict("list")
        path.write_text("# made by hand\n" + path.read_text())
        assert cells_of(path) == expected(rows, ["#", *NAMES])
        path.write_text("#age,name,y\n" + "\n".join(",".join(row) for row in [["x", "Ann", "a"]] * 9))
        assert list(read_text_table(path, "", 1).names) == NAMES

    def test_lines_below_a_table_are_no_rows(self, tmp_path):
        """The label is the first column: each would be a class of its own."""
        rows = [[row[2], row[0], row[1]] for row in CELLS]
        path = written(tmp_path / "t.csv", rows, ["y", "age", "name"])
        path.write_text(path.read_text() + "Source: Ward North,,\nAll rights reserved\n")
        assert cells_of(path) == expected(rows, ["y", "age", "name"])
        assert ["Source" in note or "reserved" in note for note in read_text_table(path).notes] == [True]

    def test_a_comma_within_a_name_shifts_no_cell_into_a_last_column_that_is_empty(self, tmp_path, refusal):
        path = tmp_path / "t.csv"
        lines = [f"Ann,{row},a," for row in range(30)]
        path.write_text("\n".join(["name,age,y,comment", *lines[:9], "Doe, John,50,a,", *lines[9:]]) + "\n")
        assert "row 11 of" in refusal(DataError, read_text_table, path)

    @pytest.mark.parametrize(
        ("encoding", "words"),
        [
            ("cp1252", "Zürich Genève Malmö Besançon Düsseldorf Orléans"),
            ("cp1252", "Zoë Ann Bob"),
            ("cp1251", "Москва Казань Пермь Тверь Самара Воронеж"),
            ("shift_jis", "東京都 大阪府 京都府 北海道 福岡県 沖縄県"),
            ("gb18030", "北京市 上海市 广州市 深圳市 成都市 杭州市"),
            ("utf-16", "Zürich Genève Malmö"),
            ("utf-8-sig", "Zürich 東京都 Москва"),
        ],
    )
    def test_encodings(self, tmp_path, encoding, words):
        """What the detector makes of few letters may be wrong: the note shows a word."""
        words = words.split()
        rows = [[str(row), words[row % len(words)], "ab"[row % 2]] for row in range(ROWS)]
        path = tmp_path / "t.csv"
        path.write_text("\n".join(",".join(row) for row in [NAMES, *rows]) + "\n", encoding=encoding)
        table = read_text_table(path)
        assert texts_of(table) == expected(rows)
        assert [words[0] in note or "UTF-16" in note for note in table.notes] == [True] * (encoding != "utf-8-sig")

    @pytest.mark.parametrize("count", [200, exhaustive(1000)])
    def test_any_combination_of_them(self, tmp_path, count):
        """Right is what the generator wrote: 98 of 100 are read cell for cell, and the others have a note."""
        notes = [self.read_otherwise(Random(seed), tmp_path / "t.csv") for seed in range(count)]
        wrong = [one for one in notes if one is not None]
        assert len(wrong) <= 0.02 * count
        assert all(wrong)

    def read_otherwise(self, draw, path):
        """Write a table by a dialect that is drawn, and return the notes on it; None where all cells are right."""
        separator = draw.choice(",,;\t|")
        words = ["red", "dark blue", "o'clock", "x,y", "a;b", "é", "", "12-b", "Smith, Jane", "50% off", "#1", "a|b"]
        words = draw.sample([*words, 'the "best"', "New York", "ja/nein", "C:\\dir"], draw.randint(3, 8))
        makers = [
            lambda: str(draw.randint(-50, 5000)),
            lambda: f"{draw.uniform(-9, 9):.3f}".replace(".", "," if separator == ";" else "."),
            lambda: draw.choice(words),
            lambda: f"2024-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}",
            lambda: draw.choice(["yes", "no"]),
            lambda: draw.choice(["", "NA", "3.5"]),
        ]
        columns = [draw.choice(makers) for _ in range(draw.randint(2, 9))]
        rows = [[make() for make in columns] for _ in range(draw.randint(4, 120))]
        names = [f"{draw.choice(['size', 'kind of', 'x', 'Größe', 'a_b'])} {number}" for number in range(len(columns))]
        first = draw.choice(["no names", "ids", "names of rows", "names of rows as R has them"])
        header = [*{"ids": ["id"], "names of rows": [""]}.get(first, []), *names]
        if first != "no names":
            rows = [[f"P{number:03d}" if first == "ids" else str(number + 1), *row] for number, row in enumerate(rows)]
            names = ["id" if first == "ids" else "Unnamed: 0", *names]
        options = {"delimiter": separator, "lineterminator": draw.choice(["\n", "\r\n", "\r"])}
        options["quoting"] = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
        options |= draw.choice([{}, {}, {}, {"quotechar": "'"}])
        options |= draw.choice([{}, {}, {}, {"escapechar": "\\", "doublequote": False}])
        above = draw.choice([*[""] * 12, "Report of 2024\n\n", "# made by hand\n# two lines, really\n", "Ward North\n"])
        with path.open("w", newline="", encoding="utf-8") as file:
            file.write(above)
            csv.writer(file, **options).writerows([header, *rows])
        try:
            table = read_text_table(path)
        except DataError as error:
            return (str(error),)
        return None if texts_of(table) == expected(rows, names) else table.notes


class TestKeys:
    def test_a_row_of_names_may_be_told(self, tmp_path, refusal):
        """A line above it is as wide as the table."""
        path = tmp_path / "t.csv"
        rows = [["one", "two", "three"], NAMES, *([row[0], "x", row[2]] for row in CELLS)]
        path.write_text("".join(f"{','.join(row)}\n" for row in rows))
        assert data_of(path, header_row=2).train.arrays.class_names == ("a", "b")
        assert "row 70" in refusal(DataError, data_of, path, header_row=70)
        path.write_text("".join(f"{row % 9},{row % 2}\n" for row in range(40)))
        assert "header-row" in refusal(DataError, data_of, path, label_column="2")
        arrays = data_of(path, label_column="2", header_row=-1).train.arrays
        assert (arrays.input_names, len(arrays.labels)) == (("1",), 40)

    def test_an_encoding_may_be_told(self, tmp_path, refusal):
        """Without it, Polish letters are taken for those of Western Europe; the note shows a word and names the key."""
        path = tmp_path / "t.csv"
        pd.DataFrame({"a": range(4), "y": ["Łódź", "Kraków"] * 2}).to_csv(path, index=False, encoding="cp1250")
        right = sorted(pd.read_csv(path, encoding="cp1250").y.unique())
        assert sorted(data_of(path, encoding="cp1250").train.arrays.class_names) == right
        assert any("encoding" in note for note in data_of(path).train.arrays.notes)
        assert "utf-8" in refusal(DataError, data_of, path, encoding="utf-8")
        assert "klingon" in refusal(DataError, data_of, path, encoding="klingon")

    def test_quotes_hold_the_name_of_a_file_with_a_comma(self, tmp_path, refusal):
        path = written(tmp_path / "north, old.csv", CELLS)
        assert f"'\"{path}\"'" in refusal(ConfigError, data_of, path)
        assert len(data_of(f'"{path}"').train.arrays.labels) == ROWS
        assert own_data_sets(f'"{path}",{path.parent}') == 2

    def test_quotes_hold_a_name_with_a_comma(self, tmp_path):
        frame = pd.DataFrame({"height, in cm": range(40), "b": [row / 7 for row in range(40)], "y": ["u", "v"] * 20})
        frame.to_csv(tmp_path / "t.csv", index=False)
        assert data_of(tmp_path / "t.csv", ignore_columns='"height, in cm"').train.arrays.input_names == ("b",)
        names = data_of(tmp_path / "t.csv", numeric_columns='b, "height, in cm"').train.arrays.input_names
        assert names == ("height, in cm", "b")

    def test_names_of_columns_are_one_whatever_form_their_letters_have(self, tmp_path):
        """macOS writes an accent as a letter of its own."""
        for number, name in enumerate(["Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"]):
            frame = pd.DataFrame({name: [row / 7 for row in range(40)], "b": 1, "y": ["u", "v"] * 20})
            frame.to_csv(tmp_path / f"{number}.csv", index=False)
        assert len(data_of(tmp_path).train.arrays.labels) == 80
        assert data_of(tmp_path, ignore_columns="Gro\u0308\u00dfe").train.arrays.input_names == ("b",)

    def test_owners_that_look_alike_are_refused(self, tmp_path, refusal):
        wards = ["caf\u00e9", "cafe\u0301", "North", "north"] * 10
        frame = pd.DataFrame({"a": [row / 7 for row in range(40)], "ward": wards, "y": ["u", "v"] * 20})
        frame.to_csv(tmp_path / "t.csv", index=False)
        line = refusal(DataError, data_of, tmp_path / "t.csv", 4, partition="natural:ward")
        assert ("caf\u00e9" in line, "orth" in line) == (True, False)


class TestForms:
    """Files that are packed, sheets, and what has to be converted first."""

    @pytest.mark.parametrize("ending", ["csv.gz", "csv.bz2", "csv.xz", "csv.zip", "txt", "data", "dat.gz"])
    def test_as_pandas_writes_them(self, tmp_path, ending):
        frame = pd.DataFrame({"a": [row / 8 for row in range(40)], "y": ["u", "v"] * 20})
        frame.to_csv(tmp_path / f"t.{ending}", index=False)
        arrays = data_of(tmp_path / f"t.{ending}", test_set="client").train.arrays
        assert arrays.inputs[:, 0].tolist() == frame.a.tolist()

    def test_all_rows_of_a_sheet_are_read_whatever_it_says_of_its_size(self, tmp_path):
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
        pd.DataFrame({"a": range(40), "y": ["u", "v"] * 20}).to_excel(tmp_path / "whole.xlsx", index=False)
        with ZipFile(tmp_path / "whole.xlsx") as whole, ZipFile(tmp_path / "small.xlsx", "w") as small:
            for name in whole.namelist():
                small.writestr(name, whole.read(name).replace(b'ref="A1:B41"', b'ref="A1:B11"'))
        [(_, table)] = read_sheets(tmp_path / "small.xlsx")
        assert len(table) == 40

    def test_each_sheet_is_an_owner_and_all_are_one_table(self, tmp_path):
        """Cells are as pandas reads them: whole numbers, fractions, dates, truth values, nothing."""
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
        rows = 30
        frame = pd.DataFrame(
            {
                "stay": [None if row == 3 else row * 5 % 13 for row in range(rows)],
                "cost": [row / 8 for row in range(rows)],
                "seen": pd.date_range("2024-01-30", periods=rows),
                "smoker": [row % 3 == 0 for row in range(rows)],
                "y": ["u", "v"] * (rows // 2),
            }
        )
        with pd.ExcelWriter(tmp_path / "wards.xlsx") as book:
            for name in ("north", "south"):
                frame.to_excel(book, sheet_name=name, index=False, startrow=2 * (name == "south"))
        assert [data_of(tmp_path / "wards.xlsx", 2, one, partition="files").name for one in (0, 1)] == [
            "north",
            "south",
        ]
        arrays = data_of(tmp_path / "wards.xlsx").train.arrays
        days = (frame.seen - pd.Timestamp(0)) / pd.Timedelta(days=1)
        right = pd.DataFrame(
            {"stay": frame.stay, "cost": frame.cost, "seen": days, "smoker": frame.smoker.astype(float)}
        )
        assert np.array_equal(arrays.inputs, pd.concat([right, right]), equal_nan=True)

    def test_merged_cells_are_those_of_all_their_rows_and_durations_are_days(self, tmp_path):
        openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
        book = openpyxl.Workbook()
        sheet = book.active
        sheet.append(["ward", "stay", "y"])
        for row in range(40):
            sheet.append(["north" if row < 20 else "south", timedelta(hours=6 * row), "uv"[row % 2]])
            sheet.cell(row + 2, 2).number_format = "[h]:mm"
        sheet.merge_cells("A2:A21")
        sheet.merge_cells("A22:A41")
        book.save(tmp_path / "t.xlsx")
        arrays = data_of(tmp_path / "t.xlsx").train.arrays
        assert arrays.input_names == ("ward=south", "stay")
        assert arrays.inputs.tolist() == [[float(row >= 20), row / 4] for row in range(40)]

    @pytest.mark.parametrize("ending", ["arff", "dta", "orc", "mat"])
    def test_others_are_refused_with_the_line_that_converts_them(self, tmp_path, refusal, ending):
        """What the line writes is read as the table is that it was made of."""
        frame = pd.DataFrame({"a": [row / 8 for row in range(40)], "y": ["u", "v"] * 20})
        path = tmp_path / f"t.{ending}"
        if ending == "arff":
            cells = "\n".join(f"{row.a},{row.y}" for row in frame.itertuples())
            path.write_text(f"@relation t\n@attribute a numeric\n@attribute y {{u,v}}\n@data\n{cells}\n")
        elif ending == "dta":
            frame.to_stata(path, write_index=False)
        elif ending == "orc":
            frame.to_orc(path)
        else:
            savemat(path, {"a": frame.a.to_numpy(), "y": frame.y.to_numpy().astype("U1")}, oned_as="column")
        line = refusal(DataError, data_of, path)
        assert refusal(DataError, data_of, tmp_path).endswith(line.partition(": ")[2])
        code = line.partition('python -c "')[2].removesuffix('"')
        subprocess.run([sys.executable, "-c", code], check=True)
        [written] = [one for one in tmp_path.iterdir() if one != path]
        arrays = data_of(written).train.arrays
        assert arrays.inputs[:, 0].tolist() == frame.a.tolist()
        assert arrays.class_names == ("u", "v")


class TestTypes:
    """One type a column, decided over all of its cells, however many there are."""

    @pytest.mark.parametrize(
        ("cells", "right"),
        [
            (["10", "9"], [10, 9]),
            (["001", "1"], ["001", "1"]),
            (["1.50", "x"], ["1.50", "x"]),
            (["NA", "1"], ["NA", "1"]),
            (["1e3", "2"], ["1e3", "2"]),
            (["true", "False"], [True, False]),
        ],
    )
    def test_owners_and_labels_are_as_written(self, cells, right):
        assert as_written(pa.chunked_array([pa.array(cells, pa.large_string())])).to_pylist() == right

    @pytest.mark.parametrize("partition", ["natural:ward", "label"])
    def test_zeros_in_front_stay_in_a_long_file_whose_first_rows_have_letters(self, tmp_path, partition):
        """pandas with ``dtype=str`` counts four wards; 10,000 rows at a time they are seven."""
        wards = ["A12"] * 500 + [["001", "002", "003"][row % 3] for row in range(20_500)]
        frame = pd.DataFrame({"a": [row % 97 / 7 for row in range(21_000)], "ward": wards, "y": ["u", "v"] * 10_500})
        frame.to_csv(tmp_path / "rows.csv", index=False)
        right = sorted(pd.read_csv(tmp_path / "rows.csv", dtype=str).ward.unique())
        if partition == "label":
            arrays = data_of(tmp_path / "rows.csv", label_column="ward", ignore_columns="y").train.arrays
            assert list(arrays.class_names) == right
        else:
            names = [data_of(tmp_path / "rows.csv", 4, client, partition=partition).name for client in range(4)]
            assert names == right

    def test_codes_with_zeros_in_front_are_values_of_their_own(self, tmp_path):
        path = written(
            tmp_path / "t.csv", [[one, row % 2] for row, one in enumerate(["007", "7", "07", "1"] * 10)], "ay"
        )
        arrays = data_of(path, categorical_columns="a").train.arrays
        assert sorted(arrays.columns[0].values) == sorted(pd.read_csv(path, dtype=str).a.unique())
        assert arrays.inputs.sum(0).tolist() == [10] * 4

    @pytest.mark.parametrize("word", ["None", "N/A", "NULL", "n/a"])
    def test_a_class_may_be_called_like_what_is_missing_elsewhere(self, tmp_path, word):
        """60 of 100 rows; a parquet file of them has the same classes."""
        labels = [word] * 60 + ["Insomnia"] * 20 + ["Sleep Apnea"] * 20
        frame = pd.DataFrame({"hours": [row % 13 / 2 for row in range(100)], "y": labels})
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame.to_parquet(tmp_path / "t.parquet")
        found = [data_of(tmp_path / name).train.arrays for name in ("t.csv", "t.parquet")]
        assert [one.class_names for one in found] == [tuple(sorted({*labels}))] * 2
        assert found[0].labels.tolist() == found[1].labels.tolist()

    def test_a_word_for_no_label_is_named_with_the_way_out(self, tmp_path):
        frame = pd.DataFrame({"a": [row / 7 for row in range(40)], "y": ["NA", "EU", "AF", "EU"] * 10})
        frame.to_csv(tmp_path / "t.csv", index=False)
        arrays = data_of(tmp_path / "t.csv").train.arrays
        assert arrays.class_names == ("AF", "EU")
        assert ["'NA'" in note and "classes" in note for note in arrays.notes] == [True]
        assert data_of(tmp_path / "t.csv", classes="NA,EU,AF").train.arrays.labels.bincount().tolist() == [10, 20, 10]

    @pytest.mark.parametrize("kind", [int, float, str])
    def test_a_code_for_missing_is_no_class_either(self, tmp_path, kind):
        labels = [kind(-9 if row % 4 == 0 else row % 2) for row in range(60)]
        pd.DataFrame({"a": [row * 37 % 41 for row in range(60)], "y": labels}).to_parquet(tmp_path / "t.parquet")
        arrays = data_of(tmp_path / "t.parquet", missing_values="-9").train.arrays
        assert arrays.labels.bincount().tolist() == [15, 30]

    @pytest.mark.parametrize("word", ["N/A", "#N/A", "unknown"])
    def test_a_class_called_like_what_is_missing_elsewhere_is_doubted(self, tmp_path, word):
        frame = pd.DataFrame({"a": [row * 37 % 41 for row in range(60)], "y": [word, "u", "v"] * 20})
        frame.to_csv(tmp_path / "t.csv", index=False)
        arrays = data_of(tmp_path / "t.csv").train.arrays
        assert [word in note and "missing-values" in note for note in arrays.notes] == [True]
        assert data_of(tmp_path / "t.csv", missing_values=word).train.arrays.class_names == ("u", "v")

    def test_an_owner_that_means_nobody_is_no_client(self, tmp_path, refusal):
        frame = pd.DataFrame(
            {"a": [row * 37 % 41 for row in range(60)], "ward": ["n", "?", "s"] * 20, "y": ["u", "v"] * 30}
        )
        frame.to_csv(tmp_path / "t.csv", index=False)
        keys = {"partition": "natural:ward", "missing_values": "?"}
        assert "row 3" in refusal(DataError, data_of, tmp_path / "t.csv", 3, **keys)

    def test_labels_of_json_are_one_however_they_are_written(self, tmp_path):
        rows = [{"a": row * 37 % 41, "y": [1, "1", 1.0, 2, "2", "x"][row % 6]} for row in range(60)]
        (tmp_path / "t.json").write_text(json.dumps(rows))
        assert data_of(tmp_path / "t.json").train.arrays.class_names == ("1", "2", "x")

    def test_names_of_rows_are_not_learnt_from_unless_a_key_names_them(self, tmp_path):
        """As `pandas.concat` leaves an index: 0 to 29 twice."""
        frame = pd.DataFrame({"a": [row * 37 % 41 for row in range(60)], "y": ["u"] * 30 + ["v"] * 30})
        frame.index = [*range(30), *range(30)]
        frame.to_csv(tmp_path / "t.csv")
        frame.index = pd.Index(frame.index, name="__index_level_0__")
        frame.reset_index().to_parquet(tmp_path / "t.parquet")
        twice = pd.read_csv(tmp_path / "t.csv").rename(columns={"Unnamed: 0": "Unnamed: 0.1"})
        twice.to_csv(tmp_path / "twice.csv", index=False)
        twice.rename(columns={"Unnamed: 0.1": "...1"}).to_csv(tmp_path / "readr.csv", index=False)
        for name, column in (
            *(("t.csv", "Unnamed: 0"), ("t.parquet", "__index_level_0__")),
            *(("twice.csv", "Unnamed: 0.1"), ("readr.csv", "...1")),
        ):
            arrays = data_of(tmp_path / name).train.arrays
            assert arrays.input_names == ("a",)
            assert [column in note for note in arrays.notes] == [True]
            named = data_of(tmp_path / name, numeric_columns=column).train.arrays
            assert named.input_names == (column, "a")


class TestFolders:
    """Which files of a folder are read, and as what."""

    def write(self, folder, *names, rows=40):
        for number, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            frame = pd.DataFrame({"a": [(row + number) % 11 / 2 for row in range(rows)], "y": ["u", "v"] * (rows // 2)})
            if name.endswith("parquet"):
                frame.to_parquet(folder / name)
            elif name.endswith("feather"):
                frame.to_feather(folder / name)
            elif name.endswith("json"):
                frame.to_json(folder / name, orient="records", lines=True)
            else:
                frame.to_csv(folder / name, index=False)
        return folder

    @pytest.mark.parametrize(
        ("names", "rows", "train"),
        [
            (["north.csv", "south.csv", "north.csv.bak", "x.csv.part", ".a.csv"], 80, 80),
            (["a.csv", "b.parquet", "c.feather", "d.ndjson"], 160, 160),
            (["north_train.csv", "south.csv"], 80, 80),
            (["clinic.csv", "lab-test.csv"], 80, 80),
            (["train.csv", "test.csv"], 80, 40),
            (["wine_train.csv", "wine_test.csv"], 80, 40),
            (["train/1.csv", "train/2.csv", "test/1.csv"], 120, 80),
            (["cohort/training_1.csv", "val/2.csv", "holdout/test.csv"], 80, 40),
            (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], 80, 40),
        ],
        ids=lambda value: value[1] if isinstance(value, list) else "",
    )
    def test_all_rows_are_read(self, tmp_path, names, rows, train):
        arrays = data_of(self.write(tmp_path, *names)).train.arrays
        assert (len(arrays.labels), arrays.train_rows) == (rows, train)

    def test_what_is_not_read_is_named(self, tmp_path):
        arrays = data_of(self.write(tmp_path, "a.csv", "a.csv.old")).train.arrays
        assert ["a.csv.old" in note for note in arrays.notes] == [True]
        arrays = data_of(self.write(tmp_path / "b", "train.csv", "validation.csv", "test.csv")).train.arrays
        assert (len(arrays.labels), ["'validation'" in note for note in arrays.notes]) == (80, [True])

    @pytest.mark.parametrize(
        "names",
        [
            ("train.csv", "holdout.csv"),
            ("lab_test.csv", "physio_training.csv"),
            ("a_train.csv", "b_val.csv", "a_test.csv"),
        ],
    )
    def test_files_that_may_be_splits_or_not_are_refused(self, tmp_path, refusal, names):
        line = refusal(DataError, data_of, self.write(tmp_path, *names))
        assert sum(f"'{name}'" in line for name in names) == 2

    def test_a_folder_may_say_what_a_column_holds(self, tmp_path):
        """As Spark writes them; pyarrow has the same column."""
        self.write(tmp_path, "ward=n/a.parquet", "ward=s/a.parquet")
        right = pq.read_table(tmp_path, partitioning="hive")["ward"].to_pylist()
        arrays = data_of(tmp_path).train.arrays
        assert arrays.inputs[:, arrays.input_names.index("ward=s")].tolist() == [float(one == "s") for one in right]
        assert [data_of(tmp_path, 2, one, partition="natural:ward").name for one in (0, 1)] == ["n", "s"]

    def test_a_file_that_says_no_split_beside_train_and_test_is_refused(self, tmp_path, refusal):
        self.write(tmp_path, "train.csv", "test.csv", "extra.csv")
        assert "extra.csv" in refusal(DataError, data_of, tmp_path)
        (tmp_path / "extra.csv").rename(tmp_path / "train-2.csv")
        assert data_of(tmp_path).train.arrays.train_rows == 80
