"""``rounds.jsonl``: written a line at a time, and read back as far as a checkpoint knows it."""

import os
from hashlib import blake2b
from pathlib import Path
from typing import TypedDict

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.runs.schema import ROUNDS_FILE, Round, read_rounds, round_line


class Known(TypedDict):
    """What a checkpoint says of the rounds before it: how many bytes of the file they take, and their checksum."""

    bytes: int
    checksum: str


class RoundLog:
    """The rounds of a run on disk.

    Parameters
    ----------
    folder : Path
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / ROUNDS_FILE
        self._written = b""
        self._bytes, self._hash = 0, blake2b(digest_size=32)
        self._damaged = False

    @property
    def known(self) -> Known:
        """What there is so far."""
        return {"bytes": self._bytes, "checksum": self._hash.hexdigest()}

    def add(self, entry: Round) -> None:
        """Write a round: all of its line, or none."""
        line = round_line(entry) + b"\n"
        with self._path.open("ab", buffering=0) as file:
            whole = file.seek(0, os.SEEK_END)
            try:
                left = line
                while left:  # a disk that is nearly full takes a part
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(whole)
                raise
        self._bytes += len(line)
        self._hash.update(line)

    def sync(self) -> None:
        """Let all rounds reach the disk."""
        with self._path.open("a") as file:
            os.fsync(file.fileno())

    def read(self, known: Known) -> str:
        """Read the rounds that a checkpoint knows, and return what is wrong with the file; empty: nothing.

        If it is not as the checkpoint knows it, none of its rounds are used.
        """
        content = self._path.read_bytes() if self._path.is_file() else b""
        self._written = content[: known["bytes"]]
        self._hash.update(self._written)
        if self._hash.hexdigest() == known["checksum"]:
            self._bytes = known["bytes"]
            return ""
        self._written, self._hash, self._damaged = b"", blake2b(digest_size=32), True
        return f"{self._path} is {'not as the checkpoint knows it' if content else 'missing or empty'}"

    def restore(self) -> list[Round]:
        """Write the rounds that were read, without those after the checkpoint, and return them.

        A file that is not as the checkpoint knows it is kept as ``rounds.damaged.jsonl``.
        """
        if self._damaged and self._path.is_file():
            self._path.replace(self._path.with_name("rounds.damaged.jsonl"))
        replace_file(self._path, self._written)
        return [entry for _, _, entry in read_rounds(self._folder)]
