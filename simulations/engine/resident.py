"""Clients that stay in a process: what they keep lies in memory."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Context

from hetfl_flwr.node.keepers import NodeContext
from hetfl_flwr.node.state import ClientState, Stamp, StateStore, check_stamp, encode
from hetfl_flwr.node.stores import ContextStore

if TYPE_CHECKING:
    from hetfl_flwr.node.resident import Resident


class MemoryStore(StateStore):
    """State as tensors of this process, copied on the way in and only read on the way out.

    Parameters
    ----------
    under : StateStore
        Where it lies when it is not in memory: it comes from there, and goes there when it is flushed.

    Attributes
    ----------
    nbytes : int
        The bytes of its tensors in memory.
    """

    def __init__(self, under: StateStore) -> None:
        self.where = "the memory of this process"
        self._under = under
        self.nbytes = 0
        self._saved: tuple[ClientState, Stamp] | None = None
        self._flushed = True

    def load(self, stamp: Stamp, who: object) -> ClientState | None:
        """Return the state; its tensors are not to be changed, and have other values once another is saved."""
        if self._saved is None:
            state = self._under.load(stamp, who)
            if state is None:
                return None
            self._saved = state, stamp
            self.nbytes = sum(tensor.nbytes for tensor in state.tensors.values())
        state, found = self._saved
        if found is not stamp and found != stamp:
            check_stamp(asdict(found), stamp, f"{who}: {self.where}")
        return state

    def save(self, state: ClientState, stamp: Stamp) -> ClientState:
        """Keep a copy, in the tensors of the last one where they are alike; return it."""
        names, live = list(state.tensors), [tensor.detach() for tensor in state.tensors.values()]
        known = self._saved[0].tensors if self._saved else {}
        kept = list(known.values())
        if names == list(known) and _forms(live) == _forms(kept):
            torch._foreach_copy_(kept, live)
        else:
            kept = [tensor.clone(memory_format=torch.contiguous_format) for tensor in live]
            self.nbytes = sum(tensor.nbytes for tensor in kept)
        saved = ClientState(dict(zip(names, kept, strict=True)), dict(state.numbers), state.round)
        self._saved, self._flushed = (saved, stamp), False
        return saved

    def read(self) -> bytes | None:
        """Return the state as a blob."""
        return self._under.read() if self._flushed else encode(*self._saved)  # type: ignore[misc]

    def write(self, blob: bytes) -> None:
        """Take a blob, to be decoded when it is asked for."""
        self._under.write(blob)
        self.drop()

    def flush(self) -> None:
        """Let the store below have the state as well, if it has an older one."""
        if not self._flushed:
            self._under.write(encode(*self._saved))  # type: ignore[misc]
            self._flushed = True

    def drop(self) -> None:
        """Forget what is in memory: the store below knows better."""
        self._saved, self._flushed, self.nbytes = None, True, 0

    def forget(self) -> None:
        """Forget the state."""
        self._under.forget()
        self.drop()


class ResidentContext(Context):
    """The Context of a client that stays in this process: its state and its surroundings are kept in memory.

    Parameters
    ----------
    *args, **keys
        As those of Context.
    file : StateStore, optional
        Where the state lies when it is not in memory. Default: in the Context itself.

    Attributes
    ----------
    store, around, resident
        As `hetfl_flwr.node.keepers.Keeper`.
    """

    def __init__(self, *args: Any, file: StateStore | None = None, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.store = MemoryStore(file or ContextStore(self, str(self.run_id)))
        self.around: NodeContext | None = None
        self.resident: Resident | None = None
        self._records: tuple[object, int] = None, 0

    @property
    def data_digest(self) -> str:
        """A digest of the client's data; empty before they have been read."""
        return self.around["data"].digest if self.around else ""

    def rest(self) -> None:
        """Keep nothing in memory but the records: the state goes to its file, all else is made again."""
        self.store.flush()
        self.store.drop()
        self.around = self.resident = None

    @property
    def nbytes(self) -> int:
        """The bytes of its networks, of its state, and of what the client was sent to keep and has made of it."""
        current = self.around["public_samples"].current if self.around else None
        if current is not self._records[0]:
            counted = sum(record.count_bytes() for record in self.state.array_records.values())
            self._records = current, 2 * counted
        return 2 * self.store.nbytes + (self.resident.nbytes if self.resident else 0) + self._records[1]


def _forms(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
