"""The keys of the run config that split samples over clients, and into parts."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from hetfl_flwr.data.partitions import Partition, parse_partition
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.rotation import Rotation
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a data set is partitioned over clients, and how each client's rows are split into parts.

    The fields are keys of the run config, which `RunConfig` describes, and a `Reading`. In addition:

    - The rows of a rotated family come only from the training split, even with ``test_set = "global"``. Every client
      then tests on the whole test split, rotated like the client's domain.
    - Each fraction above 0 gives a client with 3 or more rows at least one row. Public rows are also training rows.
    - Half of the data is a random half of the training rows, rounded up. A larger ``half_data_fraction`` keeps these
      clients and adds others. FedHeNN (Makhija et al., ICML 2022, Fig. 3) shrinks "the data on those clients"; here
      validation and test rows stay, so that scores can be compared.
    - The mean image, or the deviations of colors, are taken over all domains of a rotated family. With
      ``test_set = "client"`` they include the clients' validation and test images.
    - Pooled rows are the training rows of all clients.

    Raises `ConfigError` if nothing is left to train on, or if rows with different columns would be pooled.
    """

    dataset: str
    clients: int
    seed: int
    reading: Reading = field(default_factory=Reading)
    partition: str = "iid"
    features: str = "all"
    test_set: Literal["client", "global"] = "client"
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    public_fraction: float = 0.1
    half_data_fraction: float = 0.0
    shared_split: bool = False
    rotation: Rotation = "clockwise"
    iid_evaluation: bool = False
    normalize: Literal["mean-image", "mean-training-image", "standard", "imagenet", "none"] = "mean-image"
    pooled: bool = False

    def __post_init__(self) -> None:
        """Check that rows are left to train on, and that pooled rows have the same columns."""
        validation, test = self.validation_fraction, self.own_test or 0.0
        if validation + test >= 1:
            raise ConfigError(
                f"validation-fraction {validation:g} and test-fraction {test:g} leave nothing to train on: "
                "their sum must be below 1"
            )
        if self.pooled and self.features != "all":
            raise ConfigError(
                f"pooled = true and features = {self.features}: rows with different columns cannot be combined: "
                "set features to all"
            )

    @cached_property
    def form(self) -> Partition:
        """The parsed `partition`."""
        return parse_partition(self.partition)

    @cached_property
    def own_test(self) -> float | None:
        """The fraction of a client's rows that it tests on; None if all clients use the data set's test split."""
        return self.test_fraction if self.test_set == "client" else None

    @cached_property
    def halved(self) -> frozenset[int]:
        """The clients that keep half of their training rows."""
        order = generator(self.seed, "halved").permutation(self.clients)
        return frozenset(order[: round(self.half_data_fraction * self.clients)].tolist())


SPLIT_KEYS = tuple(one.name for one in fields(Split) if one.name not in ("clients", "reading"))
"""The fields of a split that are keys of the run config."""
