"""Which classes there are: as labels are written, as they are declared, and where a column holds none."""

import json

import datasets
import pandas as pd
import pytest
import torch
from fixtures.data.columns import LABELS, ROWS, lay, noted, read
from fixtures.data.hub import encoded, grey
from fixtures.data.loading import arrays_of, load_client, load_clients

from hetfl_flwr.data import Reading, data_spec, parse_classes
from hetfl_flwr.errors import ConfigError, DataError

SIZES = [row * 37 % 41 for row in range(60)]


def labelled(*labels, rows=60, **keys):
    """Return a table whose labels are some by turns."""
    return read({"a": SIZES[:rows], "y": (list(labels) * rows)[:rows]}, **keys)


def photos(folder, *names):
    """Write two images of each class, all of one grey a class."""
    greys = [encoded(grey(value)) for value in range(len(names))]
    return lay(folder, {f"{name}/{copy}.png": one for name, one in zip(names, greys, strict=True) for copy in (0, 1)})


def named(arrays):
    return [arrays.class_names[label] for label in arrays.labels]


WRITTEN = {
    "words": (["no", "yes", "maybe"], {}, ("maybe", "no", "yes")),
    "numbers": (["10", "9"], {}, ("9", "10")),
    "negative": (["-1", "1", "5"], {}, ("-1", "1", "5")),
    "points": (["4.0", "0.0"], {}, ("0", "4")),
    "decimals declared": (["1.1", "1.3", "1.30"], {"classes": "1.1,1.3,1.30"}, ("1.1", "1.3", "1.30")),
    "truth": (["true", "False"], {}, ("False", "True")),
    "zeros in front": (["001", "1", "01"], {}, ("001", "01", "1")),
    "a word among numbers": (["1.50", "1.5", "x"], {}, ("1.5", "1.50", "x")),
    "blanks": (["no", " yes", "no "], {}, ("no", "yes")),
    "long": (["9007199254740992", "9007199254740993"], {}, ("9007199254740992", "9007199254740993")),
    "longer": (
        ["123456789012345678901", "123456789012345678902"],
        {},
        ("123456789012345678901", "123456789012345678902"),
    ),
    **{word: ([word, "Insomnia"], {}, tuple(sorted([word, "Insomnia"]))) for word in ("None", "N/A", "NULL", "n/a")},
    "NA": (["NA", "EU", "AF"], {}, ("AF", "EU")),
    "NA declared": (["NA", "EU", "AF"], {"classes": "NA,EU,AF"}, ("NA", "EU", "AF")),
    "?": (["ja", " ? ", "nein"], {}, ("ja", "nein")),
    "? declared": (["ja", "?", "nein"], {"classes": "ja,nein,?"}, ("ja", "nein", "?")),
    "code": (["-9", "0", "1"], {"missing_values": "-9"}, ("0", "1")),
    "code with a point": (["1.0", "2.0", "9.0"], {"missing_values": "9"}, ("1", "2")),
    "code with zeros": (["1", "2", "009"], {"missing_values": "9"}, ("009", "1", "2")),
    "word": (["unknown", "u", "v"], {"missing_values": "unknown"}, ("u", "v")),
    "order": (["1", "2"], {"classes": "0,2,1"}, ("0", "2", "1")),
    "names": (["1", "2"], {"classes": "bad:2,good:1"}, ("bad", "good")),
    "more words": (["no", "yes"], {"classes": "yes,maybe,no"}, ("yes", "maybe", "no")),
    "capitals declared": (["no", "yes", "Yes"], {"classes": "no,yes,Yes"}, ("no", "yes", "Yes")),
    "a blank within": (["no", "y es", "yes"], {}, ("no", "y es", "yes")),
    "forty words": ([f"p{row:02}" for row in range(30)], {}, tuple(f"p{row:02}" for row in range(30))),
    "declared numbers": (range(60), {"classes": ",".join(map(str, range(60)))}, tuple(map(str, range(60)))),
}
"""Labels, keys and the classes; a label that is none of these is left out."""


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("case", WRITTEN)
def test_labels_are_classes_as_they_are_written_or_declared(case, form):
    labels, keys, classes = WRITTEN[case]
    found = labelled(*labels, form=form, **keys)
    assert found.class_names == classes
    called = {"good": "1", "bad": "2", "True": "true"}
    expected = [str(label).strip().removesuffix(".0") for label in labels]
    kept = [label for label in expected if label in {called.get(name, name) for name in classes}]
    assert [called.get(name, name) for name in named(found)][: len(kept)] == kept


@pytest.mark.parametrize(
    ("values", "feature", "classes"),
    [
        ([2, 0, 1], "int64", [2, 0, 1]),
        ([4.0, 0.0, 4.0], "float64", [1, 0, 1]),
        ([-9, 0.0, 1.0], "float64", [0, 1]),
        ([True, False, True], "bool", [1, 0, 1]),
        (["b", "a", "c"], "large_string", [1, 0, 2]),
        ([2, 0, 0], datasets.ClassLabel(names=["cat", "cow", "dog"]), [2, 0, 0]),
    ],
)
def test_labels_of_types(values, feature, classes):
    feature = datasets.Value(feature) if isinstance(feature, str) else feature
    features = datasets.Features(a=datasets.Value("int64"), y=feature)
    rows = datasets.Dataset.from_dict({"a": SIZES, "y": values * 20}, features=features)
    assert read(rows, form="parquet", missing_values="-9").labels.tolist() == classes * 20


def test_labels_of_json_are_one_however_they_are_written(tmp_path):
    rows = [{"a": size, "y": [1, "1", 1.0, 2, "2", "x"][row % 6]} for row, size in enumerate(SIZES)]
    lay(tmp_path, {"t.json": json.dumps(rows)})
    assert arrays_of(tmp_path, label_column="y").class_names == ("1", "2", "x")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([20 + row % 21 for row in range(210)], ["21 different whole numbers"]),
        ([20 + row % 20 for row in range(210)], []),
        (["a", "b", "a;b"], ["'a;b'"]),
        (["a", "b", "a; c"], []),
        (["up", "down", "up/down"], ["'up/down'"]),
        (["N/A", "u", "v"], ["missing-values=N/A"]),
        (["#N/A", "u", "v"], ["missing-values=#N/A"]),
        (["unknown", "u", "v"], ["missing-values=unknown"]),
        (["NA", "EU", "AF"], ["'NA'", "classes"]),
        (["?", "ja", "nein"], ["row 2 and 69 more"]),
        (["u", "v"] * 104 + ["u", "Total"], ["'Total' has only one row (row 211)"]),
        ([3, *[1, 2] * 104, 9], ["3 and 1 more classes have only one row (row 2)"]),
    ],
)
def test_labels_that_may_be_something_else_are_doubted_until_they_are_declared(labels, words):
    rows = {"a": [row / 7 for row in range(210)], "y": (labels * 70)[-210 if len(labels) > 100 else 0 :][:210]}
    found = read(rows)
    assert noted(found, *words) == bool(words) == bool(found.notes)
    assert not read(rows, classes=",".join(map(str, sorted({*labels})))).notes


YES = ["no", "yes", "no", "yes"]
NO_CLASSES = {
    "undeclared": (["no", "yes", "no"], {"classes": "no,maybe"}, ["row 3", "19 more", "yes", "no, maybe"]),
    "undeclared number": (["1", "2"], {"classes": "1,3"}, ["row 3", "29 more", "2"]),
    "no integers": (["1", "2"], {"classes": "no,yes"}, ["integers"]),
    "a mark of control": (["no", "yes\x00"], {}, ["'yes\\x00'"]),
    "one": (["7"], {}, ["only one value, 7"]),
    "none": ([""], {}, ["label-column"]),
    "the same number": (["1", "2", "1.0", "unknown"], {}, ["'1' and '1.0'", "write both the same way"]),
    "capitals": (["Ill", "ill", "well", "WELL"], {}, ["'Ill' and 'ill', 'WELL' and 'well'", "write both the same way"]),
    "an accent": ([*YES, "y\u00e9s", "ye\u0301s"], {}, ["write both the same way"]),
    **{
        f"the hyphen U+{ord(one):X}": ([*YES, "y-s", f"y{one}s"], {}, ["'y-s' and", "write both the same way"])
        for one in "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63"
    },
    "a soft hyphen": ([*YES, "y\u00ades"], {}, ["write both the same way"]),
    "no width": ([*YES, "y\u200bes"], {}, ["write both the same way"]),
    "a wide letter": ([*YES, "\uff59es"], {}, ["write both the same way"]),
    "quantities": ([row // 2 for row in range(60)], {}, ["30 different numbers in 60 rows", "label-column"]),
    "fractions": ([row + 0.5 for row in range(60)], {}, ["60 different ones in 60 rows", "label-column"]),
    "names": ([f"p{row}" for row in range(60)], {}, ["60 different texts in 60 rows", "label-column"]),
}


@pytest.mark.parametrize("case", NO_CLASSES)
def test_labels_that_are_no_classes_are_refused(case, refusal):
    labels, keys, words = NO_CLASSES[case]
    line = refusal(DataError, labelled, *labels, **keys)
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("train", "test", "keys", "words"),
    [
        (["ill", "x", "y"], ["well", "z"], {"classes": "ill,well"}, ["row 3 of split 'train'", "x, y, z"]),
        (["5", "7"], ["7", "6"], {}, ["row 3 of split 'test'"]),
        ([""], ["0", "1"], {}, ["split 'train'"]),
    ],
)
def test_labels_of_test_rows_are_those_of_training_rows(train, test, keys, words, refusal):
    splits = [{"a": SIZES[:40], "y": (labels * 40)[:40]} for labels in (train, test)]
    line = refusal(DataError, read, *splits, **keys)
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize("text", ["a", "a,", "a,a", "a:x,b:x", "a:,b"])
def test_classes_are_two_different_names_or_more(text, refusal):
    assert repr(text) in refusal(ConfigError, parse_classes, text)


class TestImages:
    @pytest.mark.parametrize(
        ("classes", "names"),
        [
            ("", ("benign", "unsure")),
            ("unsure,malignant,benign", ("unsure", "malignant", "benign")),
            ("good:benign,?:unsure", ("good", "?")),
        ],
    )
    def test_a_folder_has_the_classes_that_are_declared(self, tmp_path, classes, names):
        folder = photos(tmp_path / "photos", "benign", "unsure")
        data = arrays_of(folder, classes=classes)
        assert data.class_names == names
        called = {"good": "benign", "?": "unsure"}
        greys = data.inputs[:, 0, 0, 0]
        assert [called.get(name, name) for name in named(data)] == [("benign", "unsure")[one] for one in greys]
        assert data_spec(str(folder), Reading(classes=classes)).classes == data.spec.classes == len(names)

    @pytest.mark.parametrize("name", ["mnist", "mnist-m", "synthetic-digits", "usps"])
    def test_digits_have_one_name_in_all_data_sets_of_the_catalogue(self, tmp_path, name):
        """One copy calls them by words: its class 0 is 'zero', and still the digit 0."""
        words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=words))
        rows = {"image": [grey(value) for value in range(10)], "label": list(range(10))}
        lay(tmp_path / name, {"train.parquet": datasets.Dataset.from_dict(rows, features=features)})
        assert arrays_of(name, data_dir=tmp_path / name).class_names == tuple("0123456789")

    def test_a_declared_class_keeps_its_number_whatever_a_node_lacks(self, tmp_path):
        """Two nodes of which each lacks another class agree on the numbers of those that both have."""
        for lack, has in (("1", "023"), ("2", "013")):
            data = arrays_of(photos(tmp_path / lack, *has), classes="0,1,2,3")
            assert data.class_names == tuple("0123")
            assert torch.equal(data.labels.unique(), torch.tensor([*map(int, has)]))

    def test_bundled_data_have_names_and_declared_classes(self, refusal, tmp_path):
        assert arrays_of("digits").class_names == tuple("0123456789")
        data = arrays_of("breast-cancer", classes="benign,odd,malignant")
        assert data.labels.bincount().tolist() == [357, 0, 212]
        assert "malignant" in refusal(DataError, arrays_of, "breast-cancer", classes="benign,odd")
        folder = photos(tmp_path / "photos", "Malignant", "benign")
        line = refusal(DataError, arrays_of, folder, classes="benign,malignant")
        assert "Malignant in row 1 and 1 more" in line


class TestNoLabel:
    """Rows without a label are left out, and named by their file and their number in it."""

    FRAME = pd.DataFrame({"age": [row + 0.5 for row in range(ROWS)], "y": LABELS})

    @pytest.fixture
    def wards(self, tmp_path):
        return lay(tmp_path / "wards", {f"{name}.csv": self.FRAME for name in ("north", "south", "west")})

    @pytest.mark.parametrize("empty", [None, "?"])
    @pytest.mark.parametrize("name", ["north", "west"])
    def test_a_file_or_an_owner_without_any_is_no_client(self, wards, tmp_path, empty, name):
        """The first file of three, or the last; its column has no type, or that of words."""
        lay(wards, {f"{name}.csv": self.FRAME.assign(y=empty)})
        clients = load_clients(2, dataset=wards, label_column="y", partition="files")
        assert [data.name for data in clients] == [one for one in ("north", "south", "west") if one != name]
        assert noted(clients[0].train.arrays, f"file '{name}'")
        assert noted(clients[0].train.arrays, f"row 2 of file '{name}' and 39 more")
        rows = self.FRAME.assign(ward=["a"] * 10 + ["b"] * 18 + ["c"] * 12, y=[*[empty] * 10, *LABELS[10:]])
        place = lay(tmp_path / "owners", {"t.csv": rows})
        clients = load_clients(2, dataset=place, label_column="y", partition="natural:ward")
        assert [data.name for data in clients] == ["b", "c"]
        assert (noted(clients[0].train.arrays, "owner 'a'"), noted(clients[0].train.arrays, "'b'")) == (True, False)

    @pytest.mark.parametrize("blank", ["", "  "])
    def test_blank_rows_count_as_they_do_in_a_spreadsheet(self, tmp_path, refusal, blank):
        """One before the header, one after it, and two after the first row of cells."""
        header, *rows = self.FRAME.assign(y=["", *LABELS[1:]]).to_csv(index=False).splitlines()
        lay(tmp_path, {"t.csv": "\n".join([blank, header, blank, rows[0], blank, blank, *rows[1:], ""])})
        assert noted(arrays_of(tmp_path, label_column="y"), "(row 4)")
        assert "row 7" in refusal(DataError, arrays_of, tmp_path, label_column="y", classes="v,w")

    def test_rows_are_called_by_their_file_and_their_number_in_it(self, wards, refusal):
        """The header is row 1: a cell in the spreadsheet's row 7."""
        lay(wards, {"south.csv": self.FRAME.assign(y=[*LABELS[:5], "w", *LABELS[6:]])})
        keys = {"dataset": wards, "label_column": "y", "classes": "u,v"}
        assert "row 7 of file 'south'" in refusal(DataError, load_clients, 3, partition="files", **keys)
        assert "row 7 of file 'south.csv'" in refusal(DataError, load_client, **keys)
