"""Files and folders: what cannot be read or written is one error, and nothing is waited for."""

import os

import pytest

from hetfl_flwr.common.files import check_writable, read_file


def test_what_is_no_plain_file_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(path)


def test_a_file_larger_than_memory_is_an_error(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(OSError, match="does not fit into memory"):
        read_file(tmp_path / "large")
    (tmp_path / "small").write_bytes(b"all of it")
    assert read_file(tmp_path / "small") == b"all of it"


def test_a_folder_is_writable_if_the_one_that_it_is_made_in_is(tmp_path):
    """Not below a file, and not where a link leads nowhere: no folder can be made there."""
    assert check_writable(tmp_path / "new" / "state") == tmp_path
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "link", "loop"):
        for folder in (tmp_path / name, tmp_path / name / "state"):
            with pytest.raises(OSError, match=r"\[Errno"):
                folder.mkdir(parents=True, exist_ok=True)
            with pytest.raises(OSError, match=r"\[Errno"):
                check_writable(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "loop"}
