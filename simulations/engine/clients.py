"""The clients of one process: recently used ones stay in memory, the others are stored in files."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hetfl_flwr.client_app import complaint, member_of
from hetfl_flwr.common.files import writing
from hetfl_flwr.common.flower import ErrorCode, ProtoRecordDict, recorddict_from_proto, recorddict_to_proto
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import Split, digest_of
from hetfl_flwr.errors import DamagedError, StateError
from hetfl_flwr.node.holder import Holder, holder_of
from hetfl_flwr.node.node import KeptContext, Node, kept_of
from hetfl_flwr.node.state import FileStore
from hetfl_flwr.runs.settings import data_of
from hetfl_flwr.server.exchange import error_line
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.classes import listed
from hetfl_flwr.wire.codec import widened
from hetfl_flwr.wire.spec import Arrays, PayloadSpec, frozen
from simulations.engine.members import members_of

CLIENT_APP = "hetfl_flwr.client_app:app"
"""The ClientApp, in the notation of Flower's ``[tool.flwr.app.components]``."""

FIRST_NODE = 2**62
"""Node id of client 0: takes as many bytes in a message as the random ids of Flower's other engines."""

MEMORY = 2**31
"""Default limit of client state in memory, in bytes, over all processes; the rest is in files."""

EVERY = "all"
"""Key, among client ids, of the digest of the whole data set."""

AWAKE = 1000
"""Maximum number of clients in the memory of a process."""

_NUMBERS = {int, float}


class Answer(NamedTuple):
    """A client's upload and metrics, or its error, without a message.

    `form` is the declaration by which the client has checked its upload; None where the arrays were changed or copied
    after the check.
    """

    arrays: Arrays
    metrics: Mapping[str, Any]
    form: PayloadSpec | None = None
    error: str | None = None


class Clients:
    """The clients that this process runs.

    Recently used clients are awake: their Context is in memory, up to `memory` bytes, but at least one. The others
    rest in files of the folder `scratch`, which all processes share and which is created on demand. `app` is the
    ClientApp as ``module:attribute``, `count` the number of clients in all processes.
    """

    def __init__(
        self, app: str, run: int, run_config: Mapping[str, Value], count: int, scratch: Path, memory: int = MEMORY
    ) -> None:
        module, _, attribute = app.partition(":")
        self._app: ClientApp = getattr(import_module(module), attribute)
        self._run, self._run_config, self._count = run, dict(run_config), count
        self._scratch, self._memory = scratch, memory
        self._contexts: dict[int, KeptContext] = {}  # of awake clients, by node
        self._rows: dict[int, str] = {}  # digests of the data of clients used so far, by node
        self._split: Split | None = None  # of the whole data set, once a client was used
        # checked downloads by the ids of download and declaration, which are kept so that their ids stay valid
        self._checked: dict[tuple[int, int], tuple[Arrays, PayloadSpec, Arrays]] = {}
        self._bytes: dict[int, int] = {}  # of each awake client's state, least recently used first
        self._held = 0  # their sum

    def answer(self, message: Message) -> Message:
        """Let the addressed client answer a message."""
        node = message.metadata.dst_node_id
        context = self._awake(node)
        try:
            return self._app(message, context)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        finally:
            self._note(node)

    def members(self, client_ids: Sequence[int]) -> list[Member | str]:
        """Return the registrations of clients, or why one cannot take part; only a few clients are built."""
        return members_of(client_ids, self._registered)

    def _registered(self, client_id: int) -> tuple[Member, RunConfig | None] | str:
        """Build a client; return its registration and its config, if it is cached, or why it cannot take part."""
        node = FIRST_NODE + client_id
        context = self._awake(node)
        try:
            member = Member.checked(member_of(context).values(), node)
            around = kept_of(context).around
            return member, around["config"] if around else None
        except DamagedError as error:
            damage = error.__cause__ or error
            return f"{damage}: delete this file; the run continues from its checkpoint, which has the same state"
        except BaseException as raised:  # the user's model may raise anything
            return error_line(complaint(raised, context, MessageType.QUERY, None), node).removeprefix(f"node {node}: ")
        finally:
            self._note(node)

    def begin(self) -> None:
        """Clear the cache of checked downloads."""
        self._checked = {}

    def run(self, kind: str, node: int, payload: Arrays | Message, round: int) -> Answer | Message:
        """Train a client for a round, or evaluate it after a round, with a download; or let it answer a message."""
        if isinstance(payload, Message):
            return self.answer(payload)
        context = self._awake(node)
        try:
            answer = self._answer(kind, holder_of(context), payload, round)
        except BaseException as raised:  # the user's model may raise anything
            answer = Answer({}, {}, error=complaint(raised, context, kind, round))
        self._note(node)
        return answer

    def _answer(self, kind: str, client: Holder, download: Arrays, round: int) -> Answer:
        if kind == MessageType.EVALUATE:
            measured = client.measure(self._received(client, client.assess, download), round)
            metrics: Mapping[str, Any] = listed(measured, client.node.data.spec.classes)
            answer = Answer({}, metrics)
        else:
            upload, metrics = client.train(self._received(client, client.down, download), round)
            answer = Answer(frozen(upload), metrics, client.up if client.uploads_as_learnt else None)
        if not ({*map(type, metrics.values())} <= _NUMBERS and {*map(type, metrics)} <= {str}):
            MetricRecord(metrics)  # type: ignore[arg-type]  # raises for values that no message can hold
        return answer

    def _received(self, client: Holder, form: PayloadSpec, download: Arrays) -> Arrays:
        """Check a client's download; if several clients share it, it is checked once per declaration."""
        key = id(download), id(form)
        if key not in self._checked:
            arrays = frozen(widened(form, download, "server")) if client.half else download
            form.check_named(arrays, "server")
            self._checked[key] = download, form, arrays
        return self._checked[key][2]

    def rest(self, nodes: Iterable[int]) -> None:
        """Write clients' states to files and drop the clients, which are rebuilt on demand."""
        for node in nodes:
            if node in self._bytes:
                self._held -= self._bytes.pop(node)
                context = self._contexts.pop(node)
                context.store.flush()
                if context.state:
                    self._write(self._records(node), recorddict_to_proto(context.state).SerializeToString())

    def flush(self) -> None:
        """Write the states of all awake clients to files; the clients stay awake."""
        for node in self._bytes:
            self._contexts[node].store.flush()

    def drop(self) -> None:
        """Drop the states of all awake clients, so that they are read from files again."""
        for node in self._bytes:
            self._contexts[node].store.drop()
            self._contexts[node].kept.holder = None

    def data(self) -> list[str]:
        """Return a digest of the run's local data if it has any, see `data_of`."""
        return data_of(RunConfig.from_flat(self._run_config))

    def digests(self, client_ids: Sequence[int] = ()) -> dict[str, str]:
        """Return digests of the data of these clients and all used so far, by client id, and of the whole data set."""
        for client_id in client_ids:
            node = FIRST_NODE + client_id
            Node.from_context(self._awake(node))
            self._note(node)
        found = {str(node - FIRST_NODE): digest for node, digest in self._rows.items()}
        return {**found, EVERY: digest_of(self._split)} if self._split else found

    def _awake(self, node: int) -> KeptContext:
        while len(self._bytes) > AWAKE or (len(self._bytes) > 1 and self._held > self._memory):
            self.rest([next(iter(self._bytes))])
        if node not in self._contexts:
            self._wake(node)
        return self._contexts[node]

    def _note(self, node: int) -> None:
        """Update the size of a client's state, and record the digest of its data."""
        context = self._contexts[node]
        if node in self._bytes:
            before, now = self._bytes.pop(node), context.nbytes
            self._bytes[node] = now
            self._held += now - before
        if node not in self._rows and (around := kept_of(context).around):
            self._rows[node] = around["data"].digest
            self._split = self._split or around["config"].split(around["clients"])

    def _wake(self, node: int) -> None:
        client_id, records = node - FIRST_NODE, RecordDict()
        if self._records(node).exists():
            records = recorddict_from_proto(ProtoRecordDict.FromString(self._records(node).read_bytes()))
        own: dict[str, Value] = {"partition-id": client_id, "num-partitions": self._count}
        file = FileStore(self._scratch, client_id, lasting=False)
        context = KeptContext(self._run, node, own, records, self._run_config, file=file)
        self._contexts[node], self._bytes[node] = context, 0

    def _write(self, path: Path, content: bytes) -> None:
        with writing(path, StateError):
            self._scratch.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _records(self, node: int) -> Path:
        return self._scratch / f"records-{node - FIRST_NODE}"


class Hosted(NamedTuple):
    """The arguments of `Clients`."""

    app: str
    run: int
    run_config: Mapping[str, Value]
    clients: int
    scratch: Path
    memory: int
