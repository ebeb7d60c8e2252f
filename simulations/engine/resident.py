"""Clients that stay in a process: what they keep lies in memory, and those of one architecture share a model."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import Context

from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.client_cache import NodeContext
from hetfl_flwr.node.reuse import shared_model
from hetfl_flwr.node.state import ClientState, Stamp, StateStore, check_stamp, encode
from hetfl_flwr.node.stores import ContextStore


class MemoryStore(StateStore):
    """State as tensors of this process, copied on the way in and only read on the way out.

    Parameters
    ----------
    under : StateStore
        Where it lies when it is not in memory: it comes from there, and goes there when it is flushed.
    """

    def __init__(self, under: StateStore) -> None:
        self.where = "the memory of this process"
        self._under = under
        self._saved: tuple[ClientState, Stamp] | None = None
        self._flushed = True

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors in memory."""
        return sum(tensor.nbytes for tensor in self._saved[0].tensors.values()) if self._saved else 0

    def load(self, stamp: Stamp, who: str) -> ClientState | None:
        """Return the state; its tensors are not to be changed."""
        if self._saved is None:
            state = self._under.load(stamp, who)
            if state is None:
                return None
            self._saved = state, stamp
        state, found = self._saved
        if found != stamp:
            check_stamp(asdict(found), stamp, f"{who}: {self.where}")
        return state

    def save(self, state: ClientState, stamp: Stamp) -> None:
        """Keep a copy."""
        tensors = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.tensors.items()
        }
        self._saved, self._flushed = (ClientState(tensors, dict(state.numbers), state.round), stamp), False

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
        self._saved, self._flushed = None, True

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
    store : MemoryStore
        Its state.
    """

    def __init__(self, *args: Any, file: StateStore | None = None, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.store = MemoryStore(file or ContextStore(self, str(self.run_id)))
        self._surroundings: NodeContext | None = None

    def surroundings(self, make: Callable[[], NodeContext]) -> NodeContext:
        """Return the client's surroundings, which are made once."""
        if self._surroundings is None:
            self._surroundings = make()
        return self._surroundings

    @property
    def data_digest(self) -> str:
        """A digest of the client's data; empty before they have been read."""
        return self._surroundings["data"].digest if self._surroundings else ""

    def trained_model(self, around: NodeContext) -> SplitModel | None:
        """Return a model that this process has already, with the client's saved weights; None where it has saved none.

        See `shared_model`.
        """
        stamp = around["stamp"]
        if around["store"] is not self.store:
            return None
        state = self.store.load(stamp, f"client {stamp.client_id} ({around['model_name']})")
        shared = shared_model(around) if state else None
        return shared.with_weights(state.tensors) if state and shared else None

    def rest(self) -> None:
        """Keep nothing in memory but the records: the state goes to its file, the surroundings are made again."""
        self.store.flush()
        self.store.drop()
        self._surroundings = None

    @property
    def nbytes(self) -> int:
        """The bytes of its state, and of what the client was sent to keep and has made of it."""
        return self.store.nbytes + 2 * sum(record.count_bytes() for record in self.state.array_records.values())
