"""FedHeNN, client side: local training whose representations are pulled towards those of the others.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.

Each mode is a class and a file of its own.
"""

from clients.fedhenn.heterogeneous import FedHeNNClient
from clients.fedhenn.homogeneous import FedHeNNHomogeneousClient

MODES = {"heterogeneous": FedHeNNClient, "homogeneous": FedHeNNHomogeneousClient}
"""The client side in each mode, as in `strategies.fedhenn.MODES`."""

__all__ = ["MODES", "FedHeNNClient", "FedHeNNHomogeneousClient"]
