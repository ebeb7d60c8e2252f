"""How samples are split over clients, as the run config sets it."""

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
    """How a data set is shared out over clients, and each client's rows are cut into parts.

    The fields are the config keys of these names, which `RunConfig` describes, and the `Reading` of the others. What
    is not said there:

    - A rotated family's rows are drawn from the training split alone, with ``test_set = "global"``, too: then every
      client tests on the data set's whole test split, rotated as the client's domain is.
    - Above 0, each of the fractions gives a client of 3 rows or more at least one row. Public rows are training rows
      all the same, and at most all of these.
    - Half of the data is a random half of the training rows, rounded up; a larger part of the clients has the same ones
      and more. FedHeNN (Makhija et al., ICML 2022, Fig. 3) shrinks "the data on those clients"; here validation and
      test rows stay, so that scores can be compared.
    - A mean image, or a deviation of colours, is of all domains of a rotated family together. With
      ``test_set = "client"`` the training split has the clients' validation and test images in it.
    - Pooled rows are a client's own, and the others' but for their public ones.

    Raises
    ------
    ConfigError
        If nothing is left to train on, or rows of different columns were to be pooled.
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
                f"pooled = true and features = {self.features}: rows of different columns cannot be combined; "
                "set features to all"
            )

    @cached_property
    def form(self) -> Partition:
        """How rows are shared out: what `partition` says."""
        return parse_partition(self.partition)

    @cached_property
    def own_test(self) -> float | None:
        """The part of a client's rows that it tests on; None: all clients have the data set's own test split."""
        return self.test_fraction if self.test_set == "client" else None

    @cached_property
    def halved(self) -> frozenset[int]:
        """The clients that keep half of their training rows."""
        order = generator(self.seed, "halved").permutation(self.clients)
        return frozenset(order[: round(self.half_data_fraction * self.clients)].tolist())


SPLIT_KEYS = tuple(one.name for one in fields(Split) if one.name not in ("clients", "reading"))
"""The fields of a split that the run config has a key for."""
