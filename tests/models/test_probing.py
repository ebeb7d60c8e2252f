"""A user's own model is run once where it enters: what that makes is there, and what cannot train is one line."""

import random
import sys
from math import inf, prod

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import HetflError, ModelError
from hetfl_flwr.models import build_model
from hetfl_flwr.models.split_model import SplitModel, constant_buffers
from hetfl_flwr.wire.weights import fingerprint, load_model_arrays, model_arrays, state_arrays, weights, whole_state

DIGITS = DataSpec(shape=(1, 8, 8), classes=10)


class Own(nn.Module):
    """A hidden layer under a head; the tests' models change one thing about it."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.body = nn.Linear(prod(spec.shape), 8)
        self.fc = nn.Linear(8, spec.classes)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x.flatten(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.hidden(x))
        return logits


class Masked(Own):
    """With a mask of -inf, random features and a running mean, as buffers, and a step counter."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.register_buffer("mask", torch.full((8, 8), -inf).triu(1))
        self.register_buffer("features", torch.randn(8, 8))
        self.register_buffer("order", torch.arange(8))
        self.norm = nn.BatchNorm1d(8)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.norm(super().hidden(x)[:, self.order] @ self.features @ self.mask.exp())
        return mixed


class Short(Own):
    """With a layer and a buffer in bfloat16, and a weight in float16."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.body = self.body.bfloat16()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float16))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.bfloat16))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        return super().hidden(x.bfloat16()).float() * self.scale.float()


class Cached(Own):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "encoding"):
            self.register_buffer("encoding", torch.linspace(0, 1, 8))
        return super().hidden(x) + self.encoding


class Growing(Own):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("encoding", torch.zeros(len(x), 1))
        return super().hidden(x) + self.encoding


class Remembering(Own):
    state: torch.Tensor | float = 0.0

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        self.state = super().hidden(x).mean(0) + self.state
        return super().hidden(x) + self.state


class Attached(Own):
    """Keeps what it has of the last batch in training, with its graph."""

    state: torch.Tensor | float = 0.0

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(x)
        if not self.training:
            return hidden
        hidden = hidden + self.state
        self.state = hidden.mean(0)
        return hidden


class Frozen(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.requires_grad_(False)


class Double(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())


class Wide(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).bfloat16()


class Complex(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))


class Unset(Own):
    """Its running maximum begins at -inf, and is sent."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.register_buffer("largest", torch.full((8,), -inf))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(x)
        if self.training:
            self.largest = torch.maximum(self.largest, hidden.detach().amax(0))
        return hidden


class Drawn(Own):
    """Its first weights are NumPy's, its depth is Python's to say."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        with torch.no_grad():
            self.body.weight.copy_(torch.from_numpy(np.random.normal(0, 0.1, (8, 64))))  # noqa: NPY002

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(x)
        return hidden if self.training and random.random() < 0.5 else functional.normalize(hidden)


class Shared(Own):
    """One mask in two layers."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.one, self.two = nn.Module(), nn.Module()
        mask = torch.full((8, 8), -inf).triu(1)
        self.one.register_buffer("mask", mask)
        self.two.register_buffer("mask", mask)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x) @ self.one.mask.exp() @ self.two.mask.exp()


class Undefined(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        with torch.no_grad():
            self.body.weight[0, 0] = torch.nan


class Logarithm(Own):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x.log())


class Clamped(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(-2, 2)


class Capped(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(max=20)


class Scores(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).log_softmax(1) if self.training else super().forward(x)


class Dropped(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Hooked(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.register_forward_hook(lambda module, inputs, logits: logits.clamp(-3, 3))


class Untrained(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().forward(x)


class Probed(Own):
    """Its head alone is trained, and says so."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.body.requires_grad_(False)


class Spare(Own):
    """With a layer that nothing uses."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.unused = nn.Parameter(torch.zeros(3))


class Late(Own):
    """Its running mean begins at the fourth batch."""

    batches = 0

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.register_buffer("mean", torch.zeros(8))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(x)
        self.batches += self.training
        if self.training and self.batches > 3:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return hidden - self.mean


class Sparse(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.table = nn.Embedding(16, 8, sparse=True)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x) + self.table((x.flatten(1).abs() * 3).long().clamp(0, 15)).mean(1)


class Extra(Own):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


class Eighth(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.scale = nn.Parameter(torch.ones(8).to(torch.float8_e4m3fn), requires_grad=False)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x) * self.scale.float()


class Unused(Own):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.spare = nn.LazyConv2d(4, 3)


class Unseeded(Own):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        noise = np.random.default_rng().normal() if self.training else 0.0
        return super().hidden(x) + noise


class Final(BaseException):
    """Something that is no Exception."""


class Quitting(Own):
    """It gives up in its fourth batch."""

    batches = 0

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += self.training
        if self.batches > 3:
            raise Final("for good")
        return super().hidden(x)


class Softened(SplitModel):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.shape), 8)), nn.Linear(8, spec.classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(1)


def lazy(spec: DataSpec) -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(spec.classes))


def built(kind: object, scope: int = 0, seed: int = 3, **keys):
    return build_model(f"{__name__}:{kind.__name__}", DIGITS, seed=seed, scope=(scope,), **keys)


def test_lazy_layers_are_made_under_the_seed():
    one, again, other = built(lazy), built(lazy), built(lazy, scope=1)
    assert (one.width, one.classes) == (144, 10)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)
    assert one.training
    assert int(one.body[1].num_batches_tracked) == 0  # nothing is left of trying it out


@pytest.mark.parametrize("line", ["torch.manual_seed(42)", "torch.rand(9)"])
def test_what_a_module_seeds_or_draws_at_import_does_not_change_the_weights(line, tmp_path, monkeypatch):
    source = f"""
import torch
{line}
TABLE = torch.randn(64, 8)
class Net(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.scale, self.fc = torch.nn.Parameter(TABLE.clone()), torch.nn.Linear(8, spec.classes)
    def forward(self, x):
        return self.fc(x.flatten(1) @ self.scale)
"""
    (tmp_path / "seeding_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    states = []
    for client, fresh in ((1, True), (0, True), (0, False), (1, False)):
        if fresh:
            sys.modules.pop("seeding_module", None)
        states.append(build_model("seeding_module:Net", DIGITS, seed=3, scope=(client,)).state_dict())
    for one, other in ((states[0], states[3]), (states[1], states[2])):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(states[0]["body.scale"], states[1]["body.scale"])
    sys.modules.pop("seeding_module")


def test_what_a_first_pass_makes_is_there_before_training():
    model = built(Cached)
    assert "body.encoding" in model.state_dict()
    assert "body.encoding" not in weights(model).names


@pytest.mark.parametrize("width", [0, 5])
def test_buffers_that_training_does_not_change_stay_at_home_and_are_alike_everywhere(width):
    models = [built(Masked, scope=client, width=width) for client in (0, 1)]
    server = build_model(f"{__name__}:Masked", DIGITS, seed=3, scope=("global",), width=width)
    assert len({fingerprint(model) for model in (*models, server)}) == 1
    held = [{name.rpartition(".")[2]: tensor for name, tensor in one.named_buffers()} for one in (*models, server)]
    for name in ("mask", "features"):
        assert torch.equal(held[0][name], held[1][name])
        assert torch.equal(held[0][name], held[2][name])
    sent = {name.rpartition(".")[2] for name in weights(models[0]).names}
    assert sent == {"weight", "bias", "running_mean", "running_var"}
    assert {name.rpartition(".")[2] for name in whole_state(models[0]).names} == {*sent, "num_batches_tracked"}
    weights(models[0]).check_named(model_arrays(models[0]), "client 0")
    whole_state(models[0]).check_named(state_arrays(models[0]), "client 0")
    other = built(Masked, seed=4, width=width).named_buffers()
    assert not torch.equal({name.rpartition(".")[2]: one for name, one in other}["features"], held[0]["features"])


def test_running_statistics_of_the_zoo_travel():
    model = build_model("fedhe:0", DIGITS, seed=0)
    assert constant_buffers(model) == set()
    assert any(name.endswith("running_mean") for name in weights(model).names)


def test_short_numbers_travel_as_float32_and_come_back_as_they_were():
    model, other = built(Short), built(Short, scope=1)
    arrays = model_arrays(model)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}
    assert {"body.body.weight", "body.scale", "body.steps"} <= arrays.keys()
    weights(model).check_named(arrays, "client 0")
    load_model_arrays(other, arrays)
    assert other.body.body.weight.dtype == torch.bfloat16
    assert torch.equal(other.body.body.weight, model.body.body.weight)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Growing, "encoding"),
        (Remembering, "one batch to the next"),
        (Attached, "second time"),
        (Frozen, "frozen"),
        (Double, "logits in float64"),
        (Wide, "logits in bfloat16"),
        (Complex, "'phase'"),
        (Undefined, "'body.weight'"),
        (Logarithm, "not finite"),
        *((kind, "'fc'") for kind in (Clamped, Capped, Scores, Dropped, Hooked)),
        (Softened, "head(body(x))"),
        (Untrained, "body.weight, body.bias"),
        (Unseeded, "called again"),
        (Sparse, "trained"),
        (Extra, "'_extra_state'"),
        (Eighth, "'scale'"),
        (Unused, "'spare.weight'"),
        (Unset, "'body.largest'"),
    ],
)
def test_what_cannot_be_trained_is_refused(refusal, kind, reason):
    line = refusal(ModelError, built, kind)
    assert (f"'{__name__}:{kind.__name__}'" in line, reason in line) == (True, True)


@pytest.mark.parametrize("kind", [Probed, Spare])
def test_weights_may_be_frozen_or_go_unused(kind):
    model = built(kind)
    assert model.width == 8


@pytest.mark.parametrize("kind", ["Drawn", "Masked", "Shared", "Short", "lazy"])
def test_a_federation_averages_such_models_and_repeats_itself(lab, tmp_path, kind):
    keys = {"algorithm": "fedavg", "models": f"{__name__}:{kind}", "local_batches": 3}
    folders = [lab.run(lab.config(output_dir=str(tmp_path / name), **keys)) for name in ("once", "again")]
    once, again = ((folder / "knowledge.safetensors").read_bytes() for folder in folders)
    assert once == again
    assert '"failures":[]' in (folders[0] / "rounds.jsonl").read_text().replace(" ", "").splitlines()[-1]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedproto"])
def test_a_buffer_that_training_changes_later_is_named(lab, tmp_path, algorithm):
    name = f"{__name__}:Late"
    config = lab.config(output_dir=str(tmp_path), algorithm=algorithm, models=name, local_batches=5)
    with pytest.raises(HetflError, match=r"'body(\.0)?\.mean' of the state"):
        lab.run(config)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_no_exception_is_a_failure_of_the_client(lab, tmp_path, workers):
    name = f"{__name__}:Quitting"
    config = lab.config(output_dir=str(tmp_path), algorithm="fedavg", models=name, local_batches=5)
    with pytest.raises(HetflError, match=r"round 1: .*Final: for good"):
        lab.run(config, workers=workers)
