"""The run config: every key, its type, its default and its meaning, in this one place.

The same keys serve ``hetfl run --set key=value``, ``flwr run . -c "key=value"``, recipes and a run folder's
``config.toml``. Flower hands them over flat, with an algorithm's own keys under its name (``fedhe.alpha``).
"""

import shlex
import stat
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from hetfl_flwr.errors import ConfigError, private, unknown
from hetfl_flwr.renamed import renamed

if TYPE_CHECKING:
    from hetfl_flwr.data import Reading, Split

Value = bool | int | float | str
"""What Flower allows as the value of a run-config or node-config key."""


AUTO = "auto"
"""Value of ``models`` that leaves the choice to the algorithm's kind."""

AUTO_MODELS = {"image": "lenet5,mlp,fedhe:5", "table": "mlp,tabular:0,tabular:1", "text": "lstm1,bag,lstm2"}
"""What ``models = "auto"`` stands for, by what inputs are; the first alone where clients must have one model."""

BUNDLED = "digits"
"""The data set of simulated clients for whom none is named."""

DEFAULT_CLIENTS = 10
"""Clients of a local run that names no number."""

MOST = 2**31 - 1
"""Largest whole number of a key that has no smaller bound of its own."""

LONGEST_VALUE = 100_000
"""Characters of a text, at most."""

DEEPEST = 32
"""Tables within each other in a TOML file, at most."""

LARGEST_FILE = 2**20
"""Bytes of a TOML file of config keys, at most."""

PER_NODE = "per node"
"""Mark of a key that a node may set for itself."""

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""What ``track`` may name."""


def one_model(kind: str) -> str:
    """Return what ``models = "auto"`` gives clients that must have one model, by what inputs are.

    Examples
    --------
    >>> one_model("table")
    'mlp'
    """
    return AUTO_MODELS[kind].partition(",")[0]


def _partition(text: str) -> str:
    from hetfl_flwr.data import parse_partition  # torch is not needed to say `hetfl --help`

    parse_partition(text)
    return text


def _vocabulary(text: str) -> str:
    from hetfl_flwr.data import parse_vocabulary

    parse_vocabulary(text)
    return text


def _classes(text: str) -> str:
    from hetfl_flwr.data import parse_classes

    parse_classes(text)
    return text


def _features(text: str) -> str:
    from hetfl_flwr.data import parse_features

    parse_features(text)
    return text


def _models(text: str) -> str:
    if text != AUTO:
        from hetfl_flwr.models import parse_models

        parse_models(text)
    return text


def _seconds(text: str) -> str:
    simulated_seconds(text)
    return text


def simulated_seconds(text: str) -> list[float]:
    """Read the value of ``client-seconds``; an empty one is 1 for all.

    Raises
    ------
    ConfigError
        Not numbers above 0, separated by commas.

    Examples
    --------
    >>> simulated_seconds("1,1,20")
    [1.0, 1.0, 20.0]
    """
    try:
        seconds = [float(part) for part in (text or "1").split(",")]
    except ValueError:
        seconds = []
    if not seconds or not all(0 < value <= 1e9 for value in seconds):
        raise ConfigError(f"client-seconds = {text!r}: expected numbers above 0, at most 1e9, separated by commas")
    return seconds


def _trackers(text: str) -> str:
    parse_trackers(text)
    return text


def parse_trackers(text: str) -> list[str]:
    """Read the value of ``track``.

    Raises
    ------
    ConfigError
        A name that is none of `TRACKERS`.

    Examples
    --------
    >>> parse_trackers("tensorboard, wandb"), parse_trackers("")
    (['tensorboard', 'wandb'], [])
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(unknown("tracker", name, TRACKERS))
    return list(dict.fromkeys(names))


def _callbacks(text: str) -> str:
    parse_callbacks(text)
    return text


def parse_callbacks(text: str) -> list[str]:
    """Read the value of ``callbacks``.

    Raises
    ------
    ConfigError
        A name that is not ``package.module:Class``.

    Examples
    --------
    >>> parse_callbacks("my_pkg.stop:Early, my_pkg.log:Lines"), parse_callbacks("")
    (['my_pkg.stop:Early', 'my_pkg.log:Lines'], [])
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        path, colon, attribute = name.partition(":")
        if not colon or not all(part.isidentifier() for part in (*path.split("."), attribute)):
            raise ConfigError(f"callbacks = {text!r}: expected package.module:Class, or several separated by commas")
    return list(dict.fromkeys(names))


def _noise(multiplier: float, info: ValidationInfo) -> float:
    key = _kebab(info.field_name or "")
    norm = key.replace("noise-multiplier", "clipping-norm")
    if multiplier > 0 and info.data.get(norm.replace("-", "_")) == 0:
        raise ConfigError(
            f"{key} = {multiplier:g} needs {norm} above 0: the noise's standard deviation is {key} times {norm}"
        )
    return multiplier


def _accept_loss(accept: bool, info: ValidationInfo) -> bool:
    if accept and not info.data.get("resume", True):
        raise ValueError("there is nothing to lose in a new run; it goes with resume = true (--resume)")
    return accept


def _start_clients(number: int, info: ValidationInfo) -> int:
    clients = info.data.get("clients") or number
    if number > clients:
        raise ConfigError(f"start-clients = {number}: more than clients = {clients}")
    return number


def _outlier_factor(factor: float) -> float:
    if 0 < factor < 1:
        raise ValueError("expected 1 or more, or 0 for no guard")
    return factor


def usable_path(text: str) -> Path:
    """Return a text as a path, where the file system can have one of that name.

    Raises
    ------
    ConfigError
        It is empty or too long, a part of it is, it holds a NUL character or what UTF-8 cannot write, names a user
        who has no home here, or links in a circle.
    """
    if not text:
        raise ConfigError("the name of a file or folder is empty")
    problem = _unusable(text) or _too_long(text)
    if not problem:
        try:
            Path(text).expanduser().resolve()
        except RuntimeError as error:
            problem = private(str(error).rstrip(".").lower())
    if problem:
        raise ConfigError(f"{private(repr(text))} cannot be the name of a file or folder: {problem}")
    return Path(text)


def _unusable(text: str) -> str:
    """Say what makes a text one that neither TOML nor a file system can hold; nothing if they can."""
    if "\0" in text:
        return "it holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds what UTF-8 cannot write"
    return ""


def _too_long(path: str) -> str:
    """Say that a path is longer than Linux takes, or a part of it is; nothing if neither is."""
    if len(path.encode()) > 4095:
        return "it is longer than 4095 bytes"
    return "a part of it is longer than 255 bytes" if any(len(part.encode()) > 255 for part in path.split("/")) else ""


def _path(text: str, info: ValidationInfo) -> str:
    try:
        if text:
            usable_path(text)
    except ConfigError as error:
        raise ConfigError(f"{_kebab(info.field_name or '')} = {error.marked}") from None
    return text


def _dataset(text: str, info: ValidationInfo) -> str:
    for name in text.split(","):
        _path(name.strip().removeprefix("rotated-"), info)
    return text


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """One run, typed and checked. Keys are spelled with dashes on the outside, as attributes inside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=_kebab,
        populate_by_name=True,
    )

    algorithm: Annotated[
        str,
        Field(
            min_length=1,
            description="Algorithm: a name from `hetfl list algorithms`, or package.module for one of your own.",
        ),
    ] = "fedhe"
    algorithm_options: Annotated[
        str,
        Field(
            description="Options of the algorithm without its name, such as 'weight=0.5 kind=cosine', quoted as in a "
            "shell. They override NAME.key. Meant for an algorithm of your own under `flwr run -c`, which "
            "rejects keys that have no default in pyproject.toml."
        ),
    ] = ""

    dataset: Annotated[
        str,
        PER_NODE,
        AfterValidator(_dataset),
        Field(
            description="Data set: a name from `hetfl list datasets`, a Hugging Face hub id, a folder that starts "
            "with ./ or /, or rotated-NAME for images. A comma-separated list is assigned round-robin to "
            "the clients. Empty: digits where all clients are simulated; in a deployment each node names "
            "its own.",
        ),
    ] = ""
    data_dir: Annotated[
        str,
        PER_NODE,
        AfterValidator(_path),
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
        AfterValidator(_classes),
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
    ignore_columns: Annotated[str, PER_NODE, Field(description="Comma-separated columns of a table to leave out.")] = ""
    image_size: Annotated[
        int, Field(ge=0, le=8192, description="Height and width to which images are resized. 0: unchanged.")
    ] = 0
    vocabulary: Annotated[
        str,
        AfterValidator(_vocabulary),
        Field(
            description="Vocabulary of texts: hashed:V (hash of a word), or shared:V (the most frequent words of the "
            "training split)."
        ),
    ] = "hashed:20000"
    text_length: Annotated[
        int, Field(ge=1, le=65_536, description="Maximum number of tokens of a text; longer texts are cut.")
    ] = 32
    partition: Annotated[
        str,
        PER_NODE,
        AfterValidator(_partition),
        Field(
            description="How samples are split over clients: iid, dirichlet:ALPHA, classes:N (a client), shards:N (a "
            "client), natural:COLUMN (its values own the rows), linear, square or exponential (client k's "
            "share grows with k), or all (no split)."
        ),
    ] = "iid"
    features: Annotated[
        str,
        AfterValidator(_features),
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
    iid_evaluation: Annotated[
        bool,
        Field(
            description="Assign validation and test samples evenly, with all classes; partition applies to the "
            "training samples only."
        ),
    ] = False
    normalize: Annotated[
        Literal["mean-image", "imagenet", "none"],
        Field(
            description="mean-image: subtract the mean training image; scale a table's columns to mean 0 and standard "
            "deviation 1 on the client's training samples. imagenet: scale images as ImageNet weights "
            "(pretrained) expect. none: scale images to [0, 1], leave tables unchanged."
        ),
    ] = "mean-image"

    models: Annotated[
        str,
        AfterValidator(_models),
        Field(
            description="Models, assigned round-robin to the clients: names from `hetfl list models`, or "
            f"module:function. auto: {AUTO_MODELS['image']} for images, {AUTO_MODELS['table']} for tables, "
            f"{AUTO_MODELS['text']} for texts; the first alone for an algorithm that needs one model."
        ),
    ] = AUTO

    pretrained: Annotated[
        str,
        PER_NODE,
        AfterValidator(_path),
        Field(
            description="Source of ImageNet weights for torchvision networks: torchvision (torch's hub folder), hub "
            "(cache of the Hugging Face hub; ResNets only), or a folder with MODEL.safetensors or "
            "MODEL.pth. Nothing is downloaded; other models start from random weights. Empty: random "
            "weights for all."
        ),
    ] = ""

    width: Annotated[
        int,
        Field(
            ge=0,
            le=65_536,
            description="Embedding width of all models; a model of another width gets a projection in front of its "
            "head. 0: each model's own width, or what the algorithm requires.",
        ),
    ] = 0

    clients: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="Number of clients. In the local engine and the simulation, none may fail before round 1; a "
            "deployment waits for them (start-clients, start-timeout). 0: 10 in the local engine; all "
            "that exist and do not fail in a simulation; those in node-keys, or start-clients, in a "
            "deployment.",
        ),
    ] = 0
    rounds: Annotated[int, Field(ge=1, le=MOST, description="Number of training rounds.")] = 50
    fraction: Annotated[float, Field(gt=0, le=1, description="Fraction of clients sampled per round, rounded up.")] = (
        1.0
    )
    nonparticipating_fraction: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Fraction of clients, drawn by the seed, that never train, for example because they are too "
            "weak. They are evaluated like all others.",
        ),
    ] = 0.0
    min_clients: Annotated[
        int, Field(ge=1, le=MOST, description="Abort the run when a round has fewer valid replies than this.")
    ] = 1
    round_timeout: Annotated[
        float,
        Field(gt=0, le=1e9, description="Seconds that the server waits for the replies of a round."),
    ] = 3600.0
    start_clients: Annotated[
        int,
        AfterValidator(_start_clients),
        Field(
            ge=0,
            description="Number of clients with which a deployment may start; it aborts if fewer have registered "
            "after start-timeout. 0: wait for all of clients or node-keys, and after start-timeout start "
            "with min-clients or more.",
        ),
    ] = 0
    start_timeout: Annotated[
        float,
        Field(
            ge=0,
            description="Seconds to wait for nodes before round 1. 0: round-timeout, in a deployment 600 at most.",
        ),
    ] = 0.0
    node_keys: Annotated[
        str,
        Field(
            description="File with the nodes' public keys (node-keys.toml, written by `hetfl keys`), on the server of "
            "a deployment: a node is accepted only as the client for which its key is listed. Empty: no "
            "check."
        ),
    ] = ""
    outlier_factor: Annotated[
        float,
        AfterValidator(_outlier_factor),
        Field(
            ge=0,
            description="Set an upload aside if one of its arrays is more than this many times as large as the median "
            "client's (and more than three standard deviations away). 1 or more; 0: off.",
        ),
    ] = 5.0
    evaluate_every: Annotated[
        int, Field(ge=1, le=MOST, description="Evaluate the clients every N rounds, and after the last.")
    ] = 1
    keep_best: Annotated[
        bool,
        Field(description="Clients keep and report their model with the best validation accuracy so far."),
    ] = False
    best_on: Annotated[
        Literal["own", "domains"],
        Field(
            description="Validation samples that decide keep-best: own, the client's; or domains, those of all "
            'domains, which only a simulation knows (FedH2L\'s "maximal ACC").'
        ),
    ] = "own"
    client_seconds: Annotated[
        str,
        AfterValidator(_seconds),
        Field(
            description="Simulated seconds a client takes per round, assigned round-robin to the clients: '1,1,20' "
            "makes every third one slow. Local engine only: it orders the replies and is recorded as "
            "clock. Empty: 1."
        ),
    ] = ""
    seed: Annotated[int, Field(ge=0, lt=2**32, description="Seed of all random numbers.")] = 0

    local_epochs: Annotated[
        int, Field(ge=1, le=MOST, description="Local epochs per round, where local-batches is 0.")
    ] = 1
    local_batches: Annotated[
        int, Field(ge=0, le=MOST, description="Local mini-batches per round. 0: whole epochs.")
    ] = 3
    batch_size: Annotated[int, Field(ge=1, le=MOST, description="Samples per mini-batch.")] = 50
    optimizer: Annotated[Literal["adam", "amsgrad", "adamw", "sgd"], Field(description="Optimizer of the clients.")] = (
        "adam"
    )
    learning_rate: Annotated[float, Field(gt=0, description="Learning rate of the optimizer.")] = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1, description="Momentum of sgd.")] = 0.0
    projection: Annotated[
        Literal["none", "qp", "pcgrad"],
        Field(
            description="How the gradient of the distillation term is combined with the gradient of the client's own "
            "data, for algorithms whose loss has both: none, their sum; qp, without the part that "
            "conflicts (FedH2L's Eq. 8); pcgrad, both without it."
        ),
    ] = "none"
    weight_decay: Annotated[float, Field(ge=0, description="Weight decay of the optimizer.")] = 0.0

    payload_precision: Annotated[
        Literal["full", "half"],
        Field(
            description="full: float32 is sent unchanged. half: sent as float16 in both directions, in half the bytes."
        ),
    ] = "full"
    clipping_norm: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e30,
            description="L2 norm to which each upload of a client, or its change of weights, is clipped. 0: off.",
        ),
    ] = 0.0
    noise_multiplier: Annotated[
        float,
        PER_NODE,
        AfterValidator(_noise),
        Field(
            ge=0,
            le=1e30,
            description="Standard deviation of the Gaussian noise on each upload, as a multiple of clipping-norm. 0: "
            "none.",
        ),
    ] = 0.0
    public_clipping_norm: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e30,
            description="L2 norm, in stored values, to which each shared public sample is clipped. 0: off.",
        ),
    ] = 0.0
    public_noise_multiplier: Annotated[
        float,
        PER_NODE,
        AfterValidator(_noise),
        Field(
            ge=0,
            le=1e30,
            description="Standard deviation of the Gaussian noise on each public sample, as a multiple of "
            "public-clipping-norm. 0: none.",
        ),
    ] = 0.0
    noise_source: Annotated[
        Literal["auto", "seed", "system"],
        PER_NODE,
        Field(
            description="Source of the noise. seed: the run's seed, so that whoever knows it can subtract the noise; "
            "system: the operating system's entropy; auto: seed where all clients are simulated, system "
            "in a deployment."
        ),
    ] = "auto"

    device: Annotated[
        str,
        PER_NODE,
        Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$", description="auto, cpu, cuda, cuda:N or mps."),
    ] = "cpu"
    threads: Annotated[
        int,
        PER_NODE,
        Field(
            ge=1,
            le=1024,
            description="Threads of a client's arithmetic. Results are bit-identical only for equal numbers.",
        ),
    ] = 1
    mixed_precision: Annotated[
        Literal["none", "bfloat16"],
        PER_NODE,
        Field(
            description="bfloat16: forward passes run under torch.autocast; weights, losses, gradients and payloads "
            "stay float32. No loss scaling is needed, because its range is float32's. none: float32."
        ),
    ] = "none"
    batched: Annotated[
        bool | Literal["auto"],
        Field(
            description="Whether clients of one architecture step together in the local engine with one worker; auto: "
            "where that is faster. Results equal those of separate steps within floating-point tolerance, "
            'not bit by bit. Needs an extra: pip install "hetfl[batched]".'
        ),
    ] = False
    output_dir: Annotated[
        str,
        AfterValidator(_path),
        Field(description="Run folder. Empty: a new one under runs/ in the working directory."),
    ] = ""
    resume: Annotated[
        bool,
        Field(
            description="Continue the run in output-dir from its last checkpoint (`hetfl run --resume`; `flwr run` "
            "with the resume.toml of its folder)."
        ),
    ] = False
    accept_loss: Annotated[
        bool,
        AfterValidator(_accept_loss),
        Field(
            description="With resume: continue although the newest checkpoint or a client's state is damaged, from "
            "the newest intact checkpoint or without what is lost. The failures of the next round name "
            "the loss."
        ),
    ] = False
    track: Annotated[
        str,
        AfterValidator(_trackers),
        Field(
            description="Trackers that the server writes to: tensorboard, wandb, mlflow, or a comma-separated list. "
            'Each needs an extra: pip install "hetfl[tensorboard]".'
        ),
    ] = ""
    callbacks: Annotated[
        str,
        AfterValidator(_callbacks),
        Field(
            description="Classes of your own that the server tells of each round: package.module:Class, or a comma "
            "list. See RoundCallback."
        ),
    ] = ""
    state_dir: Annotated[
        str,
        PER_NODE,
        AfterValidator(_path),
        Field(
            description="Folder for the clients' state, with a subfolder for each run. Empty: kept in Flower's Context."
        ),
    ] = ""
    state_keep: Annotated[
        int,
        PER_NODE,
        Field(
            ge=0,
            description="Number of runs whose state a client keeps in state-dir: this run, the one it continues, and "
            "the newest others. Older ones are removed when a run starts. 0: all.",
        ),
    ] = 20
    checkpoint_every: Annotated[
        int,
        Field(ge=0, le=MOST, description="Write a checkpoint for --resume every N rounds. 0: only after the last."),
    ] = 10

    options: Annotated[
        dict[str, Value], Field(exclude=True, description="Options of the algorithms, as name.key.")
    ] = {}

    @property
    def half(self) -> bool:
        """Whether payloads travel in half precision."""
        return self.payload_precision == "half"

    @property
    def reading(self) -> "Reading":
        """What the config says about reading the data."""
        from hetfl_flwr.data import READING_KEYS, Reading

        return Reading(**{key: getattr(self, key) for key in READING_KEYS})

    def split(self, clients: int) -> "Split":
        """Return how the config shares the data out over a number of clients."""
        from hetfl_flwr.data import SPLIT_KEYS, Split

        return Split(**{key: getattr(self, key) for key in SPLIT_KEYS}, reading=self.reading, clients=clients)

    @classmethod
    def from_flat(cls, values: Mapping[str, Value]) -> "RunConfig":
        """Check the flat key-value pairs that Flower or the command line hands over.

        Raises
        ------
        ConfigError
            One line that names the key, and the nearest valid one where it is unknown.
        """
        values = renamed(values)
        _check_values(values)
        return _from_items(tuple(sorted(values.items())), tuple(type(values[key]) for key in sorted(values)))

    def to_flat(self) -> dict[str, Value]:
        """Return all keys and values, flat, as `from_flat` takes them."""
        return {**self.model_dump(by_alias=True), **self.options}

    def with_values(self, values: Mapping[str, Value]) -> "RunConfig":
        """Return a copy in which some keys have other values."""
        return type(self).from_flat({**self.to_flat(), **renamed(values)})

    def with_data(self) -> "RunConfig":
        """Return the config of a run whose clients are all simulated: with `BUNDLED` where it names no data set."""
        return self if self.dataset else self.with_values({"dataset": BUNDLED})

    def options_of(self, algorithm: str) -> dict[str, Value]:
        """Return an algorithm's own keys, without its name and with underscores."""
        prefix = f"{algorithm}."
        return {
            key.removeprefix(prefix).replace("-", "_"): value
            for key, value in self.options.items()
            if key.startswith(prefix)
        }


NODE_KEYS = {"model": "models"} | {
    str(field.alias): str(field.alias) for field in RunConfig.model_fields.values() if PER_NODE in field.metadata
}
"""Keys of a SuperNode's ``--node-config`` that override the run config there, and the key each one sets."""

OWN_NODE_KEYS = ("partition-id", "num-partitions", "share-names")
"""Keys of a ``--node-config`` alone: who a node is, and whether the names of its classes and columns may leave it."""


def for_node(config: RunConfig, node_config: Mapping[str, Value]) -> RunConfig:
    """Return the run config as it holds on one node.

    Parameters
    ----------
    config : RunConfig
        What the server sent.
    node_config : mapping
        The node's own settings; keys other than `NODE_KEYS` are left to others, unless they look like one of these.

    Raises
    ------
    ConfigError
        A misspelt key, or a value that does not fit.
    """
    known = [*NODE_KEYS, *OWN_NODE_KEYS]
    for key in node_config.keys() - known:
        if get_close_matches(key, known, cutoff=0.7):  # payload-precision is no misspelt mixed-precision
            raise ConfigError(unknown("node-config key", key, known))
    own = {NODE_KEYS[key]: value for key, value in node_config.items() if key in NODE_KEYS}
    return config.with_values(own) if own else config


def _check_values(values: Mapping[str, Any]) -> None:
    """Refuse what no key may be: a value of another type, one that TOML has no form for, or a text without end."""
    for key, value in values.items():
        if problem := _no_value(value) or _unusable(key):
            raise ConfigError(f"{key} {problem}")


def _no_value(value: object) -> str:
    match value:
        case str():
            too_long = f"is longer than {LONGEST_VALUE} characters" if len(value) > LONGEST_VALUE else ""
            problem = _unusable(value)
            return too_long or (f"= {private(repr(value))}: {problem}" if problem else "")
        case int():
            return "" if -(2**63) <= value < 2**63 else "is a number of more than 64 bits"
        case float():
            return ""
    return f"is {type(value).__name__}, expected one number, text, true or false"


@lru_cache(maxsize=64)
def _from_items(items: tuple[tuple[str, Value], ...], types: tuple[type, ...]) -> RunConfig:
    del types  # part of the cache's key: 1, 1.0 and True are equal to Python, not to a config
    keys = {_kebab(name) for name in RunConfig.model_fields} - {"options"}
    general = {key: value for key, value in items if "." not in key}
    for key in general:
        if key not in keys:
            raise ConfigError(unknown("config key", key, keys))
    options = {key: value for key, value in items if "." in key}
    if isinstance(own := general.get("algorithm-options"), str):
        general["algorithm-options"] = ""
        options |= parse_algorithm_options(
            own, str(general.get("algorithm", RunConfig.model_fields["algorithm"].default))
        )
    try:
        return RunConfig.model_validate({**general, "options": options})
    except ValidationError as error:
        first = error.errors()[0]
        key, *rest = map(str, first["loc"])
        reason = first["msg"].lower()
        if key == "options":
            key, reason = rest[0], "expected a finite number, text, true or false"
        value = (general | options)[key]
        shown = private(repr(value)) if isinstance(value, str) else repr(value)
        raise ConfigError(f"{key} = {shown}: {reason}") from None


def parse_value(text: str) -> Value:
    """Read a value as TOML does; what TOML cannot read is a word.

    Examples
    --------
    >>> parse_value("0.5"), parse_value("true"), parse_value("iid")
    (0.5, True, 'iid')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, brackets within brackets
        return text
    return value if isinstance(value, bool | int | float | str) else text


def parse_setting(text: str) -> tuple[str, Value]:
    """Read one ``key=value`` of the command line."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"'{text}' is not key=value")
    return key.strip(), parse_value(value.strip())


def parse_algorithm_options(text: str, algorithm: str) -> dict[str, Value]:
    """Read the value of ``algorithm-options``: what would follow ``--set`` in a shell, without the algorithm's name.

    Raises
    ------
    ConfigError
        A word that is not ``key=value``, or a key with a name before it.

    Examples
    --------
    >>> parse_algorithm_options("weight=0.5 kind='two words'", "my_pkg.fedproto")
    {'my_pkg.fedproto.weight': 0.5, 'my_pkg.fedproto.kind': 'two words'}
    """
    try:
        settings = dict(parse_setting(word) for word in shlex.split(text))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"algorithm-options = {text!r}: {error}") from None
    for key in settings:
        if "." in key:
            raise ConfigError(
                f"algorithm-options = {text!r}: write '{key.rpartition('.')[2]}', without the algorithm's name"
            )
    return {f"{algorithm}.{key}": value for key, value in settings.items()}


def write_algorithm_options(values: Mapping[str, Value]) -> str:
    """Write an algorithm's own keys as the value of ``algorithm-options``.

    Examples
    --------
    >>> print(write_algorithm_options({"weight": 0.5, "kind": "cosine"}))
    weight=0.5 'kind="cosine"'
    """
    pairs = (tomli_w.dumps({key: value}).strip().replace(" = ", "=", 1) for key, value in values.items())
    return shlex.join(pairs)


def read_toml(path: Path) -> dict[str, Value]:
    """Read a TOML file of config keys, tables flattened with dots."""
    flat = dict(flattened(load_toml(path)))
    for key, value in flat.items():
        if problem := _no_value(value) or _unusable(key):
            raise ConfigError(f"{path}: {key} {problem}")
    try:
        return renamed(flat)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.marked}") from None


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as it is.

    Raises
    ------
    ConfigError
        It cannot be read, is not TOML, or is nested more deeply than any config is.
    """
    try:
        loaded = tomllib.loads(_read_small(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except RecursionError:
        loaded = None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if loaded is None or _depth(loaded) > DEEPEST:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply")
    return loaded


def _depth(table: Mapping[str, Any]) -> int:
    """Return how many tables stand within each other, at most one more than is allowed."""
    tables, depth = [table], 0
    while tables and depth <= DEEPEST:
        tables = [inner for outer in tables for inner in outer.values() if isinstance(inner, dict)]
        depth += 1
    return depth


def _read_small(path: Path) -> str:
    """Return the text of a file; nothing is waited for that another program is to write."""
    state = usable_path(str(path)).stat()
    if stat.S_ISDIR(state.st_mode):
        raise ConfigError(f"{path}: is a folder, expected a TOML file")
    if not stat.S_ISREG(state.st_mode):
        raise ConfigError(f"{path}: is a pipe or a device, expected a TOML file")
    if state.st_size > LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE} bytes, which no file of config keys is")
    return path.read_text(encoding="utf-8")


def flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Go through a table's keys and values, those of inner tables under dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", item) for inner, item in flattened(value))
        else:
            yield key, value


def to_toml(values: Mapping[str, Value]) -> str:
    """Write flat config keys as TOML, an algorithm's own keys as its table."""
    nested: dict[str, object] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        if "." in key:
            table, _, inner = key.rpartition(".")
            nested.setdefault(table, {})[inner] = value  # type: ignore[index]
    return tomli_w.dumps(nested)
