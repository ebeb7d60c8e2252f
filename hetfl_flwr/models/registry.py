"""Models by name: which there are, and which client gets which."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, ModelError, unknown
from hetfl_flwr.models.narrow import SIGN, parse_width
from hetfl_flwr.models.series import CONV1D_SIZES, KERNEL, conv1d
from hetfl_flwr.models.split_model import SplitModel
from hetfl_flwr.models.text import bag, lstm
from hetfl_flwr.models.vision import RESNETS, TORCHVISION, vision
from hetfl_flwr.models.zoo import (
    FEDHE_TABLE,
    FEDHENN_TABLE,
    FEDPROTO_CHANNELS,
    TABULAR_TABLE,
    cnn1,
    cnn2,
    cnn4,
    cnn64,
    fedhe,
    fedhenn,
    fedproto,
    lenet,
    lenet5,
    mlp,
    tabular,
)
from hetfl_flwr.seeding import generator

OWN_MODEL = "package.module:function"
"""How a user's own model is written: a function that takes a DataSpec and returns a torch.nn.Module."""


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo: what it is, and the function that builds it for the data."""

    summary: str
    build: Callable[[DataSpec], SplitModel]


def _chain(numbers: Iterable[int]) -> str:
    return "-".join(map(str, numbers))


FAMILIES: Mapping[str, Mapping[str, ZooModel]] = MappingProxyType(
    {
        "fedhe": {
            f"fedhe:{number}": ZooModel(
                f"FedHe's CNN {number}: {_chain(filters)} filters, dropout {dropout}", partial(fedhe, number)
            )
            for number, (filters, dropout) in enumerate(FEDHE_TABLE)
        },
        "fedhenn": {
            f"fedhenn:{number}": ZooModel(
                f"FedHeNN's CNN {number}: {_chain(filters)} filters, {_chain(units) or 'no'} hidden units",
                partial(fedhenn, number),
            )
            for number, (filters, units) in enumerate(FEDHENN_TABLE)
        },
        "fedproto": {
            f"fedproto:{channels}": ZooModel(
                f"FedProto's CNN: convolutions with 10 and {channels} filters, 50 hidden units",
                partial(fedproto, channels),
            )
            for channels in FEDPROTO_CHANNELS
        },
        "tabular": {
            f"tabular:{number}": ZooModel(
                f"random perceptron {number}: {_chain(units)} hidden units; tables, images and time series",
                partial(tabular, number),
            )
            for number, units in enumerate(TABULAR_TABLE)
        },
        "conv1d": {
            f"conv1d:{size}": ZooModel(
                f"{size} 1-D CNN: convolutions of {KERNEL} points with {_chain(filters)} filters, {_chain(units)} "
                "hidden units; time series",
                partial(conv1d, size),
            )
            for size, (filters, units) in CONV1D_SIZES.items()
        },
    }
)
"""Names that stand for several models of the zoo, for all of theirs."""

ZOO: Mapping[str, ZooModel] = MappingProxyType(
    {
        "mlp": ZooModel("perceptron with two hidden layers of 200 units; images, tables and time series", mlp),
        "lenet5": ZooModel("LeNet-5: two convolutions and two hidden layers", lenet5),
        "lenet": ZooModel("LeNet of Caffe's MNIST example: 20 and 50 filters, 500 hidden units", lenet),
        "cnn1": ZooModel("FML's CNN1: convolutions with 6 and 16 filters, 120 hidden units", cnn1),
        "cnn2": ZooModel("FML's CNN2: three convolutions with 128 filters", cnn2),
        "cnn64": ZooModel("FedHeNN's CNN of its authors' scripts: two convolutions 5x5 with 64 filters", cnn64),
        "cnn4": ZooModel("HtFLlib's four-layer CNN: convolutions with 32 and 64 filters, 512 hidden units", cnn4),
        **{name: model for family in FAMILIES.values() for name, model in family.items()},
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
"""Every model that has a name of its own."""


def parse_models(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of models.

    Parameters
    ----------
    text : str
        Names of the zoo or ``package.module:function``; ``fedhe`` stands for ``fedhe:0`` to ``fedhe:9``, ``fedhenn``
        for ``fedhenn:0`` to ``fedhenn:4``, ``fedproto`` for ``fedproto:18``, ``:20`` and ``:22``, ``tabular`` for
        ``tabular:0`` to ``tabular:9``, ``conv1d`` for ``conv1d:small``, ``:medium`` and ``:large``.
        ``NAME@0.5`` has half of that one's width: see `narrow.narrowed`.

    Raises
    ------
    ConfigError
        If a name is empty.
    ModelError
        If a name is neither of the zoo nor of the form of an own model.

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
    """Return the model of a client: the list is assigned round-robin.

    Parameters
    ----------
    models : str
        Comma-separated list, as in `parse_models`.
    client_id : int
        The client id, 0 or more.
    order : sequence of int, optional
        The place of each client when the models are assigned, as `drawn_order` gives them; default: its id.

    Examples
    --------
    >>> [assign("mlp,lenet5", client_id) for client_id in range(3)]
    ['mlp', 'lenet5', 'mlp']
    """
    names = parse_models(models)
    return names[(order[client_id] if order else client_id) % len(names)]


@cache
def drawn_order(seed: int, clients: int) -> tuple[int, ...]:
    """Return a place for each client, drawn by the seed, for models that are assigned at random."""
    return tuple(generator(seed, "models").permutation(clients).tolist())


def check_pretrained(models: str) -> None:
    """Refuse a list of models none of which has pretrained weights.

    Parameters
    ----------
    models : str
        Comma-separated list, as in `parse_models`.

    Raises
    ------
    ConfigError
        None of them is a network of torchvision.
    """
    if TORCHVISION.keys().isdisjoint(parse_models(models)):
        raise ConfigError(
            f"pretrained: none of the models {models} has such weights; these do: {', '.join(TORCHVISION)}"
        )


def require_known(name: str) -> None:
    """Refuse a name that is none of the zoo's, and not written as one of the user's own models."""
    module, _, function = name.partition(":")
    own = module not in FAMILIES and all(part.isidentifier() for part in (*module.split("."), function))
    if name not in ZOO and not own:
        raise ModelError(unknown("model", name, [*ZOO, OWN_MODEL]))
    if own and module.partition(".")[0] in sys.stdlib_module_names:
        raise ModelError(f"model '{name}': module '{module}' is Python's own and holds no models: name one of yours")
