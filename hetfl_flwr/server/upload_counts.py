"""The number of uploads of each client, which determines its epsilon."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.errors import DamagedError

COUNTS = "upload counts"
"""File kind of upload counts."""


class UploadCounts:
    """Counts, by client id, of the uploads that were requested and not refused, including late and rejected ones.

    The file, if any, is written before an upload is requested, so the uploads of a killed run count as well as those
    that repeat them after it resumes. Without noise from entropy no file is needed, since a repeated upload has the
    same bits and reveals nothing more. ``lost`` says whether there may have been more uploads, because the file was
    missing or damaged once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.counts: dict[int, int] = {}
        self.lost = False
        self._path = path

    def asked(self, client_ids: Iterable[int]) -> None:
        """Count an upload of each of these clients, before it is requested."""
        self._add(client_ids, 1)

    def refused(self, client_id: int) -> None:
        """Subtract the upload of a client that replied with an error."""
        self._add([client_id], -1)

    def most(self) -> int:
        """Return the largest count of any client."""
        return max(self.counts.values(), default=0)

    def resume(self, before: Mapping[int, int]) -> str:
        """Restore the counts of a checkpoint or, with a file, the file's counts, which may be higher.

        Returns a message if the file is missing or damaged, else an empty text.
        """
        self.counts = dict(before)
        if self._path is None or not (any(before.values()) or self._path.exists()):
            return ""
        try:
            values = read_blob(self._path, COUNTS).values
        except DamagedError as error:
            self.lost = True
            return f"{error}: the number of uploads of its clients, and so epsilon, is unknown"
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
