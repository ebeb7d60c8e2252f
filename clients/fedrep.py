"""FedRep, client side: the client's own head on a body that all clients share.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from clients.base_parts import SharedPartClient
from hetfl_flwr import SEEN, Arrays, Metrics, Node, draw_batches, generator, model_arrays, train


class FedRepClient(SharedPartClient):
    """Trains its head on the received body, then the body with that head, and sends the body.

    Algorithm 1, with mini-batches or epochs instead of single steps. The body trains for the run config's
    ``local-epochs`` or ``local-batches``, and so does the head by default. In the authors' published code, the head
    trains for all local epochs but the last, and the body for the last; for ten epochs, set ``head-epochs = 9``,
    ``local-epochs = 1`` and ``local-batches = 0``. Each part has its own optimizer. All clients start with the same
    body and the same head; a head with another number of classes has its own initial weights.

    Wire   as in `strategies.fedrep.FedRep`.
    State  the model, of which the next download replaces all but the head and the body's integer buffers; the moments
           of the head's optimizer, and with ``moments = "kept"`` of the body's.
    Departs from the paper: the average of bodies is weighted by numbers of samples; Algorithm 1, and the authors' code
    for images, use equal weights. In that code, SGD has a momentum of 0.5 and a weight decay of 1e-4. One optimizer
    trains both parts and is reset in each round; here, the optimizer of the head keeps its moments. While the head
    trains, dropout and batch norm of the body are in training mode; here they are in evaluation mode. After the last
    round, the heads train for ten more epochs.

    Parameters
    ----------
    node : Node
        The client's node.
    head_epochs : int
        Passes of the head over the client's samples in a round, 0 or more, if ``head_batches`` is 0. If both are 0, the
        head trains for as many passes or mini-batches as the body.
    head_batches : int
        Mini-batches of the head in a round, 0 or more. 0: whole epochs.
    """

    starts_alike = True

    def __init__(
        self,
        node: Node,
        *,
        head_epochs: Annotated[int, Field(ge=0)] = 0,
        head_batches: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__(node)
        own, config = head_epochs or head_batches, node.config
        self.head_epochs = head_epochs if own else config.local_epochs
        self.head_batches = head_batches if own else config.local_batches

    @property
    def shared(self) -> nn.Module:
        """The body is exchanged."""
        return self.node.model.body

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the head, then the body."""
        body, head = self.node.model.body, self.node.model.head
        self.load(body, download)

        def head_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                features = body(inputs)
            return self.node.data_loss(head(features), labels)

        def body_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return self.node.data_loss(head(body(inputs)), labels)

        config, samples = self.node.config, self.node.training(self.node.data.train)
        rng = generator(config.seed, self.node.client_id, round, "head")
        passes = {"epochs": self.head_epochs, "batches": self.head_batches}
        batches = draw_batches(rng, len(samples), config.batch_size, **passes)
        of_head = self.optimizer("head-optimizer", head.parameters())
        of_body = self.optimizer("body-optimizer", body.parameters())
        body.eval()
        _, first_loss = train(samples, batches, of_head, head_loss)
        body.train()
        head.requires_grad_(False)
        seen, mean_loss = train(samples, self.batches(round), of_body, body_loss)
        head.requires_grad_(True)
        return model_arrays(body), {SEEN: seen, "train-loss": mean_loss, "head-loss": first_loss}
