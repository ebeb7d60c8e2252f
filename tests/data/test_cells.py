"""What a column is taken for and what its cells become: right is what pandas has, or what they were made of."""

import json
import os
import time
from datetime import time as clock
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from fixtures.data.columns import LABELS, ROWS, column, lay, noted, own, read, standardised
from fixtures.data.loading import arrays_of, load_clients
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from hetfl_flwr.data import Samples, columns
from hetfl_flwr.data.spec import Column
from hetfl_flwr.errors import DataError
from simulations.engine.objects import stored

NUMBERS = list(range(ROWS))
HALVES = [row / 2 for row in NUMBERS]


def written(form, numbers=NUMBERS):
    return [form.format(number) for number in numbers]


def days(cells, form="ISO8601"):
    """Return dates as pandas counts them since 1970."""
    moments = pd.Series([pd.to_datetime(cell, format=form, utc=True) for cell in cells])
    return ((moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).tolist()


def turns(*cells):
    """Return a column of cells in turns."""
    return (list(cells) * ROWS)[:ROWS]


def seen(form, *cells):
    """Return dates in turns, and what is right of them."""
    return turns(*cells), days(turns(*cells), form)


def missing(words, numbers=HALVES):
    """Return numbers of which the first are words, and what is right of them."""
    cells = [*words, *map(str, numbers[len(words) :])]
    return cells, pd.to_numeric(pd.Series(cells), errors="coerce").tolist()


DATE = "x (days since 1970)"
MONTHS = pd.date_range("2024-01-05", periods=12, freq="MS")
NOTATIONS = {
    "unit": (written("{} y"), NUMBERS, "x (y)", ["'y'"]),
    "unit and comma": (written("{},5kg"), [row + 0.5 for row in NUMBERS], "x (kg)", ["'kg'"]),
    "another unit": (written("{} lb"), NUMBERS, "x (lb)", ["'lb'"]),
    "percent": (written("-{} %"), [-row for row in NUMBERS], "x (%)", ["'%'"]),
    "dollars": (written("${:,}.50", range(991, 1031)), [row + 0.5 for row in range(991, 1031)], "x ($)", ["'$'"]),
    "euros": (written("{}.234,5 €", range(1, 41)), [1000 * row + 1234.5 for row in NUMBERS], "x (€)", ["'€'"]),
    "one without the unit": (["3", *written("{} kg")[1:]], [np.nan, *NUMBERS[1:]], "x (kg)", ["1 of 40", "row 2"]),
    **{
        kind: (turns(*cells), turns(*numbers), "x", words)
        for kind, cells, numbers, words in (
            ("commas", ["1.234,5", "2,5", "30", "1.000.000,25"], [1234.5, 2.5, 30, 1000000.25], ["'x'"]),
            ("commas and exponents", ["9,3e-05", "2,5", "-1.234,5E+2"], [9.3e-05, 2.5, -123450], ["'x'"]),
            ("points", ["1,234.5", "2.5", "30", "1,000,000.25"], [1234.5, 2.5, 30, 1000000.25], ["'x'"]),
            ("blanks and quotes", ["1 234,5", "2,5", "1'000", "+3,5"], [1234.5, 2.5, 1000, 3.5], ["'x'"]),
            ("groups of India", ["12,34,567.8", "950", "1,05,000"], [1234567.8, 950, 105000], ["'x'"]),
            ("groups beside a point", ["1,107.5", "950", "12,050"], [1107.5, 950, 12050], ["'x'"]),
            ("groups of Switzerland", ["1\u2019234.50", "950.25", "2\u2019000"], [1234.5, 950.25, 2000], []),
            ("blanks around", [" 1", "2.5 ", "-1e3", "7"], [1, 2.5, -1000, 7], []),
            *((f"minus {ord(sign):x}", [f"{sign}3", "2.5"], [-3, 2.5], []) for sign in "\u2212\u2013\uff0d"),
        )
    },
    "no thousands": (
        ["0,125", *written("1,{:0>3}.5")[1:]],
        [np.nan, *(row + 1000.5 for row in NUMBERS[1:])],
        "x",
        ["1 of 40"],
    ),
    "no thousand": (["0.125", *written("{},5")[1:]], [np.nan, *(row + 0.5 for row in NUMBERS[1:])], "x", ["row 2"]),
    **{word: (*missing([word] * 10), "x", ["10 of 40"]) for word in (".", "-", "na", "n.d.", "unknown", "None")},
    "a few words": (*missing(["much"] * 2), "x", ["2 of 40", "row 2 and 1 more"]),
    "ISO": (*seen("ISO8601", "2024-03-31", "1969-12-31", "2000-02-29 12:00"), DATE, ["year-month-day"]),
    "zones": (*seen(None, "2024-03-31 12:30:15.5", "1969-12-31 00:00", "2000-02-29T23:59:59+02:00"), DATE, ["-day"]),
    "day first": (*seen("%d/%m/%Y", "31/3/2024", "01/02/2024", "05/06/1999"), DATE, ["day/month/year"]),
    "month first": (*seen("%m/%d/%Y", "3/31/2024", "01/02/2024", "05/06/1999"), DATE, ["month/day/year"]),
    "dots": (*seen("%d.%m.%Y", "1.3.2024", "01.02.2024", "05.06.1999"), DATE, ["day.month.year"]),
    "dots and blanks": (*seen("%d. %m. %Y", "1. 3. 2024", "29. 2. 2000"), DATE, ["day"]),
    "two digits": (*seen("%d.%m.%y", "31.03.24", "01.02.99", "05.06.68"), DATE, ["2068"]),
    "US, two digits": (*seen("%m/%d/%y", "03/31/24", "01/02/99", "05/06/69"), DATE, ["month/day/yy"]),
    "SAS": (*seen("%d%b%Y", "31MAR2024", "01feb1999", "05Jun2001"), DATE, ["day month-name year"]),
    "words": (*seen("%B %d, %Y", "March 31, 2024", "February 1, 1999", "June 5, 2001"), DATE, ["month-name day, year"]),
    "names": (*seen("%d-%b-%y", "31-Mar-24", "01-Feb-99", "5-Jun-01"), DATE, ["yy"]),
    "all months": (
        *seen(None, *(day.strftime(form) for form in ("%d %B %Y", "%d %b %Y") for day in MONTHS)),
        DATE,
        ["month-name"],
    ),
    "months cut": (*seen(None, "5 Mar 2024", "6 March 2024", "7 Sept 2024"), DATE, ["month-name"]),
    **{
        f"{cells[0]} may have thousands": (turns(*cells), turns(*map(float, cells)), "x", words)
        for cells, words in (
            (["2.107", "114", "950"], ["2.107 is read as 2.107", "if you mean that"]),
            (["1.107", "1037", "1.050"], ["1.107 is read as 1.107", "if you mean that"]),
            (["2.107", "1.14", "950"], []),
            (["1.107", "3", "12.055"], []),
            (["1.250", "3", "12.800"], ["1.250 is read as 1.25", "if you mean that"]),
        )
    },
    **{
        f"{first} in front": ([first, *written("2{}")[1:]], [float(first), *map(float, written("2{}")[1:])], "x", words)
        for first, words in (
            *((first, ["'x'", repr(first), "categorical-columns"]) for first in ("01234", "-007")),
            *((first, []) for first in ("0.5", "1234")),
        )
    },
    "no date": (
        [*written("2024-01-{:02}", range(1, 29)), *written("2024-03-{:02}", range(1, 12)), "2024-02-30"],
        [*days(written("2024-01-{:02}", range(1, 29)) + written("2024-03-{:02}", range(1, 12))), np.nan],
        DATE,
        ["row 41"],
    ),
    "times": (
        ["13:45:10", "00:00:00", "23:59", "1:30 pm", "12:15 AM"] * 8,
        [49510 / 86400, 0, 86340 / 86400, 48600 / 86400, 900 / 86400] * 8,
        "x (parts of a day)",
        ["hour:minute"],
    ),
}
"""Cells, the right numbers, what the input is called, and what one note says; there is none where that is nothing."""


@pytest.mark.parametrize("case", NOTATIONS)
def test_numbers_and_dates_in_any_notation(case):
    cells, right, name, words = NOTATIONS[case]
    found = column(cells)
    np.testing.assert_allclose(found.inputs[:, 1], np.array(right, float), atol=1e-7)
    assert found.input_names == ("size", name)
    assert noted(found, *words) == bool(words) == bool(found.notes)


CATEGORIES = {
    "words": (["b", "c", "a", "c"], {}, ("a", "b", "c"), [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
    "units": (["3 days", "2 weeks", "2 kg"], {}, ("2 kg", "2 weeks", "3 days"), None),
    "ranges": (["2 - 3", "4 - 5", "6 - 7"], {}, ("2 - 3", "4 - 5", "6 - 7"), None),
    "letters behind": (["1a", "2b", "3c"], {}, ("1a", "2b", "3c"), None),
    "a point more": (["1.0", "10.0", "2", "NA"], {"categorical_columns": "x"}, ("1", "2", "10", None), None),
    "zeros in front": (["007", "7", "07", "1"], {"categorical_columns": "x"}, ("007", "07", "1", "7"), None),
    "capitals": (["Bonn", "Oslo", "bonn"], {"categorical_columns": "x"}, ("Bonn", "Oslo", "bonn"), None),
    "declared missing": (["x", "a", "b", "a"], {"missing_values": "x"}, ("a", "b", None), [[0, 0, 1], [1, 0, 0]]),
    "missing": (["", "a", "b", "NA"], {}, ("a", "b", None), [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "no ink": (["\u2800", "a", "b\u3164", "b"], {}, ("a", "b", None), [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0]]),
    "two listed": (["f", "m", "", "f"], {"categorical_columns": "x:f|m"}, ("f", "m"), [[0], [1], [0.5], [0]]),
    "no months": (["5 marraskuu 2024", "6 marraskuu 2024"], {}, ("5 marraskuu 2024", "6 marraskuu 2024"), [[0], [1]]),
    "TRUE": (["TRUE", "", "TRUE"], {}, ("True", None), [[0], [1], [0]]),
    **{word: ([word, "", word], {}, (word, None), [[0], [1], [0]]) for word in ("False", "Yes", "N")},
    "two forms": (["Zo\u00eb", "Zoe\u0308", "Al", "Bo"], {}, ("Al", "Bo", "Zo\u00eb"), [[0, 0, 1]] * 2 + [[1, 0, 0]]),
}


@pytest.mark.parametrize("case", CATEGORIES)
def test_categories_have_an_input_a_value(case):
    cells, keys, values, inputs = CATEGORIES[case]
    found = column(turns(*cells), **keys)
    assert sorted(map(str, found.columns[1].values)) == sorted(map(str, values))
    assert not found.notes
    if inputs:
        assert found.inputs[: len(inputs), 1:].tolist() == inputs


@pytest.mark.parametrize("cells", [["yes", "YES", "no", "No"], ["True", "true", "FALSE", "false"]])
def test_truth_in_several_ways_is_one_input(cells):
    found = column(cells * 10)
    assert found.inputs[:4, 1].tolist() == [1, 1, 0, 0]
    assert noted(found, "several ways")


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([None, "", "a", "B", "é", "zz", "NA", "10"]), min_size=2, max_size=12),
    st.lists(st.sampled_from([None, "a", "new", "zz"]), max_size=4),
)
def test_categories_are_those_of_scikit_learn(train, test):
    told = None if not test else {"x": test, "y": [row % 2 for row in range(len(test))]}
    found = read({"x": train, "y": [row % 2 for row in range(len(train))]}, told, categorical_columns="x")
    meant = np.array([[None if text in ("", "NA") else text] for text in train + test], dtype=object)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(meant[: len(train)])
    expected = encoder.transform(meant)
    if expected.shape[1] == 2:
        expected = np.where(expected.any(axis=1), expected[:, 1], 0.5)[:, None]
    assert found.inputs.tolist() == expected.tolist()


@given(st.lists(st.lists(st.none() | st.floats(-1000, 1000, width=16), min_size=3, max_size=3), min_size=2, max_size=8))
def test_numbers_are_scaled_as_scikit_learn_does_it(rows):
    columns = dict(zip("abc", map(list, zip(*rows, strict=True)), strict=True))
    table = read(
        {name: np.array(cells, float) for name, cells in columns.items()}
        | {"y": [row % 2 for row in range(len(rows))]},
        form="parquet",
    )
    own, every = range(len(rows) // 2, len(rows)), torch.arange(len(rows))
    values = np.array(rows, dtype=np.float64)
    known = [k for k in range(3) if np.unique(values[own, k][~np.isnan(values[own, k])]).size > 1]
    expected = np.zeros_like(values)
    if known:
        expected[:, known] = StandardScaler().fit(values[own][:, known]).transform(values[:, known])
    prepared = Samples(standardised(table, tuple(own)), every).batch(every)[0]
    assert np.allclose(prepared, np.nan_to_num(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("first", [0, 300])
def test_numbers_that_float32_does_not_tell_apart_are_told_apart_on_each_client(first):
    """300 seconds of one day on one client, and of another year on the other: as float32 they are three numbers."""
    draw = np.random.default_rng(0).permutation(300)
    seconds = np.concatenate([1_500_000_000 + draw, 1_700_000_000 + draw]).astype(float)
    table, rows = read({"time": seconds, "y": [row % 2 for row in range(600)]}), torch.arange(first, first + 300)
    own = Samples(standardised(table, tuple(rows.tolist())), rows)
    right = StandardScaler().fit_transform(seconds[rows][:, None])
    assert np.allclose(own.batch(torch.arange(300))[0], right, atol=1e-3)
    assert own.to("meta").arrays.inputs.dtype == torch.float32


def test_types_that_a_file_declares():
    features = Features(few=Value("uint8"), cost=Value("decimal128(5, 2)"), kind=ClassLabel(3), y=Value("int64"))
    rows = {"few": [3, None], "cost": [Decimal("1.25"), None], "kind": [2, 1], "y": [0, 1]}
    found = read(Dataset.from_dict(rows, features=features), form="parquet")
    assert found.inputs.nan_to_num(-1).tolist() == [[3, 1.25, 1], [-1, -1, 0]]
    many = Features(x=ClassLabel(40), y=ClassLabel(40))
    assert read(Dataset.from_dict({"x": NUMBERS, "y": NUMBERS}, features=many), form="parquet").groups == (ROWS,)


class TestKinds:
    """Where a column becomes numbers, a category or nothing, and how a key decides it."""

    @pytest.mark.parametrize(("words", "kind"), [(2, "number"), (3, "category")])
    def test_more_than_a_twentieth_are_words(self, words, kind):
        cells = [*(str(row % 5) for row in range(ROWS - words)), *["much"] * words]
        found = column(cells)
        assert found.columns[1].kind == kind
        assert noted(found, f"{words} of 40", f"row {42 - words}")

    def test_keys_and_declared_types_go_before(self):
        assert column(NUMBERS, numeric_columns="x").input_names == ("size", "x")
        assert column(NUMBERS, categorical_columns="x").groups == (1, ROWS)
        assert column(written("{} kg"), categorical_columns="x").columns[1].kind == "category"
        assert column(["1,234", "2,500", "3,100"], categorical_columns="x").groups == (1, 3)
        found = column([*map(str, range(10)), *["much"] * 30], numeric_columns="x")
        assert found.inputs[:10, 1].tolist() == list(range(10))
        assert noted(found, "row 12 and 29 more")

    def test_a_category_whose_values_are_listed_is_the_same_wherever_it_is_read(self):
        """One node has Bonn and Oslo, the other Rome and a town that nobody has listed."""
        keys = {"categorical_columns": "x:Bonn|Oslo|Rome"}
        one, other = column(["Bonn", "Oslo"] * 20, **keys), column(["Rome", "Lima", "Rome", ""] * 10, **keys)
        assert one.input_names == other.input_names == ("size", "x=Bonn", "x=Oslo", "x=Rome")
        assert one.inputs[:2, 1:].tolist() == [[1, 0, 0], [0, 1, 0]]
        assert other.inputs[:4, 1:].tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
        assert noted(other, "10 values", "Bonn, Oslo, Rome")

    def test_a_listed_value_is_not_missing(self):
        found = column(["EU", "NA", "AS", ""] * 10, categorical_columns="x:EU|NA|AS")
        assert found.inputs[:4, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]

    def test_two_values_are_both_in_the_name(self):
        """So that clients with other values do not match."""
        names = [column(cells * 20).input_names[1] for cells in (["1-mild", "3-severe"], ["2-fair", "3-severe"])]
        assert len({*names}) == 2

    @pytest.mark.parametrize(("cells", "said"), [(["1207", "12E4", "9E3"], True), (["1.5", "12E4", "9E3"], False)])
    def test_whole_numbers_with_an_exponent_may_be_codes(self, cells, said):
        assert noted(column(turns(*cells)), "'12E4'") == said

    @pytest.mark.parametrize(
        "cells",
        [
            pd.to_datetime(turns("2024-03-31 08:00", "1900-01-01 12:00")),
            turns("2024-03-31", "1900-01-01"),
            turns("2024-03-31 08:00", "1900-01-01 00:00"),
            turns("31.03.2024", "01.01.1900"),
        ],
    )
    def test_a_day_may_mark_a_missing_value(self, cells):
        found = column(pd.Series(cells), form="parquet", missing_values="1900-01-01")
        assert np.isnan(found.inputs[:, 1]).tolist() == [False, True] * (ROWS // 2)

    def test_a_day_marks_no_time_of_day(self):
        assert not column(turns("13:45", "08:30", "00:00"), missing_values="1970-01-01").inputs[:, 1].isnan().any()

    @pytest.mark.parametrize("form", ["{},5", "{}.5", "{} kg", "1.00{},5"])
    def test_numbers_wanted_among_other_texts_are_read_in_the_notation_of_most(self, form):
        """Without the key they are a category, and the note counts as numbers what the key reads as such."""
        digits = [row % 7 for row in NUMBERS]
        cells = [form.format(digit) if row % 5 else "k.A." for row, digit in enumerate(digits)]
        assert noted(column(cells), "8 of 40", "row 2", "numeric-columns")
        number = float(form.format(0).removesuffix(" kg").replace(".00", "00").replace(",", "."))
        found = column(cells, numeric_columns="x")
        right = [digit + number if row % 5 else np.nan for row, digit in enumerate(digits)]
        assert np.array_equal(found.inputs[:, 1], right, equal_nan=True)
        assert noted(found, "8 of 40 values", "cannot be read as numbers")

    @pytest.mark.parametrize("form", ["csv", "parquet"])
    @pytest.mark.parametrize(("kind", "code"), [(float, "-999"), (int, "-999"), (str, "-999"), (str, "-999.0")])
    def test_a_code_for_missing_is_noted_and_taken_as_missing_where_a_key_says_so(self, kind, code, form):
        cells = [kind(code if kind is str else -999) if row % 8 == 0 else kind(row % 13) for row in NUMBERS]
        assert noted(column(cells, form=form), "missing-values=-999")
        found = column(cells, form=form, missing_values="-999, x")
        right = pd.Series(cells).astype(float).replace(-999, np.nan)
        assert np.array_equal(found.inputs[:, 1], right, equal_nan=True)
        assert not found.notes

    def test_a_column_of_mostly_numbers_says_what_is_none(self, refusal):
        cells = ["k.A." if row % 10 == 0 else f"{60 + row / 4}" for row in range(200)]
        assert "'k.A.'" in refusal(DataError, column, cells)
        for keys in ({"missing_values": "k.A."}, {"numeric_columns": "x"}):
            assert column(cells, **keys).inputs[:, 1].isnan().sum() == 20

    def test_numbers_wanted_of_several_units_are_those_of_most_rows(self):
        cells = [f"{row} kg" if row % 3 else f"{row}000 g" for row in NUMBERS]
        found = column(cells, numeric_columns="x")
        assert np.array_equal(found.inputs[:, 1], [row if row % 3 else np.nan for row in NUMBERS], equal_nan=True)
        assert found.input_names == ("size", "x (kg)")

    @pytest.mark.parametrize(
        ("form", "key"), [("{} kg", "999"), ("{},0", "999"), ("{},0", "999.0"), ("${}.00", "999"), ("{}", "999")]
    )
    def test_a_code_for_missing_is_one_in_the_notation_of_its_column(self, form, key):
        numbers = [999 if row % 8 == 0 else row % 13 for row in NUMBERS]
        found = column(written(form, numbers), numbers[:4] and [form.format(999)], missing_values=key)
        right = pd.Series([*numbers, 999.0]).replace(999, np.nan)
        assert np.array_equal(found.inputs[:, 1], right, equal_nan=True)
        assert not noted(found, "cannot be read")

    def test_values_of_test_rows_alone_are_noted_and_are_no_input(self):
        found = column(["n", "s", "w"] * 13, ["n", "west"])
        assert found.inputs[-1, 1:].tolist() == [0, 0, 0]
        assert noted(found, "row 3 of split 'test'")
        found = column(written("{} kg"), ["0.05"])
        assert np.isnan(found.inputs[-1, 1])
        assert noted(found, "row 2 of split 'test'")

    def test_a_column_of_one_word_is_ignored_and_one_of_one_number_stays_an_input_of_zero(self):
        """Elsewhere the number may vary; then all nodes have the same inputs."""
        found = read({"size": NUMBERS, "ward": ["W"] * ROWS, "floor": [3] * ROWS, "flag": [True] * ROWS, "y": LABELS})
        assert found.input_names[-1:] == ("floor",)
        assert noted(found, "'ward', 'flag'")
        assert not Samples(standardised(found, (0, 1)), torch.arange(9)).batch(torch.arange(9))[0][:, -1].any()
        assert column(["W"] * ROWS, categorical_columns="x").input_names == ("size", "x=W")

    def test_a_table_of_the_catalogue_is_read_as_it_is(self, tmp_path):
        """Its model has as many inputs as the catalogue says, wherever a column is the same in all rows."""
        rows = {"patient": NUMBERS, "ward": ["W"] * ROWS, "day": ["2024-01-01", "2024-01-02"] * 20}
        lay(tmp_path / "uci" / "ilpd", {"train.csv": rows | {"label": [1, 2] * 20}})
        found = arrays_of("ilpd", data_dir=tmp_path)
        assert found.input_names == ("patient", "ward=W", "day=2024-01-02 (else 2024-01-01)")
        assert found.notes == (f"'{tmp_path}/uci/ilpd' has 40 samples, and the published data set 583",)


PRIMES = [row * 7919 % 10007 for row in range(100)]
CALLED_SO = "index of another order", "of two rows each"
"""Cases in which a column is kept that is called like an id: this is noted."""

IDS = {
    "of two rows each": ("patient_id", [row // 2 * 7 for row in range(120)], True),
    "count up": ("patient", list(range(100, 140)), False),
    "texts": ("patient", written("{:05d}"), False),
    "words": ("patient", written("P{}"), False),
    "names": ("patient", [*written("Doe, Jane {}")[:-2], "Roe", "Roe"], False),
    **{word: ("patient", [word, *PRIMES[1:ROWS]], False) for word in ("NULL", "None", "\\N")},
    "18 digits": ("patient", [10**17 + 7 * row for row in NUMBERS], False),
    "letters in some": ("x", [f"A{row}" if row % 3 == 0 else 1000 + row for row in NUMBERS], False),
    **{name: (name, PRIMES, False) for name in ("patient", "sample_id", "caseNo")},
    "repeated": ("patient", [row // 2 * 7 for row in range(200)], False),
    **{f"{name} begins again": (name, [*range(30), *range(30)], False) for name in ("X", "level_0", "index")},
    "index of another order": ("index", [row * 7 % 30 for row in range(60)], True),
    **{name: (name, PRIMES, True) for name in ("count", "salary", "paid")},
    "visits": ("visits", [row // 2 * 7 for row in range(200)], True),
    "years": ("built", list(range(1980, 2020)), True),
    "fractions": ("stay", [row + 0.5 for row in NUMBERS], True),
    "few rows": ("stay", list(range(19)), True),
    "few measured": ("stay", PRIMES[:ROWS], True),
    "one twice": ("stay", [*range(ROWS - 1), 0], True),
    "words twice": ("stay", [*written("P{}")[:30], *written("P{}")[:10]], True),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_are_ignored_aloud_and_nothing_else_is(case):
    name, cells, kept = IDS[case]
    found = column(cells, name=name)
    assert (len(found.input_names) > 1) == kept
    assert noted(found, f"'{name}'") == (not kept or case in CALLED_SO)
    assert noted(found, "in both training and test") == (case == "repeated")


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["Unnamed: 0", "Unnamed: 0.1", "...1", "__index_level_0__"])
def test_names_of_rows_are_not_learnt_from_unless_a_key_names_them(name, form):
    """As `pandas.concat` leaves an index: 0 to 29 twice, which tells the labels."""
    rows = {name: [*range(30)] * 2, "a": [row * 37 % 41 for row in range(60)], "y": ["u"] * 30 + ["v"] * 30}
    found = read(rows, form=form)
    assert found.input_names == ("a",)
    assert noted(found, name)
    assert read(rows, form=form, numeric_columns=name).input_names == (name, "a")


@pytest.mark.parametrize(
    ("costs", "doses", "doubted"),
    [
        *(
            (costs, ["1,5", "2,25", "3"], True)
            for costs in (["1.250", "3.400"], ["850", "1.250"], ["850 EUR", "1.250 EUR"])
        ),
        (["€850.5", "€1.250"], ["1,5", "2,25", "3"], False),
        (["1.250", "2.300"], ["1.5", "2.25"], False),
        (["36.6", "1.250"], ["1,5", "2,5"], False),
        (["12", "13"], ["1,5", "2,5"], False),
    ],
)
def test_points_may_stand_between_thousands_where_other_columns_have_decimal_commas(tmp_path, costs, doses, doubted):
    text = pd.DataFrame({"dose": turns(*doses), "cost": turns(*costs), "y": LABELS}).to_csv(sep=";", index=False)
    assert noted(own(lay(tmp_path, {"t.csv": text})), "decimal commas", "1250") == doubted


def wards(folder, count=ROWS, **forms):
    """Write a file a ward, of cells in a form of its own; the last has a number of rows."""
    for number, (name, (form, days)) in enumerate(forms.items(), 1):
        rows = count if number == len(forms) else ROWS
        cells = [form.format(row % days + 1, row % 7 + 1) for row in range(rows)]
        lay(folder, {f"{name}.csv": {"x": cells, "y": LABELS[:rows]}})
    return folder


@pytest.mark.parametrize("keys", [{}, {"numeric_columns": "x"}])
@pytest.mark.parametrize(
    ("forms", "words"),
    [
        (["1{},5", "1{}.5", "1{}.25"], ["'north.csv'", "1.234,5"]),
        (["1{}.3.2024", "2024-03-1{}", "2024-04-1{}"], ["dates", "day.month.year"]),
    ],
)
def test_a_file_in_another_notation_is_not_lost(tmp_path, refusal, forms, words, keys):
    north, south, west = ((form, 8) for form in forms)
    line = refusal(DataError, own, wards(tmp_path, north=north, south=south, west=west), **keys)
    assert [word for word in words if word not in line] == []


def test_a_file_in_another_notation_is_named_also_if_its_values_are_too_many_for_words(tmp_path, refusal):
    for name, form, rows in (("south", "{}.{}", 120), ("north", "{},{}", 100)):
        cells = [form.format(row % 50 + 10, row % 4) for row in range(rows)]
        lay(tmp_path, {f"{name}.csv": pd.DataFrame({"x": cells, "y": ["u", "v"] * (rows // 2)}).to_csv(index=False)})
    line = refusal(DataError, own, tmp_path)
    assert ("'north.csv'" in line, "1.234,5" in line, "missing-values" in line) == (True, True, False)


def test_dates_of_a_file_that_all_may_be_turned_are_refused_unless_they_are_few(tmp_path, refusal):
    forms = {"north": ("{}/3/2024", 28), "south": ("{}/{}/2024", 12)}
    assert "'south.csv' may be month/day/year" in refusal(DataError, own, wards(tmp_path, **forms))
    assert own(wards(tmp_path / "few", 6, **forms)).inputs.shape == (ROWS + 6, 1)


CODED = [-999 if row % 8 == 0 else row % 13 for row in NUMBERS]


@pytest.mark.parametrize(
    ("cells", "words", "told"),
    [
        # numbers that may mean none
        (turns(21, 35, 40, 33, 999), ["missing-values=999 "], True),
        (turns(21, 35, 40, -888, -999), ["missing-values=-999,-888 "], True),
        (turns(0.5, 0.25, 0.75, -2147483648), ["missing-values=-2147483648 "], True),
        (turns(21, 35, 62, 47, 99), ["missing-values"], False),
        *(
            ([*written(form, CODED)[:-1], word], ["-999 is in 5 rows", "missing-values=-999"], True)
            for form, word in (("{}", "NULL"), ("{} kg", "kg"), ("{},0", "unknown"))
        ),
        # numbers that become a category
        (turns(*(f"{row} {('kg', 'lb')[row % 2]}" for row in range(10, 26))), ["numbers"], True),
        (turns(*(f"{row} {('kg', 'lb', 'g')[row % 3]}" for row in range(10, 26))), ["numbers"], True),
        # the label once more
        ([f"class {label}" for label in LABELS], ["its values determine the class"], True),
        ([LABELS.index(label) + 0.5 for label in LABELS], ["its values determine the class"], True),
        ([f"{label}{row % 3 == 0}" for row, label in enumerate(LABELS)], ["its values determine the class"], True),
        (["class u", *(f"class {label}" for label in LABELS[1:])], ["its values determine the class"], False),
        ([row / 7 for row in NUMBERS], ["its values determine the class"], False),  # all different, as measured
        ([f"ward {row % 8}" for row in NUMBERS], ["its values determine the class"], False),
        # filled for one class alone
        ([f"{row}.5" if label == "v" else "" for row, label in enumerate(LABELS)], ["whether it has a value"], True),
        (
            [f"{row}.5" if row > 3 or label == "v" else "" for row, label in enumerate(LABELS)],
            ["whether it has a value"],
            False,
        ),
    ],
)
def test_columns_that_may_be_read_wrongly_or_tell_too_much_are_noted(cells, words, told):
    assert noted(column(cells), *words) == told


REFUSED = {
    "two numbers": (["1,234", "2,500", "3,100"], ["'x'", "categorical-columns"]),
    **{
        f"decimal or not, {cells[0]}": (cells, ["comma may be a decimal point"])
        for cells in (["4,105", "5.14", "4,033"], ["1,107", "950"], ["3,103", "4.5", "7"])
    },
    "two dates": (["1/2/2024", "3/4/2024"], ["'x'"]),
    "both orders": (["31/1/2024", "1/31/2024"], ["'x'"]),
    "two notations of dates": (["2024-03-1", "20.03.2024"], ["'x'"]),
    "points and commas": (["{}.5", "{},5", "{}.5"], ["'x'", "numeric-columns"]),
    "kilos and grams": (["{} kg", "{}000 g", "{} kg"], ["'x'", "written in different ways", "numeric-columns"]),
    "brackets": (["{}.5", "({}.5)", "{}.5"], ["'x'", "written in different ways", "numeric-columns"]),
    "below a limit": (["{}.5", "<{}.5", "{}.5"], ["'x'", "written in different ways", "numeric-columns"]),
    "capitals": (["Bonn", "Oslo", "bonn"], ["'x'", "'Bonn' and 'bonn'", "categorical-columns"]),
    "a blank that stays": (["New York", "Oslo", "New\u00a0York"], ["'x'", "'New York'", "categorical-columns"]),
    "another hyphen": (["A-1", "B", "A\u20101"], ["'x'", "'A-1'", "categorical-columns"]),
    "sentences": (["the patient came {} times"], ["'x'", "40 different values in 40", "text-column"]),
    "infinite": ([1.0, -np.inf], ["row 3", "infinite number", "write a smaller number"]),
    "infinite as float32": (["2", "1e39"], ["row 3", "infinite number"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_cells_that_may_mean_two_things_are_refused(case, refusal):
    cells, words = REFUSED[case]
    several = [str(cell).format(row) for row, cell in enumerate(turns(*cells))]
    line = refusal(DataError, column, several)
    assert [word for word in words if word not in line] == []
    assert len(column(several, ignore_columns="x").labels) == ROWS


@pytest.mark.parametrize("cells", [["2000 g", "2 kg", "2000", "kg 3"], [2000, 2.5, None, 0]])
def test_numbers_in_another_unit_or_in_none_are_no_numbers_of_a_column(cells):
    """So `hetfl predict` counts them as unknown, and refuses a column that holds nothing else."""
    inputs, others = columns.read(Column("x", "number", columns.PLAIN, unit="kg"), pa.chunked_array([pa.array(cells)]))
    is_kilos = [str(cell).count("kg") > 0 for cell in cells]
    assert np.array_equal(inputs, np.where(is_kilos, [np.nan, 2, np.nan, 3], np.nan), equal_nan=True)
    assert others.tolist() == [cell is not None and not kilos for cell, kilos in zip(cells, is_kilos, strict=True)]


def test_test_rows_in_another_notation_are_refused(refusal):
    days, other = ([form.format(row % 28 + 1) for row in NUMBERS] for form in ("{}/3/2024", "3/{}/2024"))
    assert "column 'x'" in refusal(DataError, column, days, other)


@pytest.mark.parametrize(
    ("columns", "keys", "words"),
    [
        ({}, {"ignore_columns": "agee,x"}, ("ignore-columns", "'agee', 'x'", "age")),
        ({}, {"numeric_columns": "y"}, ("numeric-columns",)),
        ({}, {"categorical_columns": "y"}, ("categorical-columns",)),
        ({}, {"ignore_columns": "age"}, ("ignore-columns",)),
        ({}, dict.fromkeys(("numeric_columns", "categorical_columns"), "age"), ("numeric-columns",)),
        ({"age": ["much", None] * 20}, {"numeric_columns": "age"}, ("categorical-columns",)),
        ({"age": NUMBERS}, {"ignore_columns": ""}, ("'age'",)),
        ({"age": [f"text {row}" for row in range(65)] * 2}, {}, ("column 'age'", "65", "text-column")),
        ({"age": [f"text {row}" for row in range(1001)] * 2}, {"categorical_columns": "age"}, ("column 'age'", "1001")),
        ({"age": np.arange(ROWS).astype("timedelta64[ms]")}, {}, ("durations",)),
        ({"age": [clock(row) for row in range(20)] * 2}, {}, ("times of day",)),
    ],
)
def test_columns_and_keys_that_do_not_fit_are_refused(columns, keys, words, refusal):
    rows = {"age": [row % 9 for row in NUMBERS]} | columns
    rows["y"] = (LABELS * 60)[: len(rows["age"])]
    line = refusal(DataError, read, rows, form="parquet", **keys)
    assert [word for word in words if word not in line] == []


@pytest.mark.slow
@pytest.mark.parametrize(("small", "large"), [((100, 700), (100, 7_000)), ((2_000, 100), (20_000, 100))], ids=str)
def test_ten_times_the_table_takes_ten_times_as_long(small, large, tmp_path):
    """Whoever copies a list of all columns for each of them takes a hundred times as long for ten times as many."""
    seconds = []
    for rows, width in (small, large):
        numbers = np.random.default_rng(0).standard_normal((width, rows), dtype=np.float32)
        named = {f"c{n}": one for n, one in enumerate(numbers)} | {"y": np.arange(rows) % 2}
        folder = lay(tmp_path / f"{rows}x{width}", {"train.csv": named})
        start = time.process_time()
        found = own(folder)
        seconds.append(time.process_time() - start)
        assert np.allclose(found.inputs.numpy(), numbers.T, atol=1e-6)
    assert seconds[1] < 14 * seconds[0]


def test_zeros_in_front_stay_in_a_long_file_whose_first_rows_have_letters(tmp_path):
    """pandas with ``dtype=str`` counts four wards; 10,000 rows at a time they are seven."""
    wards = ["A12"] * 500 + [["001", "002", "003"][row % 3] for row in range(20_500)]
    rows = {"a": [row % 97 / 7 for row in range(21_000)], "ward": wards, "y": ["u", "v"] * 10_500}
    clients = load_clients(4, dataset=lay(tmp_path, {"t.csv": rows}), label_column="y", partition="natural:ward")
    assert [data.name for data in clients] == sorted(pd.read_csv(tmp_path / "t.csv", dtype=str).ward.unique())


def test_texts_of_parquet_that_are_not_utf_8_are_said_in_one_line(tmp_path, refusal):
    """Nothing checks them before: such a file may be damaged, or written by a program that knows another encoding."""
    octets = pa.array([b"a", b"\xff"] * 10)
    texts = pa.StringArray.from_buffers(20, *octets.buffers()[1:])
    pa.parquet.write_table(pa.table({"kind": texts, "y": [0, 0, 1, 1] * 5}), tmp_path / "train.parquet")
    line = refusal(DataError, own, tmp_path)
    assert ("column 'kind'" in line, "UTF-8" in line) == (True, True)


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_key_that_a_row_of_json_lacks_is_missing_as_an_empty_cell_of_csv_is(tmp_path, form):
    rows = [{"a": 2, "b": 5, "c": "y", "y": 1}, {"a": 1, "c": "x", "y": 0}, {"a": 3, "b": 6, "y": 0}] * 2
    text = json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows))
    place = lay(tmp_path, {f"{form}/rows.{form}": text, "csv/rows.csv": pd.DataFrame(rows)})
    one, other = own(place / "csv"), own(place / form)
    assert one.input_names == other.input_names == ("a", "b", "c=x", "c=y", "c=None")
    assert one.inputs.isnan().sum(0).tolist() == [0, 2, 0, 0, 0]
    assert torch.equal(one.inputs.nan_to_num(-1), other.inputs.nan_to_num(-1))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_lines_of_json_are_read_as_text_files_are(tmp_path, encoding):
    """A text may hold separators of lines that are none of the file's, and a number more than 64 bits."""
    separator = " " if encoding == "cp1252" else "\u2028"
    rows = [{"a": row / 2, "b": 2**70, "c": f"é{separator}{row % 3}", "y": row % 2} for row in range(30)]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    found = arrays_of(lay(tmp_path, {"t.jsonl": text.encode(encoding)}), label_column="y", ignore_columns="b")
    assert found.input_names == ("a", *(f"c=é{separator}{value}" for value in range(3)))


def test_lists_of_nothing_are_left_out_with_their_column(tmp_path):
    rows = [{"a": row / 2, "visits": [{"d": 1, "z": None}], "none": [None], "y": row % 2} for row in range(30)]
    place = lay(tmp_path, {"t.json": json.dumps(rows)})
    found = own(place, ignore_columns="visits,none")
    assert (found.input_names, found.inputs[:, 0].tolist()) == (("a",), [row / 2 for row in range(30)])


def test_runs_of_equal_cells_are_read_as_cells(tmp_path):
    cells = [2.5] * 15 + [4.0] * 15
    table = pa.table({"a": pc.run_end_encode(pa.array(cells)), "y": [0, 1] * 15})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as sink:
        sink.write(table)
    assert own(tmp_path).inputs[:, 0].tolist() == cells


def test_rows_shown_to_others_have_the_own_mean_where_a_number_is_missing():
    """Column a is 5 or missing, b has mean 3, c is missing throughout."""
    rows = {"a": [5, None, 5], "b": [None, 2, 4], "c": [None] * 3, "y": [0, 1, 0]}
    shown = Samples(standardised(read(rows, numeric_columns="a,b,c"), (0, 1, 2)), torch.arange(3)).stored()[0]
    assert shown.tolist() == [[5.0, 3.0, 0.0], [5.0, 2.0, 0.0], [5.0, 4.0, 0.0]]


def test_classes_that_are_truth_values_have_their_names():
    truth = pd.DataFrame({"age": HALVES, "sick": [label == "v" for label in LABELS]})
    place = stored(truth)[0]
    for classes, names in (("", ("False", "True")), ("well:true,ill:False", ("ill", "well"))):
        found = arrays_of(place, label_column="sick", classes=classes)
        assert [found.class_names[label] for label in found.labels] == [names[one] for one in truth.sick]


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder with uci/adult")
class TestRealTables:
    """The tables of the UCI archive that CHFL uses."""

    @pytest.mark.parametrize(
        ("dataset", "rows", "features", "missing"),
        [
            *(("adult", 48_842, 107, 0), ("breast-cancer-wisconsin", 699, 9, 16)),
            *(("hcc", 165, 49, 826), ("ilpd", 583, 10, 4)),
        ],
    )
    def test_their_shapes(self, dataset, rows, features, missing):
        inputs = arrays_of(dataset, data_dir=os.environ["HETFL_DATA_DIR"]).inputs
        assert (inputs.shape, int(inputs.isnan().sum())) == ((rows, features), missing)

    def test_adult_is_that_of_pandas(self):
        folder = f"{os.environ['HETFL_DATA_DIR']}/uci/adult"
        arrays = arrays_of("adult", data_dir=os.environ["HETFL_DATA_DIR"])
        frame = pd.concat([pd.read_csv(f"{folder}/{split}.csv") for split in ("train", "test")])
        texts = frame.select_dtypes(exclude="number").columns.drop("income")
        frame["sex"] = (frame["sex"] == "Male").astype(float)
        columns = [
            pd.get_dummies(frame[[name]], dummy_na=bool(frame[name].isna().any()))
            if name in texts and name != "sex"
            else frame[[name]]
            for name in frame.columns.drop("income")
        ]
        assert np.array_equal(arrays.inputs.numpy(), np.column_stack(columns))
        assert torch.bincount(arrays.labels).tolist() == [37_155, 11_687]
