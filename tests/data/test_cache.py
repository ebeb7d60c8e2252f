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


WHOLE = [[7] * 3] * 3 + [[8] * 3]


def test_an_array_is_made_once_and_mapped_from_then_on(folder):
    """What is written to it stays here."""
    make = Maker()
    first, second = kept(make), kept(make)
    assert first.tolist() == second.tolist() == WHOLE
    assert (make.calls, isinstance(first, np.memmap), names(folder)) == (1, True, [".npy"])
    first[:] = 0
    assert kept(make).tolist() == WHOLE


def test_a_small_array_is_not_written(folder, monkeypatch):
    monkeypatch.setattr(cache, "SMALL", 12)
    assert kept(Maker()).tolist() == WHOLE
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
        assert kept(Maker()).tolist() == WHOLE
    [record] = caplog.records
    assert str(folder) in record.getMessage()


def test_a_full_disk_or_batches_that_fail_leave_no_file(folder, monkeypatch):
    def fail(*args):
        yield np.zeros((3, 3), np.uint8)
        raise DataError("image 3 is none")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="image 3 is none"):
        kept(fail)
    monkeypatch.setattr(os, "fsync", full)
    assert kept(Maker()).tolist() == WHOLE
    assert names(folder) == []


def test_two_that_make_it_at_the_same_time_do_no_harm(folder):
    barrier = Barrier(2)

    def make():
        yield np.full((3, 3), 7, np.uint8)
        barrier.wait(10)
        yield np.full((1, 3), 8, np.uint8)

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(kept, make) for _ in range(2)])
    assert first.tolist() == second.tolist() == WHOLE
    assert names(folder) == [".npy"]


def test_images_of_another_size_order_or_content_are_another_file(tmp_path, folder):
    def load(root, **keys):
        return load_client(dataset=root / "zoo/pets", normalize="none", **keys).train.arrays.inputs[:, 0, 0, 0].tolist()

    root = write(tmp_path, train=table(breed=[0, 1] * 3))
    other = write(tmp_path / "other", train=table([grey(200 + row) for row in range(6)]))
    for files, place, keys, first in (
        (1, root, {"label_column": "label"}, [0, 10, 20, 30, 40, 50]),
        (1, root, {"label_column": "breed"}, [0, 10, 20, 30, 40, 50]),
        (2, root, {"label_column": "label", "image_size": 3}, [0, 10, 20, 30, 40, 50]),
        (3, root, {"label_column": "label", "domain_column": "breed"}, [0, 20, 40]),
        (4, other, {}, [200, 201, 202, 203, 204, 205]),
    ):
        assert load(place, **keys) == first
        assert names(folder) == [".npy"] * files
