"""A client and all that it needs to answer: built for one message, or kept for many."""

import torch
from flwr.app import Context
from torch import nn

from hetfl_flwr.learning.metrics import Metrics
from hetfl_flwr.methods import build_client, names
from hetfl_flwr.models import ZOO, network_of
from hetfl_flwr.node.keepers import keeper_of
from hetfl_flwr.node.meter import Meter
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.codec import check_halves, halved
from hetfl_flwr.wire.forms import Form, form_of
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.privacy import private_upload
from hetfl_flwr.wire.spec import Arrays


class Resident:
    """A client on its node.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    stays : bool
        Whether it answers more than one message.

    Attributes
    ----------
    client : KnowledgeClient
        The algorithm's client side.
    nbytes : int
        The bytes of its networks.
    half : bool
        Whether arrays travel in half precision.
    uploads_as_learnt : bool
        Whether what it learns leaves the node as it is, neither clipped nor noised nor in half precision.
    """

    def __init__(self, node: Node, *, stays: bool = False) -> None:
        self.node = node
        self.client = build_client(node.config, node)
        self.uploads_as_learnt = not (node.config.half or node.config.clipping_norm)
        self.half = node.config.half
        self._measured = node.config.measured
        self._pool: object = None
        self._forms: dict[str, Form] = {}
        self.nbytes = sum(_bytes(network) for network in dict.fromkeys((node.model, *self.client.modules().values())))
        if stays:
            self.client._session.stay(self.client)

    def form(self, kind: str) -> Form:
        """Return the form of what is sent to this client in training ("down"), from it ("up"), or to measure with."""
        if self._pool is not self.node.public_samples.current:  # declarations may depend on the public samples
            self._pool, self._forms = self.node.public_samples.current, {}
        if kind not in self._forms:
            client = self.client
            declared = {"down": client.download_spec, "up": client.upload_spec, "assess": client.assess_spec}
            self._forms[kind] = form_of(declared[kind]())
        return self._forms[kind]

    def train(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Learn for a round from a download that has been checked; return the upload, as it travels, and metrics."""
        node, up, session = self.node, self.form("up"), self.client._session
        if self._measured:
            with Meter(self._measured, node.device) as meter:
                learnt, metrics = session.learn(self.client, _own(download), round, up)
            metrics |= {**meter.costs, EXAMPLES: metrics.pop(EXAMPLES)}
        else:
            learnt, metrics = session.learn(self.client, _own(download), round, up)
        return learnt if self.uploads_as_learnt else self._released(learnt, up, download, round), metrics

    def _released(self, learnt: Arrays, up: Form, download: Arrays, round: int) -> Arrays:
        """Return an upload clipped, noised and in half precision, as the run config says."""
        node, config = self.node, self.node.config
        if config.clipping_norm:
            expected = self.form("down").spec
            learnt = private_upload(learnt, up.spec, download, expected, config, node.client_id, round)
        if self.half:
            check_halves(learnt, str(node))
            learnt = halved(learnt)
        return learnt

    def measure(self, download: Arrays, round: int | None) -> Metrics:
        """Measure with a download that has been checked."""
        return self.client._session.assess(self.client, _own(download), round)


def resident_of(context: Context, before: str = "") -> Resident:
    """Return the client of a Context, kept where its Context or its process keeps it.

    Parameters
    ----------
    context : Context
        The node's.
    before : str
        The run that this one goes on with, if any: its state folder says which model was chosen.

    Raises
    ------
    HetflError
        What is wrong with the config, the data or the model, in one line.
    """
    keeper = keeper_of(context)
    if keeper is None:
        return Resident(Node.from_context(context, before))
    if keeper.resident is None:
        node = Node.from_context(context, before)
        if network_of(node.model_name) not in ZOO or node.config.algorithm not in names():
            return Resident(node)  # a user's own may keep what no state holds
        keeper.resident = Resident(node, stays=True)
    torch.set_num_threads(keeper.resident.node.config.threads)
    return keeper.resident


def forget(context: Context) -> None:
    """Let a client be built again from what it has saved, as after an error."""
    keeper = keeper_of(context)
    if keeper is not None:
        keeper.resident = None


def _own(download: Arrays) -> Arrays:
    """Return copies: whatever a client does to them, others have been sent the same arrays."""
    return {name: array.copy() for name, array in download.items()}


def _bytes(network: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
