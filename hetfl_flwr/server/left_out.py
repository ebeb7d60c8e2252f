"""Collects the clients whose uploads a robust average leaves out; they are reported, as they may be honest."""

from collections.abc import Iterable, Sequence
from logging import INFO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.flower import log
from hetfl_flwr.learning.aggregation import Average
from hetfl_flwr.server.exchange import Upload
from hetfl_flwr.wire.naming import called


class LeftOut:
    """Collects the clients whose uploads a robust average leaves out.

    "median" and coordinate-wise "trimmed" leave out no client.

    Examples
    --------
    >>> from hetfl_flwr.learning.aggregation import parse_robust
    >>> left_out = LeftOut(parse_robust("multikrum:1"))
    >>> left_out.kept([0, 4, 7], [np.array([[1.0], [90.0], [2.0]])]).tolist()
    [True, False, True]
    >>> left_out.taken()
    [4]
    """

    def __init__(self, robust: Average) -> None:
        self._robust = robust
        self._clients: set[int] = set()

    def kept(
        self, client_ids: Iterable[int], arrays: Sequence[NDArray[Any]], has: Sequence[NDArray[np.bool_]] | None = None
    ) -> NDArray[np.bool_]:
        """Return which of K clients' uploads are averaged, see `Average.kept`, and collect the other clients."""
        return self.note(client_ids, self._robust.kept(arrays, has))

    def kept_uploads(self, uploads: Sequence[Upload]) -> list[Upload]:
        """Return the uploads that are averaged, and collect the other clients; all uploads have the same arrays."""
        if self._robust.form != "multikrum":
            return list(uploads)
        sent = [np.stack([one.arrays[name] for one in uploads]) for name in uploads[0].arrays]
        kept = self.kept([one.client_id for one in uploads], sent)
        return [one for one, its in zip(uploads, kept, strict=True) if its]

    def kept_rows(self, client_ids: Iterable[int], rows: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the rows that are averaged, and collect the other clients; there is one row per client."""
        if self._robust.form != "multikrum" or len(rows) == 0:
            return list(rows)
        kept = self.kept(client_ids, [np.stack(rows)])
        return [row for row, its in zip(rows, kept, strict=True) if its]

    def note(self, client_ids: Iterable[int], kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Collect the clients whose uploads are not averaged in full, and return ``kept`` (K,)."""
        self._clients |= {client_id for client_id, its in zip(client_ids, kept, strict=True) if not its}
        return kept

    def log(self, algorithm: str, round: int, clients: Sequence[int]) -> None:
        """Log which clients' uploads were left out in a round, in part or in full."""
        if clients:
            form, called_so = self._robust.form, ", ".join(map(called, clients))
            log(INFO, "%s, round %d: %s leaves out %s", algorithm, round, form, called_so)

    def taken(self) -> list[int]:
        """Return the clients whose uploads were left out since the last call, in part or in full."""
        taken, self._clients = sorted(self._clients), set()
        return taken
