"""One train message to a ClientApp that is imported for it, as Flower's deployment does for every message.

A process of its own for `startup`: ``python -m simulations.benchmarks.speed.message``. Digits, ten clients, one
mini-batch.
"""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from hetfl_flwr.client_app import app
from hetfl_flwr.common.flower import TaskIdentity
from hetfl_flwr.config import RunConfig
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, ROUND


def main() -> None:
    """Let client 0 answer.

    Raises
    ------
    RuntimeError
        It answered with an error.
    """
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    config = RunConfig(algorithm="local", local_batches=1)
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 10}, RecordDict(), config.to_flat())
    content = RecordDict({ARRAYS: ArrayRecord(), CONFIG: ConfigRecord({ROUND: 1})})
    reply = app(Message(content, 1, MessageType.TRAIN), context)
    if reply.has_error():
        raise RuntimeError(reply.error.reason)


if __name__ == "__main__":
    main()
