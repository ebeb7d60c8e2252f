"""Tables as people have them: ids, dates, numbers written as texts, rows without labels."""

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Features, Value
from fixtures.data.columns import decoded, source_of, standardised, write_csv
from fixtures.data.loading import load_client
from fixtures.federations.members import member, roster
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from hetfl_flwr.data import Samples
from hetfl_flwr.data.opening import Source
from hetfl_flwr.errors import DataError, FederationError
from hetfl_flwr.node.registration import _notes
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.messages import MEMBER
from hetfl_flwr.wire.naming import Naming
from simulations.cli.command import app

ROWS = 40
LABELS = [row % 2 for row in range(ROWS)]
SIZES = [row / 7 for row in range(ROWS)]


def read(test=None, features=None, **columns):
    """Return a table that also has a column of numbers; keywords with a list are columns, others keys."""
    keys = {key: columns.pop(key) for key in list(columns) if isinstance(columns[key], str)}
    rows = len(next(iter(columns.values())))
    splits = [{"size": SIZES[:rows], **columns, "label": LABELS[:rows]}]
    if test:
        splits.append({"size": SIZES[: len(LABELS[:2])], **test, "label": LABELS[:2]})
    return decoded(source_of(*splits, features=features, **keys))


def said(table):
    return list(table.notes)


def column(table, number=1):
    return table.inputs[:, number].tolist()


class TestNumbers:
    def test_a_few_words_among_numbers_are_missing_numbers(self):
        """2 of 46 filled cells are below 5 %; rows 0 and 7 are empty, and do not count."""
        cells = [None, *map(str, range(6)), "", *(str(row / 2) for row in range(38)), "unknown", "n.a."]
        table = decoded(source_of({"age": cells, "label": [row % 2 for row in range(len(cells))]}))
        expected = pd.to_numeric(pd.Series(cells), errors="coerce")
        assert np.array_equal(table.inputs[:, 0], expected, equal_nan=True)
        assert ["2 of 46" in line and "row 47 and 1 more" in line for line in said(table)] == [True]

    @pytest.mark.parametrize(("few", "many"), [("0.125", "{},5"), ("0,125", "1,{:0>3}.5")])
    def test_nothing_stands_before_thousands(self, few, many):
        """0.125 among decimal commas is not 125."""
        table = read(dose=[few, *(many.format(row) for row in range(1, ROWS))])
        assert np.isnan(column(table)[0])
        assert "(row 1)" in said(table)[1]

    @pytest.mark.parametrize(
        ("cells", "right", "unit"),
        [
            ([f"{row} y" for row in range(ROWS)], list(range(ROWS)), "'y'"),
            ([f"{row},5kg" for row in range(ROWS)], [row + 0.5 for row in range(ROWS)], "'kg'"),
            ([f"-{row} %" for row in range(ROWS)], [-row for row in range(ROWS)], "'%'"),
            ([f"${row + 1:,}.50" for row in range(990, 990 + ROWS)], [row + 1.5 for row in range(990, 1030)], "'$'"),
            ([f"{row + 1}.234,5 €" for row in range(ROWS)], [1000 * row + 1234.5 for row in range(ROWS)], "'€'"),
        ],
    )
    def test_numbers_with_one_unit_are_read_without_it_aloud(self, cells, right, unit):
        """Right is what each was made of."""
        table = read(cost=cells)
        assert column(table) == right
        assert [unit in line for line in said(table)] == [True]
        assert read(cost=cells, categorical_columns="cost").columns[1].kind == "category"

    def test_a_number_without_the_unit_of_the_others_is_none(self):
        """5 % beside 0.05 may be the same."""
        cells = [*(f"{row} %" for row in range(ROWS)), "0.05"]
        table = decoded(source_of({"cost": cells[:ROWS], "label": LABELS}, {"cost": cells[-1:], "label": [0]}))
        assert np.isnan(table.inputs[-1, 0])
        assert ["row 1 of split 'test'" in line for line in said(table)] == [False, True]

    def test_a_whole_number_is_one_value_with_and_without_a_point(self):
        """As pandas writes whole numbers beside missing ones."""
        assert read(code=["1.0", "10.0", "2", "NA"] * 10, categorical_columns="code").columns[1].values == (
            "1",
            "2",
            "10",
            None,
        )

    def test_values_of_test_rows_alone_are_noted(self):
        table = read({"ward": ["n", "west"]}, ward=["n", "s"] * 20)
        assert ["row 2 of split 'test'" in line and "'n'" in line for line in said(table) if COPY not in line] == [True]

    def test_dates_in_two_notations_are_refused(self, refusal):
        cells = [f"2024-03-{row + 1}" if row < 20 else f"{row - 10}.03.2024" for row in range(ROWS)]
        repeated = [*cells[: ROWS - 4], *cells[:4]]  # no ids
        for some in (cells, repeated):
            assert "column 'seen'" in refusal(DataError, read, seen=some)
        assert said(read(seen=repeated, categorical_columns="seen")) == []

    @pytest.mark.parametrize("first", [0, 300])
    def test_numbers_that_float32_does_not_tell_apart_are_told_apart_on_each_client(self, first):
        """300 seconds of one day on one client, and of another year on the other: as float32 they are three numbers."""
        draw = np.random.default_rng(0).permutation(300)
        seconds = np.concatenate([1_500_000_000 + draw, 1_700_000_000 + draw]).astype(float)
        table = decoded(source_of({"time": seconds.tolist(), "label": [row % 2 for row in range(600)]}))
        rows = torch.arange(first, first + 300)
        own = Samples(standardised(table, tuple(rows.tolist())), rows)
        right = StandardScaler().fit_transform(seconds[rows][:, None])
        assert np.allclose(own.batch(torch.arange(300))[0], right, atol=1e-3)
        assert own.to("meta").arrays.inputs.dtype == torch.float32
        assert table.input_names == ("time",)

    def test_what_is_measured_otherwise_has_another_name(self):
        """Clients that have 60 kg and 130 lb, or a day and a time of day, are not alike."""
        weights = [40 + row % 30 for row in range(ROWS)]
        times = [f"{hour}:30" for hour in range(20)] * 2
        units = [f"{one} kg" for one in weights], [f"{one} lb" for one in weights], [str(one) for one in weights]
        assert [read(x=[*cells]).input_names for cells in (*units, times)] == [
            ("size", "x (kg)"),
            ("size", "x (lb)"),
            ("size", "x"),
            ("size", "x (parts of a day)"),
        ]

    def test_a_category_whose_values_are_listed_is_the_same_wherever_it_is_read(self):
        """One node has Bonn and Oslo, the other Rome and a town that nobody has listed."""
        keys = {"categorical_columns": "x:Bonn|Oslo|Rome, y: f|m"}
        one = read(x=["Bonn", "Oslo"] * 20, y=["m", "f"] * 20, **keys)
        other = read(x=["Rome", "Lima", "Rome", ""] * 10, y=["m"] * 40, **keys)
        assert one.input_names == other.input_names == ("size", "x=Bonn", "x=Oslo", "x=Rome", "y=m")
        assert one.inputs[:2, 1:].tolist() == [[1, 0, 0, 1], [0, 1, 0, 0]]
        assert other.inputs[:4, 1:].tolist() == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
        assert any("10 values" in line and "Bonn, Oslo, Rome" in line for line in said(other))

    def test_letters_in_two_forms_are_one_value_and_capitals_tell_values_apart(self):
        cells = ["Zo\u00eb", "Zoe\u0308", "Al", "al"] * 10
        table = decoded(source_of({"x": cells, "label": LABELS}, {"x": ["ZO\u00cb"] * 40, "label": LABELS}))
        assert table.input_names == ("x=Al", "x=Zo\u00eb", "x=al")
        assert table.inputs[:4].tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
        assert not table.inputs[40:].any()

    @pytest.mark.parametrize("cells", [["yes", "YES", "no", "No"], ["True", "true", "FALSE", "false"]])
    def test_truth_in_several_ways_is_one_input(self, cells):
        table = read(smoker=cells * 10)
        assert table.columns[1].values in (("no", "yes"), ("No", "YES"), ("FALSE", "True"))
        assert column(table)[:4] == [float(cell.lower() in ("yes", "true")) for cell in cells]
        assert ["several ways" in line for line in said(table) if COPY not in line] == [True]

    @pytest.mark.parametrize("kind", [float, int, str])
    def test_a_code_for_missing_is_noted_and_taken_as_missing_where_a_key_says_so(self, kind):
        cells = [kind(-999 if row % 8 == 0 else row % 13) for row in range(ROWS)]
        assert ["missing-values=-999" in line for line in said(read(age=cells))] == [True]
        table = read(age=cells, missing_values="-999, x")
        right = pd.Series(cells).astype(float).replace(-999, np.nan)
        assert np.array_equal(column(table), right, equal_nan=True)
        assert said(table) == []
        words = read(kind=["x", "a", "b", "a"] * 10, missing_values="x")
        assert words.columns[1].values == ("a", "b", None)

    @pytest.mark.parametrize("cells", [["3 days ago", "2 weeks"], ["1a", "2b", "3c"], ["12", "x"], ["2 - 3", "4 - 5"]])
    def test_other_words_are_categories(self, cells):
        found = said(read(age=(cells * ROWS)[:ROWS]))
        assert [line for line in found if COPY not in line] == []  # as labels go to and fro, too

    @pytest.mark.parametrize(("words", "kind"), [(2, "number"), (3, "category")])
    def test_more_than_a_twentieth_are_words(self, words, kind):
        cells = [*(str(row % 5) for row in range(ROWS - words)), *["much"] * words]
        assert read(age=cells).columns[1].kind == kind

    @pytest.mark.parametrize("words", [1, 3, 19])
    def test_words_among_numbers_that_make_a_category_are_counted(self, words):
        cells = [*(str(row % 2) for row in range(ROWS - words)), *["n.d."] * words]
        table = read(age=cells)
        assert table.columns[1].kind == "category"
        assert f"{words} of 40 values (row {42 - words - 1}" in said(table)[0]
        assert said(read(age=["1"] * 19 + ["much"] * 21)) == []
        assert read(age=["1", "2"] * 19 + ["1", "x"]).columns[1].kind == "category"

    def test_numeric_columns_takes_all_others_as_missing(self):
        table = read(age=[*map(str, range(10)), *["much"] * 30], numeric_columns="age")
        assert column(table)[:10] == list(range(10))
        assert "row 11 and 29 more" in said(table)[0]

    @pytest.mark.parametrize(("cell", "way_out"), [("much", "categorical-columns")])
    def test_a_declared_column_without_a_number_is_a_problem(self, refusal, cell, way_out):
        assert way_out in refusal(DataError, read, age=[cell, None] * 20, numeric_columns="age")

    @pytest.mark.parametrize(
        ("cells", "how"),
        [
            (["1.234,5", "2,5", "30", "1.000.000,25"], {"thousands": ".", "decimal": ","}),
            (["1,234.5", "2.5", "30", "1,000,000.25"], {"thousands": ",", "decimal": "."}),
        ],
        ids=["comma", "point"],
    )
    def test_separators_are_understood_as_pandas_does(self, cells, how, tmp_path):
        (tmp_path / "table.csv").write_text("cost;other\n" + "".join(f"{cell};0\n" for cell in cells))
        expected = pd.read_csv(tmp_path / "table.csv", sep=";", **how).cost
        table = read(cost=cells)
        assert column(table) == expected.tolist()
        assert "'cost'" in said(table)[0]

    def test_blanks_and_quotes_between_thousands(self):
        assert column(read(cost=["1 234,5", "2,5", "1'000", "+3,5"])) == [1234.5, 2.5, 1000, 3.5]

    @pytest.mark.parametrize("minus", ["\u2212", "\u2013", "\uff0d"])
    def test_a_minus_of_typesetters_is_one(self, minus):
        """Ten of forty are negative; `float` reads U+2212 in no locale."""
        numbers = [row / 4 - 2.5 for row in range(ROWS)]
        table = read(cost=[str(number).replace("-", minus) for number in numbers])
        assert column(table) == numbers
        assert said(table) == []

    @pytest.mark.parametrize("word", [".", "-", "na", "n.d.", "unknown", "None"])
    def test_usual_words_for_missing_numbers_are_missing_however_many_they_are(self, word):
        """A quarter of the cells; `pandas.to_numeric` has the same."""
        cells = [word if row % 4 == 0 else str(row / 2) for row in range(ROWS)]
        right = pd.to_numeric(pd.Series(cells), errors="coerce")
        table = read(cost=cells)
        assert np.array_equal(table.inputs[:, 1], right, equal_nan=True)
        assert ["10 of 40" in line for line in said(table)] == [True]

    def test_what_may_mean_two_numbers_is_refused(self, refusal):
        assert "column 'cost'" in refusal(DataError, read, cost=["1,234", "2,500", "3,100"])
        assert column(read(cost=["1,234", "2,500", "3,100"], categorical_columns="cost"))[0] == 1


class TestDates:
    @pytest.mark.parametrize(
        ("cells", "format", "called"),
        [
            (["2024-03-31", "1969-12-31", "2000-02-29 12:00"], "ISO8601", "year-month-day"),
            (["31/3/2024", "01/02/2024", "05/06/1999"], "%d/%m/%Y", "day/month/year"),
            (["3/31/2024", "01/02/2024", "05/06/1999"], "%m/%d/%Y", "month/day/year"),
            (["1.3.2024", "01.02.2024", "05.06.1999"], "%d.%m.%Y", "day.month.year"),
            (["31.03.24", "01.02.99", "05.06.68"], "%d.%m.%y", "day.month.yy"),
            (["03/31/24", "01/02/99", "05/06/69"], "%m/%d/%y", "month/day/yy"),
            (["31MAR2024", "01feb1999", "05Jun2001"], "%d%b%Y", "day month-name year"),
            (["March 31, 2024", "February 1, 1999", "June 5, 2001"], "%B %d, %Y", "month-name day, year"),
            (["2024-03-31 12:30:15.5", "1969-12-31 00:00", "2000-02-29T23:59:59+02:00"], None, "year-month-day"),
        ],
    )
    def test_they_are_days_since_1970_as_pandas_counts(self, cells, format, called):
        moments = [pd.to_datetime(cell, format=format, utc=True) for cell in cells]
        days = (pd.Series(moments) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        table = read(seen=cells)
        assert column(table) == days.tolist()
        assert [called in line for line in said(table)] == [True, *[False] * called.endswith("yy")]
        assert table.input_names == ("size", "seen (days since 1970)")

    def test_years_of_two_digits_are_told(self):
        """Somebody born in 1940 is no child of 2040."""
        table = read(born=["31.12.40", "1.1.99", "5.6.85"] * 10)
        assert ["2040" in line for line in said(table)] == [False, True]
        cells = ["31-Mar-24", "01-Feb-99", "5-Jun-01"]
        days = (pd.to_datetime(cells, format="%d-%b-%y") - pd.Timestamp(0)) / pd.Timedelta(days=1)
        assert column(read(seen=cells)) == days.tolist()

    def test_test_rows_in_another_notation_are_refused(self, refusal):
        splits = [{"seen": [f"{row % 28 + 1}/3/2024" for row in range(40)], "label": LABELS}]
        splits.append({"seen": [f"3/{row % 28 + 1}/2024" for row in range(40)], "label": LABELS})
        assert "column 'seen'" in refusal(DataError, decoded, source_of(*splits))

    def test_times_are_parts_of_a_day(self):
        cells = ["13:45:10", "00:00:00", "23:59", "1:30 pm", "12:15 AM"] * 8
        right = [49510 / 86400, 0, 86340 / 86400, 48600 / 86400, 900 / 86400]
        assert column(read(seen=cells))[:5] == pytest.approx(right, abs=1e-7)

    def test_a_few_others_are_missing_dates(self):
        cells = [f"2024-01-{row % 28 + 1:02d}" for row in range(ROWS - 1)] + ["2024-02-30"]
        table = read(seen=cells)
        assert np.isnan(column(table)[-1])
        assert "(row 40)" in said(table)[1]

    @pytest.mark.parametrize("cells", [["1/2/2024", "3/4/2024"], ["31/1/2024", "1/31/2024"]], ids=["either", "both"])
    def test_what_may_mean_two_dates_is_refused(self, cells, refusal):
        assert "column 'seen'" in refusal(DataError, read, seen=cells)


class TestIds:
    @pytest.mark.parametrize(
        "cells",
        [
            list(range(100, 100 + ROWS)),
            [f"{row:05d}" for row in range(ROWS)],
            [f"P{row}" for row in range(ROWS)],
            [f"Doe, Jane {row}" for row in range(ROWS - 2)] + ["Roe", "Roe"],
        ],
        ids=["count up", "as texts", "words", "names"],
    )
    def test_they_are_ignored_aloud(self, cells):
        table = read(patient=cells)
        assert table.input_names == ("size",)
        assert ["'patient'" in line for line in said(table)] == [True]

    @pytest.mark.parametrize(
        "cells",
        [
            [row + 0.5 for row in range(ROWS)],
            [float(row) for row in range(ROWS)],
            list(range(19)),
            [row * 7919 % 10007 for row in range(ROWS)],
            [*range(ROWS - 1), 0],
            [*(f"P{row}" for row in range(30)), *(f"P{row}" for row in range(10))],
        ],
        ids=["fractions", "floats", "few rows", "few measured", "one twice", "words twice"],
    )
    def test_others_are_kept(self, cells):
        table = read(stay=cells)
        assert "stay" in table.input_names[1]
        assert said(table) == []

    @pytest.mark.parametrize("name", ["patient", "sample_id", "caseNo", "count", "salary", "paid"])
    def test_whole_numbers_in_any_order_are_ids_by_their_name_if_all_differ(self, name):
        """A count, too, may be another one in each row."""
        numbers = [row * 7919 % 10007 for row in range(100)]
        source = source_of({"size": [row / 7 for row in range(100)], name: numbers, "label": [0, 1] * 50})
        known = name in ("patient", "sample_id", "caseNo")
        assert decoded(source).input_names == (("size",) if known else ("size", name))

    def test_ids_that_repeat_are_ids_by_their_name(self):
        """Two visits of each of 100 patients."""
        for name, count in (("patient", 1), ("visits", 2)):
            columns = {"size": [row / 7 for row in range(200)], name: [row // 2 * 7 for row in range(200)]}
            assert len(decoded(source_of({**columns, "label": [0, 1] * 100})).input_names) == count

    @pytest.mark.parametrize("name", ["X", "level_0", "index"])
    def test_an_index_written_as_a_column_is_one_though_it_begins_again(self, name):
        """As rows of two files put together have it."""
        columns = {"size": [row / 7 for row in range(60)], name: [*range(30), *range(30)], "label": [0, 1] * 30}
        assert decoded(source_of(columns)).input_names == ("size",)
        assert len(decoded(source_of({**columns, name: [row * 7 % 30 for row in range(60)]})).input_names) == 2

    def test_years_are_no_ids(self):
        assert read(built=list(range(1980, 1980 + ROWS))).input_names == ("size", "built")

    def test_keys_and_declared_types_go_before(self):
        numbers = list(range(ROWS))
        assert read(patient=numbers, numeric_columns="patient").input_names == ("size", "patient")
        assert read(patient=numbers, categorical_columns="patient").groups == (1, ROWS)
        features = Features({"size": Value("float64"), "patient": ClassLabel(ROWS), "label": Value("int64")})
        assert read(patient=numbers, features=features).groups == (1, ROWS)

    @pytest.mark.parametrize(
        ("cells", "keys", "named"),
        [
            ([f"the patient came again on day {row}" for row in range(80)], {}, "text-column"),
            (list(range(ROWS)), {}, "'patient'"),
            (
                list(range(ROWS)),
                dict.fromkeys(("numeric_columns", "categorical_columns"), "patient"),
                "numeric-columns",
            ),
        ],
        ids=["texts", "ids alone", "two keys"],
    )
    def test_what_cannot_be_learnt_from_is_refused_not_ignored(self, cells, keys, named, refusal):
        source = source_of({"patient": cells, "label": [0, 1] * (len(cells) // 2)}, **keys)
        assert named in refusal(DataError, decoded, source)


COPY = "its values alone tell the classes"


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        ([f"class {label}" for label in LABELS], True),
        ([label + 0.5 for label in LABELS], True),
        ([f"{label}{row % 3 == 0}" for row, label in enumerate(LABELS)], True),  # four values of two classes
        ([f"class {label}" for label in [1 - LABELS[0], *LABELS[1:]]], False),
        ([row / 7 for row in range(ROWS)], False),  # all different, as measurements are
        ([f"ward {row % 8}" for row in range(ROWS)], False),  # eight values of two classes
    ],
)
def test_a_column_that_is_the_label_once_more_is_noted(cells, noted):
    assert any(COPY in line for line in said(read(copy=cells))) == noted


def test_a_column_of_one_word_is_ignored_and_one_of_one_number_stays_an_input_of_zero():
    """Elsewhere the number may vary; then all nodes have the same inputs."""
    table = read(ward=["W"] * ROWS, floor=[3] * ROWS, flag=[True] * ROWS)
    assert table.input_names == ("size", "floor")
    assert table.columns[1].constant
    assert ["'ward', 'flag'" in line for line in said(table)] == [True, False]
    assert read(ward=["W"] * ROWS, categorical_columns="ward").input_names == ("size", "ward=W")


def test_a_table_of_the_catalogue_is_read_as_it_is():
    """Its model has as many inputs as the catalogue says, wherever a column is the same in all rows."""
    columns = {"patient": list(range(ROWS)), "ward": ["W"] * ROWS, "day": ["2024-01-01", "2024-01-02"] * 20}
    source = source_of({**columns, "label": LABELS})
    listed = Source(source.place, source.splits, "table", source.inputs, "label", source.reading, values=(0, 1))
    table = decoded(listed)
    assert (table.input_names, table.notes) == (("patient", "ward=W", "day=2024-01-02"), ())


class TestLabels:
    LINES = "size,label\n" + "".join(f"{row / 7},{'' if row in (3, 5) else 'ab'[row % 2]}\n" for row in range(20))

    @pytest.mark.parametrize(
        ("splits", "classes", "named"),
        [
            ({"train": LINES + "1,c\n"}, "a,b", "row 22 of split 'train'"),  # rows after them keep their numbers
            ({"train": "size,label\n1,\n2,\n"}, "", "label-column"),
            ({"train": "size,label\n1,\n2,\n", "test": "size,label\n1,0\n2,1\n"}, "", "split 'train'"),
        ],
    )
    def test_rows_of_no_class_are_refused(self, splits, classes, named, tmp_path, refusal):
        keys = {"label_column": "label", "partition_id": 0, "num_partitions": 1, "seed": 0, "classes": classes}
        assert named in refusal(DataError, load_client, dataset=write_csv(tmp_path / "own", **splits), **keys)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([20 + row % 21 for row in range(210)], "21 different whole numbers"),
        ([20 + row % 20 for row in range(210)], ""),
        ((["a", "b", "a;b"] * 70), "'a;b'"),
        ((["a", "b", "a; c"] * 70), ""),
        ((["up", "down", "up/down"] * 70), "'up/down'"),
    ],
)
def test_labels_that_may_be_quantities_or_several_in_one_are_doubted(labels, words, tmp_path):
    rows = "".join(f"{row / 7},{label}\n" for row, label in enumerate(labels))
    folder = write_csv(tmp_path / "own", train="size,label\n" + rows)
    keys = {"label_column": "label", "partition_id": 0, "num_partitions": 1, "seed": 0}
    found = said(load_client(dataset=folder, **keys).train.arrays)
    assert [words in line for line in found if COPY not in line] == [True] * bool(words)
    named = ",".join(map(str, sorted({*labels})))
    assert [
        line for line in said(load_client(dataset=folder, classes=named, **keys).train.arrays) if COPY not in line
    ] == []


HOSPITAL = "patient,age,seen,ward,label\n" + "".join(
    f"P{row},{'?!' if row == 5 else row % 60},2024-{row % 12 + 1:02d}-0{row % 9 + 1},{'ab'[row % 3 % 2]},{row % 2}\n"
    for row in range(120)
)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_line_is_said_once_a_run_and_kept_in_its_folder(tmp_path, workers):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    out = tmp_path / "out"
    arguments = ["--dataset", folder, "--clients", "3", "--rounds", "1", "--workers", str(workers), "--out", str(out)]
    keys = [part for key in ("label-column=label", "models=mlp") for part in ("--set", key)]
    done = CliRunner().invoke(app, ["run", "fedavg", *arguments, *keys])
    assert done.exit_code == 0, done.output
    lines = (out / "notes.txt").read_text().splitlines()
    assert [line.split("'")[1] for line in lines] == ["patient", "age", "seen"]
    assert [done.stderr.count(f"hetfl: {line}\n") for line in lines] == [1, 1, 1]


@pytest.mark.slow
def test_a_sweep_says_each_line_once(tmp_path, capfd):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    keys = [part for key in ("label-column=label", "models=mlp") for part in ("--set", key)]
    arguments = ["--dataset", folder, "--clients", "2", "--rounds", "1", "--sweep", "seed=0:2"]
    done = CliRunner().invoke(app, ["run", "local", *arguments, "--out", str(tmp_path / "out"), *keys])
    assert done.exit_code == 0, done.output
    assert (done.stderr + capfd.readouterr().err).count("column 'patient'") == 1


def test_on_a_node_they_stay_in_its_own_log(tmp_path, make_config, make_node, caplog):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    node = make_node(make_config(algorithm="fedavg", dataset=folder, label_column="label", models="mlp"))
    assert _notes(node, share=False) == ()
    assert "patient" in caplog.text
    assert len(_notes(node, share=True)) == 3


class TestUnlikeNodes:
    def members(self, *names, share):
        namings = [Naming.of(own, share=share) for own in names]
        return [
            member(number, shape=(len(own),), input_digests=naming.digests, input_names=naming.shown)
            for number, (own, naming) in enumerate(zip(names, namings, strict=True))
        ]

    def refused(self, members, refusal):
        some = roster(0)
        for one in members:
            some.add(one)
        return refusal(FederationError, lambda: some.shape)

    def test_columns_that_one_lacks_are_named_where_names_are_shown(self, refusal):
        members = self.members(("age", "patient", "bmi"), ("age", "bmi"), share=True)
        assert "client 0 alone has 'patient'" in self.refused(members, refusal)

    def test_else_by_their_numbers(self, refusal):
        members = self.members(("age", "patient", "bmi"), ("age", "size"), share=False)
        line = self.refused(members, refusal)
        assert ("client 0 alone has columns 1, 2" in line, "client 1 alone has columns 1 " in line) == (True, True)
        assert not any(name in line for name in ("patient", "bmi", "size"))


def test_what_a_client_says_of_its_data_is_bounded():
    record = member(0).to_record()
    assert record["notes"] == []
    for bad in (["x" * 601], ["\x1b[31m"], ["x"] * 201):
        reply = type("Reply", (), {})()
        reply.metadata = type("Metadata", (), {"src_node_id": 1})
        reply.content = type("Content", (), {"config_records": {MEMBER: {**record, "notes": bad}}})
        with pytest.raises(FederationError, match="notes"):
            Member.from_reply(reply)
