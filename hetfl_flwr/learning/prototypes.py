"""Prototypes of classes: how a client takes them, and how far its embeddings are from them."""

import torch
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.data import Batches
from hetfl_flwr.learning.training import EVALUATION_BATCH
from hetfl_flwr.models import SplitModel


@torch.no_grad()
def class_means(model: SplitModel, samples: Batches) -> tuple[Tensor, Tensor]:
    """Return the mean embedding of each class, in evaluation mode; the model's mode is put back.

    Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, Eq. (3).

    Parameters
    ----------
    model : SplitModel
        Of C classes and width D.
    samples : Batches
        What the means are over.

    Returns
    -------
    tuple of Tensor
        Means (C, D) float32, 0 for a class without samples, and the number of samples of each class, (C,) int64.
    """
    was_training = model.training
    model.eval()
    counts = samples.class_counts(model.classes)
    sums = torch.zeros(model.classes, model.width, device=model.head.weight.device)
    for rows in torch.split(torch.arange(len(samples)), EVALUATION_BATCH):
        inputs, labels = samples.batch(rows)
        sums.index_add_(0, labels, model.body(inputs))
    model.train(was_training)
    return sums / counts.clamp(min=1)[:, None].to(sums.device), counts


def distance_to_prototypes(embeddings: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return how far embeddings are from the prototypes of their classes.

    The mean over batch and width of the squared difference; samples of a class without a prototype count as 0.

    Parameters
    ----------
    embeddings, labels : Tensor
        (B, D), and (B,) int64.
    prototypes, known : Tensor
        (C, D), and (C,) bool: for which classes there is one.

    Examples
    --------
    >>> prototypes, known = torch.tensor([[1.0, 0.0], [9.0, 9.0]]), torch.tensor([True, False])
    >>> distance_to_prototypes(torch.tensor([[3.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 1]), prototypes, known)
    tensor(1.)
    """
    squares = functional.mse_loss(embeddings, prototypes[labels], reduction="none")
    return (squares * known[labels, None]).mean()
