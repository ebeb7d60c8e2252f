"""LG-FedAvg, server side: the mean of the clients' heads, or of their bodies.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", NeurIPS workshop 2019 (arXiv 2001.01523).
"""

from torch import nn

from hetfl_flwr import Roster, WeightStrategy, check_size, seeded


class LGFedAvg(WeightStrategy):
    """Averages the weights of the clients' heads by their numbers of training samples. Bodies stay on the clients.

    Clients agree on the classes and on the embedding width D alone. With ``width = 0`` in the run config that is 64,
    and a body of another width gets a projection to it.

    Wire   weight (C, D) float32 and, unless ``head-bias`` is false, bias (C,) float32 of the head, both ways:
           4 C (D + 1) bytes. When the clients are evaluated they are sent the head once more, which is counted as
           evaluation.
    Needs  equal classes
    State  the head.
    Departs from the paper: the global part is the head alone, which is what models of different kinds can share; there,
    it is any number of the last layers. It begins as drawn from the seed; the authors' scripts begin with a whole model
    that FedAvg has trained, and average all clients alike.
    """

    sends = "parts of weights"
    heterogeneous = True
    width = 64

    def __init__(self) -> None:
        """Take no options: those of `WeightStrategy` would be keys of the method."""
        super().__init__()

    def check(self, roster: Roster) -> None:
        """Refuse clients that differ in their classes or embedding widths.

        Raises
        ------
        FederationError
            One line that names who differs.
        """
        _ = roster.classes
        roster.check_same_width("lgfedavg", self.width)
        first = next(iter(roster))
        check_size(f"lgfedavg: the head of {first}", first.classes, first.width)

    def first_shared(self) -> nn.Module:
        """Draw the head that all clients begin with: where a body has no weights, FedAvg's global model."""
        first = next(iter(self.roster))
        with seeded(self.config.seed, "global", "weights"):
            return nn.Linear(first.width, first.classes, bias=self.config.head_bias)


class LGFedAvgBody(WeightStrategy):
    """Averages the weights of the clients' bodies by numbers of training samples. Heads stay on the clients.

    The other way round: the authors' scripts share the convolutions of their network for CIFAR-10, and keep its linear
    layers. Head and body are trained together; in turn, it is FedRep.

    Wire   as in `strategies.fedrep.FedRep`.
    Needs  one body, whatever the heads and classes
    State  the body.
    """

    sends = "parts of weights"

    def __init__(self) -> None:
        super().__init__(bodies=True)


MODES = {"head": LGFedAvg, "body": LGFedAvgBody}
"""What travels, by the value of ``lgfedavg.mode``; the rest of each model stays."""
