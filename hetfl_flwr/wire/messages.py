"""What messages between the server and its clients are made of: names that both ends know."""

from flwr.app import Message, MessageType

from hetfl_flwr.common.flower import ProtoMessage, message_from_proto, message_to_proto

ARRAYS, CONFIG, METRICS, ROUND = "arrays", "config", "metrics", "server-round"
"""Names of records and keys in messages: those of Flower's own strategies."""

EXAMPLES = "num-examples"
"""Key of a client's metrics that says how many training samples it has, or was measured on; as in Flower's own.

It is n_k of McMahan et al. 2017, by which weights are averaged, however many of them a round's batches hold."""

SEEN = "samples-seen"
"""Key of a client's metrics that says how many samples it has trained on in a round, repeats included."""

MEMBER = "member"
"""Name of the record in which a client registers."""

RUN = "run"
"""Key, beside `ROUND`, of the run that this one goes on with, when a client is asked to register."""

NEWEST = 2**62
"""A round later than all: clients go on with the newest state that they have."""

SHARE, POOL, LABELLED = "query.seeds", "query.pool", "labelled"
"""Messages that ask a client for its public samples and that bring it those of others; whether labels are asked for."""

REGISTRATION = "client registration"
"""How errors call what clients are asked for first: who they are."""

STAGES = {MessageType.QUERY: REGISTRATION, SHARE: "sharing of public samples", POOL: "sharing of public samples"}
"""How errors call what a message asks for, where its type says too little."""


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
