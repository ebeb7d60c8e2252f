"""Models: a body and a linear head, a zoo of small models that adapt to the data, and any PyTorch module of the user.

Nothing here trains a client's model, or knows more about clients than their ids.
"""

from hetfl_flwr.models.building import CatalogueRow, build_model, catalogue_rows
from hetfl_flwr.models.narrow import network_of, parse_width
from hetfl_flwr.models.precision import mixed
from hetfl_flwr.models.registry import ZOO, assign, check_pretrained, drawn_order, parse_models
from hetfl_flwr.models.split_model import SplitModel, has_batch_norm, parameter_count, split, trainable_count

__all__ = [
    "ZOO",
    "CatalogueRow",
    "SplitModel",
    "assign",
    "build_model",
    "catalogue_rows",
    "check_pretrained",
    "drawn_order",
    "has_batch_norm",
    "mixed",
    "network_of",
    "parameter_count",
    "parse_models",
    "parse_width",
    "split",
    "trainable_count",
]
