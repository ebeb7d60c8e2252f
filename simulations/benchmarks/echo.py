"""A ClientApp that does nothing: what is left is the engine's own cost."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hetfl_flwr.federation import EXAMPLES, METRICS

app = ClientApp()


@app.train()
def echo(message: Message, context: Context) -> Message:
    """Answer at once, with the least that counts as a reply."""
    return Message(RecordDict({METRICS: MetricRecord({EXAMPLES: 1})}), reply_to=message)
