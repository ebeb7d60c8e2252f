"""The ClientApp: Flower's messages in, a NumPyClient's ``fit`` and ``evaluate`` called, replies out.

The NumPyClient is built anew for every message; what must survive goes through `hetfl_flwr.state`. An error becomes
an error reply that names client, stage and round, so that every engine shows the same line.
"""

from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from logging import ERROR
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore import log
from numpy.typing import NDArray
from torch.nn import Module

from hetfl_flwr import payloads
from hetfl_flwr.algorithms import build_client
from hetfl_flwr.errors import HetflError
from hetfl_flwr.messages import ARRAYS, CONFIG, EXAMPLES, LABELLED, MEMBER, METRICS, POOL, ROUND, RUN, SEEDS, STAGES
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import Arrays, PayloadSpec, check_halves, halved, to_record, weights
from hetfl_flwr.privacy import private_rows, private_upload
from hetfl_flwr.roster import Member
from hetfl_flwr.state import FileStore

app = ClientApp()

Handler = Callable[[Message, Context], Message]


def _surfaced(handler: Handler) -> Handler:
    """Turn whatever a handler raises into an error reply with one line."""

    @wraps(handler)
    def surfaced(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            line = _where(message, context) + _reason(error)
            log(ERROR, line, exc_info=None if isinstance(error, HetflError) else error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, line), reply_to=message)

    return surfaced


@app.query()
@_surfaced
def roll_call(message: Message, context: Context) -> Message:
    """Answer who this client is and what it has."""
    node = Node.from_context(context)
    client = build_client(node.config, node)
    if client.keeps_state and isinstance(node.store, FileStore):
        node.store.check_writable()
    origin = message.content.config_records.get(CONFIG) or ConfigRecord()
    if origin:
        node.take_up(str(origin[RUN]), int(origin[ROUND]))  # type: ignore[arg-type]
    state = node.registered_state()  # refuses another run's state before round 1
    node.prune(str(origin.get(RUN, "")))
    member = Member(
        node=context.node_id,
        partition=node.partition,
        partitions=node.partitions,
        model=node.model_name,
        parameters=sum(parameter.numel() for parameter in node.model.parameters() if parameter.requires_grad),
        width=node.model.width,
        classes=node.data.spec.classes,
        shape=node.data.spec.shape,
        vocabulary=node.data.spec.vocabulary,
        weights=_fingerprint(node.model),
        body=_fingerprint(node.model.body),
        dtype=node.dtype,
        train=len(node.data.train),
        public=len(node.data.public),
        validation=len(node.data.validation),
        test=len(node.data.test),
        round=-1 if not client.keeps_state else state.round if state else 0,
        holds=tuple(node.seeds.partitions()),
    )
    return Message(RecordDict({MEMBER: member.to_record()}), reply_to=message)


@app.query(SEEDS.removeprefix("query."))
@_surfaced
def seeds(message: Message, context: Context) -> Message:
    """Hand out this client's public rows, with their labels if they are asked for."""
    node = Node.from_context(context)
    labelled = bool(message.content.config_records[CONFIG][LABELLED])
    declared = payloads.seeds(len(node.data.public), node.data.spec, node.dtype, labelled=labelled)
    shared = private_rows(node.own_seeds(labelled=labelled), declared, node.config, node.partition, "public-rows")
    count = MetricRecord({EXAMPLES: len(node.data.public)})
    return Message(RecordDict({ARRAYS: _to_send(node, shared), METRICS: count}), reply_to=message)


@app.query(POOL.removeprefix("query."))
@_surfaced
def pool(message: Message, context: Context) -> Message:
    """Take up public rows of other clients."""
    taken = Node.from_context(context).keep_seeds(message.content.array_records[ARRAYS])
    return Message(RecordDict({METRICS: MetricRecord({EXAMPLES: taken})}), reply_to=message)


@app.train()
@_surfaced
def train(message: Message, context: Context) -> Message:
    """Run one round of `NumPyClient.fit`."""
    node = Node.from_context(context)
    client = build_client(node.config, node)
    expected, declared = client.download_spec(), client.upload_spec()
    sent, config = _received(message, node, expected), dict(message.content.config_records[CONFIG])
    arrays, examples, metrics = client.fit(list(sent.values()), config)
    learnt = dict(zip(declared.names, arrays, strict=True))
    round = int(config[ROUND])  # type: ignore[arg-type]
    upload = private_upload(learnt, declared, sent, expected, node.config, node.partition, round)
    return Message(
        RecordDict({ARRAYS: _to_send(node, upload), METRICS: MetricRecord({**metrics, EXAMPLES: examples})}),
        reply_to=message,
    )


@app.evaluate()
@_surfaced
def evaluate(message: Message, context: Context) -> Message:
    """Run `NumPyClient.evaluate`."""
    node = Node.from_context(context)
    client = build_client(node.config, node)
    sent = _received(message, node, client.assess_spec())
    loss, examples, metrics = client.evaluate(list(sent.values()), dict(message.content.config_records[CONFIG]))
    return Message(RecordDict({METRICS: MetricRecord({**metrics, "loss": loss, EXAMPLES: examples})}), reply_to=message)


def _fingerprint(model: Module) -> str:
    return sha256(repr(weights(model)).encode()).hexdigest()[:16]


def _received(message: Message, node: Node, spec: PayloadSpec) -> dict[str, NDArray[Any]]:
    record = message.content.array_records.get(ARRAYS) or ArrayRecord()
    return spec.decode(record, "server", half=node.config.half)


def _to_send(node: Node, arrays: Arrays) -> ArrayRecord:
    if not node.config.half:
        return to_record(arrays)
    check_halves(arrays, str(node))
    return to_record(halved(arrays))


def _where(message: Message, context: Context) -> str:
    partition = context.node_config.get("partition-id", f"on node {context.node_id}")
    kind = message.metadata.message_type
    where = f"client {partition}, {STAGES.get(kind, kind)}"
    record = message.content.config_records.get(CONFIG) if message.has_content() else None
    return f"{where}, round {record[ROUND]!r}: " if record is not None and ROUND in record else f"{where}: "


def _reason(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if isinstance(error, HetflError) else f"{type(error).__name__}: {line}"
