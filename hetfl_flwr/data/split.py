"""How samples are split over clients, as the run config says it."""

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

    Parameters
    ----------
    dataset : str
        A name of the catalogue, or a hub id ``owner/name``; ``rotated-`` and either of them, for images; or a
        comma list of such names, which may differ in shape and classes.
    clients : int
        K, the number of clients, 1 or more.
    seed : int
        The run's seed, 0 or more.
    reading : Reading
        Where it lies, which columns count, and how its inputs are read. Bundled data sets have no columns and ignore
        them.
    partition : str
        How a domain's pool is shared out over its clients; see `parse_partition`.
    features : str
        Which columns of a table the client has: "all" or "slices:OVERLAP"; see `parse_features`.
    test_set : {"client", "global"}
        "client": the pool is all rows of the data set, and each client tests on a part of its own. The pool of a
        rotated family is drawn from the training split alone.
        "global": the pool is the training split, and every client tests on the data set's whole test split,
        rotated as the client's domain is.
    validation_fraction, test_fraction : float
        Parts of the client's own rows, each in [0, 1), their sum below 1. Above 0, a client of 3 rows or
        more gets at least one. ``test_fraction`` has no meaning with "global".
    public_fraction : float
        Part of the client's own rows, in [0, 1), that its algorithm may show to others; they are training rows
        all the same, and at most all of these. Above 0, a client of 3 rows or more has at least one.
    half_data_fraction : float
        Part of the clients, in [0, 1], rounded and drawn by the seed, that keep a random half of their training rows,
        rounded up; a larger part has the same clients and more. FedHeNN (Makhija et al., ICML 2022, Fig. 3) shrinks
        "the data on those clients"; here validation and test rows stay, so that scores can be compared.
    shared_split : bool
        Whether all domains share out and cut their rows by the same draw: then an image that one domain of a rotated
        family tests on is a training image in none. By default each domain draws its own split.
    rotation : {"clockwise", "counter-clockwise"}
        Which way the images of a rotated family are rotated; no meaning for other data sets.
    iid_evaluation : bool
        Whether validation and test samples are taken from the pool first and spread evenly by chance, so that they have
        all classes in the pool's proportions; ``partition`` then splits the rest, for training.
    normalize : {"mean-image", "mean-training-image", "standard", "imagenet", "none"}
        "mean-image": images in [0, 1] less the mean of the training split, of all domains of a rotated family
        together; the numbers of a table, and the channels of series, with mean 0 and standard deviation 1 over the
        client's own training rows.
        With ``test_set = "client"`` the training split has the clients' validation and test images in it.
        "mean-training-image": the mean is of the images that any client trains on, so of none that is tested on.
        "standard": images with mean 0 and standard deviation 1 in each colour over the training split, of all domains
        of a rotated family together; tables as above. "imagenet": images as torchvision's pretrained networks expect
        them.
        "none": images in [0, 1], tables and series as they are. Texts are tokens in either case.
    pooled : bool
        Whether each client trains on the training rows of all clients put together, as if all data lay in one place:
        its own, and the others' but for their public ones. Rows that any client validates or tests on are not among
        them. Tables and series have mean 0 and standard deviation 1 over these rows. Each client tests on what it would
        otherwise.

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
                f"pooled = true and features = {self.features}: rows of different columns cannot be put together; "
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
