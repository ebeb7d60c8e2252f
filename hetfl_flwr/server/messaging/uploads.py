"""How many uploads each client has made: what the epsilon of its privacy is a matter of."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetfl_flwr.errors import RunFolderError


class Uploads:
    """A count for each client, of what it was asked for and has not refused: late and rejected uploads were sent, too.

    Parameters
    ----------
    path : Path, optional
        File to which each change is written at once, so that uploads which a run that was killed had asked for count,
        beside those that are made again in their place. Default: none, for uploads that are the same bits when they
        are made again, and tell nothing more.

    Attributes
    ----------
    counts : dict of int to int
        By partition.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.counts: dict[int, int] = {}
        self._path = path

    def asked(self, client_ids: Iterable[int]) -> None:
        """Count an upload of each of these clients: they are about to be asked for it."""
        self._add([(client_id, 1) for client_id in client_ids])

    def refused(self, client_id: int) -> None:
        """Take an upload of a client back: an error came instead."""
        self._add([(client_id, -1)])

    def go_on(self, before: Mapping[int, int]) -> None:
        """Take up the counts of a checkpoint; or, where there is a file, its counts, which may be higher."""
        self.counts = dict(before)
        if self._path is not None and self._path.exists():
            written: Counter[int] = Counter()
            for line in self._path.read_text(errors="replace").splitlines():
                with suppress(ValueError):  # a line that was cut
                    written[abs(int(line)) - 1] += 1 if int(line) > 0 else -1
            clients = sorted(before.keys() | written.keys())
            self.counts = {client: max(before.get(client, 0), written[client]) for client in clients}

    def _add(self, changes: list[tuple[int, int]]) -> None:
        for client_id, number in changes:
            self.counts[client_id] = self.counts.get(client_id, 0) + number
        if self._path is not None and changes:
            try:
                with self._path.open("a") as file:
                    file.write("".join(f"{number * (client_id + 1)}\n" for client_id, number in changes))
            except OSError as error:
                raise RunFolderError(f"{self._path} cannot be written: {error.strerror}") from None
