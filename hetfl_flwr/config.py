"""The run config: type, default and meaning of every key, and the formats in which keys are read and written.

``hetfl run --set key=value``, ``flwr run . -c "key=value"``, recipes and a run folder's ``config.toml`` have the same
keys. Flower passes them flat, with an algorithm's own keys under its name (``fedhe.alpha``). All user settings are
checked here, once. Nothing here depends on an algorithm.
"""

import shlex
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from importlib import import_module
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from hetfl_flwr.common.notices import option
from hetfl_flwr.errors import ConfigError, unknown

if TYPE_CHECKING:
    from hetfl_flwr.data import Reading, Split

Value = bool | int | float | str
"""Types that Flower allows for values of the run config and the node config."""

MAX_CLIENTS = 100_000
MAX_INT = 2**31 - 1
"""Largest integer for keys without a smaller limit."""
MAX_TEXT = 100_000
"""Maximum length of a text in characters."""
MAX_DEPTH = 32
"""Maximum nesting depth of tables in a TOML file."""
MAX_FILE = 2**20
"""Maximum size of a TOML file of config keys in bytes."""

DEFAULT_CLIENTS = 10
"""Default number of clients of a local run."""

BUNDLED = "digits"
"""Default data set of simulated clients."""

AUTO = "auto"
"""Value of ``models`` that chooses models by the algorithm and the kind of data."""

FIT = "fit"
"""Value of ``models`` that lets each client choose the largest of ``fit-models`` that its device can train."""

AUTO_MODELS = {
    "image": "lenet5,mlp,fedhe:5",
    "series": "conv1d:small,conv1d:medium,conv1d:large",
    "table": "mlp,tabular:0,tabular:1",
    "text": "lstm1,bag,lstm2",
}
"""The models of ``models = "auto"`` by kind of data; only the first if all clients must have the same model."""

TRACKERS = ("tensorboard", "wandb", "mlflow", "prometheus")
"""Values of ``track``."""

COSTS = ("time", "memory", "flops", "energy")
"""Values of ``costs``."""


def kebab(name: str) -> str:
    """Return the key of an attribute, with dashes for underscores."""
    return name.replace("_", "-")


# --- values with a syntax of their own


SIMULATED = {
    "client-seconds": (1.0, 1e-9, 1e9, 1),
    "client-speed": (inf, 1e-6, 1e9, 1),
    "client-mbits": (inf, 1e-6, 1e9, 2),
    "client-latency": (0.0, 0.0, 1e6, 1),
}
"""By key: the default, the smallest and largest number, and the maximum count of numbers per client."""


def simulated(key: str, text: str) -> list[tuple[float, ...]]:
    """Parse the value of a key of `SIMULATED`, comma-separated numbers or pairs DOWN:UP, into a tuple for each item.

    Examples
    --------
    >>> simulated("client-seconds", "1,1,20"), simulated("client-mbits", "50:10,2"), simulated("client-speed", "")
    ([(1.0,), (1.0,), (20.0,)], [(50.0, 10.0), (2.0,)], [(inf,)])
    """
    empty, least, largest, most = SIMULATED[key]
    if not text:
        return [(empty,)]
    try:
        found = [tuple(map(float, item.split(":"))) for item in text.split(",")]
    except ValueError:
        found = [()]
    if not all(0 < len(item) <= most and all(least <= one <= largest for one in item) for item in found):
        wanted = f"numbers from {least:g} to {largest:g}" + (", or DOWN:UP" if most > 1 else "")
        raise ConfigError(f"{key} = {text!r}: expected {wanted}, separated by commas")
    return found


def listed(text: str) -> list[str]:
    """Parse a comma-separated list; duplicates are dropped.

    Examples
    --------
    >>> listed("tensorboard, wandb"), listed("")
    (['tensorboard', 'wandb'], [])
    """
    return list(dict.fromkeys(item.strip() for item in text.split(","))) if text.strip() else []


def usable_path(text: str) -> Path:
    """Return a text as a path.

    Raises `ConfigError` if the text is empty, contains a NUL character or characters that UTF-8 cannot encode, has
    more than 4095 bytes or more than 255 in one part, names the home of an unknown user, or links in a circle.
    """
    if not text:
        raise ConfigError("the name of a file or folder is empty")
    problem = _unwritable(text)
    if not problem and len(text.encode()) > 4095:
        problem = "it is longer than 4095 bytes"
    if not problem and any(len(part.encode()) > 255 for part in text.split("/")):
        problem = "a part of it is longer than 255 bytes"
    if not problem:
        try:
            Path(text).expanduser().resolve()
        except RuntimeError as error:
            said = str(error).rstrip(".")
            problem = said[:1].lower() + said[1:]
    if problem:
        raise ConfigError(f"{text!r} cannot be the name of a file or folder: {problem}")
    return Path(text)


def one_model(kind: str) -> str:
    """Return the model of ``models = "auto"`` for a kind of data if all clients must have the same model.

    Examples
    --------
    >>> one_model("table")
    'mlp'
    """
    return AUTO_MODELS[kind].partition(",")[0]


def _no_list(name: str) -> str:
    if name != AUTO and len(import_module("hetfl_flwr.models").parse_models(name)) != 1:
        raise ValueError("expected the name of one model, such as 'lenet5'")
    return name


ModelName = Annotated[str, AfterValidator(_no_list)]
"""The name of one model, as in ``models``, or "auto": the type of options for a second model on each client."""


def idle_clients(nonparticipating_fraction: float, clients: int) -> int:
    """Return the number of clients that never train, given the number of all clients."""
    return round(nonparticipating_fraction * clients)


def sampled_clients(fraction: float, clients: int) -> int:
    """Return the number of clients sampled in a round, given the number of clients that may train."""
    return ceil(Decimal(str(fraction)) * clients)


# --- checks of keys


def _parsed_in(package: str, parser: str) -> AfterValidator:
    """Return a validator that checks a text with a parser, whose package is imported on first use."""

    def check(text: str) -> str:
        getattr(import_module(f"hetfl_flwr.{package}"), parser)(text)
        return text

    return AfterValidator(check)


def _each_of(kind: str, valid: Iterable[str]) -> AfterValidator:
    """Return a validator that checks the names in a comma-separated list."""

    def check(text: str) -> str:
        for name in listed(text):
            if name not in valid:
                raise ConfigError(unknown(kind, name, valid))
        return text

    return AfterValidator(check)


def _check_callbacks(text: str) -> str:
    for name in listed(text):
        path, colon, attribute = name.partition(":")
        if not colon or not all(part.isidentifier() for part in (*path.split("."), attribute)):
            raise ConfigError(f"callbacks = {text!r}: expected package.module:Class, or several separated by commas")
    return text


def _as_text(value: object) -> object:
    """Convert a number to text, since these keys may also hold lists."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_path(text: str, info: ValidationInfo) -> str:
    try:
        if text:
            usable_path(text)
    except ConfigError as error:
        raise ConfigError(f"{kebab(info.field_name or '')} = {error}") from None
    return text


def _check_dataset(text: str, info: ValidationInfo) -> str:
    for name in text.split(","):
        _check_path(name.strip().removeprefix("rotated-"), info)
    return text


def _check_models(text: str, info: ValidationInfo) -> str:
    if text not in ((AUTO, FIT) if info.field_name == "models" else ("",)):
        import_module("hetfl_flwr.models").parse_models(text)
    return text


def _check_outlier_factor(factor: float) -> float:
    if 0 < factor < 1:
        raise ValueError("expected 1 or more, or 0 for no guard")
    return factor


def _check_simulated(text: str, info: ValidationInfo) -> str:
    simulated(kebab(info.field_name or ""), text)
    return text


T = TypeVar("T")
PER_NODE = "per node"
PerNode = Annotated[T, PER_NODE]
"""Type of a key that a node may override."""

HOW_RUN = "how run"
HowRun = Annotated[T, HOW_RUN]
"""Type of a key for how a run is executed and recorded; comparable runs may differ in it: it affects at most bits."""

PathText = Annotated[str, AfterValidator(_check_path)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Simulated = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_simulated)]
Norm = Annotated[float, Field(ge=0, le=1e30)]


class RunConfig(BaseModel):
    """The typed and checked config of one run. Keys are written with dashes, attributes with underscores."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=kebab,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    algorithm: Annotated[str, Field(min_length=1)] = "fedhe"
    """Algorithm: a name from `hetfl list algorithms`, or package.module for one of your own."""

    algorithm_options: str = ""
    """Options of the algorithm without its name, such as 'weight=0.5 kind=cosine', quoted as in a shell. They override
    NAME.key. Meant for an algorithm of your own under `flwr run -c`, which rejects keys that have no default in
    pyproject.toml."""

    # --- data

    dataset: PerNode[Annotated[str, AfterValidator(_check_dataset)]] = ""
    """Data set: a name from `hetfl list datasets`, a Hugging Face hub id, a folder or a file of rows that starts with
    ./ or /, or rotated-NAME for images. A comma-separated list is assigned round-robin to the clients. Empty: digits
    where all clients are simulated; in a deployment each node names its own."""

    data_dir: HowRun[PerNode[PathText]] = ""
    """Folder with local copies in the hub's layout. Empty: bundled data or the hub."""

    image_column: PerNode[str] = ""
    """Image column; for a list of data sets, one name for all or one for each. Empty: the only image column."""

    text_column: PerNode[str] = ""
    """Text column to learn from; for a list of data sets, one name for all or one for each. Empty: the catalogue's, or
    none."""

    series_column: PerNode[str] = ""
    """Column of time series, which are lists of numbers; for a list of data sets, one name for all or one for each.
    Empty: the only column of lists."""

    label_column: PerNode[str] = ""
    """Label column; for a list of data sets, one name for all or one for each. Empty: the only possible one."""

    domain_column: PerNode[str] = ""
    """Column with the domain of each sample; for a list of data sets, one name for all or one for each. Empty: the
    catalogue's, or none."""

    classes: PerNode[Annotated[str, _parsed_in("data", "parse_classes")]] = ""
    """Comma-separated class names in order, including classes without samples: NAME, or NAME:LABEL if the data use
    another label. Empty: as in the data."""

    categorical_columns: PerNode[str] = ""
    """Comma-separated columns of a table that are categorical although they hold numbers: NAME, or NAME:VALUE|VALUE
    with the values, which are then the same on all nodes."""

    numeric_columns: PerNode[str] = ""
    """Comma-separated columns of a table that are numeric although their values are all different, as in ids, or many
    values are not numbers."""

    ignore_columns: PerNode[str] = ""
    """Comma-separated columns of a table to leave out."""

    missing_values: PerNode[str] = ""
    """Comma-separated words and numbers that mark missing values in any column, such as -999."""

    header_row: PerNode[Annotated[int, Field(ge=-1, le=MAX_INT)]] = 0
    """Row of a text file with the column names. 0: detected automatically. -1: there is none."""

    encoding: PerNode[str] = ""
    """Encoding of text files, such as cp1250. Empty: UTF-8 or UTF-16, else the most common plausible encoding."""

    image_size: Annotated[int, Field(ge=0, le=8192)] = 0
    """Height and width to which images are resized. 0: unchanged."""

    vocabulary: Annotated[str, _parsed_in("data", "parse_vocabulary")] = "hashed:20000"
    """Vocabulary of texts: hashed:V (hash of a word), or shared:V (the most frequent words of the training split)."""

    text_length: Annotated[int, Field(ge=1, le=65_536)] = 32
    """Maximum number of tokens of a text; longer texts are cut."""

    pivot: PerNode[Annotated[str, _parsed_in("data", "parse_pivot")]] = ""
    """Columns of a table with one row per point in time that is read as time series: SERIES,TIME,VALUE or
    SERIES,TIME,CHANNEL,VALUE. Empty: one row per sample."""

    series_layout: PerNode[Literal["auto", "channels-first", "channels-last"]] = "auto"
    """What the outer lists of a time series are. channels-first: channels; channels-last: points in time, each a list
    of channels; auto: the smaller dimension is the channels."""

    partition: PerNode[Annotated[str, _parsed_in("data", "parse_partition")]] = "iid"
    """How samples are split over clients: iid, dirichlet:ALPHA, classes:N or shards:N (per client), ways:N:D:K (N
    classes per client and K samples of each, both varied by up to D), natural:COLUMN (each value owns its rows), files
    (each owns its rows), linear, square or exponential (client k's share grows with k), or all (no split)."""

    features: Annotated[str, _parsed_in("data", "parse_features")] = "all"
    """Columns of a table that a client has: all, or slices:OVERLAP (one slice per client, OVERLAP of
    it shared)."""

    test_set: Literal["client", "global"] = "client"
    """Test samples. client: a fraction of each client's samples; global: the data set's test split, for all clients."""

    validation_fraction: Fraction = 0.1
    """Fraction of a client's samples kept for validation."""

    test_fraction: Fraction = 0.2
    """Fraction of a client's samples kept for testing (with test-set client)."""

    public_fraction: Fraction = 0.1
    """Fraction of a client's samples, taken from its training set, that it may share as public samples."""

    half_data_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of clients, drawn by the seed, that keep only half of their training samples."""

    shared_split: bool = False
    """Split all domains of rotated images in the same way, so that no domain trains on another domain's test images."""

    rotation: Literal["clockwise", "counter-clockwise"] = "clockwise"
    """Direction in which images of rotated-NAME are rotated: clockwise (the text of Li et al., FedH2L) or
    counter-clockwise (torchvision's rotate with a positive angle)."""

    iid_evaluation: bool = False
    """Assign validation and test samples evenly, with all classes; partition applies to the training samples only."""

    normalize: Literal["mean-image", "mean-training-image", "standard", "imagenet", "none"] = "mean-image"
    """mean-image: subtract the mean image of the training split; scale a table's columns, and the channels of time
    series, to mean 0 and standard deviation 1 on the client's training samples. mean-training-image: likewise, but with
    the mean of the clients' training images, without their test images. standard: scale images to mean 0 and standard
    deviation 1 in each color over the training split. imagenet: scale images as ImageNet weights (pretrained) expect.
    none: scale images to [0, 1], leave tables and time series unchanged."""

    augment: Literal["none", "crop", "flip", "crop-flip"] = "none"
    """Random augmentation of training images, new in each batch. crop: shift by up to an eighth of each side, padded
    with 0; flip: mirror with probability 1/2; crop-flip: both. Images are not augmented for evaluation, nor public
    samples for their predictions and embeddings."""

    pooled: bool = False
    """Each client trains on the training samples of all clients and tests on its own test samples: an upper bound to
    compare with. Only for algorithm local, and only if all clients are simulated. Validation and test samples of other
    clients are not trained on."""

    # --- models

    models: Annotated[str, AfterValidator(_check_models)] = AUTO
    """Models, assigned round-robin to the clients (see assignment): names from `hetfl list models`, or module:function;
    NAME@0.5 has half the width. auto: lenet5,mlp,fedhe:5 for images, mlp,tabular:0,tabular:1 for tables,
    lstm1,bag,lstm2 for texts, conv1d:small,conv1d:medium,conv1d:large for time series; only the first for an algorithm
    that needs one model. fit: each client uses the largest of fit-models that its device can train within fit-seconds
    and fit-memory."""

    fit_models: PerNode[Annotated[str, AfterValidator(_check_models)]] = ""
    """Candidates for models = fit, in the format of models. Each is trained for a few steps when the client registers;
    the choice holds for the whole run. Empty: the models of auto."""

    fit_seconds: PerNode[Annotated[float, Field(ge=0, le=1e9)]] = 0.0
    """Maximum training time of a round in seconds with models = fit: the time of a step, times the mini-batches of a
    round. 0: no limit."""

    fit_memory: PerNode[Annotated[float, Field(ge=0, le=1e9)]] = 0.0
    """Maximum memory for training in megabytes with models = fit: weights, gradients, the optimizer's moments and the
    activations that a step saves for its backward pass, but not the process itself. 0: no limit."""

    assignment: Literal["round-robin", "random"] = "round-robin"
    """How models are assigned to the clients. round-robin: in the order of the list; random: drawn by the seed, with
    equal numbers of clients per model. With classes:N and round-robin, all clients of one model may have the same
    classes."""

    pretrained: PerNode[PathText] = ""
    """Source of ImageNet weights for torchvision networks: torchvision (torch's hub folder), hub (cache of the Hugging
    Face hub; ResNets only), or a folder with MODEL.safetensors or MODEL.pth. Nothing is downloaded; other models start
    from random weights. Empty: random weights for all."""

    width: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Embedding width of all models; a model of another width is adapted in front of its head (see width-by). 0: each
    model's own width, or the width that the algorithm requires."""

    width_by: Literal["linear", "pool"] = "linear"
    """How a model is adapted to the embedding width. linear: by a trained linear layer and ReLU; pool: by averaging
    neighboring features, without training, as in HtFLlib. A narrower model then repeats its features."""

    stem: Literal["fitted", "imagenet"] = "fitted"
    """First layers of torchvision's networks and of resnet4 to resnet10 for images with sides below 64 pixels. fitted:
    they keep the image size, as is usual on CIFAR; imagenet: torchvision's, which reduce it to a quarter, as in
    HtFLlib; this is much faster, but less accurate."""

    head_bias: bool = True
    """Whether the head of each model, its last linear layer, has a bias. false: as in the scripts of FedHe's authors. A
    method that sends heads may need the bias."""

    # --- federation

    clients: Annotated[int, Field(ge=0, le=MAX_CLIENTS)] = 0
    """Number of clients. In the local engine and the simulation, none may fail before round 1; a deployment waits for
    them (start-clients, start-timeout). 0: in the local engine, one per owner if partition is natural:COLUMN or files,
    else 10; in a simulation, all that exist and do not fail; in a deployment, those in node-keys, or start-clients."""

    rounds: Positive = 50
    """Number of training rounds."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of clients sampled per round; their number is rounded up."""

    nonparticipating_fraction: Fraction = 0.0
    """Fraction of clients, drawn by the seed, that never train, for example because they are too weak. They are
    evaluated like all others."""

    min_clients: Positive = 1
    """Abort the run when a round has fewer valid replies than this. A deployment with fewer clients waits for more
    between rounds, for up to start-timeout."""

    round_timeout: HowRun[Annotated[float, Field(gt=0, le=1e9)]] = 3600.0
    """Seconds that the server waits for the replies of a round."""

    start_clients: HowRun[Count] = 0
    """Number of clients that a deployment needs to start; it aborts if fewer have registered after start-timeout. 0:
    wait for all of clients or node-keys, and after start-timeout start with those that have registered."""

    start_timeout: HowRun[Annotated[float, Field(ge=0)]] = 0.0
    """Seconds to wait for nodes before round 1, and in a deployment whenever there are fewer than min-clients. 0:
    round-timeout, but at most 600 in a deployment."""

    node_keys: HowRun[PathText] = ""
    """File with the nodes' public keys (node-keys.toml, written by `hetfl keys`), on the server of a deployment: a node
    is accepted only as the client for which its key is listed. Empty: no check."""

    robust: Annotated[str, _parsed_in("learning.aggregation", "parse_robust")] = "none"
    """How uploads are averaged, for algorithms that average them. none: the mean; median: the coordinate-wise median;
    trimmed:SHARE: the mean without this share of the smallest and of the largest values of each coordinate;
    multikrum:COUNT: the mean without the COUNT uploads that are farthest from the others. What an algorithm averages is
    in the documentation of its server side. No effect if nothing is exchanged."""

    outlier_factor: Annotated[float, Field(ge=0), AfterValidator(_check_outlier_factor)] = 5.0
    """Leave out an upload if one of its arrays is more than this many times as large as the median client's (and more
    than three standard deviations away). 1 or more; 0: off."""

    evaluate_every: Positive = 1
    """Evaluate the clients every N rounds, and after the last round."""

    evaluate_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of clients that are evaluated, rounded up and drawn anew each time by the seed; means are over these
    clients. All are evaluated after the last round. Saves time with many clients."""

    keep_best: bool = False
    """Clients keep and report their model with the best validation accuracy so far."""

    best_on: Literal["own", "domains"] = "own"
    """Validation samples for keep-best. own: those of the client; domains: those of all domains, which are available
    only in simulations (FedH2L's "maximal ACC")."""

    client_seconds: Simulated = ""
    """Simulated seconds that a client takes per round, assigned round-robin: '1,1,20' makes every third client slow.
    Each time differs at random by up to 10 %. Local engine only: it determines the order of the replies and is recorded
    as clock. Empty: 1."""

    client_speed: Simulated = ""
    """Speed of the clients' simulated devices in GFLOP/s, assigned round-robin: '10,1,0.1'. Training takes the time of
    its floating-point operations, counted as for costs = flops. Local engine only; models = fit needs it in
    simulations. Empty: training takes client-seconds."""

    client_mbits: Simulated = ""
    """Simulated megabits per second of each client's link, one number or DOWN:UP, assigned round-robin: '50:10,2:0.5'.
    Local engine only: each training message and public sample takes the time of its bytes on the wire, in addition
    to client-seconds. Empty: no limit."""

    client_latency: Simulated = ""
    """Simulated latency of a message in seconds, in each direction, in addition to the time of its bytes; assigned
    round-robin. Local engine only. Empty: 0."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of all random numbers."""

    # --- training

    local_epochs: Positive = 1
    """Local epochs per round, if local-batches is 0."""

    local_batches: Count = 3
    """Local mini-batches per round. 0: whole epochs."""

    batch_size: Positive = 50
    """Samples per mini-batch."""

    optimizer: Literal["adam", "amsgrad", "adamw", "sgd"] = "adam"
    """Optimizer of the clients."""

    learning_rate: Annotated[float, Field(gt=0)] = 0.001
    """Learning rate of the optimizer."""

    momentum: Fraction = 0.0
    """Momentum of sgd."""

    moments: Literal["reset", "kept"] = "reset"
    """Whether an optimizer's moments of weights that the server replaces are reset or kept; all others are kept."""

    fine_tune_epochs: Count = 0
    """Epochs for which each client trains a copy of the global model on its own training samples before evaluation, for
    algorithms with a global model: accuracy is the copy's, global-accuracy the global model's, and the copy is
    exported. 0: the global model itself is evaluated. No effect if nothing is exchanged."""

    projection: Literal["none", "qp", "pcgrad"] = "none"
    """How the gradient of the distillation term is combined with the gradient of the client's own data, for
    algorithms whose loss has both. none: their sum; qp: the distillation gradient loses the part that conflicts
    (FedH2L's Eq. 8); pcgrad: both gradients lose it."""

    class_weights: Literal["none", "balanced"] = "none"
    """Weights of samples in the cross-entropy of a client's own labels. none: equal; balanced: by class, so that all
    classes in the client's training samples have the same total weight."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the optimizer."""

    # --- payloads

    payload_precision: Literal["full", "half"] = "full"
    """full: float32 is sent unchanged. half: sent as float16 in both directions, in half the bytes."""

    clipping_norm: PerNode[Norm] = 0.0
    """L2 norm to which each upload of a client, or its change of weights, is clipped. 0: off."""

    noise_multiplier: PerNode[Norm] = 0.0
    """Standard deviation of the Gaussian noise on each upload, as a multiple of clipping-norm. 0: none."""

    public_clipping_norm: PerNode[Norm] = 0.0
    """L2 norm, in stored values, to which each shared public sample is clipped. 0: off."""

    public_noise_multiplier: PerNode[Norm] = 0.0
    """Standard deviation of the Gaussian noise on each public sample, as a multiple of public-clipping-norm. 0:
    none."""

    noise_source: PerNode[Literal["auto", "seed", "system"]] = "auto"
    """Source of the noise. seed: the run's seed, so that whoever knows it can subtract the noise; system: the operating
    system's entropy; auto: seed where all clients are simulated, system in a deployment."""

    # --- machines

    device: HowRun[PerNode[Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$")]]] = "cpu"
    """Device for training and evaluation: auto, cpu, cuda, cuda:N or mps."""

    threads: HowRun[PerNode[Annotated[int, Field(ge=1, le=1024)]]] = 1
    """Number of threads for a client's computations. Results are bit-identical only for the same number."""

    mixed_precision: PerNode[Literal["none", "bfloat16"]] = "none"
    """bfloat16: forward passes run under torch.autocast; weights, losses, gradients and payloads stay float32. No loss
    scaling is needed, because bfloat16 has the range of float32. none: float32."""

    # --- records

    output_dir: HowRun[PathText] = ""
    """Run folder. Empty: a new one under runs/ in the working directory."""

    resume: HowRun[bool] = False
    """Continue the run in output-dir from its last checkpoint (`hetfl run --resume`; `flwr run` with the resume.toml of
    its folder)."""

    accept_loss: HowRun[bool] = False
    """With resume: continue although the newest checkpoint or a client's state is damaged, from the newest intact
    checkpoint or without the lost part, or although clients' data have changed. The failures of the next round say what
    is lost."""

    keep_uploads: HowRun[bool] = False
    """Save the clients' downloads and uploads on the server, in the run folder, one file per round, for `hetfl audit`.
    Uploads are then only as private as that folder."""

    track: HowRun[Annotated[str, _each_of("tracker", TRACKERS)]] = ""
    """Trackers that the server writes to: tensorboard, wandb, mlflow, prometheus, or a comma-separated list. Each needs
    an extra: pip install "hetfl[tensorboard]"."""

    costs: HowRun[Annotated[str, _each_of("cost", COSTS)]] = ""
    """Costs of a round of training that each client measures, if its device can: time, memory, flops, energy, or a
    comma-separated list. Counting flops takes time."""

    callbacks: HowRun[Annotated[str, AfterValidator(_check_callbacks)]] = ""
    """Classes of your own that the server calls after each round: package.module:Class, or a comma-separated list. See
    RoundCallback."""

    state_dir: HowRun[PerNode[PathText]] = ""
    """Folder for the clients' state, with a subfolder for each run. Empty: kept in Flower's Context."""

    state_keep: HowRun[PerNode[Count]] = 20
    """Number of runs whose state a client keeps in state-dir: this run, the one it continues, and the newest others.
    Older ones are removed when a run starts. 0: all."""

    checkpoint_every: HowRun[Count | Literal["auto"]] = "auto"
    """Write a checkpoint for --resume every N rounds. 0: only after the last round. auto: in the local engine as often
    as 1 % of the time allows, in Flower's engines every 10 rounds."""

    options: dict[str, Value] = Field(default_factory=dict, exclude=True)
    """Options of the algorithms, as name.key."""

    @classmethod
    def from_flat(cls, values: Mapping[str, Value]) -> "RunConfig":
        """Return the config of flat key-value pairs, as Flower and the command line pass them.

        Raises
        ------
        ConfigError
            A key is unknown or its value is invalid; names the key and, if it is unknown, the nearest valid one.
        """
        check_values(values)
        general = {key: value for key, value in values.items() if "." not in key}
        for key in general:
            if key not in KEYS:
                raise ConfigError(unknown("config key", key, KEYS, "hetfl list keys"))
        options = {key: value for key, value in sorted(values.items()) if "." in key}
        if isinstance(own := general.get("algorithm-options"), str):
            general["algorithm-options"] = ""
            options |= parse_algorithm_options(own, str(general.get("algorithm", KEYS["algorithm"].default)))
        try:
            return cls.model_validate({**general, "options": options})
        except ValidationError as error:
            first = error.errors()[0]
            key, *rest = map(str, first["loc"])
            reason = first["msg"].lower()
            if key == "options":
                key, reason = rest[0], "expected a finite number, text, true or false"
            raise ConfigError(f"{key} = {(general | options)[key]!r}: {reason}") from None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Raise a `ConfigError` for values that conflict."""
        clients = self.clients
        most = sampled_clients(self.fraction, clients - idle_clients(self.nonparticipating_fraction, clients))
        resuming = option("resume = true (--resume)", "resume=True")
        noise = "needs {0}clipping-norm above 0: the noise's standard deviation is a multiple of it"
        conflicts = {
            f"min-clients = {self.min_clients}: with clients = {clients}, fraction and nonparticipating-fraction, "
            f"only {most} train in a round": clients > 0 and self.min_clients > max(most, 1),
            f"start-clients = {self.start_clients}: more than clients = {clients}": 0 < clients < self.start_clients,
            "client-speed and client-seconds: both set how long training takes; set only one of them": bool(
                self.client_speed and self.client_seconds
            ),
            f"noise-multiplier = {self.noise_multiplier:g} {noise.format('')}": self.noise_multiplier > 0
            and not self.clipping_norm,
            f"public-noise-multiplier = {self.public_noise_multiplier:g} {noise.format('public-')}": (
                self.public_noise_multiplier > 0 and not self.public_clipping_norm
            ),
            f"accept-loss = True: a new run has nothing to lose; use it with {resuming}": self.accept_loss
            and not self.resume,
        }
        for problem, there in conflicts.items():
            if there:
                raise ConfigError(problem)
        return self

    def to_flat(self) -> dict[str, Value]:
        """Return all keys and values, flat, as `from_flat` accepts them."""
        return {**self.model_dump(by_alias=True), **self.options}

    def with_values(self, values: Mapping[str, Value]) -> "RunConfig":
        """Return a copy with other values for some keys, checked as by `from_flat`."""
        return type(self).from_flat({**self.to_flat(), **values})

    def with_data(self) -> "RunConfig":
        """Return the config with the default data set of simulated clients if it names none."""
        return self if self.dataset else self.model_copy(update={"dataset": BUNDLED})

    def options_of(self, algorithm: str) -> dict[str, Value]:
        """Return an algorithm's own keys, without its name and with underscores."""
        prefix = f"{algorithm}."
        return {
            key.removeprefix(prefix).replace("-", "_"): value
            for key, value in self.options.items()
            if key.startswith(prefix)
        }

    @property
    def checkpoint_rounds(self) -> int:
        """Rounds between two checkpoints in Flower's engines: ``checkpoint-every``, or 10 for auto."""
        return 10 if self.checkpoint_every == "auto" else self.checkpoint_every

    @property
    def simulates_time(self) -> bool:
        """Whether the time of clients or of their links is simulated."""
        return bool(self.client_seconds or self.client_speed or self.client_mbits or self.client_latency)

    @property
    def measured(self) -> frozenset[str]:
        """The costs of training to measure: those of ``costs``, and flops if the speed of devices is simulated."""
        return frozenset(listed(self.costs)) | ({"flops"} if self.client_speed else frozenset())

    @property
    def candidates(self) -> str:
        """The names of all models that clients may have, in the format of ``models``."""
        return self.fit_models if self.models == FIT else self.models

    @property
    def half(self) -> bool:
        """Whether payloads are sent in half precision."""
        return self.payload_precision == "half"

    @property
    def reading(self) -> "Reading":
        """The settings for reading the data."""
        from hetfl_flwr.data import READING_KEYS, Reading, parse_partition

        form = parse_partition(self.partition)
        return Reading(**{key: getattr(self, key) for key in READING_KEYS}, id_column=form.column, by_file=form.by_file)

    def split(self, clients: int) -> "Split":
        """Return the settings for splitting the data over a number of clients."""
        from hetfl_flwr.data import SPLIT_KEYS, Split

        return Split(**{key: getattr(self, key) for key in SPLIT_KEYS}, reading=self.reading, clients=clients)


KEYS = {kebab(name): field for name, field in RunConfig.model_fields.items() if name != "options"}
"""The field of each key, in the order of ``hetfl list keys``."""

DATA_KEYS = tuple(KEYS)[list(KEYS).index("dataset") : list(KEYS).index("models")]
"""The keys that choose, read and split the data."""


def meaning(key: str) -> str:
    """Return the help text of a key as one line."""
    return " ".join((KEYS[key].description or "").split())


# --- the config on one node

NODE_KEYS = {"model": "models"} | {key: key for key, field in KEYS.items() if PER_NODE in field.metadata}
"""Keys of a SuperNode's ``--node-config`` that override the run config there, and the key each one sets."""

OWN_NODE_KEYS = ("partition-id", "num-partitions", "share-names", "share-recall", "name")
"""Keys that exist only in ``--node-config``: the node's identity and name, and whether it shares the names of its
classes and columns and its recall of each class."""


def for_node(config: RunConfig, node_config: Mapping[str, Value]) -> RunConfig:
    """Return the server's run config with the overrides of one node.

    Keys of `node_config` that are unknown here are ignored, as other apps may use them, unless they resemble a known
    key: then `ConfigError` reports a misspelling. It is also raised for keys of the run config alone, and for invalid
    values. Noise that a node adds of its own comes from the operating system, unless the node says otherwise.
    """
    known = [*NODE_KEYS, *OWN_NODE_KEYS]
    for key in sorted(node_config.keys() - known):
        if key in KEYS:
            raise ConfigError(f"--node-config: {key} is set in the run config, for all nodes: remove it")
        if get_close_matches(key, known, cutoff=0.7):  # payload-precision is not a misspelled mixed-precision
            raise ConfigError(unknown("node-config key", key, known))
    own = {NODE_KEYS[key]: value for key, value in node_config.items() if key in NODE_KEYS}
    if own.keys() & {"noise-multiplier", "public-noise-multiplier"}:
        own = {"noise-source": "system", **own}
    return config.with_values(own) if own else config


# --- parsing and writing values


def check_values(values: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` for the first value that has a wrong type, cannot be written to TOML, or is too long."""
    for key, value in values.items():
        if problem := _no_value(value) or _unwritable(key):
            raise ConfigError(f"{key} {problem}")


def _no_value(value: object) -> str:
    match value:
        case str():
            too_long = f"is longer than {MAX_TEXT} characters" if len(value) > MAX_TEXT else ""
            problem = _unwritable(value)
            return too_long or (f"= {value!r}: {problem}" if problem else "")
        case int():
            return "" if -(2**63) <= value < 2**63 else "is a number of more than 64 bits"
        case float():
            return ""
    return f"is {type(value).__name__}, expected one number, text, true or false"


def _unwritable(text: str) -> str:
    """Return why neither TOML nor a file name can contain a text, or an empty text."""
    if "\0" in text:
        return "it contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it contains characters that UTF-8 cannot encode"
    return ""


def parse_value(text: str) -> Value:
    """Parse a value as TOML; a text that is not TOML is returned as it is.

    Examples
    --------
    >>> parse_value("0.5"), parse_value("true"), parse_value("iid")
    (0.5, True, 'iid')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, thousands of digits, or deeply nested brackets
        return text
    return value if isinstance(value, bool | int | float | str) else text


def parse_setting(text: str) -> tuple[str, Value]:
    """Parse ``key=value`` from the command line; for keys that accept only text, the value may look like a number.

    Examples
    --------
    >>> parse_setting("missing-values=-999"), parse_setting("seed=3")
    (('missing-values', '-999'), ('seed', 3))
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not key:
        raise ConfigError(f"'{text}' is not key=value")
    found = parse_value(value)
    return key, found if key not in KEYS or KEYS[key].annotation is not str or isinstance(found, str) else value


def parse_settings(texts: Iterable[str]) -> dict[str, Value]:
    """Parse several ``key=value`` from the command line; the last value of a key counts."""
    return dict(map(parse_setting, texts))


def parse_algorithm_options(text: str, algorithm: str) -> dict[str, Value]:
    """Parse ``algorithm-options``: words ``key=value``, quoted as in a shell, without the algorithm's name.

    Raises `ConfigError` for a word that is not ``key=value``, or a key with a prefix.

    Examples
    --------
    >>> parse_algorithm_options("weight=0.5 kind='two words'", "my_pkg.moments")
    {'my_pkg.moments.weight': 0.5, 'my_pkg.moments.kind': 'two words'}
    """
    try:
        settings = parse_settings(shlex.split(text))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"algorithm-options = {text!r}: {error}") from None
    for key in settings:
        if "." in key:
            raise ConfigError(
                f"algorithm-options = {text!r}: write '{key.rpartition('.')[2]}', without the algorithm's name"
            )
    return {f"{algorithm}.{key}": value for key, value in settings.items()}


def write_algorithm_options(values: Mapping[str, Value]) -> str:
    """Return an algorithm's own keys as a value of ``algorithm-options``.

    Examples
    --------
    >>> print(write_algorithm_options({"weight": 0.5, "kind": "cosine"}))
    weight=0.5 'kind="cosine"'
    """
    pairs = (tomli_w.dumps({key: value}).strip().replace(" = ", "=", 1) for key, value in values.items())
    return shlex.join(pairs)


# --- TOML files


def read_toml(path: Path) -> dict[str, Value]:
    """Read a TOML file of config keys; keys in tables get dotted names."""
    flat = dict(flattened(load_toml(path)))
    try:
        check_values(flat)
        return flat
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise `ConfigError` if it cannot be read, is not TOML, or is nested too deeply."""
    try:
        state = usable_path(str(path)).stat()
        if not stat.S_ISREG(state.st_mode):  # reading a pipe could block
            raise ConfigError(f"{path}: is a folder, a pipe or a device, expected a TOML file")
        if state.st_size > MAX_FILE:
            raise ConfigError(f"{path}: is larger than {MAX_FILE} bytes, the limit for a file of config keys")
        loaded = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # skip the byte order mark that some editors write
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except RecursionError:
        loaded = None
    except ValueError as error:  # not TOML, not UTF-8, or thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if loaded is None or _depth(loaded) > MAX_DEPTH:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply")
    return loaded


def _depth(table: Mapping[str, Any]) -> int:
    """Return the nesting depth of tables, at most one more than `MAX_DEPTH`."""
    tables, depth = [table], 0
    while tables and depth <= MAX_DEPTH:
        tables = [inner for outer in tables for inner in outer.values() if isinstance(inner, dict)]
        depth += 1
    return depth


def flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a table, with dotted keys for inner tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", item) for inner, item in flattened(value))
        else:
            yield key, value


def to_toml(values: Mapping[str, Value]) -> str:
    """Return flat config keys as TOML, with an algorithm's own keys in a table."""
    nested: dict[str, object] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        if "." in key:
            table, _, inner = key.rpartition(".")
            nested.setdefault(table, {})[inner] = value  # type: ignore[index]
    return tomli_w.dumps(nested)
