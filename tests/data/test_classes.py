"""Which classes there are: declared, refused where a column holds none, and called by their names."""

import json
import os
from pathlib import Path

import datasets
import pytest
import torch
from datasets.features import Features
from fixtures.data.columns import source_of, write_csv, write_parquet
from fixtures.data.hub import grey
from fixtures.data.loading import load_client

from hetfl_flwr.data import Reading, data_spec, parse_classes
from hetfl_flwr.data.domains import parse_families
from hetfl_flwr.data.labels import read_labels
from hetfl_flwr.errors import ConfigError, DataError


def arrays(dataset, **reading):
    return parse_families(str(dataset), Reading(**reading))[0].arrays(0, True)[0]


def photos(folder, *names):
    """Write two images of each class, all of one grey a class."""
    for value, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for copy in range(2):
            grey(value).save(folder / name / f"{copy}.png")
    return folder


ROWS = "a,label\n" + "".join(f"{row},{row % 2 + 1}\n" for row in range(8))
WORDS = ROWS.replace(",1\n", ",no\n").replace(",2\n", ",yes\n")


def names_of_rows(data):
    return [data.class_names[label] for label in data.labels]


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        ("", ("benign", "unsure")),
        ("unsure,malignant,benign", ("unsure", "malignant", "benign")),
        ("good:benign,?:unsure", ("good", "?")),
    ],
)
def test_an_image_folder_has_the_classes_that_are_declared(tmp_path, classes, names):
    folder = photos(tmp_path / "photos", "benign", "unsure")
    data = arrays(folder, classes=classes)
    assert (data.class_names, data.spec.classes) == (names, len(names))
    called = {"good": "benign", "?": "unsure"}
    assert [called.get(name, name) for name in names_of_rows(data)] == [
        ("benign", "unsure")[value] for value in data.inputs[:, 0, 0, 0]
    ]
    assert data_spec(str(folder), Reading(classes=classes)).classes == len(names)


@pytest.mark.parametrize(
    ("lines", "keys", "names", "first"),
    [
        (ROWS, {}, ("1", "2"), "1"),
        (ROWS, {"classes": "0,2,1"}, ("0", "2", "1"), "1"),
        (ROWS, {"classes": "bad:2,good:1"}, ("bad", "good"), "good"),
        (WORDS, {"classes": "yes,maybe,no"}, ("yes", "maybe", "no"), "no"),
        (WORDS, {"classes": "yes,no", "text_column": "label"}, ("yes", "no"), "no"),
    ],
)
def test_tables_and_texts_have_the_classes_that_are_declared(tmp_path, lines, keys, names, first):
    data = arrays(write_csv(tmp_path / "own", train=lines), label_column="label", **keys)
    assert data.class_names == names
    assert names_of_rows(data)[0] == first


@pytest.mark.parametrize(
    ("dataset", "classes", "names", "counts"),
    [
        ("digits", "", tuple("0123456789"), None),
        ("breast-cancer", "benign,odd,malignant", ("benign", "odd", "malignant"), [357, 0, 212]),
    ],
)
def test_bundled_data_have_names_and_declared_classes(dataset, classes, names, counts):
    data = arrays(dataset, classes=classes)
    assert data.class_names == names
    assert data_spec(dataset, Reading(classes=classes)).classes == len(names) == data.spec.classes
    if counts:
        assert data.labels.bincount(minlength=len(names)).tolist() == counts


@pytest.mark.parametrize("name", ["mnist", "mnist-m", "synthetic-digits", "usps"])
def test_digits_have_one_name_in_all_data_sets_of_the_catalogue(tmp_path, name):
    """One copy calls them by words: its class 0 is 'zero', and still the digit 0."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    features = Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=words)})
    rows = {"image": [grey(value) for value in range(10)], "label": list(range(10))}
    (tmp_path / name).mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / name / "train.parquet")
    assert arrays(name, data_dir=str(tmp_path / name)).class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("lines", "classes", "said"),
    [
        (WORDS, "no,maybe", "row 3 of split 'train'"),
        (ROWS, "1,3", "3 more have label 2"),
        (ROWS, "no,yes", "integers"),
        (WORDS.replace(",yes\n", ",yes\x00\n", 1), "", "'yes\\x00'"),
        ("label,a,label\n0,1,0\n1,2,1\n", "", "column 'label'"),
        ("a,label,a\n0,1,0\n1,2,1\n", "", "column 'a'"),
        ("label,a, label\n0,1,0\n1,2,1\n", "", "column 'label'"),
    ],
)
def test_a_file_whose_labels_are_no_classes_is_refused(tmp_path, refusal, lines, classes, said):
    """The reader would call the second of two columns of one name 'label.1', and it would be an input."""
    folder = write_csv(tmp_path / "own", train=lines)
    assert said in refusal(DataError, arrays, folder, label_column="label", classes=classes)


def test_a_folder_or_a_bundled_class_that_is_not_declared_is_refused(tmp_path, refusal):
    folder = photos(tmp_path / "photos", "Malignant", "benign")
    assert "1 more have label Malignant" in refusal(DataError, arrays, folder, classes="benign,malignant")
    assert "malignant" in refusal(DataError, arrays, "breast-cancer", classes="benign,odd")


@pytest.mark.parametrize("text", ["a", "a,", "a,a", "a:x,b:x", "a:,b"])
def test_classes_are_two_different_names_or_more(text, refusal):
    assert repr(text) in refusal(ConfigError, parse_classes, text)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([row // 2 for row in range(442)], "221 different numbers in 442 rows"),
        ([float(row % 45) for row in range(449)], "45 different numbers in 449 rows"),
        ([f"p{row}" for row in range(40)], "40 different texts in 40 rows"),
        ([row + 0.5 for row in range(40)], "40 different ones in 40 rows"),
    ],
)
def test_a_column_that_is_no_class_is_refused_with_the_way_out(labels, said, refusal):
    line = refusal(DataError, read_labels, source_of({"a": labels, "label": labels}))
    assert said in line
    assert "label-column" in line


@pytest.mark.parametrize(
    ("labels", "keys", "classes"),
    [
        ([row % 44 for row in range(449)], {}, 44),
        ([row % 20 for row in range(40)], {}, 20),
        ([f"p{row % 40}" for row in range(80)], {}, 40),
        (list(range(30)), {"classes": ",".join(map(str, range(30)))}, 30),
    ],
)
def test_many_classes_are_classes_where_each_has_rows_or_is_declared(labels, keys, classes):
    assert read_labels(source_of({"a": labels, "label": labels}, **keys))[0] == classes


COLUMNS = {"a": [1, 2, 3], "b": [4, 5, 6], "label": [0, 1, 0]}
LACKING = {"a": [9], "label": [1]}


def write_json(folder: Path, *, form: str, **splits: dict[str, list]) -> None:
    """Write splits as one row a line, or as a list of rows; None is a key that a row lacks."""
    folder.mkdir(parents=True)
    for name, columns in splits.items():
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        there = [{key: value for key, value in row.items() if value is not None} for row in rows]
        lines = "\n".join(map(json.dumps, there))
        (folder / f"{name}.{form}").write_text(lines if form == "jsonl" else json.dumps(there, indent=1))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "json"])
def test_files_with_unlike_columns_are_refused(tmp_path, refusal, kind):
    """The reader would fill the test split's b with missing values."""
    folder = tmp_path / "own"
    if kind == "csv":
        write_csv(folder, train="a,b,label\n1,4,0\n2,5,1\n3,6,0\n", test="label,a\n1,9\n")
    elif kind == "parquet":
        write_parquet(folder, train=COLUMNS, test=LACKING)
    else:
        write_json(folder, form=kind, train=COLUMNS, test=LACKING)
    assert f"'{folder}/test.{kind}' has no column 'b'" in refusal(DataError, arrays, folder, label_column="label")
    assert arrays(folder, label_column="label", ignore_columns="b").inputs.tolist() == [[1], [2], [3], [9]]


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_key_that_a_row_of_json_lacks_is_missing_as_an_empty_cell_of_csv_is(tmp_path, form):
    """A number and a category; rows 3 to 5 are the test split."""
    csv = "a,b,c,label\n2,5,y,1\n1,,x,0\n3,6,,0\n"
    columns = {"a": [2, 1, 3], "b": [5, None, 6], "c": ["y", "x", None], "label": [1, 0, 0]}
    write_csv(tmp_path / "csv", train=csv, test=csv)
    write_json(tmp_path / "json", form=form, train=columns, test=columns)
    one, other = (arrays(tmp_path / kind, label_column="label") for kind in ("csv", "json"))
    assert one.input_names == other.input_names == ("a", "b", "c=x", "c=y", "c=None")
    assert one.inputs.isnan().sum(0).tolist() == [0, 2, 0, 0, 0]
    assert torch.equal(one.inputs.nan_to_num(-1), other.inputs.nan_to_num(-1))
    write_json(tmp_path / "label", form=form, train=columns | {"label": [0, None, 1]})
    assert arrays(tmp_path / "label", label_column="label").labels.tolist() == [0, 1]  # row 1 is left out


def test_owners_that_are_merged_are_said(tmp_path, caplog):
    """Four owners a to d: client 0 of three is a and d; it counts two."""
    lines = "x,who,label\n" + "".join(f"{row}.5,{'abcd'[row % 4]},{row % 3 % 2}\n" for row in range(40))
    folder = write_csv(tmp_path / "own", train=lines)
    keys = {"dataset": folder, "label_column": "label", "partition": "natural:who", "seed": 0}
    merged = [load_client(**keys, partition_id=k, num_partitions=3).owners for k in range(3)]
    assert merged == [2, 1, 1]
    assert "4 owners" in caplog.text
    caplog.clear()
    assert [load_client(**keys, partition_id=k, num_partitions=4).owners for k in range(4)] == [1] * 4
    assert not caplog.text
    assert load_client(**(keys | {"partition": "iid"}), partition_id=0, num_partitions=2).owners == 0


def test_a_declared_class_keeps_its_number_whatever_a_node_lacks(tmp_path):
    """Two nodes of which each lacks another class agree on the numbers of those that both have."""
    classes = "0,1,2,3"
    left, right = (arrays(photos(tmp_path / lack, *(set("0123") - {lack})), classes=classes) for lack in "12")
    for data, has in ((left, "023"), (right, "013")):
        assert sorted({data.class_names[label] for label in data.labels}) == sorted(has)
        assert data.class_names == tuple("0123")
        assert torch.equal(data.labels.unique(), torch.tensor([int(name) for name in has]))


@pytest.mark.parametrize("odd", ["Yes", "YES", "y es"])
def test_labels_that_differ_in_capitals_alone_are_refused_unless_classes_names_them(tmp_path, refusal, odd):
    folder = write_csv(tmp_path / "own", train=WORDS.replace(",yes\n", f",{odd}\n", 2))
    if odd == "y es":
        assert arrays(folder, label_column="label").class_names == ("no", "y es", "yes")
        return
    assert f"'{odd}' and 'yes'" in refusal(DataError, arrays, folder, label_column="label")
    assert arrays(folder, label_column="label", classes=f"no,yes,{odd}").class_names == ("no", "yes", odd)


@pytest.mark.parametrize("odd", ["ye\u0301s", "y\u00ads\u00e9", "y\u200bes", "\uff59es"])
def test_labels_that_look_alike_are_refused(tmp_path, refusal, odd):
    """A letter and its accent, a soft hyphen, a blank of no width, a wide letter."""
    plain = {"ye\u0301s": "y\u00e9s", "y\u00ads\u00e9": "ys\u00e9"}.get(odd, "yes")
    text = WORDS.replace(",yes\n", f",{odd}\n", 2).replace(",yes\n", f",{plain}\n")
    folder = write_csv(tmp_path / "own", train=text)
    assert "write both alike" in refusal(DataError, arrays, folder, label_column="label")


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_rows_that_are_nested_too_deeply_are_refused(tmp_path, refusal, name):
    deep = '{"a": 1, "label": 0}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "label": 1}\n'
    (tmp_path / name).write_text(deep)
    assert f"'{tmp_path / name}'" in refusal(DataError, arrays, tmp_path, label_column="label")


@pytest.mark.parametrize("content", ["3", "[null, {}]", "[[1], [2]]"])
def test_a_json_file_without_rows_is_refused(tmp_path, refusal, content):
    (tmp_path / "train.json").write_text(content)
    assert str(tmp_path / "train.json") in refusal(DataError, arrays, tmp_path)


@pytest.mark.parametrize(
    "stray", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
)
def test_an_image_or_a_table_that_is_no_file_is_refused(tmp_path, refusal, stray):
    folder = photos(tmp_path / "photos", "benign", "malignant")
    stray(folder / "benign" / "7.png")
    assert f"'{folder}/benign/7.png'" in refusal(DataError, arrays, folder)
    folder = write_csv(tmp_path / "own", a="a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    stray(tmp_path / "own" / "b.csv")
    assert f"'{folder}/b.csv'" in refusal(DataError, arrays, folder, label_column="label")


@pytest.mark.parametrize("stray", ["benign/closeup/9.png", "preview.png"])
def test_an_image_at_another_depth_is_refused_by_name(tmp_path, refusal, stray):
    """Its folder would be a class, or all splits one."""
    folder = tmp_path / "photos"
    for split in ("train", "test"):
        photos(folder / split, "benign", "malignant")
    path = folder / ("train" if "/" in stray else "") / stray
    path.parent.mkdir(exist_ok=True)
    grey(3).save(path)
    assert f"'{path.relative_to(folder)}'" in refusal(DataError, arrays, folder)


@pytest.mark.parametrize("name", ["val", "dev", "validation"])
def test_images_of_a_validation_split_are_no_training_rows(tmp_path, name):
    for split in ("train", name):
        photos(tmp_path / split, "benign", "malignant")
    found = arrays(tmp_path)
    assert (len(found.labels), any("'validation'" in note for note in found.notes)) == (4, True)


def test_an_image_of_several_pages_is_refused(tmp_path, refusal):
    folder = photos(tmp_path / "photos", "benign", "malignant")
    grey(1).save(folder / "benign" / "9.tiff", save_all=True, append_images=[grey(2)])
    assert "2 pages" in refusal(DataError, arrays, folder)


def test_an_image_whose_name_is_not_utf_8_is_named(tmp_path, refusal):
    folder = photos(tmp_path / "photos", "benign", "malignant")
    os.rename(folder / "benign" / "0.png", os.fsencode(folder / "benign") + b"/\xff.png")
    assert f"'{folder}/benign/\\udcff.png'" in refusal(DataError, arrays, folder)
