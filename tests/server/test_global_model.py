"""What the server builds where all clients train one model: what the run config or the zoo has, of bounded size."""

import sys
import warnings
from typing import Any

import pytest
from fixtures.federations.members import member, roster
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, HetflError, ModelError
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.models import SplitModel, build_model, trainable_count
from hetfl_flwr.models.bounds import MAX_INPUTS, MAX_NUMBERS
from hetfl_flwr.models.zoo import trunk
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.spec import Arrays
from hetfl_flwr.wire.weights import fingerprint

AVERAGING: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "fedrep": {},
    "lgfedavg": {"lgfedavg.mode": "body"},
    "fedhenn": {"fedhenn.mode": "homogeneous"},
}
"""The algorithms whose server builds the clients' model, and the keys with which they do."""

BODIES = ("fedrep", "lgfedavg")
"""Those of them that take its body alone."""

DIGITS = DataSpec((1, 8, 8), 10)
HUGE = (1, 3000, 3000)


def make(algorithm: str, models: str = "mlp", **keys: Any) -> RunConfig:
    return RunConfig.from_flat({"algorithm": algorithm, "models": models, **AVERAGING.get(algorithm, {}), **keys})


def client(client_id: int, built: str = "mlp", spec: DataSpec = DIGITS, **said: Any) -> Member:
    """A client that says the truth about the model that it has built, but for what it is made to say."""
    model = build_model(built, spec, seed=client_id)
    truth = {
        "model": built,
        "shape": spec.shape,
        "classes": spec.classes,
        "public": 5,
        "width": model.width,
        "parameters": trainable_count(model),
        "weights": fingerprint(model),
        "body": fingerprint(model.body),
    }
    return member(client_id, **{**truth, **said})


def prepared(config: RunConfig, *members: Member) -> Arrays:
    return build_strategy(config).prepare(Roster(members), config)


def numbers(arrays: Arrays) -> int:
    return sum(array.size for array in arrays.values())


# --- which code is run ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", AVERAGING)
@pytest.mark.parametrize("model", ["sys:exit", "this:d"])
def test_code_that_only_nodes_name_is_not_run(algorithm, model, refusal):
    """``sys.exit`` would end the server; importing ``this`` would print a poem."""
    said = refusal(FederationError, prepared, make(algorithm), client(0, model=model), client(1, model=model))
    assert f"client 0 ({model})" in said
    assert "this" not in sys.modules


def leaves(spec: DataSpec) -> SplitModel:
    raise SystemExit(3)


class Final(BaseException):
    """Something that is no Exception."""


def falls(spec: DataSpec) -> SplitModel:
    raise Final("for good")


def stops(spec: DataSpec) -> SplitModel:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("model", "why"), [("leaves", "SystemExit: 3"), ("falls", "Final: for good")])
def test_an_own_model_that_ends_the_program_is_an_error_of_one_line(model, why, refusal):
    name = f"{__name__}:{model}"
    said = refusal(ModelError, prepared, make("fedavg", name), client(0, model=name))
    assert said.startswith(f"client 0 ({name}): ")
    assert why in said


def test_the_user_can_still_stop_while_an_own_model_is_built():
    name = f"{__name__}:stops"
    with pytest.raises(KeyboardInterrupt):
        prepared(make("fedavg", name), client(0, model=name))


@pytest.mark.parametrize(
    ("models", "built"), [("mlp", "tabular:3"), ("fedhe, fixtures.models:linear", "fixtures.models:linear")]
)
def test_a_node_may_name_any_model_of_the_zoo_and_those_that_the_run_config_lists(models, built):
    there = client(0, built=built)
    assert numbers(prepared(make("fedavg", models), there, client(1, built=built))) == there.parameters


# --- of what size --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [*AVERAGING, "fml"])
@pytest.mark.parametrize(
    ("shape", "classes", "why"),
    [
        # two layers of 200 units and a head of 10 outputs: 1,440,000 x 200 + 200 + 200 x 200 + 200 + 2,010
        ((1, 1200, 1200), 10, "288,042,410 weights"),
        (HUGE, 10, "1,800,042,410 weights"),
        ((64,), 2**40, "more than 268,435,456"),
        ((2**40, 2**40), 10, f"{MAX_INPUTS} numbers"),
    ],
)
def test_a_model_for_data_of_absurd_size_is_not_built(algorithm, shape, classes, why, refusal):
    config = make(algorithm, **({"fml.meme": "mlp"} if algorithm == "fml" else {}))
    said = refusal(ModelError, prepared, config, client(0, shape=shape, classes=classes))
    assert "model 'mlp'" in said
    assert why in said


@pytest.mark.parametrize("model", ["mlp", "lenet5", "vgg11", "lstm1"])
@pytest.mark.parametrize(
    "odd", [{"shape": ()}, {"shape": (1, 0, 0)}, {"shape": (-5,)}, {"shape": (1, -3, 8)}, {"classes": -1}]
)
def test_data_that_cannot_be_are_refused_in_one_line(model, odd, refusal):
    found = roster(2, **{"model": model, "shape": (1, 8, 8), "vocabulary": 9 * (model == "lstm1"), **odd})
    config = make("fedavg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of layers without any weight
        said = refusal(HetflError, build_strategy(config).prepare, found, config)
    assert said.startswith(f"client 0 ({model}): ")


def test_sizes_of_layers_are_found_without_the_memory_that_images_take():
    """An image of 10^10 pixels is 40 GB. A convolution 3x3 takes 2 pixels a side, the pooling halves the rest."""
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)]
    body, width = trunk((1, 10**5, 10**5), layers)
    assert width == 4 * ((10**5 - 2) // 2) ** 2
    assert all(weight.device.type == "cpu" for weight in body.parameters())
    assert all(layer.training for layer in body.modules())


@pytest.mark.parametrize("algorithm", ["fedhe", "chfl"])
def test_an_array_of_absurd_size_is_not_made(algorithm, refusal):
    unbuilt = roster(2, classes=20000, width=20000)
    config = make(algorithm)
    line = refusal(FederationError, build_strategy(config).prepare, unbuilt, config)
    assert f"20000 x 20000 are more than {MAX_NUMBERS} numbers" in line


# --- whether it is the clients' ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "lie", "said"),
    [
        *((algorithm, {"weights": "0", "body": "0"}, "") for algorithm in AVERAGING),
        *((algorithm, {"parameters": 5}, "55210") for algorithm in AVERAGING if algorithm not in BODIES),
    ],
)
def test_what_was_built_is_held_against_what_was_registered(algorithm, lie, said, refusal):
    """64 x 200 + 200 + 200 x 200 + 200 + 200 x 10 + 10 = 55,210."""
    line = refusal(FederationError, prepared, make(algorithm), client(0, **lie), client(1, **lie))
    assert line.startswith("client 0 (mlp): its weights differ")
    assert said in line


def test_of_bodies_that_are_averaged_the_heads_may_differ():
    """64 x 200 + 200 + 200 x 200 + 200 = 53,200, whatever the classes, and whatever number of parameters they have."""
    clients = [client(0), client(1, spec=DataSpec((1, 8, 8), 7))]
    assert clients[0].weights != clients[1].weights
    assert numbers(prepared(make("fedrep"), *clients)) == 53200
    liars = [client(k, parameters=5) for k in range(2)]
    assert {numbers(prepared(make(one), *liars)) for one in BODIES} == {53200}


LIES: list[dict[str, Any]] = [{"parameters": 1}, {"model": "sys:exit"}, {"model": "lenet5"}, {"classes": 9}]


@pytest.mark.parametrize(
    ("algorithm", "lie"),
    [
        *((algorithm, lie) for algorithm in AVERAGING for lie in LIES),
        *((algorithm, {"shape": HUGE}) for algorithm in ("fedavg", "fedprox", *BODIES)),
    ],
)
@pytest.mark.parametrize("honest", [1, 2, 3])
def test_a_lie_of_one_client_keeps_nobody_from_the_run(algorithm, lie, honest):
    """It has the others' fingerprint, but another name, shape or number; it comes first, or last."""
    others = [client(k) for k in range(1, 1 + honest)]
    expected = numbers(prepared(make(algorithm), *others))
    assert numbers(prepared(make(algorithm), client(0, **lie), *others)) == expected
    assert numbers(prepared(make(algorithm), *others, client(9, **lie))) == expected


@pytest.mark.parametrize(
    "lie",
    [
        {"parameters": 1},
        {"shape": (1, 9, 8)},
        {"shape": HUGE},
        {"model": "lenet5"},
        {"classes": 100_000},
        {"classes": 1},
    ],
)
def test_of_bodies_with_unlike_heads_one_wrong_field_keeps_nobody_from_the_run(lie):
    """Each client has other classes, so that no two have registered the same; the first one lies."""
    clients = [client(k, spec=DataSpec((1, 8, 8), 5 + k), **(lie if k == 0 else {})) for k in range(4)]
    assert numbers(prepared(make("fedrep"), *clients)) == 53200
