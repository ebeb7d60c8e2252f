"""Files and folders as programs and people write them; what is right comes from pandas, or from how each was made."""

import csv
import os
import re
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from random import Random
from zipfile import ZipFile

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures.data.columns import LABELS, ROWS, lacking, lay, noted
from fixtures.data.loading import arrays_of, load_clients
from fixtures.tiers import exhaustive
from scipy.io import savemat

from hetfl_flwr.data import Reading, Split, data_spec, most_clients, rows
from hetfl_flwr.data.text_tables import encoding_of, read_text_table
from hetfl_flwr.errors import ConfigError, DataError

NAMES = ["age", "name", "y"]
CELLS = [[str(row % 40 + 20), ["Ann", "Bob, Jr.", "Eve"][row % 3], "ab"[row % 2]] for row in range(60)]
RIGHT = dict(zip(NAMES, map(list, zip(*CELLS, strict=True)), strict=True))
FRAME = pd.DataFrame({"a": [row / 8 for row in range(ROWS)], "y": LABELS})


def own(place, **keys):
    return arrays_of(place, **{"label_column": "y"} | keys)


def clients(count, place, **keys):
    return load_clients(count, dataset=place, **{"label_column": "y"} | keys)


def cells_of(path, *keys):
    """Return the cells of a text file by column, as they are written, and what is said of it."""
    found = read_text_table(path, *keys)
    return {name: [cell or "" for cell in cells] for name, cells in found.table.to_pydict().items()}, found.notes


def text_of(rows=CELLS, names=NAMES, **options):
    stream = StringIO(newline="")
    csv.writer(stream, **{"lineterminator": "\n"} | options).writerows([names, *rows] if names else rows)
    return stream.getvalue()


PLAIN = text_of()
SHORT = [[row[0], row[1][:3], row[2]] for row in CELLS]
SHORT_RIGHT = {**RIGHT, "name": [row[1] for row in SHORT]}
R_ROWS = "\n".join(f'"{row + 1}" {cells[0]} "{cells[1]}" "{cells[2]}"' for row, cells in enumerate(CELLS))
LINES = ["two\nlines", 'two\n"quoted", lines\n\nor more']
NUMBERED = [str(row + 1) for row in range(60)]
BELOW = "Source: Ward North,,\nAll rights reserved\n"
LAYOUTS = {
    **{name: (text_of(delimiter=separator), RIGHT, [name]) for name, separator in (("semicolons", ";"), ("bars", "|"))},
    "tabs": (text_of(delimiter="\t"), RIGHT, ["tabs"]),
    "commas": (PLAIN, RIGHT, []),
    "all quoted": (text_of(quoting=csv.QUOTE_ALL), RIGHT, []),
    "other quotes": (text_of(quotechar="'"), RIGHT, None),
    "backslashes": (
        text_of([[*row[:2], 'the "best"'] for row in CELLS], escapechar="\\", doublequote=False),
        {**RIGHT, "y": ['the "best"'] * 60},
        ["backslashes"],
    ),
    **{
        f"blanks {blanks!r}": ("".join(blanks.join(row) + "\n" for row in [NAMES, *SHORT]), SHORT_RIGHT, None)
        for blanks in (" ", "   ", " \t")
    },
    "blanks behind commas": (text_of().replace(",", ", ").replace("Bob,  Jr.", "Bob, Jr."), RIGHT, None),
    "a preamble": ("Exported 2024-03-31\n\nWard North; closed\n" + PLAIN, RIGHT, ["above"]),
    "comments": ("# made by hand\n# see the manual, p. 3\n" + PLAIN, RIGHT, ["above"]),
    "a blank row first": ("\n" + PLAIN, RIGHT, None),
    "R's write.table": ('"age" "name" "y"\n' + R_ROWS, {"Unnamed: 0": NUMBERED, **RIGHT}, None),
    **{
        f"names of rows: {name.format(1)}{by}": (
            by.join(["age", "bp", "y"])
            + "\n"
            + "".join(f"{name.format(row)}{by}3{row}{by}{bp}{by}1\n" for row in range(1, 9)),
            {
                "Unnamed: 0": [name.format(row).strip('"') for row in range(1, 9)],
                "age": [f"3{row}" for row in range(1, 9)],
                "bp": [bp] * 8,
                "y": ["1"] * 8,
            },
            None,
        )
        for name, by, bp in (
            *(("{}", by, "7") for by in ";\t "),
            *(("gene{}", by, "7") for by in ";\t "),
            ("{}", ",", "7.5"),
            ("gene{}", ",", "7.5"),
            ('"{}00"', ",", "7"),
            ('"{}00"', "\t", "7"),
        )
    },
    **{
        f"one column: {cell}": (f"t\n{cell}\n" * 1 + f"{cell} or not\n" * 9, {"t": [cell, *[f"{cell} or not"] * 9]}, [])
        for cell in ("a word here", "word")
    },
    "years beside names of rows": (
        "".join(",1940,1945\n" * (not row) + f"r {row},{row}.5,1\n" for row in range(9)),
        {"Unnamed: 0": [f"r {row}" for row in range(9)], "1940": [f"{row}.5" for row in range(9)], "1945": ["1"] * 9},
        None,
    ),
    **{
        f"{again[0]!r} again": (text_of([*CELLS[:9], again, *CELLS[9:]]), RIGHT, ["row 11"])
        for again in (NAMES, ["\ufeffage", "name", "y"], [" Age", "NAME ", "Y"])
    },
    **{
        f"names behind a mark, {first[0]} first": (
            text_of([first, *CELLS[1:]], ["# age", *NAMES[1:]]),
            {name: [cell, *RIGHT[name][1:]] for name, cell in zip(NAMES, first, strict=True)},
            None,
        )
        for first in (CELLS[0], ["NA", "7", "yes"], ["", "7", "yes"])
    },
    "a remark as wide as the table": ("# made, by hand, twice\n" + PLAIN, RIGHT, ["above"]),
    **{
        f"{len(text)} letters over lines": (
            text_of([[row[0], text, row[2]] for row in CELLS]),
            {**RIGHT, "name": [text] * 60},
            [],
        )
        for text in LINES
    },
    "a column #": (
        text_of([[one, *row] for one, row in zip(NUMBERED, CELLS, strict=True)], ["#", *NAMES]),
        {"#": NUMBERED, **RIGHT},
        None,
    ),
    "a row of units": (PLAIN.replace("\n", "\nyears,-,\n", 1), RIGHT, ["row 2 holds units, such as 'years'"]),
    **{
        f"no units: {cells}": (
            PLAIN.replace("\n", f"\n{','.join(cells)}\n", 1),
            {name: [cell, *RIGHT[name]] for name, cell in zip(NAMES, cells, strict=True)},
            None,
        )
        for cells in (["old", "Ann", "a"], ["NA", "Ann", ""], ["", "Ann", ""], ["0,5 y"[:1], "kg", ""])
    },
    "lines below": (text_of([row[::-1] for row in CELLS], NAMES[::-1]) + BELOW, RIGHT, ["reserved"]),
    "quotes within words": (
        text_of(SHORT).replace("Ann", 'he said "hi"'),
        {**SHORT_RIGHT, "name": [row[1].replace("Ann", 'he said "hi"') for row in SHORT]},
        None,
    ),
    "sentences": (
        "said,y\n" + "".join(f"a good day to all of you {row},{row % 2}\n" for row in range(9)),
        {"said": [f"a good day to all of you {row}" for row in range(9)], "y": [str(row % 2) for row in range(9)]},
        [],
    ),
    "decimal commas": ("a, in m;y\n" + "1,5;2,5\n" * 9, {"a, in m": ["1,5"] * 9, "y": ["2,5"] * 9}, ["semicolons"]),
    "one column": ("y\n1\n0\n", {"y": ["1", "0"]}, []),
    "no rows": ("a,y\n", {"a": [], "y": []}, []),
}
"""A text, its cells by column, and what one note says; no note where that is nothing, any where it is None."""


@pytest.mark.parametrize("case", LAYOUTS)
def test_layouts_are_read_cell_for_cell(case, tmp_path):
    text, right, words = LAYOUTS[case]
    cells, notes = cells_of(lay(tmp_path, {"t.csv": text}) / "t.csv")
    assert cells == right
    assert words is None or [[word in note for word in words] for note in notes] == [[True]] * bool(words)


@pytest.mark.parametrize("first", ["", "sep=;\n"])
def test_a_separator_at_the_end_of_each_row_but_the_header_shifts_nothing(tmp_path, first):
    """As pandas reads it with ``index_col=False``."""
    path = tmp_path / "t.csv"
    path.write_text(first + "a;b;y\n" + "".join(f"{row};{row % 7};{row % 2};\n" for row in range(9)))
    frame = pd.read_csv(path, sep=";", index_col=False, dtype=str, skiprows=int(bool(first)))
    cells, _ = cells_of(path)
    assert {name: cells[name] for name in "aby"} == frame.to_dict("list")


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("cp1252", "Zürich Genève Malmö Besançon Düsseldorf Orléans"),
        ("cp1252", "Zoë Ann Bob"),
        ("cp1252", "Größe Ann Bob"),
        ("cp1252", "Körpergröße"),
        ("cp1252", "créée Füße"),
        ("cp1251", "Москва Казань Пермь Тверь Самара Воронеж"),
        ("shift_jis", "東京都 大阪府 京都府 北海道 福岡県 沖縄県"),
        ("gb18030", "北京市 上海市 广州市 深圳市 成都市 杭州市"),
        ("utf-16", "Zürich Genève Malmö"),
        *((f"utf-{form}", "Zürich Genève Malmö") for form in ("16-be", "16-le", "32", "32-be", "32-le")),
        ("utf-8-sig", "Zürich 東京都 Москва"),
    ],
)
def test_encodings(tmp_path, encoding, words):
    """What the detector makes of few letters may be wrong: the note shows a word."""
    words = words.split()
    rows = [[str(row), words[row % len(words)], "ab"[row % 2]] for row in range(60)]
    cells, notes = cells_of(lay(tmp_path, {"t.csv": text_of(rows).encode(encoding)}) / "t.csv")
    assert cells["name"] == [row[1] for row in rows]
    assert [words[0] in note or f"as {encoding.upper()}" in note for note in notes] == [True] * (
        encoding != "utf-8-sig"
    )


@pytest.mark.parametrize("count", [200, exhaustive(1000)])
def test_any_combination_of_them(tmp_path, count):
    """Right is what the generator wrote: 98 of 100 are read cell for cell, and the others have a note."""
    notes = [read_otherwise(Random(seed), tmp_path / "t.csv") for seed in range(count)]
    wrong = [one for one in notes if one is not None]
    assert len(wrong) <= 0.02 * count
    assert all(wrong)


def read_otherwise(draw, path):
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
        cells, notes = cells_of(path)
    except DataError as error:
        return (str(error),)
    return None if cells == dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) else notes


class TestKeys:
    def test_a_row_of_names_may_be_told(self, tmp_path, refusal):
        """A line above it is as wide as the table; or no row has names."""
        path = lay(tmp_path, {"t.csv": "one,two,three\n" + text_of(SHORT)}) / "t.csv"
        assert own(path, header_row=2).class_names == ("a", "b")
        assert "row 70" in refusal(DataError, own, path, header_row=70)
        lay(tmp_path, {"t.csv": "".join(f"{row % 9},{row % 2}\n" for row in range(40))})
        assert "header-row" in refusal(DataError, own, path, label_column="2")
        arrays = own(path, label_column="2", header_row=-1)
        assert (arrays.input_names, len(arrays.labels)) == (("1",), 40)
        lay(tmp_path, {"t.csv": "#age,name,y\n" + "x,Ann,a\n" * 9})
        assert [*cells_of(path, "", 1)[0]] == NAMES

    def test_an_encoding_may_be_told(self, tmp_path, refusal):
        """Without it, Polish letters are taken for those of Western Europe; the note shows a word and names the key."""
        path = tmp_path / "t.csv"
        pd.DataFrame({"a": range(4), "y": ["Łódź", "Kraków"] * 2}).to_csv(path, index=False, encoding="cp1250")
        right = sorted(pd.read_csv(path, encoding="cp1250").y.unique())
        assert sorted(own(path, encoding="cp1250").class_names) == right
        assert noted(own(path), "encoding")
        for encoding in ("utf-8", "utf-16", "klingon"):
            assert encoding in refusal(DataError, own, path, encoding=encoding)

    def test_of_a_folder_files_of_utf8_stay_so_beside_those_of_the_code_page_that_is_told(self, tmp_path):
        """Four hospitals: three write the code page, one UTF-8."""
        table = pd.DataFrame({"Größe": range(1, 41), "y": ["männlich", "weiblich"] * 20})
        for number, encoding in enumerate(["cp1252", "cp1252", "utf-8", "cp1252"]):
            (tmp_path / f"{number}.csv").write_bytes(table.to_csv(index=False).encode(encoding))
        found = own(tmp_path, encoding="cp1252")
        assert (found.input_names, sorted(found.class_names)) == (("Größe",), ["männlich", "weiblich"])
        assert noted(found, "UTF-8")
        (tmp_path / "0.csv").write_bytes(table.to_csv(index=False).encode("utf-8-sig"))
        assert encoding_of(tmp_path / "0.csv", "utf-8-sig") == ("utf-8-sig", ())

    def test_letters_of_several_bytes_are_what_they_are_told_to_be_also_where_they_look_like_utf8(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_bytes("联通,y\n1,a\n2,b\n".encode("gb18030"))
        assert [*cells_of(path, "gb18030")[0]] == ["联通", "y"]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
    @pytest.mark.parametrize("name", ["Ann", "Zoë"])
    def test_what_is_cut_within_a_letter_is_in_no_other_encoding(self, tmp_path, refusal, encoding, name):
        path = lay(tmp_path, {"t.csv": text_of([["1", name, "u"]] * 9).encode(encoding)[:-1]}) / "t.csv"
        assert lacking(refusal(DataError, own, path), "t.csv'", "utf-", "save it as UTF-8") == []

    def test_quotes_hold_names_with_a_comma(self, tmp_path, refusal):
        path = lay(tmp_path, {"north, old.csv": FRAME.assign(**{"height, in cm": range(ROWS)})}) / "north, old.csv"
        assert f"'\"{path}\"'" in refusal(ConfigError, own, path)
        assert own(f'"{path}"', ignore_columns='"height, in cm"').input_names == ("a",)
        assert own(f'"{path}"', numeric_columns='a, "height, in cm"').input_names == ("a", "height, in cm")
        assert data_spec(f'"{path}","{path.parent}"', Reading(label_column="y")).shape == (1,)

    def test_names_of_columns_are_one_whatever_form_their_letters_have(self, tmp_path):
        """macOS writes an accent as a letter of its own."""
        for name in ("Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"):
            lay(tmp_path, {f"{len(name)}.csv": FRAME.assign(**{name: range(ROWS)})})
        assert len(own(tmp_path).labels) == 2 * ROWS
        assert own(tmp_path, ignore_columns="Gro\u0308\u00dfe").input_names == ("a",)


def _valued(found):
    """Return the end of the cell of a formula in a row, with twice the number of its row as the value."""
    return b"A%b*2</f><v>%d</v>" % (found[1], 2 * ((int(found[1]) - 2) % 7))


class TestForms:
    """Files that are packed, sheets, and what has to be converted first."""

    @pytest.mark.parametrize(
        "ending", ["csv", "tsv", "txt", "data", "dat.gz", *(f"csv.{one}" for one in ("gz", "bz2", "xz", "zip"))]
    )
    @pytest.mark.parametrize("name", ["t", "wine [1]"])
    def test_one_file_is_a_data_set(self, tmp_path, name, ending):
        FRAME.to_csv(tmp_path / f"{name}.{ending}", index=False, sep="\t" if ending == "tsv" else ",")
        assert own(tmp_path / f"{name}.{ending}").inputs[:, 0].tolist() == FRAME.a.tolist()

    @pytest.mark.parametrize("ending", ["parquet", "feather", "json", "jsonl", "ndjson"])
    def test_so_is_one_of_records(self, tmp_path, ending):
        assert own(lay(tmp_path, {f"t.{ending}": FRAME}) / f"t.{ending}").inputs[:, 0].tolist() == FRAME.a.tolist()

    @pytest.mark.parametrize("at_once", [1, 5000, 2**20])
    def test_parquet_is_whole_whatever_part_is_read_at_a_time(self, tmp_path, monkeypatch, at_once):
        """Lists, records and dictionaries, over several groups of rows, are as pyarrow reads them at once."""
        monkeypatch.setattr(rows, "_AT_ONCE", at_once)
        cells = {"x": [[[row, 1.0], []] for row in range(700)], "r": [{"a": row} for row in range(700)]}
        whole = pa.table(cells | {"r.a": range(700), "d": pa.array([*"abbbbcc"] * 100).dictionary_encode()})
        pq.write_table(whole, tmp_path / "t.parquet", row_group_size=300)
        [(_, found)] = rows.read_file(tmp_path / "t.parquet", Reading())
        assert found.table.to_pydict() == whole.to_pydict()

    def test_all_rows_of_a_sheet_are_read_whatever_it_says_of_its_size(self, tmp_path):
        FRAME.to_excel(tmp_path / "whole.xlsx", index=False)
        with ZipFile(tmp_path / "whole.xlsx") as whole, ZipFile(tmp_path / "small.xlsx", "w") as small:
            for name in whole.namelist():
                small.writestr(name, whole.read(name).replace(b'ref="A1:B41"', b'ref="A1:B11"'))
        assert len(own(tmp_path / "small.xlsx").labels) == 40

    def test_each_sheet_is_an_owner_and_all_are_one_table(self, tmp_path):
        """Cells are as pandas reads them: whole numbers, fractions, dates, truth values, nothing."""
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
        found = clients(2, tmp_path / "wards.xlsx", partition="files")
        assert [data.name for data in found] == ["north", "south"]
        arrays = own(tmp_path / "wards.xlsx")
        days = (frame.seen - pd.Timestamp(0)) / pd.Timedelta(days=1)
        right = pd.DataFrame(
            {"stay": frame.stay, "cost": frame.cost, "seen": days, "smoker": frame.smoker.astype(float)}
        )
        assert np.array_equal(arrays.inputs, pd.concat([right, right]), equal_nan=True)

    def test_merged_cells_are_those_of_all_their_rows_and_durations_are_days(self, tmp_path):
        book = openpyxl.Workbook()
        sheet = book.active
        sheet.append(["ward", "stay", "y"])
        for row in range(40):
            sheet.append(["north" if row < 20 else "south", timedelta(hours=6 * row), "uv"[row % 2]])
            sheet.cell(row + 2, 2).number_format = "[h]:mm"
        sheet.merge_cells("A2:A21")
        sheet.merge_cells("A22:A41")
        book.save(tmp_path / "t.xlsx")
        arrays = own(tmp_path / "t.xlsx")
        assert arrays.input_names == ("ward=south", "stay")
        assert arrays.inputs.tolist() == [[float(row >= 20), row / 4] for row in range(40)]

    def test_formulas_are_their_values_and_refused_without(self, tmp_path, refusal):
        """openpyxl writes formulas alone; a spreadsheet program writes what they come to, too."""
        book = openpyxl.Workbook()
        book.active.append(["a", "b", "y"])
        for row in range(ROWS):
            book.active.append([row % 7, f"=A{row + 2}*2", LABELS[row]])
        book.save(tmp_path / "t.xlsx")
        assert lacking(refusal(DataError, own, tmp_path / "t.xlsx"), "t.xlsx'", "formulas", "B2 of sheet 'Sheet'") == []
        with ZipFile(tmp_path / "t.xlsx") as old, ZipFile(tmp_path / "valued.xlsx", "w") as new:
            for name in old.namelist():
                text = re.sub(rb"A(\d+)\*2</f><v ?(?:/>|></v>)", _valued, old.read(name))
                new.writestr(name, text)
        assert own(tmp_path / "valued.xlsx").inputs[:, 1].tolist() == [2 * (row % 7) for row in range(ROWS)]

    def test_a_sheet_of_other_things_is_named_and_read_over_where_it_is_hidden(self, tmp_path, refusal):
        FRAME.to_excel(tmp_path / "t.xlsx", index=False)
        book = openpyxl.load_workbook(tmp_path / "t.xlsx")
        notes = book.create_sheet("notes")
        notes.append(["Made by Ann"])
        notes.append(["See the protocol"])
        book.save(tmp_path / "t.xlsx")
        line = refusal(DataError, own, tmp_path / "t.xlsx")
        assert lacking(line, "sheet 'notes'", "no columns 'a', 'y'", "sheet 'Sheet1'", "hide") == []
        notes.sheet_state = "hidden"
        book.save(tmp_path / "t.xlsx")
        assert own(tmp_path / "t.xlsx").inputs[:, 0].tolist() == FRAME.a.tolist()

    @pytest.mark.parametrize("ending", ["arff", "dta", "orc", "mat"])
    def test_others_are_refused_with_the_line_that_converts_them(self, tmp_path, refusal, ending):
        """What the line writes is read as the table is that it was made of."""
        path = tmp_path / f"t.{ending}"
        if ending == "arff":
            cells = "\n".join(f"{row.a},{row.y}" for row in FRAME.itertuples())
            path.write_text(f"@relation t\n@attribute a numeric\n@attribute y {{u,v}}\n@data\n{cells}\n")
        elif ending == "dta":
            FRAME.to_stata(path, write_index=False)
        elif ending == "orc":
            FRAME.to_orc(path)
        else:
            savemat(path, {"a": FRAME.a.to_numpy(), "y": FRAME.y.to_numpy().astype("U1")}, oned_as="column")
        line = refusal(DataError, own, path)
        assert refusal(DataError, own, tmp_path).endswith(line.partition(": ")[2])
        code = line.partition('python -c "')[2].removesuffix('"')
        subprocess.run([sys.executable, "-c", code], check=True)
        [written] = [one for one in tmp_path.iterdir() if one != path]
        arrays = own(written)
        assert arrays.inputs[:, 0].tolist() == FRAME.a.tolist()
        assert arrays.class_names == ("u", "v")

    @pytest.mark.parametrize(
        ("titles", "sizes"), [(("train", "test"), [60, 20]), (("ward", "unit"), [80]), (("test", "unit"), None)]
    )
    def test_sheets_are_splits_where_their_names_say_so(self, tmp_path, titles, sizes, refusal):
        """As the names of files in a folder do."""
        with pd.ExcelWriter(path := tmp_path / "rows.xlsx") as book:
            for title, rows in zip(titles, (60, 20), strict=True):
                pd.concat([FRAME] * 2)[:rows].to_excel(book, sheet_name=title, index=False)
        if sizes is None:
            assert "'test' beside 'unit'" in refusal(DataError, own, path)
        else:
            arrays = own(path)
            assert (arrays.train_rows, len(arrays.labels)) == (sizes[0], 80)
            assert noted(arrays, "put together") == (len(sizes) == 1)


class TestFolders:
    """Which files of a folder are read, and as what."""

    @pytest.mark.parametrize(
        ("names", "rows", "train", "notes"),
        [
            ("north.csv south.csv north.csv.bak x.csv.part .a.csv", 2, 2, ["north.csv.bak"]),
            ("a.csv a.csv.old", 1, 1, ["a.csv.old"]),
            ("a.csv b.parquet c.feather d.ndjson", 4, 4, ["4 files"]),
            ("north_train.csv south.csv", 2, 2, ["north_train.csv is a split"]),
            ("clinic.csv lab-test.csv", 2, 2, ["lab-test.csv is a split"]),
            ("train_north.csv test_north.csv", 2, 2, ["test_north.csv is a split"]),
            ("pre_test.csv post_test.csv", 2, 2, ["post_test.csv is a split"]),
            ("train.csv test.csv", 2, 1, []),
            ("wine_train.csv wine_test.csv", 2, 1, []),
            ("train/1.csv train/2.csv test/1.csv", 3, 2, []),
            ("cohort/training_1.csv val/2.csv holdout/test.csv", 2, 1, ["'validation'"]),
            ("train.csv validation.csv test.csv", 2, 1, ["'validation'"]),
            ("train.csv test.csv train-2.csv", 3, 2, []),
            ("data/train-00000-of-00001.parquet data/test-00000-of-00001.parquet", 2, 1, []),
            ("train-00000-of-00002.csv train-00001-of-00002.csv", 2, 2, []),
        ],
    )
    def test_all_rows_are_read_and_what_is_not_is_named(self, tmp_path, names, rows, train, notes):
        frames = {name: FRAME.assign(a=FRAME.a + number / 100) for number, name in enumerate(names.split())}
        arrays = own(lay(tmp_path, frames))
        assert (len(arrays.labels), arrays.train_rows) == (rows * ROWS, train * ROWS)
        assert noted(arrays, *notes) == bool(notes)

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            ("train.csv holdout.csv", ["'holdout.csv'", "'train.csv'"]),
            ("lab_test.csv physio_training.csv", ["'lab_test.csv'", "'physio_training.csv'"]),
            ("a_train.csv a_test.csv b_val.csv", ["a_t", "'b_val.csv'"]),
            ("train.csv test.csv extra.csv", ["extra.csv"]),
        ],
    )
    def test_files_that_may_be_splits_or_not_are_refused(self, tmp_path, refusal, names, words):
        line = refusal(DataError, own, lay(tmp_path, dict.fromkeys(names.split(), FRAME)))
        assert [word for word in words if word not in line] == []

    def test_a_folder_may_say_what_a_column_holds(self, tmp_path):
        """As Spark writes them: null is ``__HIVE_DEFAULT_PARTITION__``, a blank ``%20``; pyarrow has the same."""
        wards = ("__HIVE_DEFAULT_PARTITION__", "St%20Anna", "Rome")
        lay(tmp_path, {f"ward={name}/a.parquet": FRAME for name in wards})
        right = pq.read_table(tmp_path, partitioning="hive")["ward"].to_pylist()
        arrays = own(tmp_path)
        assert arrays.input_names == ("a", "ward=Rome", "ward=St Anna", "ward=None")
        assert arrays.inputs[:, 2].tolist() == [float(one == "St Anna") for one in right]

    def test_files_of_one_folder_are_read_with_one_set_of_columns(self, tmp_path, refusal):
        """Whole numbers in one file and fractions in the next, another order, a column that only one has."""
        whole = FRAME.assign(bp=range(ROWS))
        files = [whole, whole.assign(bp=whole.bp + 0.5, extra=1)[["y", "extra", "bp", "a"]]]
        lay(tmp_path, {f"{number}.csv": frame for number, frame in enumerate(files)})
        arrays = own(tmp_path, ignore_columns="extra")
        assert arrays.input_names == ("a", "bp")
        assert arrays.inputs[:, 1].tolist() == pd.concat(files).bp.tolist()
        lay(tmp_path, {"1.csv": whole.assign(bp=[*map(str, range(ROWS - 1)), "<1"])})
        assert np.array_equal(own(tmp_path).inputs[:, 1], [*range(ROWS), *range(ROWS - 1), np.nan], equal_nan=True)
        assert noted(own(tmp_path), "1 of 80", "row 41 of file '1.csv'")
        for number, cell in enumerate(["words", [1, 2]]):
            lay(tmp_path / "lists", {f"{number}.json": FRAME.assign(extra=[cell] * ROWS)})
        assert "'extra'" in refusal(DataError, own, tmp_path / "lists")
        assert own(tmp_path / "lists", ignore_columns="extra").input_names == ("a",)

    @pytest.mark.parametrize("other", ["b", "test"])
    def test_a_file_may_lack_what_nobody_learns_from_and_no_other_column(self, tmp_path, refusal, other):
        """The column of texts is learnt alone; a label that lacks is for predictions, in whichever split."""
        rows, first = FRAME.assign(text=[f"word {row}" for row in range(ROWS)]), "train" if other == "test" else "a"
        for name in "ay":
            lay(tmp_path / name, {f"{first}.csv": rows, f"{other}.csv": rows.drop(columns=name)})
        assert len(own(tmp_path / "a", text_column="text").labels) == 2 * ROWS
        lines = [refusal(DataError, own, tmp_path / "a", ignore_columns="text")]
        lines.append(refusal(DataError, own, tmp_path / "y", text_column="text"))
        for line, column in zip(lines, "ay", strict=True):
            assert lacking(line, f"{other}.csv' has no column '{column}', which") == []
        assert ["hetfl predict" in line for line in lines] == ["ignore-columns" not in line for line in lines]
        assert "hetfl predict" in lines[1]

    @pytest.mark.parametrize("ends", [",", ",,"])
    @pytest.mark.parametrize("names", [("train", "test"), ("a", "b")])
    @pytest.mark.parametrize("place", [0, 1])
    def test_one_file_of_several_may_have_columns_without_name_and_cells(self, tmp_path, names, ends, place):
        lines = FRAME.to_csv(index=False).splitlines()
        texts = ["\n".join(line + ends * (number == place) for line in lines) for number in (0, 1)]
        found = own(lay(tmp_path, {f"{name}.csv": text for name, text in zip(names, texts, strict=True)}))
        assert (found.inputs.shape, found.input_names) == ((2 * ROWS, 1), ("a",))
        [note] = [note for note in found.notes if "Unnamed" in note]
        assert note.count("'Unnamed: ") == len(ends)

    def test_each_file_is_read_as_it_is_written_and_several_alike_are_said_in_one_line(self, tmp_path):
        for name, separator in (("north", ";"), ("south", ";"), ("west", ",")):
            FRAME.to_csv(tmp_path / f"{name}.csv", sep=separator, index=False)
        line, copies = clients(3, tmp_path, partition="files")[0].train.arrays.notes
        assert (f"'{tmp_path}/north.csv' and 1 more" in line, "south.csv" in copies) == (True, True)
        assert own(tmp_path).inputs[:, 0].tolist() == FRAME.a.tolist() * 3

    def test_files_in_folders_below_are_called_by_what_tells_them_apart(self, tmp_path):
        """By their folders where each holds one called the same; by both where a folder holds two."""
        lay(tmp_path, dict.fromkeys(["of/north/2023.csv", "of/south/2023.csv", "of/west/2023.csv", ".x/x.csv"], FRAME))
        assert [data.name for data in clients(3, tmp_path, partition="files")] == ["north", "south", "west"]
        (tmp_path / "of" / "west" / "2023.csv").rename(tmp_path / "of" / "south" / "2024.csv")
        other = tmp_path.rename(tmp_path.parent / "other")
        names = [data.name for data in clients(3, other, partition="files")]
        assert names == ["north/2023", "south/2023", "south/2024"]


@pytest.mark.parametrize(
    ("costs", "doses", "doubted"),
    [
        (["1.250", "3.400"], ["1,5", "2,25", "3"], True),
        (["850", "1.250"], ["1,5", "2,25", "3"], True),
        (["850 EUR", "1.250 EUR"], ["1,5", "2,25", "3"], True),
        (["€850.5", "€1.250"], ["1,5", "2,25", "3"], False),
        (["1.250", "2.300"], ["1.5", "2.25"], False),
        (["36.6", "1.250"], ["1,5", "2,5"], False),
        (["12", "13"], ["1,5", "2,5"], False),
    ],
)
def test_points_may_stand_between_thousands_where_other_columns_have_decimal_commas(tmp_path, costs, doses, doubted):
    rows = {"dose": (doses * ROWS)[:ROWS], "cost": (costs * ROWS)[:ROWS], "y": LABELS}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", sep=";", index=False)
    assert noted(own(tmp_path), "decimal commas", "1250") == doubted


WARD = "age,bp,y\n" + "".join(f"{row},{row * 7 % 9}.5,{LABELS[row]}\n" for row in range(20))
BAD = {
    "empty": ({"b.csv": ""}, {}, ["b.csv'", "empty"]),
    "blank": ({"b.csv": " \n\n"}, {}, ["b.csv'", "empty"]),
    "an open quote": ({"b.csv": 'age,bp,y\n1,2,"u\n3,4,v\n'}, {}, ["b.csv'", "row 2"]),
    "a quote that the next closes": (
        {"b.csv": "age,y,bp\n" + '30,b,"Eve"\n' * 9 + '3,a,"Ann\n' + '30,b,"Eve"\n' * 30},
        {},
        ["b.csv'", "row 11"],
    ),
    "quotes that meet": (
        {"b.csv": "age,name,bp,y\n" + "30,Eve,5,u\n" * 9 + '3,"Ann,5,u\n30,Eve,5,u\n4,Bob",5,v\n' + "30,Eve,5,v\n" * 9},
        {},
        ["b.csv'", "row 11", "Ann"],
    ),
    "a cell too many": ({"b.csv": WARD.replace("\n9,", "\nDoe, John,9,")}, {}, ["row 11 of", "b.csv'"]),
    "a comma before an empty column": (
        {"b.csv": "bp,age,y,z\n" + "Ann,5,a,\n" * 9 + "Doe, John,50,a,\n" + "Ann,5,a,\n" * 9},
        {},
        ["row 11 of", "b.csv'"],
    ),
    **{
        f"decimal commas: {header}, {row}": (
            {"b.csv": f"{header}\n" + "".join(row.format(one, one % 7) + "\n" for one in range(1, 30))},
            {},
            ["b.csv'", f"names {header.count(',') + 1} columns", f"{row.count(',') + 1} cells", "decimal comma"],
        )
        for header, row in (
            ("age,bp,y", "{0},{1},70,u"),
            ("age,bp,y", "{1},5,70,u"),
            ("age,bp,y", "{1},5,70,2,u"),
            ("bp,age,y", "{0},3{0},{1},u"),
            ("name,age,y", "Ann {0},3{0},{1},u"),
            ("name,age,y", '"Ann {0}",3{0},{1},"u"'),
            ("y", "{0},{1}"),
            ("y", "{0},5"),
            ("age\tbp\ty".replace("\t", ","), "3{0},5,7.5,u"),
        )
    },
    "no rows": ({"b.csv": "age,bp,y\n"}, {}, ["b.csv'", "no rows"]),
    "no header": ({"b.csv": "5.1,3.5,0\n4.9,3.0,1\n"}, {}, ["b.csv'", "no header"]),
    "no header of words": ({"a.csv": "North,26.7,F,u\nSouth,24.8,M,v\n"}, {"label_column": ""}, ["header-row"]),
    "a column twice": ({"b.csv": "age,y, y\n1,u,u\n"}, {}, ["b.csv'", "column 'y'"]),
    "a column less": ({"b.csv": "y\nu\n"}, {}, ["b.csv'", "'age', 'bp'", "a.csv'", "ignore-columns"]),
    "a column less in parquet": ({"b.parquet": FRAME}, {}, ["b.parquet'", "'age', 'bp'", "a.csv'"]),
    "a column less in json": ({"b.json": FRAME}, {}, ["b.json'", "'age', 'bp'", "a.csv'"]),
    "words for numbers": (
        {"b.csv": "age,bp,y\n" + "old,2,u\n" * 20},
        {},
        ["column 'age'", "numbers in file 'a", "words in file 'b", "ignore-columns"],
    ),
    "a label that is not there": ({"b.csv": WARD}, {"label_column": "yy"}, ["'yy'", "label-column"]),
    "two labels": ({"b.csv": WARD}, {"label_column": "y,bp"}, ["2 columns"]),
    "deep": ({"b.json": '{"a": 1, "y": 0}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"}, {}, ["b.json'"]),
    **{f"no rows: {text}": ({"b.json": text}, {}, ["b.json'"]) for text in ("3", "[null, {}]", "[[1], [2]]")},
    "no parquet": ({"b.parquet": b"PAR1 and no more"}, {}, ["b.parquet'", "Parquet magic"]),
    "a bad cell of one file": ({"b.csv": WARD.replace("\n9,", "\ninf,")}, {}, ["row 11 of", "'b", "infinite age"]),
}
"""What is written beside a good file a.csv, keys, and the words of the refusal one after the other."""


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named_by_its_file_and_row(case, tmp_path, refusal):
    files, keys, words = BAD[case]
    folder = lay(tmp_path / "own", {"a.csv": WARD} | files)
    assert lacking(refusal(DataError, own, folder, **keys), *words) == []
    if "b.csv" in files and "ignore-columns" not in words and not keys:
        assert lacking(refusal(DataError, clients, 2, folder, partition="files"), *words[:1]) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("sheet.ods", ["read_excel"]), ("notes.md", [".parquet"]), ("only/sheet.ods", ["read_excel"])],
)
def test_files_of_other_kinds_are_refused_with_what_is_read(tmp_path, refusal, name, words):
    place = lay(tmp_path, {name: "PK"}) / name
    assert lacking(refusal(DataError, own, place.parent if "/" in name else place), *words) == []


@pytest.mark.parametrize(
    "stray", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
)
def test_a_table_that_is_no_file_is_refused(tmp_path, refusal, stray):
    stray(lay(tmp_path, {"a.csv": WARD}) / "b.csv")
    assert f"'{tmp_path}/b.csv'" in refusal(DataError, own, tmp_path)


def test_what_has_no_files_to_be_clients_is_refused(tmp_path, refusal, monkeypatch):
    lay(tmp_path, {"photos/1.png": "?", "wards/a.csv": WARD, "wards/b.csv": WARD, "wards/c.csv": "age,bp,y\n1,2,u\n"})
    for place, said in ((tmp_path / "photos", "OWNER/CLASS"), ("owner/name", "hub")):
        assert said in refusal(DataError, clients, 3, place, partition="files")
    wards = tmp_path / "wards"
    assert "partition 2 of 3 ('files'), c" in refusal(
        ConfigError, clients, 3, wards, partition="files", test_fraction=0.6
    )
    monkeypatch.chdir(wards)
    for place, said in (("digits", "no files"), (wards, "3 files"), ("a.csv", "./a.csv")):
        assert said in refusal(ConfigError, clients, 5, place, partition="files")
    found = Split(dataset=str(wards), clients=1, seed=0, partition="files", reading=Reading(label_column="y"))
    assert most_clients(found) == 3


def test_remarks_longer_than_what_is_looked_at_first_are_left_out(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("# one remark with words\n" * 20_000 + "a;b\n" + "".join(f"{row};x{row}\n" for row in range(3)))
    assert cells_of(path)[0] == {"a": ["0", "1", "2"], "b": ["x0", "x1", "x2"]}


def test_a_folder_that_is_here_is_not_taken_for_a_data_set_of_the_hub(tmp_path, monkeypatch, refusal):
    """Its name may be that of one; below data-dir it is the layout of the hub."""
    lay(tmp_path / "my" / "hospitals", {"t.csv": FRAME})
    monkeypatch.chdir(tmp_path)
    assert "./my/hospitals" in refusal(ConfigError, own, "my/hospitals")
    assert len(own("./my/hospitals").labels) == len(own("my/hospitals", data_dir=".").labels) == ROWS
