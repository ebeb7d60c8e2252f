"""The clients' public samples, for a server that runs models on them."""

import numpy as np

from hetfl_flwr.data import Samples
from hetfl_flwr.data.scaling import scaled_alone
from hetfl_flwr.server.roster import Roster


class PublicSamples:
    """All public samples of the clients in the federation, as models take them.

    Parameters
    ----------
    roster : Roster
        The clients. What they have shared may grow from round to round.
    normalize : str
        The run config's.
    """

    def __init__(self, roster: Roster, normalize: str) -> None:
        self._roster, self._normalize = roster, normalize
        self._made: tuple[tuple[int, ...], Samples] | None = None

    def all(self) -> Samples:
        """Return those of all clients that have shared any, in the order of client ids."""
        shared = self._roster.public_samples
        if self._made is None or self._made[0] != tuple(shared):
            inputs = np.concatenate([block["inputs"] for block in shared.values()])
            self._made = tuple(shared), scaled_alone(inputs, next(iter(self._roster)).spec, self._normalize)
        return self._made[1]
