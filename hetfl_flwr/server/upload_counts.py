"""How many uploads each client has made, which determines its epsilon."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.errors import DamagedError

COUNTS = "upload counts"
"""The kind of file that holds them."""


class UploadCounts:
    """A count for each client of the uploads that it was asked for and has not refused, late and rejected ones too.

    Parameters
    ----------
    path : Path, optional
        File that has the counts before an upload is asked for, so that uploads which a killed run had asked for count,
        as well as those that are made again in their place. Default: none, for uploads that are the same bits when they
        are made again, and tell nothing more.

    Attributes
    ----------
    counts : dict of int to int
        By client id.
    lost : bool
        Whether there may have been more, since the file was missing or damaged once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.counts: dict[int, int] = {}
        self.lost = False
        self._path = path

    def asked(self, client_ids: Iterable[int]) -> None:
        """Count an upload of each of these clients, which are about to be asked for it."""
        self._add(client_ids, 1)

    def refused(self, client_id: int) -> None:
        """Take back an upload of a client that has answered with an error."""
        self._add([client_id], -1)

    def most(self) -> int:
        """Return the most uploads that a client is known to have made."""
        return max(self.counts.values(), default=0)

    def resume(self, before: Mapping[int, int]) -> str:
        """Restore the counts of a checkpoint; or, where there is a file, its counts, which may be higher.

        Returns
        -------
        str
            What is lost of the file; empty where it is whole.
        """
        self.counts = dict(before)
        if self._path is None or not (any(before.values()) or self._path.exists()):
            return ""
        try:
            values = read_blob(self._path, COUNTS).values
        except DamagedError as error:
            self.lost = True
            return f"{error}: the number of its clients' uploads is unknown, and so is epsilon"
        self.lost = values["lost"]
        written = {int(client_id): count for client_id, count in values["counts"].items()}
        self.counts |= {client_id: max(count, before.get(client_id, 0)) for client_id, count in written.items()}
        return ""

    def _add(self, client_ids: Iterable[int], number: int) -> None:
        for client_id in client_ids:
            self.counts[client_id] = self.counts.get(client_id, 0) + number
        if self._path is not None:
            with writing(self._path):
                replace_file(self._path, pack(COUNTS, {"counts": self.counts, "lost": self.lost}, {}))
