"""An app that does nothing: what is left is the engine's own cost."""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from hetfl_flwr.wire.messages import CONFIG, EXAMPLES, METRICS, ROUND
from simulations.benchmarks.measure import seconds

app, server = ClientApp(), ServerApp()


@app.train()
def echo(message: Message, context: Context) -> Message:
    """Answer at once, with the least that counts as a reply."""
    return Message(RecordDict({METRICS: MetricRecord({EXAMPLES: 1})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all nodes, as many rounds as the run config says, and write each round's milliseconds a message to a file."""
    rounds, out = int(context.run_config["rounds"]), str(context.run_config["out"])
    taken = [exchange(grid) for _ in range(rounds + 1)]
    Path(out).write_text(json.dumps(taken[1:], allow_nan=False))  # the first one starts Ray's actors


def exchange(grid: Grid) -> float:
    """Ask all nodes once and return the milliseconds a message."""
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict({CONFIG: ConfigRecord({ROUND: 1})}), node, MessageType.TRAIN) for node in nodes]
    replies: list[Message] = []
    taken = seconds(lambda: replies.extend(grid.send_and_receive(messages)))
    if len(replies) < len(nodes) or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"{len(replies)} of {len(nodes)} nodes have answered")
    return taken * 1000 / len(nodes)
