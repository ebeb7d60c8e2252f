"""Models by name, and their assignment to clients.

The sources of the models, and choices that the sources leave open:

- *mlp*: two hidden layers of 200 units.
- *lenet5*: LeNet-5 in its modern form, with ReLU and max pooling; the first convolution is padded. It matches the
  description of FedHeNN's homogeneous model (Makhija et al., ICML 2022, section 4.1): two convolutions, each followed
  by max pooling, and three linear layers.
- *lenet*: LeNet as in Caffe's MNIST example, seven times as large as LeNet-5: 431,080 weights on MNIST. It may be the
  model of FedH2L (Li et al., 2021, "Evaluation on Rotated MNIST"). The paper says that the weights are over 1000 times
  what a node sends in a round; this model has 1,343 times as many numbers, LeNet-5 192 times as many.
- *cnn1*, *cnn2*: Shen et al., "Federated Mutual Learning", section 5.1. The paper does not report the width of CNN1's
  hidden layer or the padding of convolutions: here it has 120 units, and there is no padding. CNN2's body consists of
  its convolutions only.
- *cnn4*: ``FedAvgCNN`` of HtFLlib (Zhang et al., KDD 2025, arXiv 2506.03954), also used by FedTGP (AAAI 2024). Its
  architecture is McMahan et al.'s (AISTATS 2017, section 3), which pads the convolutions.
- *fedhenn*: the five networks of Makhija et al., section 4.1: from one convolution and one linear layer to three of
  each, with max pooling after each convolution. The paper does not report the three networks in between, the filters
  and the units. Here they have 1 + 1, 1 + 2, 2 + 2, 2 + 3 and 3 + 3 layers, with the last linear layer as head and 3x3
  convolutions.
- *tabular*: Liu et al., "Completely Heterogeneous Federated Learning" (CHFL), section 5.2, gives each client a random
  perceptron and does not report the range. Here ten perceptrons of 1 to 4 layers with 16 to 128 units are drawn once,
  and are the same in every run.
- *conv1d*: the large one is ``HARCNN`` of HtFLlib, taken from Jindong Wang's Deep-learning-activity-recognition; with 9
  channels of length 128, it has 2.3 million weights. The other two have half and a quarter of its filters, and one
  hidden layer, with a twentieth and less than a hundredth of its weights. These sizes are this project's choice.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, ModelError, unknown
from hetfl_flwr.models.narrow import SIGN, parse_width
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.models.text import bag, lstm
from hetfl_flwr.models.vision import RESNETS, TORCHVISION, vision
from hetfl_flwr.models.zoo import FEDHE_TABLE, FEDPROTO_CHANNELS, Stack, fedhe, fedproto
from hetfl_flwr.seeding import generator

OWN_MODEL = "package.module:function"
"""The form of a user-defined model's name: a function that takes a DataSpec and returns a torch.nn.Module."""

FEDHENN = (
    Stack((16,), ()),
    Stack((16,), (128,)),
    Stack((16, 32), (128,)),
    Stack((16, 32), (128, 64)),
    Stack((16, 32, 64), (128, 64)),
)
"""FedHeNN's networks, from the simplest to the most complex."""

TABULAR = tuple(
    Stack((), tuple(rng.integers(16, 128, size=rng.integers(1, 4, endpoint=True), endpoint=True).tolist()))
    for rng in (generator(number, "perceptron") for number in range(10))
)
"""Random perceptrons."""

CONV1D = {
    "small": Stack((8, 16), (32,), kernel=9, series=True),
    "medium": Stack((16, 32), (128,), kernel=9, series=True),
    "large": Stack((32, 64), (1024, 512), kernel=9, series=True),
}
"""Networks for time series."""


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo: its description, and the function that builds it for the data."""

    summary: str
    build: Callable[[DataSpec], SplitModel]


def _chain(numbers: Iterable[int]) -> str:
    return "-".join(map(str, numbers)) or "no"


ZOO: Mapping[str, ZooModel] = MappingProxyType(
    {
        "mlp": ZooModel(
            "perceptron with two hidden layers of 200 units; images, tables and time series",
            Stack((), (200, 200)).build,
        ),
        "lenet5": ZooModel(
            "LeNet-5: two convolutions and two hidden layers", Stack((6, 16), (120, 84), kernel=5, padding=2).build
        ),
        "lenet": ZooModel(
            "LeNet of Caffe's MNIST example: 20 and 50 filters, 500 hidden units",
            Stack((20, 50), (500,), kernel=5, relu=False).build,
        ),
        "cnn1": ZooModel(
            "FML's CNN1: convolutions with 6 and 16 filters, 120 hidden units", Stack((6, 16), (120,)).build
        ),
        "cnn2": ZooModel("FML's CNN2: three convolutions with 128 filters", Stack((128, 128, 128), ()).build),
        "cnn4": ZooModel(
            "HtFLlib's four-layer CNN: convolutions with 32 and 64 filters, 512 hidden units",
            Stack((32, 64), (512,), kernel=5).build,
        ),
        **{
            f"fedhe:{number}": ZooModel(
                f"FedHe's CNN {number}: {_chain(filters)} filters, dropout {dropout}", partial(fedhe, number)
            )
            for number, (filters, dropout) in enumerate(FEDHE_TABLE)
        },
        **{
            f"fedhenn:{number}": ZooModel(
                f"FedHeNN's CNN {number}: {_chain(stack.filters)} filters, {_chain(stack.units)} hidden units",
                stack.build,
            )
            for number, stack in enumerate(FEDHENN)
        },
        **{
            f"fedproto:{channels}": ZooModel(
                f"FedProto's CNN: convolutions with 10 and {channels} filters, 50 hidden units",
                partial(fedproto, channels),
            )
            for channels in FEDPROTO_CHANNELS
        },
        **{
            f"tabular:{number}": ZooModel(
                f"random perceptron {number}: {_chain(stack.units)} hidden units; tables, images and time series",
                stack.build,
            )
            for number, stack in enumerate(TABULAR)
        },
        **{
            f"conv1d:{size}": ZooModel(
                f"{size} 1-D CNN: convolutions of {stack.kernel} points with {_chain(stack.filters)} filters, "
                f"{_chain(stack.units)} hidden units; time series",
                stack.build,
            )
            for size, stack in CONV1D.items()
        },
        **{name: ZooModel(summary, partial(vision, name)) for name, summary in TORCHVISION.items()},
        **{
            name: ZooModel(f"HtFLlib's ResNet with {2 + 2 * stages} layers", partial(vision, name))
            for name, stages in RESNETS.items()
        },
        "lstm1": ZooModel("embedding, LSTM of one layer, two linear layers; texts", partial(lstm, 1)),
        "lstm2": ZooModel("embedding, LSTM of two layers, two linear layers; texts", partial(lstm, 2)),
        "bag": ZooModel("mean of the embeddings, two linear layers; texts", bag),
    }
)
"""All models of the zoo, by name."""

FAMILIES = {
    family: [name for name in ZOO if name.startswith(f"{family}:")]
    for family in ("fedhe", "fedhenn", "fedproto", "tabular", "conv1d")
}
"""Names that stand for several models of the zoo."""


def parse_models(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of models.

    Parameters
    ----------
    text : str
        Names of the zoo or ``package.module:function``. ``fedhe`` stands for ``fedhe:0`` to ``fedhe:9``, ``fedhenn``
        for ``fedhenn:0`` to ``fedhenn:4``, ``fedproto`` for ``fedproto:18``, ``:20`` and ``:22``, ``tabular`` for
        ``tabular:0`` to ``tabular:9``, ``conv1d`` for ``conv1d:small``, ``:medium`` and ``:large``.
        ``NAME@0.5`` has half the width of the model ``NAME``.

    Returns
    -------
    tuple of str
        The names, with a name that stands for several models replaced by theirs.

    Raises
    ------
    ConfigError
        If a name is empty.
    ModelError
        If a name is not in the zoo and does not have the form of a user-defined model.

    Examples
    --------
    >>> parse_models("lenet5, fedhe:5, my_models.nets:wide")
    ('lenet5', 'fedhe:5', 'my_models.nets:wide')
    """
    names: list[str] = []
    for name in (" ".join(part.split()) for part in text.split(",")):
        if not name:
            raise ConfigError(f"models: an empty name in {text!r}; write names separated by single commas")
        base, sign, part = name.partition(SIGN)
        names += [f"{one}{sign}{part}" for one in FAMILIES.get(base, [base])]
    for name in names:
        require_known(parse_width(name)[0])
    return tuple(names)


def assign(models: str, client_id: int, order: Sequence[int] = ()) -> str:
    """Return the model of a client: the comma-separated list is assigned round-robin.

    `order` is the place of each client in the assignment, as `drawn_order` returns it; by default, its id.

    Examples
    --------
    >>> [assign("mlp,lenet5", client_id) for client_id in range(3)]
    ['mlp', 'lenet5', 'mlp']
    """
    names = parse_models(models)
    return names[(order[client_id] if order else client_id) % len(names)]


@cache
def drawn_order(seed: int, clients: int) -> tuple[int, ...]:
    """Return a random place for each client, for the assignment of models at random."""
    return tuple(generator(seed, "models").permutation(clients).tolist())


def check_pretrained(models: str) -> None:
    """Raise ConfigError if no model of a comma-separated list has pretrained weights."""
    if TORCHVISION.keys().isdisjoint(parse_models(models)):
        raise ConfigError(
            f"pretrained: none of the models {models} has pretrained weights; these do: {', '.join(TORCHVISION)}"
        )


def require_known(name: str) -> None:
    """Raise ModelError for a name that is not in the zoo and does not have the form of a user-defined model."""
    module, _, function = name.partition(":")
    own = module not in FAMILIES and all(part.isidentifier() for part in (*module.split("."), function))
    if name not in ZOO and not own:
        raise ModelError(unknown("model", name, [*ZOO, OWN_MODEL]))
    if own and module.partition(".")[0] in sys.stdlib_module_names:
        raise ModelError(f"model '{name}': module '{module}' is part of Python and has no models: name one of yours")
