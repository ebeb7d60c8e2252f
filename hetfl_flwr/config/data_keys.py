"""Keys of the data: which, how they are read, and how they are split over the clients."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from hetfl_flwr.config.keys import PER_NODE, Keys, checked_path

if TYPE_CHECKING:
    from hetfl_flwr.data import Reading, Split

BUNDLED = "digits"
"""The data set of simulated clients for whom none is named."""


def _parsed(parser: str) -> AfterValidator:
    """Check a text by one of the parsers of `hetfl_flwr.data`, and keep it as it is."""

    def check(text: str) -> str:
        from hetfl_flwr import data  # torch is not needed to say `hetfl --help`

        getattr(data, parser)(text)
        return text

    return AfterValidator(check)


def _dataset(text: str, info: ValidationInfo) -> str:
    for name in text.split(","):
        checked_path(name.strip().removeprefix("rotated-"), info)
    return text


class DataKeys(Keys):
    """The data of all clients, and the part of each."""

    dataset: Annotated[
        str,
        PER_NODE,
        AfterValidator(_dataset),
        Field(
            description="Data set: a name from `hetfl list datasets`, a Hugging Face hub id, a folder or a file of "
            "rows that starts with ./ or /, or rotated-NAME for images. A comma-separated list is assigned "
            "round-robin to the clients. Empty: digits where all clients are simulated; in a deployment each node "
            "names its own.",
        ),
    ] = ""
    data_dir: Annotated[
        str,
        PER_NODE,
        AfterValidator(checked_path),
        Field(description="Folder with local copies in the hub's layout. Empty: bundled data or the hub."),
    ] = ""
    image_column: Annotated[
        str, PER_NODE, Field(description="Image column of a hub id (a list: or one each). Empty: the only one.")
    ] = ""
    text_column: Annotated[
        str,
        PER_NODE,
        Field(description="Text column to learn from (a list: or one each). Empty: the catalogue's, or none."),
    ] = ""
    series_column: Annotated[
        str,
        PER_NODE,
        Field(
            description="Column of time series, lists of numbers (a list: or one each). Empty: the only column of "
            "lists."
        ),
    ] = ""
    label_column: Annotated[
        str, PER_NODE, Field(description="Label column of a hub id (a list: or one each). Empty: the only one.")
    ] = ""
    domain_column: Annotated[
        str,
        PER_NODE,
        Field(
            description="Column with the domain of each sample (a list: or one each). Empty: the catalogue's, or none."
        ),
    ] = ""
    classes: Annotated[
        str,
        PER_NODE,
        _parsed("parse_classes"),
        Field(
            description="Comma-separated class names in order, including those that the data lack: NAME, or "
            "NAME:LABEL where the data use another label. Empty: as in the data."
        ),
    ] = ""
    categorical_columns: Annotated[
        str,
        PER_NODE,
        Field(description="Comma-separated columns of a table that are categorical although they hold numbers."),
    ] = ""
    numeric_columns: Annotated[
        str,
        PER_NODE,
        Field(
            description="Comma-separated columns of a table that are numbers although their values are all different, "
            "as ids are, or many of them are no numbers."
        ),
    ] = ""
    ignore_columns: Annotated[str, PER_NODE, Field(description="Comma-separated columns of a table to leave out.")] = ""
    image_size: Annotated[
        int, Field(ge=0, le=8192, description="Height and width to which images are resized. 0: unchanged.")
    ] = 0
    vocabulary: Annotated[
        str,
        _parsed("parse_vocabulary"),
        Field(
            description="Vocabulary of texts: hashed:V (hash of a word), or shared:V (the most frequent words of the "
            "training split)."
        ),
    ] = "hashed:20000"
    text_length: Annotated[
        int, Field(ge=1, le=65_536, description="Maximum number of tokens of a text; longer texts are cut.")
    ] = 32
    series_layout: Annotated[
        Literal["auto", "channels-first", "channels-last"],
        PER_NODE,
        Field(
            description="What the outer lists of a time series are. channels-first: its channels; channels-last: its "
            "points in time, each a list of channels; auto: whichever are fewer are the channels."
        ),
    ] = "auto"
    partition: Annotated[
        str,
        PER_NODE,
        _parsed("parse_partition"),
        Field(
            description="How samples are split over clients: iid, dirichlet:ALPHA, classes:N or shards:N (a client), "
            "ways:N:D:K (N classes a client, K samples of each, plus or minus D), natural:COLUMN (its values own the "
            "rows), files (each owns its rows), linear, square or exponential (client k's share grows with k), or all "
            "(no split)."
        ),
    ] = "iid"
    features: Annotated[
        str,
        _parsed("parse_features"),
        Field(
            description="Columns of a table that a client has: all, or slices:OVERLAP (one slice a client, OVERLAP of "
            "it shared)."
        ),
    ] = "all"
    test_set: Annotated[
        Literal["client", "global"],
        Field(
            description="client: a fraction of each client's own samples; global: the data set's test split, for all "
            "clients."
        ),
    ] = "client"
    validation_fraction: Annotated[
        float, Field(ge=0, lt=1, description="Fraction of a client's samples kept for validation.")
    ] = 0.1
    test_fraction: Annotated[
        float, Field(ge=0, lt=1, description="Fraction of a client's samples kept for testing (with test-set client).")
    ] = 0.2
    public_fraction: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Fraction of a client's samples, taken from its training set, that it may share as public "
            "samples.",
        ),
    ] = 0.1
    half_data_fraction: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Fraction of clients, drawn by the seed, that keep only half of their training samples.",
        ),
    ] = 0.0
    shared_split: Annotated[
        bool,
        Field(
            description="Split all domains of the same images (rotated) alike, so that no domain trains on another's "
            "test images."
        ),
    ] = False
    rotation: Annotated[
        Literal["clockwise", "counter-clockwise"],
        Field(
            description="Which way the images of rotated-NAME are rotated: clockwise (the text of Li et al., FedH2L) "
            "or counter-clockwise (what torchvision's rotate does with an angle above 0)."
        ),
    ] = "clockwise"
    iid_evaluation: Annotated[
        bool,
        Field(
            description="Assign validation and test samples evenly, with all classes; partition applies to the "
            "training samples only."
        ),
    ] = False
    normalize: Annotated[
        Literal["mean-image", "mean-training-image", "standard", "imagenet", "none"],
        Field(
            description="mean-image: subtract the mean image of the training split; scale a table's columns, and the "
            "channels of time series, to mean 0 and standard deviation 1 on the client's training samples. "
            "mean-training-image: likewise, but the mean is of the images that clients train on, without those that "
            "they test on. standard: images with mean 0 and standard deviation 1 in each colour over the training "
            "split. imagenet: scale images as ImageNet weights (pretrained) expect. none: scale images to [0, 1], "
            "leave tables and time series unchanged."
        ),
    ] = "mean-image"
    augment: Annotated[
        Literal["none", "crop", "flip", "crop-flip"],
        Field(
            description="How training images are changed at random, each time differently. crop: shifted by up "
            "to an eighth of each side, what lies beyond is 0; flip: every second one mirrored; crop-flip: both. Not "
            "those that are measured, shown to others or represented for them."
        ),
    ] = "none"

    pooled: Annotated[
        bool,
        Field(
            description="Each client trains on the training samples of all clients put together, and tests on its own: "
            "the upper mark, beside local. Only for algorithm local, and only where all clients are simulated. The "
            "others' validation and test samples are not trained on."
        ),
    ] = False

    @property
    def reading(self) -> "Reading":
        """What the config says about reading the data."""
        from hetfl_flwr.data import READING_KEYS, Reading, parse_partition

        by_file = parse_partition(self.partition).by_file
        return Reading(**{key: getattr(self, key) for key in READING_KEYS}, by_file=by_file)

    def split(self, clients: int) -> "Split":
        """Return how the config shares the data out over a number of clients."""
        from hetfl_flwr.data import SPLIT_KEYS, Split

        return Split(**{key: getattr(self, key) for key in SPLIT_KEYS}, reading=self.reading, clients=clients)
