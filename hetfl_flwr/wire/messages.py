"""Names in the messages between the server and its clients."""

from flwr.app import Message, MessageType

from hetfl_flwr.common.flower import ProtoMessage, message_from_proto, message_to_proto

ARRAYS, CONFIG, METRICS, ROUND = "arrays", "config", "metrics", "server-round"
"""Names of records and keys in messages, the same as in Flower's strategies."""

EXAMPLES = "num-examples"
"""Metric: the number of training samples of a client, or of the samples that it was evaluated on, as in Flower.

It is n_k of McMahan et al. 2017, which weights the average of model weights, even if a round uses only a part of the
samples."""

SEEN = "samples-seen"
"""Metric: the number of samples that a client has trained on in a round, including repeats."""

MEMBER = "member"
"""Name of the record in which a client registers."""

RUN = "run"
"""Key of the resumed run in a request to register, in addition to `ROUND`."""

NEWEST = 2**62
"""Value of `ROUND` with which clients resume from their newest state."""

SHARE, POOL, LABELLED = "query.seeds", "query.pool", "labelled"
"""Types of the messages that request a client's public samples and that send it those of others; whether labels are
requested."""

REGISTRATION = "client registration"
"""Name of the first request in error messages."""

STAGES = {MessageType.QUERY: REGISTRATION, SHARE: "sharing of public samples", POOL: "sharing of public samples"}
"""Names of requests in error messages, for message types that do not explain themselves."""


def packed(message: Message) -> bytes:
    """Serialize a message; raise ValueError if it has a number that protobuf cannot represent."""
    written: bytes = message_to_proto(message).SerializeToString()
    return written


def unpacked(written: bytes) -> Message:
    """Deserialise what `packed` has returned."""
    return message_from_proto(ProtoMessage.FromString(written))
