"""Files and folders of rows as programs and people write them; right is what pandas reads, or how each was made."""

import csv
import os
import re
import subprocess
import sys
from datetime import timedelta
from functools import partial
from io import StringIO
from random import Random
from zipfile import ZipFile

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures.data.columns import LABELS, ROWS, WRITERS, lacking, lay, noted, own
from fixtures.data.loading import load_clients
from fixtures.tiers import exhaustive
from scipy.io import savemat

from hetfl_flwr.data import Reading, Split, data_spec, most_clients, rows
from hetfl_flwr.data.text_tables import encoding_of, read_text_table
from hetfl_flwr.errors import ConfigError, DataError


def by_column(names, rows):
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


NAMES = ["age", "name", "y"]
CELLS = [[str(row % 40 + 20), ["Ann", "Bob, Jr.", "Eve"][row % 3], "ab"[row % 2]] for row in range(60)]
RIGHT = by_column(NAMES, CELLS)
FRAME = pd.DataFrame({"a": [row / 8 for row in range(ROWS)], "y": LABELS})


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
SHORT_RIGHT = by_column(NAMES, SHORT)
NUMBERED = [str(row + 1) for row in range(60)]
R_ROWS = "".join(f'"{row}" {age} "{name}" "{y}"\n' for row, (age, name, y) in zip(NUMBERED, CELLS, strict=True))


def named_rows(name, by, bp):
    """Return rows with names, for which the header has none, and their cells."""
    lines = [[name.format(row), f"3{row}", bp, "1"] for row in range(1, 9)]
    text = "".join(by.join(line) + "\n" for line in [["age", "bp", "y"], *lines])
    return text, by_column(["Unnamed: 0", "age", "bp", "y"], [[line[0].strip('"'), *line[1:]] for line in lines]), None


def below_names(first, names=NAMES):
    """Return a table with one more row below its names, and its cells."""
    return text_of([first, *CELLS], names), by_column(NAMES, [first, *CELLS]), None


LAYOUTS = {
    **{
        name: (text_of(delimiter=by), RIGHT, [name])
        for name, by in (("semicolons", ";"), ("bars", "|"), ("tabs", "\t"))
    },
    "commas": (PLAIN, RIGHT, []),
    "other quotes": (text_of(quotechar="'"), RIGHT, None),
    "backslashes": (
        text_of([[*row[:2], 'the "best"'] for row in CELLS], escapechar="\\", doublequote=False),
        {**RIGHT, "y": ['the "best"'] * 60},
        ["backslashes"],
    ),
    "other backslashes": (
        "note,smoker,y\n" + '"a \\"b\\" in C:\\new","\\N","c\\\\d"\n' * 60,
        {"note": ['a "b" in C:\\new'] * 60, "smoker": ["\\N"] * 60, "y": ["c\\d"] * 60},
        ["backslashes"],
    ),
    **{
        f"blanks {by!r}": ("".join(by.join(row) + "\n" for row in [NAMES, *SHORT]), SHORT_RIGHT, None)
        for by in (" ", "   ", " \t")
    },
    "blanks behind commas": (PLAIN.replace(",", ", ").replace("Bob,  Jr.", "Bob, Jr."), RIGHT, None),
    "a preamble": ("Exported 2024-03-31\n\nWard North; closed\n" + PLAIN, RIGHT, ["above"]),
    "comments": ("# made by hand\n# see the manual, p. 3\n" + PLAIN, RIGHT, ["above"]),
    "a remark as wide as the table": ("# made, by hand, twice\n" + PLAIN, RIGHT, ["above"]),
    "a remark longer than what is looked at first": ("# one remark with words\n" * 20_000 + PLAIN, RIGHT, ["above"]),
    "a blank row first": ("\n" + PLAIN, RIGHT, None),
    "R's write.table": ('"age" "name" "y"\n' + R_ROWS, {"Unnamed: 0": NUMBERED, **RIGHT}, None),
    **{
        f"names of rows: {name}{by}": named_rows(name, by, bp)
        for name, by, bp in (
            *((name, by, "7") for name in ("{}", "gene{}") for by in ";\t "),
            *((name, ",", "7.5") for name in ("{}", "gene{}")),
            *(('"{}00"', by, "7") for by in ",\t"),
        )
    },
    "no names of rows: texts with a comma": (
        "t\n" + "".join(f"word {row}, and more\n" for row in range(9)),
        {"word 0": [f"word {row}" for row in range(1, 9)], "and more": ["and more"] * 8},
        ["lines above row 2 are left out, such as 't'"],
    ),
    "years beside names of rows": (
        ",1940,1945\n" + "".join(f"r {row},{row}.5,1\n" for row in range(9)),
        {"Unnamed: 0": [f"r {row}" for row in range(9)], "1940": [f"{row}.5" for row in range(9)], "1945": ["1"] * 9},
        None,
    ),
    **{
        f"one column: {cell}": (f"t\n{cell}\n" + f"{cell} or not\n" * 9, {"t": [cell, *[f"{cell} or not"] * 9]}, [])
        for cell in ("a word here", "word")
    },
    "one column": ("y\n1\n0\n", {"y": ["1", "0"]}, []),
    **{
        f"{again[0]!r} again": (text_of([*CELLS[:9], again, *CELLS[9:]]), RIGHT, ["row 11"])
        for again in (NAMES, ["\ufeffage", "name", "y"], [" Age", "NAME ", "Y"])
    },
    **{
        f"names behind a mark, {first[0]} first": below_names(first, ["# age", *NAMES[1:]])
        for first in (CELLS[0], ["NA", "7", "yes"], ["", "7", "yes"])
    },
    **{
        f"a row of units: {unit}": (
            PLAIN.replace("\n", f"\n{unit},-,\n", 1),
            RIGHT,
            [f"row 2 holds units, such as '{unit}'"],
        )
        for unit in ("years", "\u00d710^9/L", "/100 ml", "[kg]", "%")
    },
    **{
        f"no units: {cells}": below_names(cells)
        for cells in (
            ["old", "Ann", "a"],
            ["NA", "Ann", ""],
            ["", "Ann", ""],
            ["0", "kg", ""],
            ["-3", "", ""],
            ["<.5", "", ""],
        )
    },
    **{
        f"{len(text)} letters over lines": (
            text_of([[age, text, y] for age, _, y in CELLS]),
            {**RIGHT, "name": [text] * 60},
            [],
        )
        for text in ("two\nlines", 'two\n"quoted", lines\n\nor more')
    },
    "a column #": (
        text_of([[one, *row] for one, row in zip(NUMBERED, CELLS, strict=True)], ["#", *NAMES]),
        {"#": NUMBERED, **RIGHT},
        None,
    ),
    "lines below": (
        text_of([row[::-1] for row in CELLS], NAMES[::-1]) + "Source: Ward North,,\nAll rights reserved\n",
        RIGHT,
        ["reserved"],
    ),
    "quotes within words": (
        text_of(SHORT).replace("Ann", 'he said "hi"'),
        {**SHORT_RIGHT, "name": [name.replace("Ann", 'he said "hi"') for name in SHORT_RIGHT["name"]]},
        None,
    ),
    "sentences": (
        "said,y\n" + "".join(f"a good day to all of you {row},{row % 2}\n" for row in range(9)),
        {"said": [f"a good day to all of you {row}" for row in range(9)], "y": [str(row % 2) for row in range(9)]},
        [],
    ),
    "decimal commas": ("a, in m;y\n" + "1,5;2,5\n" * 9, {"a, in m": ["1,5"] * 9, "y": ["2,5"] * 9}, ["semicolons"]),
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
    text = first + "a;b;y\n" + "".join(f"{row};{row % 7};{row % 2};\n" for row in range(9))
    frame = pd.read_csv(StringIO(text), sep=";", index_col=False, dtype=str, skiprows=int(bool(first)))
    cells, _ = cells_of(lay(tmp_path, {"t.csv": text}) / "t.csv")
    assert {name: cells[name] for name in "aby"} == frame.to_dict("list")


def test_zeros_at_the_end_are_no_letters(tmp_path):
    assert cells_of(lay(tmp_path, {"t.csv": PLAIN.encode() + bytes(len(PLAIN))}) / "t.csv")[0] == RIGHT


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
        *((f"utf-{form}", "Zürich Genève Malmö") for form in ("16", "16-be", "16-le", "32", "32-be", "32-le")),
        ("utf-8-sig", "Zürich 東京都 Москва"),
    ],
)
def test_encodings(tmp_path, encoding, words):
    """What the detector makes of few letters may be wrong: the note shows a word."""
    words = words.split()
    names = [words[row % len(words)] for row in range(60)]
    text = text_of([[age, name, y] for (age, _, y), name in zip(CELLS, names, strict=True)])
    cells, notes = cells_of(lay(tmp_path, {"t.csv": text.encode(encoding)}) / "t.csv")
    assert cells["name"] == names
    told = [words[0] in note or f"as {encoding.upper()}" in note for note in notes]
    assert told == [True] * (encoding != "utf-8-sig")


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
    return None if cells == by_column(names, rows) else notes


class TestKeys:
    def test_a_row_of_names_may_be_told(self, tmp_path, refusal):
        """A line above it is as wide as the table, no row has names, or they are too few."""
        path = lay(tmp_path, {"t.csv": "one,two,three\n" + text_of(SHORT)}) / "t.csv"
        assert own(path, header_row=2).class_names == ("a", "b")
        assert "row 70" in refusal(DataError, own, path, header_row=70)
        lay(tmp_path, {"t.csv": "".join(f"{row % 9},{row % 2}\n" for row in range(40))})
        assert "header-row" in refusal(DataError, own, path, label_column="2")
        arrays = own(path, label_column="2", header_row=-1)
        assert (arrays.input_names, len(arrays.labels)) == (("1",), 40)
        lay(tmp_path, {"t.csv": "#age,name,y\n" + "x,Ann,a\n" * 9})
        assert [*cells_of(path, "", 1)[0]] == NAMES
        lay(tmp_path, {"t.csv": "day,grade,y\n" + "".join(f"{row}.5,x,{LABELS[row]},,\n" for row in range(ROWS))})
        short = own(path, header_row=1, ignore_columns="grade")
        assert short.inputs.flatten().tolist() == [row + 0.5 for row in range(ROWS)]

    def test_an_encoding_may_be_told(self, tmp_path, refusal):
        """Without it, Polish letters are taken for those of Western Europe; the note shows a word and names the key.

        Letters of several bytes may look like UTF-8.
        """
        path = lay(tmp_path, {"t.csv": ("a,y\n" + "1,Łódź\n2,Kraków\n" * 2).encode("cp1250")}) / "t.csv"
        assert own(path, encoding="cp1250").class_names == ("Kraków", "Łódź")
        assert noted(own(path), "encoding")
        for encoding in ("utf-8", "utf-16", "klingon"):
            assert encoding in refusal(DataError, own, path, encoding=encoding)
        lay(tmp_path, {"t.csv": "联通,y\n1,a\n2,b\n".encode("gb18030")})
        assert [*cells_of(path, "gb18030")[0]] == ["联通", "y"]

    def test_of_a_folder_files_of_utf8_stay_so_beside_those_of_the_code_page_that_is_told(self, tmp_path):
        """Four hospitals: three write the code page, one UTF-8."""
        text = "Größe,y\n" + "".join(f"{row},{('männlich', 'weiblich')[row % 2]}\n" for row in range(40))
        forms = ["cp1252", "cp1252", "utf-8", "cp1252"]
        found = own(lay(tmp_path, {f"{n}.csv": text.encode(form) for n, form in enumerate(forms)}), encoding="cp1252")
        assert (found.input_names, found.class_names) == (("Größe",), ("männlich", "weiblich"))
        assert noted(found, "UTF-8")
        lay(tmp_path, {"0.csv": text.encode("utf-8-sig")})
        assert encoding_of(tmp_path / "0.csv", "utf-8-sig") == ("utf-8-sig", ())

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


CSV = partial(FRAME.to_csv, index=False)
FORMS = {
    **dict.fromkeys(("csv", "txt", "data", "dat.gz", "csv.gz", "csv.bz2", "csv.xz", "csv.zip"), CSV),
    **{"psv": partial(CSV, sep="|"), "packed.csv": partial(CSV, compression="gzip"), "frame.json": FRAME.to_json},
    **{"pq": FRAME.to_parquet, "xlsm": partial(FRAME.to_excel, index=False)},
    **{ending[1:]: partial(write, FRAME) for ending, write in WRITERS.items()},
}
"""By ending, what writes a file; a frame in JSON is an object of columns, each an object of cells by rows' names."""


@pytest.mark.parametrize("ending", FORMS)
def test_one_file_is_a_data_set_and_read_by_what_it_holds(tmp_path, ending):
    FORMS[ending](tmp_path / f"wine [1].{ending}")
    for place in (tmp_path / f"wine [1].{ending}", *([] if ending in ("txt", "data", "dat.gz") else [tmp_path])):
        found = own(place)
        assert (found.inputs[:, 0].tolist(), found.class_names) == (FRAME.a.tolist(), ("u", "v"))


@pytest.mark.parametrize("at_once", [1, 5000, 2**20])
def test_parquet_is_whole_whatever_part_is_read_at_a_time(tmp_path, monkeypatch, at_once):
    """Lists, records and dictionaries, over several groups of rows, are as pyarrow reads them at once."""
    monkeypatch.setattr(rows, "_AT_ONCE", at_once)
    cells = {"x": [[[row, 1.0], []] for row in range(700)], "r": [{"a": row} for row in range(700)]}
    whole = pa.table(cells | {"r.a": range(700), "d": pa.array([*"abbbbcc"] * 100).dictionary_encode()})
    pq.write_table(whole, tmp_path / "t.parquet", row_group_size=300)
    [(_, found)] = rows.read_file(tmp_path / "t.parquet", Reading())
    assert found.table.to_pydict() == whole.to_pydict()


@pytest.mark.parametrize("ending", ["arff", "dta", "orc", "mat"])
def test_others_are_refused_with_the_line_that_converts_them(tmp_path, refusal, ending):
    """What the line writes is read as the table is that it was made of."""
    path = tmp_path / f"t.{ending}"
    if ending == "arff":
        head = "@relation t\n@attribute a numeric\n@attribute y {u,v}\n@data\n"
        path.write_text(head + FRAME.to_csv(index=False, header=False))
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
    assert (arrays.inputs[:, 0].tolist(), arrays.class_names) == (FRAME.a.tolist(), ("u", "v"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("sheet.ods", ["read_excel"]), ("notes.md", [".parquet"]), ("only/sheet.ods", ["read_excel"])],
)
def test_files_of_other_kinds_are_refused_with_what_is_read(tmp_path, refusal, name, words):
    place = lay(tmp_path, {name: "PK"}) / name
    assert lacking(refusal(DataError, own, place.parent if "/" in name else place), *words) == []


SHEET = [["a", "y"], *FRAME.to_numpy().tolist()]


def workbook(**sheets):
    """Return a workbook of sheets, each a list of rows."""
    book = openpyxl.Workbook()
    del book["Sheet"]
    for title, lines in sheets.items():
        sheet = book.create_sheet(title)
        for line in lines:
            sheet.append(line)
    return book


def repacked(path, change):
    """Change the parts of a workbook's file."""
    with ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with ZipFile(path, "w") as file:
        for name, part in parts.items():
            file.writestr(name, change(part))


class TestSheets:
    def test_all_rows_are_read_whatever_a_sheet_says_of_its_size(self, tmp_path):
        FRAME.to_excel(tmp_path / "t.xlsx", index=False)
        repacked(tmp_path / "t.xlsx", lambda part: part.replace(b'ref="A1:B41"', b'ref="A1:B11"'))
        assert len(own(tmp_path / "t.xlsx").labels) == 40

    def test_each_sheet_is_an_owner_and_all_are_one_table(self, tmp_path):
        """Cells are as pandas reads them: whole numbers, fractions, dates, truth values, nothing."""
        frame = FRAME.assign(
            stay=[None if row == 3 else row * 5 % 13 for row in range(ROWS)],
            seen=pd.date_range("2024-01-30", periods=ROWS),
            smoker=[row % 3 == 0 for row in range(ROWS)],
        )
        with pd.ExcelWriter(tmp_path / "wards.xlsx") as book:
            for name in ("north", "south"):
                frame.to_excel(book, sheet_name=name, index=False, startrow=2 * (name == "south"))
        assert [data.name for data in clients(2, tmp_path / "wards.xlsx", partition="files")] == ["north", "south"]
        days = (frame.seen - pd.Timestamp(0)) / pd.Timedelta(days=1)
        right = frame.drop(columns="y").assign(seen=days, smoker=frame.smoker.astype(float))
        assert np.array_equal(own(tmp_path / "wards.xlsx").inputs, pd.concat([right, right]), equal_nan=True)

    def test_merged_cells_are_those_of_all_their_rows_and_durations_are_days(self, tmp_path):
        stays = [["north" if row < 20 else "south", timedelta(hours=6 * row), "uv"[row % 2]] for row in range(40)]
        book = workbook(t=[["ward", "stay", "y"], *stays])
        for row in range(40):
            book["t"].cell(row + 2, 2).number_format = "[h]:mm"
        book["t"].merge_cells("A2:A21")
        book["t"].merge_cells("A22:A41")
        book.save(tmp_path / "t.xlsx")
        arrays = own(tmp_path / "t.xlsx")
        assert arrays.input_names == ("ward=south (else north)", "stay")
        assert arrays.inputs.tolist() == [[float(row >= 20), row / 4] for row in range(40)]

    def test_formulas_are_their_values_and_refused_without(self, tmp_path, refusal):
        """openpyxl writes formulas alone; a spreadsheet program writes what they come to, too."""
        lines = [[row % 7, f"=A{row + 2}*2", LABELS[row]] for row in range(ROWS)]
        workbook(t=[["a", "b", "y"], *lines]).save(path := tmp_path / "t.xlsx")
        assert lacking(refusal(DataError, own, path), "t.xlsx'", "formulas", "B2 of sheet 't'") == []

        def valued(found):
            return b"A%b*2</f><v>%d</v>" % (found[1], 2 * ((int(found[1]) - 2) % 7))

        repacked(path, lambda part: re.sub(rb"A(\d+)\*2</f><v ?(?:/>|></v>)", valued, part))
        assert own(path).inputs[:, 1].tolist() == [2 * (row % 7) for row in range(ROWS)]

    def test_a_sheet_of_other_things_is_named_and_what_is_hidden_is_noted(self, tmp_path, refusal):
        """Hidden sheets are left out, hidden rows are read."""
        book = workbook(data=SHEET, notes=[["Made by Ann"], ["See the protocol"]], old=SHEET)
        book["old"].sheet_state = "hidden"
        book["data"].row_dimensions[5].hidden = True
        book.save(tmp_path / "t.xlsx")
        line = refusal(DataError, own, tmp_path / "t.xlsx")
        assert lacking(line, "sheet 'notes'", "no columns 'a', 'y'", "sheet 'data'", "hide") == []
        book["notes"].sheet_state = "hidden"
        book.save(tmp_path / "t.xlsx")
        found = own(tmp_path / "t.xlsx")
        assert found.inputs[:, 0].tolist() == FRAME.a.tolist()
        assert (noted(found, "1 hidden rows"), noted(found, "'old'")) == (True, True)

    @pytest.mark.parametrize(
        ("titles", "sizes"), [(("train", "test"), [30, 10]), (("ward", "unit"), [40]), (("test", "unit"), None)]
    )
    def test_they_are_splits_where_their_names_say_so(self, tmp_path, titles, sizes, refusal):
        """As the names of files in a folder do."""
        parts = SHEET[:31], [SHEET[0], *SHEET[31:]]
        workbook(**dict(zip(titles, parts, strict=True))).save(path := tmp_path / "rows.xlsx")
        if sizes is None:
            assert "'test' and 'unit'" in refusal(DataError, own, path)
        else:
            arrays = own(path)
            assert (arrays.train_rows, len(arrays.labels)) == (sizes[0], 40)
            assert noted(arrays, "combined") == (len(sizes) == 1)


class TestFolders:
    """Which files of a folder are read, and as what."""

    @pytest.mark.parametrize(
        ("names", "rows", "train", "notes"),
        [
            ("north.csv, south.csv, north.csv.bak, x.csv.part, .a.csv", 2, 2, ["north.csv.bak"]),
            ("a.csv, a.csv.old", 1, 1, ["a.csv.old"]),
            ("a.csv, b.parquet, c.feather, d.ndjson", 4, 4, ["4 files"]),
            ("north_train.csv, south.csv", 2, 2, ["north_train.csv is a split"]),
            ("clinic.csv, lab-test.csv", 2, 2, ["lab-test.csv is a split"]),
            ("test_north.csv, train_north.csv", 2, 2, ["test_north.csv is a split"]),
            ("post_test.csv, pre_test.csv", 2, 2, ["post_test.csv is a split"]),
            ("train.csv, test.csv", 2, 1, []),
            ("wine_train.csv, wine_test.csv", 2, 1, []),
            ("training set.csv, test set.csv", 2, 1, []),
            ("my trainset.csv, my testset.csv", 2, 1, []),
            ("wine_train_data.csv, wine_test_data.csv", 2, 1, []),
            ("TrainData.csv, TestData.csv", 2, 1, []),
            ("train/1.csv, train/2.csv, test/1.csv", 3, 2, []),
            ("cohort/training_1.csv, holdout/test.csv, val/2.csv", 2, 1, ["'validation'"]),
            ("train.csv, test.csv, validation.csv", 2, 1, ["'validation'"]),
            ("train-2.csv, train.csv, test.csv", 3, 2, []),
            ("data/train-00000-of-00001.parquet, data/test-00000-of-00001.parquet", 2, 1, []),
            ("train-00000-of-00002.csv, train-00001-of-00002.csv", 2, 2, []),
        ],
    )
    def test_all_rows_are_read_and_what_is_not_is_named(self, tmp_path, names, rows, train, notes):
        frames = {name: FRAME.assign(a=FRAME.a + number / 100) for number, name in enumerate(names.split(", "))}
        arrays = own(lay(tmp_path, frames))
        assert arrays.inputs[:, 0].tolist() == pd.concat([*frames.values()][:rows]).a.tolist()
        assert arrays.train_rows == train * ROWS
        assert noted(arrays, *notes) == bool(notes)

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            ("train.csv, holdout.csv", ["'holdout.csv'", "'train.csv'"]),
            ("lab_test.csv, physio_training.csv", ["'lab_test.csv'", "'physio_training.csv'"]),
            ("a_train.csv, a_test.csv, b_val.csv", ["a_t", "'b_val.csv'"]),
            ("train.csv, test.csv, extra.csv", ["extra.csv"]),
            *((f"{one}, {other}", [f"{one}, {other}"]) for one, other in (("t.csv", "t.tsv"), ("a.csv", "a.csv.gz"))),
        ],
    )
    def test_files_that_may_be_splits_or_copies_are_refused(self, tmp_path, refusal, names, words):
        line = refusal(DataError, own, lay(tmp_path, dict.fromkeys(names.split(", "), FRAME)))
        assert [word for word in words if word not in line] == []

    @pytest.mark.parametrize(
        ("same", "others", "said"),
        [
            ("a.csv b.txt c.zip README README.md license.txt load.py", {}, "not read in '{}': b.txt, c.zip"),
            ("train.csv old/train.csv", {"test.csv": FRAME[::-1]}, "'{}': train.csv"),
        ],
    )
    def test_files_that_are_not_read_and_copies_are_named(self, tmp_path, same, others, said):
        notes = own(lay(tmp_path, dict.fromkeys(same.split(), FRAME) | others)).notes
        assert [note.endswith(said.format(tmp_path)) for note in notes if said.format(tmp_path) in note] == [True]

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
        texts = [FRAME.to_csv(index=False).replace("\n", ends * (number == place) + "\n") for number in (0, 1)]
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
        for number, names in enumerate((["north/2023", "south/2023", "west/2023"], ["north/3", "south/3", "south/4"])):
            place = lay(
                tmp_path / str(number), dict.fromkeys([*(f"of/{name}.csv" for name in names), ".x/x.csv"], FRAME)
            )
            found = [data.name for data in clients(3, place, partition="files")]
            assert found == (names if number else ["north", "south", "west"])

    @pytest.mark.parametrize(("leaked", "said"), [(3, True), (0, False)])
    def test_test_rows_that_are_training_rows_are_counted(self, tmp_path, leaked, said):
        frame = FRAME.assign(b=[row * row % 17 for row in range(ROWS)])
        test = pd.concat([frame[:leaked], frame[leaked:10].assign(a=-1.0)])
        found = own(lay(tmp_path, {"train.csv": frame, "test.csv": test}))
        assert noted(found, "equal training rows", f"{leaked} of 10 test rows") == said
        assert noted(found, "equal training rows") == said

    def test_rows_of_few_categories_are_alike_by_nature(self, tmp_path):
        frame = pd.DataFrame({"a": ["m", "f", "f", "m"] * 10, "b": ["x", "x", "z", "z"] * 10, "y": LABELS})
        assert not noted(own(lay(tmp_path, {"train.csv": frame, "test.csv": frame[:8]})), "equal training rows")


WARD = "age,bp,y\n" + "".join(f"{row},{row * 7 % 9}.5,{LABELS[row]}\n" for row in range(20))


def quoted(end, cells):
    """Return rows of which the fifth opens a quote that one below closes."""
    lines = [[cells[row % len(cells)], ["mild", "very ill"][row % 2], LABELS[row]] for row in range(ROWS)]
    lines[4][1], lines[end][1] = '"' + lines[4][1], lines[end][1] + '"'
    return "day,grade,y\n" + "".join(",".join(line) + "\n" for line in lines)


BAD = {
    "empty": ({"b.csv": ""}, {}, ["b.csv'", "empty"]),
    "blank": ({"b.csv": " \n\n"}, {}, ["b.csv'", "empty"]),
    "an open quote": ({"b.csv": 'age,bp,y\n1,2,"u\n3,4,v\n'}, {}, ["b.csv'", "row 2"]),
    "a quote that the next closes": (
        {"b.csv": "age,y,bp\n" + '30,b,"Eve"\n' * 9 + '3,a,"Ann\n' + '30,b,"Eve"\n' * 30},
        {},
        ["b.csv'", "row 11"],
    ),
    "a quote that the next closes, beside signs": (
        {"b.csv": "x,c,y\n" + '0.25,"Eve",b\n' * 9 + '-1.25,"big,b\n0.75,small",b\n' + '3.5,"Eve",a\n' * 30},
        {},
        ["row 11,"],
    ),
    "an empty cell between spaces": (
        {"b.csv": "age bp y\n" + "1 2 u\n" * 9 + "3  v\n" + "4 5 v\n" * 20},
        {},
        ["row 11 of", "b.csv'", "spaces", "NA"],
    ),
    "quotes that meet": (
        {"b.csv": "age,name,bp,y\n" + "30,Eve,5,u\n" * 9 + '3,"Ann,5,u\n30,Eve,5,u\n4,Bob",5,v\n' + "30,Eve,5,v\n" * 9},
        {},
        ["b.csv'", "row 11", "Ann"],
    ),
    **{
        f"a quote closed in row {end}: {cells[0]}": ({"b.csv": quoted(end, cells)}, {}, ["row 6,"])
        for end in (7, 31)
        for cells in (["2024-03-05", "2024-03-28"], ["5 kg", "70 kg"], ["NA", "7"], ["Rome", "New York", ""])
    },
    "names again in another order": (
        {"b.csv": "day,grade,y\n" + "1,mild,u\n" * 20 + "y,day,grade\n" + "2,mild,v\n" * 20},
        {},
        ["row 22 of"],
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
            *(("age,bp,y", row) for row in ("{0},{1},70,u", "{1},5,70,u", "{1},5,70,2,u", "3{0},5,7.5,u")),
            ("bp,age,y", "{0},3{0},{1},u"),
            ("name,age,y", "Ann {0},3{0},{1},u"),
            ("name,age,y", '"Ann {0}",3{0},{1},"u"'),
            *(("y", row) for row in ("{0},{1}", "{0},5")),
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
    "a key twice": ({"b.json": '{"age": 1, "age": 2, "bp": 3, "y": "u"}'}, {}, ["b.json'", "'age' twice"]),
    "deep": ({"b.json": '{"a": 1, "y": 0}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"}, {}, ["b.json'"]),
    **{f"no rows: {text}": ({"b.json": text}, {}, ["b.json'"]) for text in ("3", "[null, {}]", "[[1], [2]]")},
    "no parquet": ({"b.parquet": b"PAR1 and no more"}, {}, ["b.parquet'", "Parquet magic"]),
    "a bad cell of one file": ({"b.csv": WARD.replace("\n9,", "\ninf,")}, {}, ["infinite number", "row 11 of", "'b"]),
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
    "stray", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
)
def test_a_table_that_is_no_file_is_refused(tmp_path, refusal, stray):
    stray(lay(tmp_path, {"a.csv": WARD}) / "b.csv")
    assert f"'{tmp_path}/b.csv'" in refusal(DataError, own, tmp_path)


def test_what_has_no_files_to_be_clients_is_refused(tmp_path, refusal, monkeypatch):
    lay(tmp_path, {"photos/1.png": "?", "wards/a.csv": WARD, "wards/b.csv": WARD, "wards/c.csv": "age,bp,y\n1,2,u\n"})
    for place, said in ((tmp_path / "photos", "OWNER/CLASS"), ("owner/name", "hub")):
        assert said in refusal(DataError, clients, 3, place, partition="files")
    wards, keys = tmp_path / "wards", {"partition": "files"}
    said = refusal(ConfigError, clients, 3, wards, test_fraction=0.6, **keys)
    assert "partition 2 of 3 ('files'), c" in said
    monkeypatch.chdir(wards)
    for place, said in (("digits", "no files"), (wards, "3 files"), ("a.csv", "./a.csv")):
        assert said in refusal(ConfigError, clients, 5, place, **keys)
    found = Split(dataset=str(wards), clients=1, seed=0, reading=Reading(label_column="y"), **keys)
    assert most_clients(found) == 3


def test_a_folder_that_is_here_is_not_taken_for_a_data_set_of_the_hub(tmp_path, monkeypatch, refusal):
    """Its name may be that of one; below data-dir it is the layout of the hub."""
    lay(tmp_path / "my" / "hospitals", {"t.csv": FRAME})
    monkeypatch.chdir(tmp_path)
    assert "./my/hospitals" in refusal(ConfigError, own, "my/hospitals")
    assert len(own("./my/hospitals").labels) == len(own("my/hospitals", data_dir=".").labels) == ROWS
