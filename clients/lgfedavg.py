"""LG-FedAvg, client side: the client's own body with a head that all clients share.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", NeurIPS workshop 2019 (arXiv 2001.01523).
"""

from torch import nn

from clients.base_parts import SharedPartClient, check_head
from hetfl_flwr import Node


class LGFedAvgClient(SharedPartClient):
    """Trains its body and the shared head together, and sends the head.

    Algorithm 1: local and global parameters are trained on the same loss, cross-entropy. A client is evaluated with its
    own body and the current shared head.

    Wire   as in `strategies.lgfedavg.LGFedAvg`.
    State  the model, with a head that the next download replaces; the optimizer's moments of the body, and with
           ``moments = "kept"`` of the head.
    Departs from the paper: the losses of its fair and adversarial variants are not implemented. Clients start with the
    same body for each architecture; in the authors' scripts, with a whole model that FedAvg has trained. There the
    optimizer is reset in each round, also for the body, and each client's best model on its test set is reported.

    Parameters
    ----------
    node : Node
        The client's node.

    Raises
    ------
    ModelError
        If the model's head has a bias and ``head-bias`` is false, or the other way round.
    """

    starts_alike = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if self.shared is node.model.head:
            check_head(node, bias=node.config.head_bias)

    @property
    def shared(self) -> nn.Module:
        """The head is exchanged."""
        return self.node.model.head


class LGFedAvgBodyClient(LGFedAvgClient):
    """Trains its head and the shared body together, and sends the body.

    Wire   as in `strategies.lgfedavg.LGFedAvgBody`.
    State  the model, with a body that the next download replaces, except for integer buffers; the optimizer's moments
           of the head, and with ``moments = "kept"`` of the body.

    Parameters
    ----------
    node : Node
        As in `LGFedAvgClient`.
    """

    @property
    def shared(self) -> nn.Module:
        """The body is exchanged."""
        return self.node.model.body


MODES = {"head": LGFedAvgClient, "body": LGFedAvgBodyClient}
"""The client sides by the value of ``lgfedavg.mode``, the part of a model that is exchanged."""
