"""Names in the messages between the server and its clients."""

from flwr.app import Message, MessageType

from hetfl_flwr.common.flower import ProtoMessage, message_from_proto, message_to_proto

ARRAYS, CONFIG, METRICS, ROUND = "arrays", "config", "metrics", "server-round"
"""Names of records and keys in messages: those of Flower's own strategies."""

EXAMPLES = "num-examples"
"""Metric: how many training samples a client has, or was measured on; as in Flower's strategies.

It is n_k of McMahan et al. 2017, by which weights are averaged, however many of them a round's batches hold."""

SEEN = "samples-seen"
"""Metric: how many samples a client has trained on in a round, repeats included."""

MEMBER = "member"
"""Name of the record in which a client registers."""

RUN = "run"
"""Key of the resumed run in a request to register, in addition to `ROUND`."""

NEWEST = 2**62
"""A round later than all: clients resume from their newest state."""

SHARE, POOL, LABELLED = "query.seeds", "query.pool", "labelled"
"""Messages that request a client's public samples, and that bring it those of others; whether labels are requested."""

REGISTRATION = "client registration"
"""Name of the first request in errors."""

STAGES = {MessageType.QUERY: REGISTRATION, SHARE: "sharing of public samples", POOL: "sharing of public samples"}
"""Names of other requests in errors, where the type of the message says too little."""


def packed(message: Message) -> bytes:
    """Serialise a message.

    Raises
    ------
    ValueError
        It holds a number that no message can.
    """
    written: bytes = message_to_proto(message).SerializeToString()
    return written


def unpacked(written: bytes) -> Message:
    """Read what `packed` has written."""
    return message_from_proto(ProtoMessage.FromString(written))
