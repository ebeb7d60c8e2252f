"""All uses of Flower beyond its public API, each with its reason: check these first at a new release.

The public API is `flwr.app`, `flwr.clientapp` and `flwr.serverapp` with `flwr.serverapp.strategy`, which every module
imports by itself.
"""

import sys
from functools import partial
from logging import WARNING

from flwr.app import Message
from flwr.common import Scalar, log
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as LARGEST_CHUNK
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SType
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_from_proto, recorddict_to_proto
from flwr.compat.client.numpy_client import NumPyClient
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from hetfl_flwr.common.notices import warn

__all__ = [
    "FLOWER_LOGGER",  # to show or hide the log, and to keep tracebacks of one-line errors out of it
    "LARGEST_CHUNK",  # bytes of an array that travel in one piece
    "SUPERLINK_NODE_ID",  # the sender of what a server sends
    "ErrorCode",  # why there is no reply: the client raised, or never answered
    "NumPyClient",  # the base of every client side
    "ProtoMessage",  # a message as bytes, for worker processes and checkpoints
    "ProtoRecordDict",  # a client's records as bytes, where they rest in a file
    "Run",  # what a Grid says of its run
    "SType",  # how an Array says that it is in .npy form
    "Scalar",  # the type of what a client reports
    "TaskIdentity",  # who this process is to Flower; see `act_as_server`
    "act_as_server",
    "acts_as_server",
    "aggregate_metricrecords",  # the weighted mean of metrics
    "ask_again",
    "get_all_nested_objects",  # what a message consists of on the wire, to count its bytes
    "log",  # Flower's log, in which ours stands
    "message_from_proto",
    "message_to_proto",
    "name_message",
    "no_object_id_recompute",  # so that counting bytes hashes nothing twice
    "recorddict_from_proto",
    "recorddict_to_proto",
    "simulates_clients",
    "warn_or_log",
]


def act_as_server(run: int) -> None:
    """Let this process write messages as the server of a run; Flower's own engines set this up for theirs."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID


def acts_as_server() -> bool:
    """Return whether messages that this process writes are a server's."""
    return TaskIdentity._node_id == SUPERLINK_NODE_ID


def simulates_clients() -> bool:
    """Return whether this process is an actor of Flower's simulation engine; a node whose own code uses Ray is not."""
    ray = sys.modules.get("ray")
    if "flwr.simulation.ray_transport.ray_actor" not in sys.modules or not getattr(ray, "is_initialized", bool)():
        return False
    return ray.get_runtime_context().get_actor_id() is not None  # type: ignore[union-attr]


def ask_again(after: float) -> None:
    """Let a server ask again for a reply that its link has not received whole after so many seconds, not after one."""
    from flwr.superlink.grid import http_grid  # slow

    http_grid.pull_objects = partial(pull_objects, initial_backoff=after)  # type: ignore[attr-defined]


def name_message(message: Message, name: str) -> None:
    """Give a message its id, which Flower's links do where a message passes through them."""
    message.metadata.__dict__["_message_id"] = name


def warn_or_log(text: str) -> None:
    """Log a warning or, where Flower's log is not shown, print it on standard error."""
    if FLOWER_LOGGER.isEnabledFor(WARNING):
        log(WARNING, "%s", text)
    else:
        warn(text)
