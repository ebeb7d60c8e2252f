"""A user's own model is run once where it enters: what that makes is there, and what cannot train is one line."""

import random
import sys
from functools import partial
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
    """A user's own model; what is made in it, and its hidden layer and logits, may be changed."""

    def __init__(self, spec, make=lambda net: None, hidden=lambda net, h: h, logits=lambda net, out: out):
        super().__init__()
        self.body, self.fc = nn.Linear(prod(spec.shape), 8), nn.Linear(8, spec.classes)
        self.change_hidden, self.change_logits = hidden, logits
        make(self)

    def forward(self, x):
        x = x.flatten(1).to(self.body.weight.dtype)
        hidden = self.change_hidden(self, torch.relu(self.body(x)))
        return self.change_logits(self, self.fc(hidden))


def buffers(**made):
    """Make buffers."""

    def make(net):
        for name, tensor in made.items():
            net.register_buffer(name, tensor)

    return make


def cached(net, h):
    if not hasattr(net, "encoding"):
        net.register_buffer("encoding", torch.linspace(0, 1, 8))
    return h + net.encoding


def growing(net, h):
    net.register_buffer("encoding", torch.zeros(len(h), 1))
    return h + net.encoding


def remembering(net, h):
    net.state = h.mean(0) + getattr(net, "state", 0.0)
    return h + net.state


def attached(net, h):
    """Keep what there is of the last batch in training, with its graph."""
    if net.training:
        h = h + getattr(net, "state", 0.0)
        net.state = h.mean(0)
    return h


def largest(net, h):
    """Keep a running maximum, which begins at -inf and is sent."""
    if net.training:
        net.largest = torch.maximum(net.largest, h.detach().amax(0))
    return h


def late(net, h):
    """Keep a running mean that begins at the fourth batch."""
    net.batches = getattr(net, "batches", 0) + net.training
    if net.training and net.batches > 3:
        net.mean = 0.9 * net.mean + 0.1 * h.detach().mean(0)
    return h - net.mean


class Final(BaseException):
    """Something that is no Exception."""


def quitting(net, h):
    """Give up in the fourth batch."""
    net.batches = getattr(net, "batches", 0) + net.training
    if net.batches > 3:
        raise Final("for good")
    return h


def draw(net):
    """Take first weights of NumPy's."""
    with torch.no_grad():
        net.body.weight.copy_(torch.from_numpy(np.random.normal(0, 0.1, (8, 64))))  # noqa: NPY002


def mask(net):
    """Make a mask of -inf, random features and a running mean, as buffers, and a step counter."""
    buffers(mask=torch.full((8, 8), -inf).triu(1), features=torch.randn(8, 8), order=torch.arange(8))(net)
    net.norm = nn.BatchNorm1d(8)


def share(net):
    """Make one mask in two layers."""
    net.one, net.two = nn.Module(), nn.Module()
    one = torch.full((8, 8), -inf).triu(1)
    net.one.register_buffer("mask", one)
    net.two.register_buffer("mask", one)


def shorten(net):
    """Make a layer and a buffer in bfloat16, and a weight in float16."""
    net.body = net.body.bfloat16()
    net.scale = nn.Parameter(torch.ones(1, dtype=torch.float16))
    net.register_buffer("steps", torch.zeros(1, dtype=torch.bfloat16))


def short(net, h):
    net.steps += net.training
    return h.float() * net.scale.float()


def parameter(name, value):
    return lambda net: net.register_parameter(name, nn.Parameter(value))


def detached(net, out):
    return out.detach()


def hook(net):
    net.register_forward_hook(lambda module, inputs, logits: logits.clamp(-3, 3))


def unset(net):
    net.body.weight.data[0, 0] = torch.nan


TAKEN = {
    "Cached": {"hidden": cached},
    "Masked": {"make": mask, "hidden": lambda net, h: net.norm(h[:, net.order] @ net.features @ net.mask.exp())},
    "Short": {"make": shorten, "hidden": short},
    "Drawn": {
        "make": draw,
        "hidden": lambda net, h: h if net.training and random.random() < 0.5 else functional.normalize(h),
    },
    "Shared": {"make": share, "hidden": lambda net, h: h @ net.one.mask.exp() @ net.two.mask.exp()},
    "Probed": {"make": lambda net: net.body.requires_grad_(False)},
    "Spare": {"make": parameter("unused", torch.zeros(3))},
    "Late": {"make": buffers(mean=torch.zeros(8)), "hidden": late},
    "Quitting": {"hidden": quitting},
}
"""What an own model may have."""

REFUSED = {
    "Growing": ({"hidden": growing}, "encoding"),
    "Remembering": ({"hidden": remembering}, "between batches"),
    "Attached": ({"hidden": attached}, "second time"),
    "Frozen": ({"make": lambda net: net.requires_grad_(False)}, "cannot be trained"),
    "Double": ({"make": nn.Module.double}, "float64 logits"),
    "Complex": ({"make": parameter("phase", torch.ones(8, dtype=torch.complex64))}, "'phase'"),
    "Undefined": ({"make": unset}, "finite"),
    "Capped": ({"logits": lambda net, out: out.clamp(max=20)}, "'fc'"),
    "Scores": ({"logits": lambda net, out: out.log_softmax(1) if net.training else out}, "'fc'"),
    "Dropped": ({"logits": lambda net, out: functional.dropout(out, 0.5, net.training)}, "'fc'"),
    "Hooked": ({"make": hook}, "'fc'"),
    "Untrained": ({"hidden": detached}, "body.weight, body.bias"),
    "Unseeded": ({"hidden": lambda net, h: h + net.training * np.random.default_rng().normal()}, "called again"),
    "Unused": ({"make": lambda net: net.add_module("spare", nn.LazyConv2d(4, 3))}, "'spare.weight'"),
    "Largest": ({"make": buffers(largest=torch.full((8,), -inf)), "hidden": largest}, "'body.largest'"),
}
"""What none may have, and what is said of it."""

for kind, keys in {**TAKEN, **{kind: keys for kind, (keys, _) in REFUSED.items()}}.items():
    globals()[kind] = partial(Own, **keys)


class Extra(Own):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}


class Softened(SplitModel):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.shape), 8)), nn.Linear(8, spec.classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(1)


def lazy(spec: DataSpec) -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(spec.classes))


def built(kind, scope=0, seed=3, **keys):
    return build_model(f"{__name__}:{kind}", DIGITS, seed=seed, scope=(scope,), **keys)


def test_lazy_layers_are_made_under_the_seed():
    """What a first pass makes is there before training; weights may be frozen or go unused."""
    one, again, other = built("lazy"), built("lazy"), built("lazy", scope=1)
    assert (one.width, one.classes, one.training) == (144, 10, True)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)
    assert int(one.body[1].num_batches_tracked) == 0  # nothing is left of trying it out
    model = built("Cached")
    assert "body.encoding" in model.state_dict()
    assert "body.encoding" not in weights(model).names
    assert {built(kind).width for kind in ("Probed", "Spare")} == {8}


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


@pytest.mark.parametrize("width", [0, 5])
def test_buffers_that_training_does_not_change_stay_at_home_and_are_alike_everywhere(width):
    """Running statistics travel."""

    def last(name):
        return name.rpartition(".")[2]

    models = [built("Masked", scope=client, width=width) for client in (0, 1)]
    server = build_model(f"{__name__}:Masked", DIGITS, seed=3, scope=("global",), width=width)
    assert len({fingerprint(model) for model in (*models, server)}) == 1
    first, *others = ({last(name): one for name, one in model.named_buffers()} for model in (*models, server))
    assert all(torch.equal(first[name], other[name]) for name in ("mask", "features") for other in others)
    sent = {*map(last, weights(models[0]).names)}
    assert sent == {"weight", "bias", "running_mean", "running_var"}
    assert {*map(last, whole_state(models[0]).names)} == {*sent, "num_batches_tracked"}
    weights(models[0]).check_named(model_arrays(models[0]), "client 0")
    whole_state(models[0]).check_named(state_arrays(models[0]), "client 0")
    other = {last(name): one for name, one in built("Masked", seed=4, width=width).named_buffers()}
    assert not torch.equal(other["features"], first["features"])
    assert constant_buffers(build_model("fedhe:0", DIGITS, seed=0)) == set()


def test_short_numbers_travel_as_float32_and_come_back_as_they_were():
    model, other = built("Short"), built("Short", scope=1)
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
        *((kind, said) for kind, (_, said) in REFUSED.items()),
        ("Softened", "head(body(x))"),
        ("Extra", "'_extra_state'"),
    ],
)
def test_what_cannot_be_trained_is_refused(refusal, kind, reason):
    line = refusal(ModelError, built, kind)
    assert (f"'{__name__}:{kind}'" in line, reason in line) == (True, True)


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
    with pytest.raises(HetflError, match=r"'body(\.0)?\.mean' in the state"):
        lab.run(config)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_no_exception_is_a_failure_of_the_client(lab, tmp_path, workers):
    keys = {"algorithm": "fedavg", "models": f"{__name__}:Quitting", "local_batches": 5}
    with pytest.raises(HetflError, match=r"round 1: .*Final: for good"):
        lab.run(lab.config(output_dir=str(tmp_path), **keys), workers=workers)
