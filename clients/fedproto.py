"""FedProto, client side: embeddings are drawn to the mean prototype of their class.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI
2022.
"""

from typing import Annotated, Literal

from pydantic import Field

from clients.base_prototypes import PrototypeClient
from hetfl_flwr import Node
from strategies.base_prototypes import Predict


class FedProtoClient(PrototypeClient):
    """Trains on ``CE + distance-weight * (squared distance of embeddings to the prototypes of their classes)``.

    Eq. (7)-(8). After training it sends its own prototypes: Eq. (3), over all of its training samples.

    Wire   as in `strategies.fedproto.FedProto`.
    State  the model, the optimizer's moments; where they predict, the prototypes that came last.
    Departs from the paper: the distance is of each sample of a batch, as in the authors' published code and HtFLlib:
    the mean over batch and width of the squared difference. In Eq. (8) it is of the client's prototypes, which change
    with each step. Prototypes are taken in evaluation mode, as in HtFLlib; the authors' code averages the embeddings of
    the last epoch, as they were in training. The optimizer goes on from round to round; in their code it begins anew.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    distance_weight : float
        Weight of the distance, lambda in Eq. (7), 0 or more. 0 is local training. 1 in the authors' code, 10 in
        HtFLlib.
    weighting : {"counts", "uniform"}
        As in `strategies.fedproto.FedProto`.
    predict : {"head", "prototype", "own-prototype"}
        What predicts when the client is measured. "head": the model, by its head. "prototype": the nearest of all
        prototypes that the server knows, Eq. (4), as in HtFLlib. "own-prototype": the nearest of those of the classes
        that the client has training samples of. The authors' code reports "head" and "own-prototype". Before there are
        any prototypes, the head predicts.
    """

    def __init__(
        self,
        node: Node,
        *,
        distance_weight: Annotated[float, Field(ge=0)] = 1.0,
        weighting: Literal["counts", "uniform"] = "counts",
        predict: Predict = "head",
    ) -> None:
        super().__init__(node, distance_weight=distance_weight, predict=predict, counted=weighting == "counts")
