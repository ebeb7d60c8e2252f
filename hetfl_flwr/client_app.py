"""The ClientApp: answers Flower's messages by training or evaluating a client.

A client is built for every message unless the engine or the process caches it; `hetfl_flwr.node.state` saves its state.
An exception becomes an error reply that names client, stage and round, so every engine shows the same line.
"""

from collections.abc import Callable
from functools import wraps
from logging import ERROR
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from hetfl_flwr.common.flower import ErrorCode, log
from hetfl_flwr.common.packages import lacking
from hetfl_flwr.errors import ConfigError, HetflError, cause, ends_process, place
from hetfl_flwr.node.holder import Holder, forget, holder_of
from hetfl_flwr.node.machine import check_threads, keep_freed_memory
from hetfl_flwr.node.node import KeptContext
from hetfl_flwr.node.registration import registered
from hetfl_flwr.runs.settings import NOT_POOLED
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.classes import listed, whole
from hetfl_flwr.wire.codec import decode, to_record
from hetfl_flwr.wire.messages import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    LABELLED,
    MEMBER,
    METRICS,
    POOL,
    ROUND,
    RUN,
    SHARE,
    STAGES,
)
from hetfl_flwr.wire.naming import shares
from hetfl_flwr.wire.privacy import simulated
from hetfl_flwr.wire.spec import PayloadSpec

app = ClientApp()

NAMED = ("builtins", "torch", "hetfl_flwr")
"""Packages whose exception types are named in error replies."""

Handler = Callable[[Message, Context], Message]


def _surfaced(handler: Handler) -> Handler:
    """Turn any exception of a handler into an error reply with one line."""

    @wraps(handler)
    def surfaced(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except BaseException as raised:  # a user's model may raise anything
            record = message.content.config_records.get(CONFIG) if message.has_content() else None
            round = record.get(ROUND) if record is not None else None
            line = complaint(raised, context, message.metadata.message_type, round)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, line), reply_to=message)

    return surfaced


def complaint(raised: BaseException, context: Context, kind: str, round: object) -> str:
    """Return the error line of an exception, and drop the client; re-raise exceptions that end the process.

    `kind` is the message type; `round` is None if the message has no round.
    """
    if isinstance(raised, KeyboardInterrupt) or ends_process(raised):
        raise raised
    forget(context)
    error = lacking(raised) or raised
    number = context.node_config.get("partition-id")
    client_id = number if type(number) is int else f"on node {context.node_id}"
    where = f"client {client_id}, {STAGES.get(kind, kind)}" + (f", round {round!r}: " if round is not None else ": ")
    known = isinstance(error, HetflError)
    said = cause(error) if known else f"{cause(error)} ({place(error)})"
    log(ERROR, where + said, exc_info=None if known else error)
    return where + (said if simulated() else _outward(error))


@app.query()
@_surfaced
def register(message: Message, context: Context) -> Message:
    """Reply with the client's registration."""
    origin = message.content.config_records.get(CONFIG) or ConfigRecord()
    before = (str(origin[RUN]), int(origin[ROUND])) if origin else ()  # type: ignore[arg-type]
    return Message(RecordDict({MEMBER: member_of(context, *before).to_record()}), reply_to=message)


def member_of(context: Context, before: str = "", round: int = 0) -> Member:
    """Build a client and return its registration; see `registered`."""
    forget(context)  # start from the saved state, which may be older than a cached client
    return registered(_client(context, before), context, before, round)


@app.query(SHARE.removeprefix("query."))
@_surfaced
def share(message: Message, context: Context) -> Message:
    """Reply with the client's public samples, and their labels if requested; it keeps what it has sent."""
    labelled = bool(message.content.config_records[CONFIG][LABELLED])
    shared = _client(context).node.own_public_samples(labelled=labelled)
    count = MetricRecord({EXAMPLES: len(shared["inputs"])})
    return Message(RecordDict({ARRAYS: to_record(shared), METRICS: count}), reply_to=message)


@app.query(POOL.removeprefix("query."))
@_surfaced
def pool(message: Message, context: Context) -> Message:
    """Store public samples: those of other clients or, if this client has lost them, its own."""
    taken = _client(context).node.keep_public_samples(message.content.array_records[ARRAYS])
    return Message(RecordDict({METRICS: MetricRecord({EXAMPLES: taken})}), reply_to=message)


@app.train()
@_surfaced
def train(message: Message, context: Context) -> Message:
    """Train the client for a round."""
    client = _client(context)
    round: Any = message.content.config_records[CONFIG][ROUND]
    upload, metrics = client.train(_received(message, client, client.down), int(round))
    record = MetricRecord(metrics)  # type: ignore[arg-type]  # it rejects values that are not numbers
    return Message(RecordDict({ARRAYS: to_record(upload), METRICS: record}), reply_to=message)


@app.evaluate()
@_surfaced
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the client."""
    client = _client(context)
    round: Any = message.content.config_records[CONFIG].get(ROUND)
    metrics = client.measure(_received(message, client, client.assess), round)
    share = simulated() or shares(context.node_config, "share-recall")
    measured = listed(metrics if share else whole(metrics), client.node.data.spec.classes)
    return Message(RecordDict({METRICS: MetricRecord(measured)}), reply_to=message)  # type: ignore[arg-type]  # as in `train`


def _client(context: Context, before: str = "") -> Holder:
    """Return the client; `before` is the run that this one resumes, if any.

    In a process that Flower started for this app, threads and memory are set up as well.
    """
    if context.run_config.get("pooled") and not simulated():
        raise ConfigError(NOT_POOLED)
    client = holder_of(context, before)
    if not isinstance(context, KeptContext):  # KeptContext: the engine sets up its own processes
        check_threads(client.node.config.threads)
        keep_freed_memory()
    return client


def _received(message: Message, client: Holder, spec: PayloadSpec) -> dict[str, NDArray[Any]]:
    record = message.content.array_records.get(ARRAYS) or ArrayRecord()
    return decode(spec, record, "server", half=client.half)


def _outward(error: BaseException) -> str:
    """Return the part of an error that may leave this node: its type and, for errors of this project, a fixed text."""
    kind = type(error)
    known = kind.__name__.isidentifier() and kind.__module__.partition(".")[0] in NAMED
    name = kind.__name__ if known else "an error in its code"
    line = f"{name}: {error.outward}" if known and isinstance(error, HetflError) else name
    return f"{line}; see this node's log"
