"""FedTGP, client side: embeddings are pulled toward the server's trained prototype of their class.

Zhang, Liu, Hua and Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from typing import Annotated

from pydantic import Field

from clients.fedproto import FedProtoClient
from hetfl_flwr import Node
from strategies.prototypes import Predict


class FedTGPClient(FedProtoClient):
    """Trains on ``CE + distance-weight * (squared distance of embeddings to the prototypes of their classes)``.

    It trains like a client of FedProto, but toward the prototypes that the server has trained. After training it sends
    its own prototypes: the mean embedding of each class over all of its training samples, in evaluation mode.

    Wire   as in `strategies.fedtgp.FedTGP`.
    State  the model, the optimizer's moments; the last received prototypes if they predict.
    Departs from the paper: the distance is that of each sample in a batch, as in the authors' published code: the mean
    over batch and width of the squared difference.

    Parameters
    ----------
    node : Node
        The client's node.
    distance_weight : float
        Weight of the distance, 0 or more. 0 is local training. 10 is the value in the authors' published script.
    predict : {"head", "prototype", "own-prototype"}
        What predicts when the client is evaluated. "prototype": the nearest of all prototypes that the server knows, as
        in the authors' published code. "own-prototype": the nearest prototype of the classes in the client's training
        samples. "head": the model's head. Before there are any prototypes, the head predicts.
    """

    starts_alike = True  # as in the authors' code, which draws all clients' models from the same seed

    def __init__(
        self,
        node: Node,
        *,
        distance_weight: Annotated[float, Field(ge=0)] = 10.0,
        predict: Predict = "prototype",
    ) -> None:
        super().__init__(node, distance_weight=distance_weight, weighting="uniform", predict=predict)
