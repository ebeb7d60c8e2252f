"""All uses of Flower beyond its public API, each with its reason. Check these first when Flower has a new release.

The public API is `flwr.app`, `flwr.clientapp` and `flwr.serverapp` with `flwr.serverapp.strategy`. Modules import it
directly.
"""

import sys
from functools import partial
from logging import WARNING
from types import SimpleNamespace

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
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from hetfl_flwr.common.notices import warn

__all__ = [
    "FLOWER_LOGGER",  # to show or hide the log, and to keep tracebacks of one-line errors out of it
    "LARGEST_CHUNK",  # largest number of bytes of an array that are sent in one piece
    "SUPERLINK_NODE_ID",  # the node id of the server, as a message's sender
    "ErrorCode",  # why there is no reply: the client raised an error, or never answered
    "NumPyClient",  # the base class of all clients
    "ProtoMessage",  # a message as bytes, for worker processes and checkpoints
    "ProtoRecordDict",  # a client's records as bytes, for files
    "Run",  # the description of a run that a Grid returns
    "SType",  # the serialization type of an Array: .npy
    "Scalar",  # the type of a metric's value
    "TaskIdentity",  # this process's identity for Flower; see `act_as_server`
    "act_as_server",
    "acts_as_server",
    "aggregate_metricrecords",  # the weighted mean of metrics
    "ask_again",
    "get_all_nested_objects",  # what a message consists of on the wire, to count its bytes
    "log",  # Flower's log, which this project writes to
    "message_from_proto",
    "message_to_proto",
    "name_message",
    "no_object_id_recompute",  # to hash nothing twice while counting bytes
    "recorddict_from_proto",
    "recorddict_to_proto",
    "simulates_clients",
    "warn_or_log",
]


def act_as_server(run: int) -> None:
    """Let this process create messages as the server of a run, which Flower's engines do for their own processes."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID


def acts_as_server() -> bool:
    """Return whether this process creates messages as a server."""
    return TaskIdentity._node_id == SUPERLINK_NODE_ID


def simulates_clients() -> bool:
    """Return whether this process is an actor of Flower's simulation engine, not a node that uses Ray itself."""
    ray = sys.modules.get("ray")
    if "flwr.simulation.ray_transport.ray_actor" not in sys.modules or not getattr(ray, "is_initialized", bool)():
        return False
    return ray.get_runtime_context().get_actor_id() is not None  # type: ignore[union-attr]


def ask_again(after: float, most: float) -> None:
    """Set the seconds after which a server asks again for a partly received reply, and gives it up.

    Flower's defaults are 1 second and 2 hours. A reply that cannot be decoded is dropped, so that its node fails; with
    Flower alone it would end the server.
    """
    from flwr.superlink.grid import http_grid  # slow

    def inflated(message: str, contents: dict[str, bytes]) -> object:
        found: object
        try:
            if isinstance(found := inflate_object_from_contents(message, contents), Message):
                return found
        except Exception as error:
            found = error
        log(WARNING, "a reply that is no message is dropped (%s)", type(found).__name__)
        return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=""))

    http_grid.pull_objects = partial(pull_objects, initial_backoff=after, max_time=most)  # type: ignore[attr-defined]
    http_grid.inflate_object_from_contents = inflated  # type: ignore


def name_message(message: Message, name: str) -> None:
    """Set the id of a message, which Flower does only for messages that pass through a SuperLink."""
    message.metadata.__dict__["_message_id"] = name


def warn_or_log(text: str) -> None:
    """Log a warning, or print it on standard error if Flower's log is hidden."""
    if FLOWER_LOGGER.isEnabledFor(WARNING):
        log(WARNING, "%s", text)
    else:
        warn(text)
