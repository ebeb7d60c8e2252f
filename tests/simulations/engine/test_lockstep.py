"""Clients that step together end where they end one by one, within float tolerance, whatever each of them does."""

import json

import numpy as np
import pytest
import torch
from fixtures.tiers import exhaustive
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from hetfl_flwr.common.seeding import generator, seeded
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, Samples
from hetfl_flwr.data.arrays.samples import Arrays
from hetfl_flwr.learning.stepping import stepper
from hetfl_flwr.learning.training import draw_batches, make_optimizer, train
from hetfl_flwr.models import build_model
from hetfl_flwr.models.split_model import SplitModel
from simulations.engine import stacks
from simulations.engine.lockstep import run_together
from simulations.engine.stacks import Stack, stackable

SHAPE = (1, 8, 8)


def perceptron():
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh()), nn.Linear(7, 3))


def network():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return SplitModel(body, nn.Linear(18, 3))


def rows(client, count):
    draw = generator(client, "rows")
    inputs = torch.from_numpy(draw.normal(size=(count, *SHAPE)).astype(np.float32))
    labels = torch.from_numpy(draw.integers(3, size=count))
    return Samples(Arrays(DataSpec(SHAPE, 3), inputs, labels, 1, 1.0, torch.zeros(())), torch.arange(count))


class Learner:
    """A client with a model and rows of its own that takes some steps."""

    def __init__(self, client, build, config, count=12, batches=4, pull=0.0, clip=False):
        with seeded(0, client, "model"):
            self.model = build()
        self.first = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.samples, self.batches = rows(client, count), batches
        self.config, self.client, self.pull, self.clip = config, client, pull, clip

    def loss(self, inputs, labels):
        away = sum((now - then).square().sum() for now, then in zip(self.model.parameters(), self.first, strict=True))
        return functional.cross_entropy(self.model(inputs), labels) + self.pull * away

    def work(self):
        """Train; errors are returned."""
        order = generator(self.client, "batches")
        batches = draw_batches(order, len(self.samples), self.config.batch_size, epochs=1, batches=self.batches)
        optimizer = make_optimizer(self.config, self.model.parameters())
        parameters = list(self.model.parameters())

        def halve():
            for parameter in parameters:
                parameter.grad = parameter.grad / 2

        before = {"before_step": halve} if self.clip else {}
        try:
            with stepper.get().training({"model": self.model}):
                self.model.train()
                return train(self.samples, batches, optimizer, self.loss, **before)
        except Exception as error:
            return error

    def weights(self):
        return [parameter.detach() for parameter in self.model.parameters()]


def together(learners):
    return run_together([learner.work for learner in learners], True)


learners = st.fixed_dictionaries(
    {
        "build": st.sampled_from([perceptron, network]),
        "count": st.integers(3, 20),
        "batches": st.integers(1, 4),
        "pull": st.sampled_from([0.0, 0.1]),
        "clip": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(learners, min_size=2, max_size=5),
    st.sampled_from(["sgd", "adam", "amsgrad", "adamw"]),
    st.integers(2, 8),
)
def test_training_together_ends_where_training_one_by_one_does(several, optimizer, size):
    config = RunConfig(optimizer=optimizer, batch_size=size, learning_rate=1e-2, momentum=0.5)
    alone = [Learner(client, config=config, **its) for client, its in enumerate(several)]
    beside = [Learner(client, config=config, **its) for client, its in enumerate(several)]
    expected = [learner.work() for learner in alone]
    for (samples, loss), (seen, mean) in zip(expected, together(beside), strict=True):
        assert seen == samples
        assert mean == pytest.approx(loss, rel=1e-4, abs=1e-5)
    for one, other in zip(alone, beside, strict=True):
        for weight, its in zip(one.weights(), other.weights(), strict=True):
            torch.testing.assert_close(its, weight, rtol=1e-3, atol=1e-4)


class Counted(nn.Flatten):
    """Counts how often any model's forward passes here."""

    passes = 0

    def forward(self, x):
        Counted.passes += 1
        return super().forward(x)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(stacks, "LAYERS", (*stacks.LAYERS, Counted))
    monkeypatch.setattr(Counted, "passes", 0)
    return lambda: SplitModel(nn.Sequential(Counted(), nn.Linear(64, 5)), nn.Linear(5, 3))


def test_models_of_one_architecture_are_called_once_a_step(counted):
    config = RunConfig(batch_size=4)
    together([Learner(client, counted, config) for client in range(5)])
    assert Counted.passes == 4
    Learner(5, counted, config).work()
    assert Counted.passes == 8


def test_a_client_with_more_batches_goes_on_alone(counted):
    config = RunConfig(batch_size=4)
    together([Learner(client, counted, config, batches=batches) for client, batches in enumerate((2, 2, 5))])
    assert Counted.passes == 5


def test_one_that_raises_holds_nobody_up():
    config = RunConfig(batch_size=4, optimizer="adam")
    whole, broken, other = (Learner(client, perceptron, config) for client in range(3))
    right, calls = broken.loss, []

    def loss(inputs, labels):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no")
        return right(inputs, labels)

    broken.loss = loss
    [_, error, _] = together([whole, broken, other])
    assert str(error) == "no"
    alone = Learner(2, perceptron, config)
    alone.work()
    for weight, its in zip(alone.weights(), other.weights(), strict=True):
        torch.testing.assert_close(its, weight, rtol=1e-3, atol=1e-4)


def test_a_loss_without_a_gradient_is_refused_in_each_client_that_waits():
    learner = Learner(0, perceptron, RunConfig(batch_size=4))
    learner.loss = lambda inputs, labels: torch.zeros(())
    [error] = together([learner])
    assert "does not require grad" in str(error)


class Asks(nn.ReLU):
    """A layer whose path depends on its values: it has no batched form."""

    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else x.abs()


def test_a_model_that_has_no_batched_form_is_called_alone():
    def asking():
        return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), Asks()), nn.Linear(5, 3))

    config = RunConfig(batch_size=4)
    alone, beside = ([Learner(client, asking, config) for client in range(3)] for _ in range(2))
    assert together(beside) == [one.work() for one in alone]


@pytest.mark.parametrize(
    ("name", "batched", "clients", "expected"),
    [
        ("mlp", True, 2, True),
        ("mlp", "auto", 100, False),  # 55,210 parameters
        ("lenet5", "auto", 20, True),
        ("lenet5", "auto", 19, False),  # with few clients there is nothing to gain
        ("lenet5", False, 100, False),
        ("resnet18", True, 100, False),  # batch norm keeps buffers
        ("fedhe:0", True, 100, False),  # dropout is drawn at random
    ],
)
def test_which_models_step_together(name, batched, clients, expected):
    assert stackable(build_model(name, DataSpec(SHAPE, 10), seed=0), batched, clients) is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "batched", "called"), [(5, True, 2 * 3), (20, "auto", 2 * 3), (5, "auto", 0), (20, False, 0)]
)
def test_the_local_engine_calls_models_together(make_config, run_federation, monkeypatch, clients, batched, called):
    calls, call = [], Stack.call

    def counting(stack, models, inputs):
        calls.append(len(models))
        return call(stack, models, inputs)

    monkeypatch.setattr(Stack, "call", counting)
    run_federation(make_config(models="tabular:4", clients=clients, batched=batched, rounds=2, local_batches=3))
    assert calls == [clients] * called


@pytest.mark.slow
def test_models_that_only_their_names_tell_apart_are_not_called_as_one(make_config, run_federation, tmp_path):
    def server_state(batched):
        keys = {"models": "fixtures.models:once,fixtures.models:thrice", "clients": 4, "rounds": 2, "local_batches": 2}
        config = make_config(**keys, batched=batched, output_dir=str(tmp_path / str(batched)))
        return load_file(run_federation(config) / "knowledge.safetensors")

    alone, beside = server_state(False), server_state(True)
    for name, array in alone.items():
        np.testing.assert_allclose(beside[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def test_models_have_their_own_class_and_memory_afterwards():
    learner, other = (Learner(client, perceptron, RunConfig(batch_size=4)) for client in range(2))
    before = [parameter.data_ptr() for parameter in learner.model.parameters()]
    together([learner, other])
    assert type(learner.model) is SplitModel
    assert [parameter.data_ptr() for parameter in learner.model.parameters()] == before


UNLIKE_MODELS = ("fedhe", "fd", "fedh2l", "chfl", "fedproto", "fedgh", "fedtgp", "lgfedavg")
"""Algorithms that are run with two kinds of models."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        "fedhe",
        *map(exhaustive, (*UNLIKE_MODELS[1:], "fedhenn", "fml", "fedprox", "fedrep", "agg")),
        *map(exhaustive, ("fedkd", "feddf", "heterofl")),
    ],
)
def test_a_run_ends_with_the_same_knowledge(make_config, run_federation, tmp_path, algorithm):
    def server_state(batched):
        config = make_config(
            algorithm=algorithm,
            models="lenet5,lenet5,mlp" if algorithm in UNLIKE_MODELS else "lenet5",
            clients=5,
            batched=batched,
            rounds=2,
            local_batches=2,
            public_fraction=0.2 if algorithm in ("fedh2l", "agg", "fedhenn", "feddf") else 0.0,
            output_dir=str(tmp_path / str(batched)),
            **({"feddf.server-steps": 3} if algorithm == "feddf" else {}),
        )
        return load_file(run_federation(config) / "knowledge.safetensors")

    alone, beside = server_state(False), server_state(True)
    assert alone.keys() == beside.keys()
    for name, array in alone.items():
        np.testing.assert_allclose(beside[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_models_of_mixed_precision_are_mixed_in_step_too(make_config, run_federation, tmp_path):
    """The same losses as one by one, up to bfloat16's 3 digits, and other ones than in float32."""
    losses = {}
    for name, keys in {
        "whole": {"batched": True},
        "alone": {"batched": False, "mixed_precision": "bfloat16"},
        "together": {"batched": True, "mixed_precision": "bfloat16"},
    }.items():
        config = make_config(algorithm="local", models="lenet5", clients=3, output_dir=str(tmp_path / name), **keys)
        entries = [json.loads(line) for line in (run_federation(config) / "rounds.jsonl").open()]
        assert [entry["failures"] for entry in entries] == [[], [], []]
        losses[name] = [scores["train-loss"] for entry in entries[1:] for scores in entry["clients"].values()]
    assert losses["together"] == pytest.approx(losses["alone"], rel=2e-3)
    assert losses["together"] != pytest.approx(losses["whole"], rel=1e-6)
