"""LG-FedAvg, server side: the mean of the clients' heads, or of their bodies.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", NeurIPS workshop 2019 (arXiv 2001.01523).
"""

from torch import nn

from hetfl_flwr import Roster, WeightStrategy, check_size, seeded


class LGFedAvg(WeightStrategy):
    """Averages the clients' heads, weighted by numbers of training samples. Bodies stay on the clients.

    Clients must only have the same classes and embedding width D. With ``width = 0`` in the run config D is 64, and a
    body of another width gets a projection to it.

    Wire   weight (C, D) float32 and, unless ``head-bias`` is false, bias (C,) float32 of the head, both ways:
           4 C (D + 1) bytes. The head is sent once more for evaluation, and counted as evaluation.
    Needs  equal classes
    State  the head.
    Departs from the paper: the global part is only the head, which heterogeneous models can share; in the paper, it is
    any number of the last layers. It starts with random weights; the authors' scripts start with a whole model that
    FedAvg has trained, and average all clients with the same weight.
    """

    sends = "parts of weights"
    heterogeneous = True
    width = 64

    def __init__(self) -> None:
        """Take no options, so that those of `WeightStrategy` do not become config keys of the method."""
        super().__init__()

    def check(self, roster: Roster) -> None:
        """Refuse clients with different classes or embedding widths.

        Raises
        ------
        FederationError
            If clients differ. The message names them.
        """
        _ = roster.classes
        roster.check_same_width("lgfedavg", self.width)
        first = next(iter(roster))
        check_size(f"lgfedavg: the head of {first}", first.classes, first.width)

    def first_shared(self) -> nn.Module:
        """Draw the head that all clients start with; if bodies have no weights, it is FedAvg's global model."""
        first = next(iter(self.roster))
        with seeded(self.config.seed, "global", "weights"):
            return nn.Linear(first.width, first.classes, bias=self.config.head_bias)


class LGFedAvgBody(WeightStrategy):
    """Averages the clients' bodies, weighted by numbers of training samples. Heads stay on the clients.

    This is the reverse of `LGFedAvg`: the authors' scripts share the convolutions of their network for CIFAR-10, and
    keep its linear layers. Head and body are trained together; FedRep trains them one after the other.

    Wire   as in `strategies.fedrep.FedRep`.
    Needs  one body, whatever the heads and classes
    State  the body.
    """

    sends = "parts of weights"

    def __init__(self) -> None:
        super().__init__(bodies=True)


MODES = {"head": LGFedAvg, "body": LGFedAvgBody}
"""The server sides by the value of ``lgfedavg.mode``, the part of a model that is exchanged."""
