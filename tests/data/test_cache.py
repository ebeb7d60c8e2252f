"""Large decoded data sets: one file a machine, whole or not there, mapped by all."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import datasets
import numpy as np
import pytest
from fixtures.data.hub import grey, table, write
from fixtures.data.loading import load_client

from hetfl_flwr.data import cache
from hetfl_flwr.errors import DataError

SHAPE = (4, 3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep every array in a folder of this test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(cache, "SMALL", 0)
    return tmp_path / "cache" / "hetfl-decoded"


class Maker:
    """Makes an array of some number in two batches, and counts how often."""

    def __init__(self, value=7):
        self.value, self.calls = value, 0

    def __call__(self):
        self.calls += 1
        yield np.full((3, 3), self.value, np.uint8)
        yield np.full((1, 3), self.value + 1, np.uint8)


def kept(make, key=("a",), shape=SHAPE, dtype=np.uint8):
    return cache.kept(key, shape, dtype, make)


def names(folder):
    return sorted(path.suffix for path in folder.iterdir())


def test_an_array_is_made_once_and_mapped_from_then_on(folder):
    make = Maker()
    first, second = kept(make), kept(make)
    assert first.tolist() == second.tolist() == [[7] * 3] * 3 + [[8] * 3]
    assert make.calls == 1
    assert isinstance(first, np.memmap)
    assert names(folder) == [".npy"]


def test_what_is_written_to_an_array_stays_here():
    first = kept(Maker())
    first[:] = 0
    assert kept(Maker())[0, 0] == 7


def test_a_small_array_is_not_written(folder, monkeypatch):
    monkeypatch.setattr(cache, "SMALL", 12)
    assert kept(Maker()).tolist() == [[7] * 3] * 3 + [[8] * 3]
    assert not folder.exists()
    kept(Maker(), dtype=np.int32)
    assert names(folder) == [".npy"]


@pytest.mark.parametrize("change", [{"key": ("b",)}, {"shape": (4, 3, 1)}, {"dtype": np.int16}])
def test_another_array_is_another_file(folder, change):
    kept(Maker())
    make = Maker(9)
    batches = (lambda: (batch[..., None] for batch in make())) if "shape" in change else make
    assert kept(batches, **change).max() == 10
    assert names(folder) == [".npy"] * 2


@pytest.mark.parametrize("content", ["short", "empty", "foreign", "no array"])
def test_a_file_that_is_not_the_array_is_made_anew(folder, content):
    kept(Maker())
    [path] = folder.iterdir()
    whole = path.read_bytes()
    if content == "foreign":
        np.save(path, np.zeros((2, 2)))
    else:
        path.write_bytes({"short": whole[:-1], "empty": b"", "no array": b"x" * len(whole)}[content])
    make = Maker()
    assert kept(make)[3, 0] == 8
    assert make.calls == 1
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_leaves_memory_and_one_line(folder, caplog):
    folder.parent.mkdir()
    folder.write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING):
        assert kept(Maker()).tolist() == [[7] * 3] * 3 + [[8] * 3]
    [record] = caplog.records
    assert str(folder) in record.getMessage()


def test_a_full_disk_leaves_memory_and_no_rest(folder, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert kept(Maker())[3, 0] == 8
    assert names(folder) == []


def test_batches_that_fail_leave_no_file(folder):
    def fail():
        yield np.zeros((3, 3), np.uint8)
        raise DataError("image 3 is none")

    with pytest.raises(DataError, match="image 3 is none"):
        kept(fail)
    assert names(folder) == []


def test_two_that_make_it_at_the_same_time_do_no_harm(folder):
    barrier = Barrier(2)

    def make():
        yield np.full((3, 3), 7, np.uint8)
        barrier.wait(10)
        yield np.full((1, 3), 8, np.uint8)

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(kept, make) for _ in range(2)])
    assert first.tolist() == second.tolist() == [[7] * 3] * 3 + [[8] * 3]
    assert names(folder) == [".npy"]


class TestImages:
    @staticmethod
    def load(root, **keys):
        place = {"partition_id": 0, "num_partitions": 1, "seed": 0, "normalize": "none"}
        return load_client(dataset=str(root / "zoo/pets"), **place, **keys).train

    def test_clients_train_on_mapped_images(self, tmp_path, folder):
        root = write(tmp_path, train=table([grey(10 * row) for row in range(6)]))
        data = self.load(root)
        assert data.arrays.inputs[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
        assert names(folder) == [".npy"]

    def test_another_size_order_or_content_is_another_file(self, tmp_path, folder):
        root = write(tmp_path, train=table(breed=[0, 1] * 3))
        self.load(root, label_column="label")
        assert len(names(folder)) == 1
        self.load(root, label_column="breed")
        assert len(names(folder)) == 1
        self.load(root, label_column="label", image_size=3)
        assert len(names(folder)) == 2
        ordered = self.load(root, label_column="label", domain_column="breed").arrays
        assert ordered.inputs[:, 0, 0, 0].tolist() == [0, 20, 40]
        assert len(names(folder)) == 3
        self.load(write(tmp_path / "other", train=table([grey(200 + row) for row in range(6)])))
        assert len(names(folder)) == 4
