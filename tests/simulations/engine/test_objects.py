"""Data sets in memory: data frames, Hugging Face and torch data sets; one for all clients, or one per client."""

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hetfl_flwr.data import Reading, Split, load_client_data
from hetfl_flwr.errors import DataError
from simulations.api import config_keys, load, run
from simulations.engine.objects import stored

ROWS = 60


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hetfl-objects"


@pytest.fixture
def frame():
    numbers = {"age": [row + 0.5 for row in range(ROWS)], "bp": [row / 4 for row in range(ROWS)]}
    words = {"ward": ["a", "b"] * (ROWS // 2), "sick": ["ill", "well", "well"] * (ROWS // 3)}
    return pd.DataFrame(numbers | words)


class Arrow:
    """A frame that supports only one of the two protocols, like polars and others."""

    def __init__(self, table, protocol):
        setattr(type(self), protocol, lambda self, *args, **keys: getattr(table, protocol)(*args, **keys))


class Pairs(Dataset):
    def __init__(self, images, labels, classes=None):
        self.images, self.labels = images, labels
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return self.images[number], self.labels[number]


def read(folder, **reading):
    """Read all rows of a folder, as one client's."""
    split = Split(dataset=str(folder), clients=1, seed=0, reading=Reading(**reading), normalize="none")
    return load_client_data(split, 0).train.arrays


def coded(frame):
    """Return labels as a dictionary array of string views."""
    codes, names = (frame.sick == "well").astype("uint32"), pa.array(["ill", "well"], pa.string_view())
    return pa.DictionaryArray.from_arrays(codes, names)


TABLES = {
    "pandas": lambda frame: frame.set_index("age", drop=False),
    "category": lambda frame: frame.astype({"ward": "category", "sick": "category"}),
    "datasets": datasets.Dataset.from_pandas,
    "stream": lambda frame: type("Stream", (Arrow,), {})(pa.table(frame), "__arrow_c_stream__"),
    "view": lambda frame: pa.table(frame).set_column(3, "sick", pa.array(frame.sick.tolist(), pa.string_view())),
    "coded view": lambda frame: pa.table(frame).set_column(3, "sick", coded(frame)),
    "interchange": lambda frame: type("Frame", (Arrow,), {})(pa.table(frame), "__dataframe__"),
    "polars": lambda frame: pytest.importorskip("polars", reason="polars is not installed").from_pandas(frame),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_what_pandas_has(frame, kind):
    folder, several = stored(TABLES[kind](frame))
    arrays = read(folder, label_column="sick")
    assert not several
    assert arrays.class_names == ("ill", "well")
    assert arrays.input_names == ("age", "bp", "ward=b (else a)")
    expected = frame.assign(ward=frame.ward == "b")[["age", "bp", "ward"]].to_numpy(np.float32)
    assert np.array_equal(arrays.inputs.numpy(), expected)
    assert arrays.labels.tolist() == (frame.sick == "well").astype(int).tolist()


def test_what_a_mask_hides_is_missing():
    masked = np.ma.masked_equal(np.arange(ROWS) % 3, 1)
    arrays = read(stored({"age": masked, "sick": np.arange(ROWS) % 2})[0], label_column="sick")
    assert np.array_equal(arrays.inputs[:, 0], masked.astype(float).filled(np.nan), equal_nan=True)


def test_equal_contents_are_written_once_and_others_elsewhere(frame, cache):
    first, again, other = stored(frame)[0], stored(frame.copy())[0], stored(frame.assign(age=1))[0]
    assert first == again != other
    assert sorted(cache.iterdir()) == sorted([first, other])


def test_a_test_split_stays_one(frame):
    parts = datasets.DatasetDict({name: datasets.Dataset.from_pandas(frame) for name in ("train", "test", "spare")})
    arrays = read(stored(parts)[0], label_column="sick")
    assert (len(arrays.labels), arrays.train_rows) == (2 * ROWS, ROWS)


@pytest.mark.parametrize("scale", [1, 255])
def test_images_of_torch_are_kept_to_eight_bits(scale):
    """Fractions are rounded to 255 steps; integers are unchanged."""
    digits = load_digits()
    pixels = np.rint(digits.images[:ROWS] * 255 / 16).astype(np.uint8)
    images = torch.from_numpy(pixels) if scale == 255 else torch.from_numpy(pixels / np.float32(255))[:, None]
    arrays = read(stored(Pairs(images, digits.target[:ROWS].tolist()))[0])
    assert np.array_equal(arrays.inputs[:, 0].numpy(), pixels)
    assert arrays.labels.tolist() == digits.target[:ROWS].tolist()
    assert arrays.class_names == tuple(map(str, range(10)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_vectors_of_torch_are_a_table_of_numbers(dtype):
    """Unique integers are not taken for ids here, so no config key is needed to keep them."""
    vectors = torch.stack([torch.arange(ROWS), torch.arange(ROWS) % 2], dim=1).to(dtype)
    labels = torch.arange(ROWS) % 3
    arrays = read(stored(TensorDataset(vectors, labels))[0])
    assert torch.equal(arrays.inputs[:, 1], vectors[:, 1].float())
    assert dtype is torch.bool or torch.equal(arrays.inputs[:, 0], vectors[:, 0].float())
    assert arrays.input_names == ("x0", "x1")
    assert arrays.labels.tolist() == labels.tolist()


def test_vectors_keep_double_precision():
    """As seconds since 1970 need it."""
    vectors = 1.7e9 + torch.arange(ROWS, dtype=torch.float64)[:, None]
    arrays = read(stored(TensorDataset(vectors, torch.arange(ROWS) % 2))[0])
    assert (arrays.inputs.double() + torch.as_tensor(arrays.centre)).flatten().tolist() == vectors.flatten().tolist()


def test_colours_and_names_of_classes_are_kept():
    images = torch.randint(256, (12, 3, 6, 5), dtype=torch.uint8)
    arrays = read(stored(Pairs(images, [0, 1] * 6, ["cat", "dog"]))[0])
    assert torch.equal(arrays.inputs, images)
    assert arrays.class_names == ("cat", "dog")


def test_a_run_with_a_frame_for_each_client_has_their_names(frame, tmp_path):
    """Names need not be valid file names, and a resumed run reads the folder that its config names."""
    parts = {"a/b": frame[:20], "..": frame[20:40], "": frame[40:], "x" * 300: frame[:30]}
    keys = {"label_column": "sick", "models": "mlp", "out": tmp_path / "run", "progress": False}
    done = run("fedhe", dataset=parts, rounds=1, **keys)
    names = done.clients.query("round == 1").name.tolist()
    assert names[:2] == ["a/b", ".."]
    assert (str(names[2]), len(names[3])) == ("nan", 100) or (names[2], len(names[3])) == (None, 100)
    assert (done.config["clients"], done.config["partition"]) == (4, "files")
    went_on = run("fedhe", rounds=2, resume=True, out=tmp_path / "run", progress=False)
    assert went_on.summary["rounds"] == 2
    assert len(load(tmp_path / "run").node(0).data.train) + len(load(tmp_path / "run").node(0).data.test) < 20


def test_a_list_is_one_a_client_without_names():
    images = torch.zeros(20, 8, 8, dtype=torch.uint8)
    keys = config_keys({}, {"dataset": [Pairs(images, [0, 1] * 10), Pairs(images, [2, 1] * 10)]})
    split = Split(dataset=keys["dataset"], clients=2, seed=0, partition=keys["partition"])
    clients = [load_client_data(split, client_id) for client_id in range(2)]
    assert split.partition == "files"
    assert [data.name for data in clients] == ["", ""]
    assert [data.train.class_counts(3)[[0, 2]].gt(0).tolist() for data in clients] == [[True, False], [False, True]]


@pytest.mark.parametrize("where", ["", " of dataset['South']", " of dataset['train']"])
def test_rows_count_from_0_as_those_of_a_frame_do_and_the_frame_is_named(frame, refusal, where):
    """Not the folder that it was written to."""
    good = frame[:30].copy()
    frame.loc[7, "sick"] = "maybe"
    given = {
        "": frame,
        " of dataset['South']": {"North": good, "South": frame},
        " of dataset['train']": datasets.DatasetDict(train=datasets.Dataset.from_pandas(frame)),
    }[where]
    keys, reading = config_keys({}, {"dataset": given}), Reading(label_column="sick", classes="ill,well")
    split = Split(dataset=keys["dataset"], clients=2, seed=0, reading=reading, partition=keys.get("partition", "iid"))
    assert f"in row 7{where}:" in refusal(DataError, load_client_data, split, 0)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2, 2), 0


class Lazy:
    def collect(self):
        return pd.DataFrame({"a": [1]})


IMAGE = torch.zeros(1, 4, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "dataset is an int"),
        ([], "dataset is empty"),
        (pd.DataFrame({"a": []}), "no rows"),
        (pd.DataFrame({"a": [1, "x"]}), "'x'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column 'a'"),
        ({"A": pd.DataFrame({"a": [1]}), "B": 3}, "dataset['B'] is an int"),
        ([pd.DataFrame({"a": [1]}), "digits"], "dataset[1] is a str"),
        (Lazy(), "collect()"),
        (Stream(), "__getitem__"),
        (Pairs([IMAGE], ["cat"]), "item 0 of dataset has label 'cat'"),
        (Pairs([IMAGE], [-1]), "item 0 of dataset has label -1"),
        (Pairs([IMAGE], [2], ["cat", "dog"]), "item 0 of dataset has label 2"),
        (Pairs([IMAGE + 2], [0]), "item 0 of dataset holds float32"),
        (Pairs([IMAGE * np.nan], [0]), "item 0 of dataset holds float32"),
        (Pairs([torch.zeros(2, 4, 4)], [0]), "item 0 of dataset has shape (2, 4, 4)"),
        (TensorDataset(torch.zeros(2, 4, 4)), "item 0 of dataset is a tuple"),
        (Pairs([torch.zeros(3), torch.zeros(2)], [0, 1]), "item 1 of dataset is a Tensor"),
        (Pairs([torch.zeros(0)], [0]), "item 0 of dataset is a Tensor"),
        (Pairs([torch.zeros(2, dtype=torch.complex64)], [0]), "item 0 of dataset is a Tensor"),
        (Pairs([np.array(["a", "b"])], [0]), "np.ndarray"),
        ([Pairs([IMAGE], [0], ["a", "b"]), Pairs([IMAGE], [0], ["b", "a"])], "classes"),
    ],
)
def test_what_is_no_data_set_is_refused(refusal, cache, given, said):
    assert said in refusal(DataError, stored, given)
    assert not cache.exists() or not [*cache.iterdir()]
