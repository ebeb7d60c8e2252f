"""How many uploads each client has made: what the epsilon of its privacy is a matter of."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from hetfl_flwr.common.errors import RunFolderError
from hetfl_flwr.common.files import replace_file

LONGEST = 64
"""Bytes of a line, at most."""

_LINE = re.compile(rb"(-?[0-9]{1,10})(?: ([0-9a-f]{8}))?")

LOST = 0
"""What stands in the file in place of a client's number where lines before it are lost."""


class UploadCounts:
    """A count for each client, of what it was asked for and has not refused: late and rejected uploads were sent, too.

    Parameters
    ----------
    path : Path, optional
        File to which each change is written, and the disk has it before anything is asked for, so that uploads which a
        run that was killed had asked for count, beside those that are made again in their place. A line is a client's
        number (from 1, negative where an upload was refused) and a checksum of all lines so far. Default: none, for
        uploads that are the same bits when they are made again, and tell nothing more.

    Attributes
    ----------
    counts : dict of int to int
        By client id.
    lost : bool
        Whether there may have been more, since some of the file is lost.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.counts: dict[int, int] = {}
        self.lost = False
        self._path = path
        self._sum = ""
        self._whole = bytearray()
        self._further: list[int] = []

    def asked(self, client_ids: Iterable[int]) -> None:
        """Count an upload of each of these clients: they are about to be asked for it."""
        self._add([(client_id, 1) for client_id in client_ids])

    def refused(self, client_id: int) -> None:
        """Take an upload of a client back: an error came instead."""
        self._add([(client_id, -1)])

    def most(self) -> int:
        """Return the most uploads that a client is known to have made."""
        return max(self.counts.values(), default=0)

    def go_on(self, before: Mapping[int, int]) -> str:
        """Take up the counts of a checkpoint; or, where there is a file, its counts, which may be higher.

        Returns
        -------
        str
            What is lost of the file; nothing where it is whole. Nothing is written before `repair`.
        """
        self.counts = dict(before)
        if self._path is None:
            return ""
        written, reached, problem = Counter[int](), Counter[int](), ""
        try:
            for client_id, number in self._read():
                written[client_id] += number
                reached[client_id] = max(reached[client_id], written[client_id])
        except FileNotFoundError:
            problem = "is missing" if any(before.values()) else ""
        except (OSError, ValueError) as error:
            problem = str(getattr(error, "strerror", None) or error)
        if not problem and any(reached[client_id] < count for client_id, count in before.items()):
            problem = "lacks uploads that the checkpoint counts"
        clients = sorted(before.keys() | written.keys())
        self.counts = {client_id: max(before.get(client_id, 0), written[client_id]) for client_id in clients}
        self._further = [LOST] * bool(problem)
        for client_id in clients:
            self._further += [client_id + 1] * (self.counts[client_id] - written[client_id])
        self.lost = self.lost or bool(problem)
        means = "how many uploads its clients have made is not known, and no epsilon with it"
        return f"{self._path} {problem}: {means}" if problem else ""

    def repair(self) -> None:
        """Write the file again where it is not as `go_on` has understood it: without a line that was cut."""
        if self._path is None:
            return
        try:
            replace_file(self._path, bytes(self._whole) + b"".join(map(self._line, self._further)))
        except OSError as error:
            raise RunFolderError(f"{self._path} cannot be written: {error.strerror}") from None

    def _read(self) -> Iterator[tuple[int, int]]:
        """Go through the changes in the file; a last line that a kill has cut short is none.

        Raises
        ------
        OSError
            It cannot be read.
        ValueError
            A line is damaged: says which.
        """
        assert self._path is not None
        if not stat.S_ISREG(self._path.stat().st_mode):
            raise ValueError("is no file")
        with self._path.open("rb") as file:
            for row, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
                whole = line.removesuffix(b"\n")
                found = _LINE.fullmatch(whole)
                if whole == line and len(line) < LONGEST and not (found and found[2]):
                    return
                number = int(found[1]) if found else LOST
                checksum = _checksum(self._sum, number)
                if not found or not found[2] or found[2].decode() != checksum:
                    raise ValueError(f"is damaged in line {row}")
                self._sum = checksum
                self._whole += whole + b"\n"
                if number == LOST:
                    self.lost = True
                else:
                    yield abs(number) - 1, 1 if number > 0 else -1

    def _line(self, number: int) -> bytes:
        self._sum = _checksum(self._sum, number)
        return f"{number} {self._sum}\n".encode()

    def _add(self, changes: list[tuple[int, int]]) -> None:
        for client_id, number in changes:
            self.counts[client_id] = self.counts.get(client_id, 0) + number
        if self._path is not None and changes:
            lines = b"".join(self._line(number * (client_id + 1)) for client_id, number in changes)
            try:
                if not self._path.exists():
                    replace_file(self._path, b"")
                with self._path.open("ab") as file:
                    file.write(lines)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunFolderError(f"{self._path} cannot be written: {error.strerror}") from None


def _checksum(before: str, number: int) -> str:
    return blake2b(f"{before} {number}".encode(), digest_size=4).hexdigest()
