"""Files that are read: what is none, and what is too large, is one error and nothing is waited for."""

import os

import pytest

from hetfl_flwr.common.files import read_file


def test_what_is_no_plain_file_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="it is no file"):
            read_file(path)


def test_a_file_larger_than_memory_is_an_error(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(OSError, match="larger than the memory here"):
        read_file(tmp_path / "large")
    (tmp_path / "small").write_bytes(b"all of it")
    assert read_file(tmp_path / "small") == b"all of it"
