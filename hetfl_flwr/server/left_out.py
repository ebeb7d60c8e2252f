"""Whose uploads a robust average leaves out: said by name, since an honest client's may be among them."""

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
    """Takes note of whom a robust average leaves out, and logs it once a round.

    Parameters
    ----------
    robust : Average
        How it averages. "median" leaves out nobody, nor does "trimmed" of coordinates.

    Examples
    --------
    >>> from hetfl_flwr.learning.aggregation import parse_robust
    >>> left_out = LeftOut(parse_robust("multikrum:1"))
    >>> left_out.kept([0, 4, 7], [np.array([[1.0], [90.0], [2.0]])]).tolist()
    [True, False, True]
    >>> str(left_out)
    'client 4'
    """

    def __init__(self, robust: Average) -> None:
        self._robust = robust
        self._clients: set[int] = set()
        self._told = ""
        self._uploads = 0
        self._since: set[int] = set()

    def __str__(self) -> str:
        """Return who has been left out since the last round was told; empty: nobody."""
        return ", ".join(map(called, sorted(self._clients)))

    def kept(
        self, client_ids: Iterable[int], arrays: Sequence[NDArray[Any]], has: Sequence[NDArray[np.bool_]] | None = None
    ) -> NDArray[np.bool_]:
        """Say whose uploads are averaged, as `Average.kept`, and take note of the others.

        Parameters
        ----------
        client_ids : iterable of int
            Who has uploaded, K clients.
        arrays, has : sequence of array
            As there.
        """
        return self.note(client_ids, self._robust.kept(arrays, has))

    def kept_uploads(self, uploads: Sequence[Upload]) -> list[Upload]:
        """Return the uploads that are averaged, of one or more with the same arrays, and take note of the others."""
        if self._robust.form != "multikrum":
            return list(uploads)
        sent = [np.stack([one.arrays[name] for one in uploads]) for name in uploads[0].arrays]
        kept = self.kept([one.client_id for one in uploads], sent)
        return [one for one, its in zip(uploads, kept, strict=True) if its]

    def kept_rows(self, client_ids: Iterable[int], rows: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return those rows, one of each client, that are averaged, and take note of the others."""
        if self._robust.form != "multikrum" or len(rows) == 0:
            return list(rows)
        kept = self.kept(client_ids, [np.stack(rows)])
        return [row for row, its in zip(rows, kept, strict=True) if its]

    def note(self, client_ids: Iterable[int], kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take note of those of whose uploads something is not averaged, and return ``kept`` (K,)."""
        self._uploads = max(self._uploads, len(kept))
        self._clients |= {client_id for client_id, its in zip(client_ids, kept, strict=True) if not its}
        return kept

    def tell(self, algorithm: str, round: int, *, again: bool = True) -> None:
        """Log who has been left out since the last call; nothing where nobody has.

        Where "multikrum" could leave out fewer than it is told to, the line says of how many uploads these are, also
        that nobody is.

        Parameters
        ----------
        algorithm : str
            Its name.
        round : int
            The round, from 1.
        again : bool
            Whether to log what is just what the last line says, and that nobody is left out.
        """
        text, form, uploads = str(self), self._robust.form, self._uploads
        if form == "multikrum" and 0 < uploads <= 2 * self._robust.wrong and (text or again):
            text = f"{text or 'nobody'}: of {uploads} uploads {(uploads - 1) // 2} at most, not {self._robust.wrong}"
        self._since |= self._clients
        self._clients, self._uploads = set(), 0
        if text and (again or text != self._told):
            log(INFO, "%s, round %d: %s leaves out %s", algorithm, round, form, text)
        self._told = text

    def taken(self) -> list[int]:
        """Return the clients of whose uploads something has been left out since the last call."""
        taken, self._since = sorted(self._since | self._clients), set()
        return taken
