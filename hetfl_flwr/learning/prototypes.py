"""Prototypes of classes."""

import torch
from torch import Tensor

from hetfl_flwr.data import Samples
from hetfl_flwr.learning.training import EVALUATION_BATCH
from hetfl_flwr.models import SplitModel


@torch.no_grad()
def class_means(model: SplitModel, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return the mean embedding of each class, in evaluation mode; restore the model's mode.

    Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, Eq. (3).

    Parameters
    ----------
    model : SplitModel
        A model with C classes and width D.
    samples : Samples
        The samples to average over.

    Returns
    -------
    tuple of Tensor
        The means (C, D), float32, 0 for a class without samples, and the number of samples of each class, (C,) int64.
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
