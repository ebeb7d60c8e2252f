"""The pool: the public samples that clients have shared, the same for all clients that hold them.

Rows are sent as stored (pixels as bytes, columns of a table), and each receiver prepares them in the same way as its
own rows. A client keeps all rows, its own as it has shared them, in Flower's ``Context.state``, under the id of the
run: its data may grow, and the rows that it once shared stay the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.wire.codec import decode, from_record, to_record
from hetfl_flwr.wire.samples import MAX_SHARED, PublicIndex, public_samples
from hetfl_flwr.wire.spec import Dim


@dataclass(frozen=True)
class Pool:
    """All public samples that a client knows: its own, and those it has received.

    `blocks` holds them by partition, in order, prepared for this client's model. `own` is the client's partition, and
    `train` its training samples. `index` numbers the rows, so that a number means the same row to all clients that have
    all blocks.
    """

    own: int
    blocks: Mapping[int, Samples]
    train: Samples

    @cached_property
    def samples(self) -> Samples:
        """All rows, in the pool's order."""
        return Samples.joined([*self.blocks.values()])

    @property
    def shared(self) -> Samples:
        """The client's own rows, as it has shared them."""
        return self.blocks[self.own]

    @cached_property
    def everything(self) -> Samples:
        """The client's training samples, followed by the rows of the other clients."""
        others = [block for client_id, block in self.blocks.items() if client_id != self.own]
        return Samples.joined([self.train, *others])

    @cached_property
    def index(self) -> PublicIndex:
        """The numbers of the rows and their owners."""
        return PublicIndex({client_id: len(block) for client_id, block in self.blocks.items()})

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index)


class PublicSampleStore:
    """The public samples of all clients, as they were sent, stored in a client's Context.

    `current` is a new object whenever the rows change. `nbytes` is the size of the stored rows.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._key = f"hetfl-seeds.{context.run_id}"
        self._renew()

    def move(self, context: Context) -> None:
        """Continue with the Context of another message, which has the same rows."""
        self._context = context

    def _renew(self) -> None:
        self._pool: Pool | None = None
        self.current, self.nbytes = object(), self._record.count_bytes()

    @property
    def _record(self) -> ArrayRecord:
        return self._context.state.array_records.get(self._key, ArrayRecord())

    def keep(self, record: ArrayRecord, spec: DataSpec, dtype: str, *, half: bool = False) -> int:
        """Check rows as they were sent and keep them in their dtype; return how many there are.

        The arrays are named ``inputs.K`` and ``labels.K`` for partition K. Raises PayloadError if one does not have
        the expected name, shape or dtype.
        """
        rows, came = 0, dict[str, NDArray[Any]]()
        for client_id, block in _blocks(record).items():
            payload = public_samples(Dim("N", MAX_SHARED), spec, dtype, labelled="labels" in block)
            arrays = decode(payload, block, f"server: public samples of client {client_id}", half=half)
            rows += len(arrays["inputs"])
            came |= {f"{name}.{client_id}": array for name, array in arrays.items()}
        kept = {**self._record, **to_record(came)}
        for key in [key for key in self._context.state if key.startswith("hetfl-seeds.")]:
            del self._context.state[key]
        self._context.state[self._key] = ArrayRecord(kept)
        self._renew()
        return rows

    def client_ids(self) -> list[int]:
        """Return the ids of the clients whose rows are stored."""
        return sorted(_blocks(self._record))

    def block(self, client_id: int) -> dict[str, NDArray[Any]]:
        """Return the stored rows of a client; empty if there are none."""
        return from_record(_blocks(self._record).get(client_id, ArrayRecord()))

    def pool(self, own: int, data: ClientData) -> Pool:
        """Return the pool of the stored rows, cached until rows are stored.

        The client's own rows are those of its data until it has shared them. Rows without labels have label 0 or, if
        the client's own came back without them, the labels of as many public rows of its data.
        """
        if self._pool is None:
            public = data.public
            blocks = {own: public}
            for client_id, block in _blocks(self._record).items():
                arrays = {name: torch.from_numpy(array) for name, array in from_record(block).items()}
                rows = len(arrays["inputs"])
                mine = client_id == own and rows == len(public)
                labels = arrays.get("labels", public.labels if mine else torch.zeros(rows, dtype=torch.int64))
                blocks[client_id] = public.like(arrays["inputs"], labels)
            self._pool = Pool(own, dict(sorted(blocks.items())), data.train)
        return self._pool


def _blocks(record: ArrayRecord) -> dict[int, ArrayRecord]:
    blocks: dict[int, ArrayRecord] = {}
    for key, array in record.items():
        name, _, client_id = key.rpartition(".")
        if name not in ("inputs", "labels") or not client_id.isdecimal():
            raise PayloadError(f"server: array '{key}', expected inputs.K and labels.K of a client K")
        blocks.setdefault(int(client_id), ArrayRecord())[name] = array
    return blocks
