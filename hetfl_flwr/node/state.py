"""What a client keeps between rounds, as one blob under a stamp that says whose it is.

A ClientApp is rebuilt for every message, so whatever must survive is written as one safetensors blob. A stamp that
does not fit raises: state never leaks between runs, algorithms, models or clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from safetensors.torch import load, save

from hetfl_flwr.common.blobs import sealed, unpack
from hetfl_flwr.common.files import as_json
from hetfl_flwr.errors import DamagedError, StateError

STATE = "state"
"""The kind of file that a client's state is."""


@dataclass(frozen=True)
class Stamp:
    """Whose state a blob is. Every field must fit on reading."""

    run: str
    algorithm: str
    model: str
    client_id: int


@dataclass
class ClientState:
    """What survives between rounds.

    Parameters
    ----------
    tensors : dict of tensors
        Model and optimizer, under dotted names.
    numbers : dict of numbers
        Counters and scalars that an algorithm keeps.
    round : int
        The round in which it was written.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    round: int = 0


def encode(state: ClientState, stamp: Stamp) -> bytes:
    """Write state, stamp and a checksum of all of it as one blob."""
    numbers = {name: as_json(number) for name, number in state.numbers.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    return sealed(STATE, {"stamp": asdict(stamp), "numbers": numbers, "round": state.round}, tensors, save)


def decode(content: bytes, stamp: Stamp, where: str) -> ClientState:
    """Read a blob after checking its checksum and its stamp.

    Raises
    ------
    DamagedError
        The blob is not as it was written.
    StateError
        It belongs to another run, algorithm, model or client: names which, found and expected.
    """
    try:
        blob = unpack(content, STATE, load)
    except DamagedError as error:
        raise DamagedError(f"{where}: damaged state ({error})") from None
    check_stamp(blob.values["stamp"], stamp, where)
    numbers = {name: float(n) if isinstance(n, str) else n for name, n in blob.values["numbers"].items()}
    return ClientState(blob.arrays, numbers, blob.values["round"])


def check_stamp(found: Mapping[str, object], stamp: Stamp, where: str) -> None:
    """Raise StateError where a stamp that was found is not the one expected, and say in what."""
    for name, expected in asdict(stamp).items():
        if found.get(name) != expected:
            raise StateError(
                f"{where}: state of another {name}: found {found.get(name)!r}, expected {expected!r}; "
                "use another state-dir or delete it"
            )


class StateStore(ABC):
    """Where a client's state lies, as a blob."""

    where: str
    """What messages call the place."""

    def load(self, stamp: Stamp, who: object) -> ClientState | None:
        """Return the state, or None where nothing was saved yet; a stamp that does not fit raises StateError."""
        blob = self.read()
        return None if blob is None else decode(blob, stamp, f"{who}: {self.where}")

    def save(self, state: ClientState, stamp: Stamp) -> ClientState | None:
        """Replace the state; the older one stays if this fails. Returns the very object that `load` returns, if any."""
        self.write(encode(state, stamp))
        return None

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the blob, or None where nothing was written yet."""

    @abstractmethod
    def write(self, blob: bytes) -> None:
        """Replace the blob; the older one stays if this fails."""

    @abstractmethod
    def forget(self) -> None:
        """Remove the blob, if there is one, and what was kept."""

    def keep(self) -> None:
        """Keep what was written last beside what is written next, where another run may go on with it."""
        return

    def kept(self) -> bytes | None:
        """Return what was kept, or None."""
        return None
