"""FedHeNN, server side: the mean kernel of the clients' representations, or the mean of their weights.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.

Clients align on a set of unlabelled samples (RAD): R of the clients' public samples, drawn again for each round. Each
mode is a class and a file of its own.
"""

from strategies.fedhenn.heterogeneous import FedHeNN
from strategies.fedhenn.homogeneous import FedHeNNHomogeneous

MODES = {"heterogeneous": FedHeNN, "homogeneous": FedHeNNHomogeneous}
"""The server side in each mode; the first is the default."""

__all__ = ["MODES", "FedHeNN", "FedHeNNHomogeneous"]
