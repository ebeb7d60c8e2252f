import os
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import chosen
from hetfl_flwr.node.holder import forget, holder_of
from hetfl_flwr.node.machine import find_device
from hetfl_flwr.node.node import KeptContext, Node
from hetfl_flwr.node.state import ClientState, ContextStore, FileStore
from hetfl_flwr.wire.codec import to_record
from simulations.deployment import executor


def test_a_node_is_built_alike_for_each_message_and_begins_with_weights_of_its_own(make_config, make_node):
    one, other = make_node(make_config(), 1), make_node(make_config(), 1)
    assert (one.client_id, one.clients, one.model_name, str(one)) == (1, 2, "lenet5", "client 1 (lenet5)")
    assert all(torch.equal(value, other.model.state_dict()[name]) for name, value in one.model.state_dict().items())
    assert torch.equal(one.data.train.rows, other.data.train.rows)
    first, second = (make_node(make_config(models="mlp"), client_id) for client_id in (0, 1))
    assert not torch.equal(first.model.head.weight, second.model.head.weight)


def test_models_are_dealt_round_robin_and_a_node_s_own_setting_comes_first(make_config, make_node):
    config = make_config(clients=4, models="mlp,lenet5,fedhe:5")
    assert [make_node(config, k).model_name for k in range(4)] == ["mlp", "lenet5", "fedhe:5", "mlp"]
    assert make_node(config, 0, model="fedhe:2").model_name == "fedhe:2"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "partition-id"),
        ({"partition-id": 0}, "num-partitions"),
        ({"partition-id": "0", "num-partitions": 2}, "partition-id"),
        ({"partition-id": True, "num-partitions": 2}, "partition-id"),
        ({"partition-id": 2, "num-partitions": 2}, "partition-id = 2"),
        ({"partition-id": -1, "num-partitions": 2}, "partition-id = -1"),
    ],
    ids=["nothing", "number missing", "text", "bool", "too large", "negative"],
)
def test_a_node_without_a_place_in_the_federation_is_told_how_to_get_one(refusal, make_config, make_context, own, said):
    context = make_context(make_config())
    context.node_config.clear()
    context.node_config.update(own)
    assert said in refusal(ConfigError, Node.from_context, context)


@pytest.mark.parametrize(
    ("device", "gpus", "found"),
    [
        *(("cuda", 0, None), ("cuda:1", 0, None), ("cuda:1", 1, None), ("mps", 0, None)),
        *(("auto", 0, "cpu"), ("auto", 1, "cuda")),
    ],
)
def test_auto_is_the_device_that_is_there_and_one_that_is_not_is_refused(refusal, monkeypatch, device, gpus, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if found:
        assert find_device(device) == torch.device(found)
    else:
        assert f"device = '{device}'" in refusal(ConfigError, find_device, device)


def test_state_lies_in_the_context_or_in_the_folder_that_is_named(tmp_path, make_config, make_context):
    config = make_config()
    assert isinstance(Node.from_context(make_context(config, 1)).store, ContextStore)
    store = Node.from_context(make_context(config.with_values({"state-dir": str(tmp_path)}), 1)).store
    assert isinstance(store, FileStore)
    assert store.where == f"state file {tmp_path / 'run-7' / 'client-1.safetensors'}"


@pytest.fixture
def said_in_both(make_context):
    """Let a client that stays, and one that is built anew for each message, do the same; return what each says."""

    def said(config: RunConfig, play: Callable[[Context], Any]) -> Any:
        stays, anew = (play(kind(**vars(make_context(config)))) for kind in (KeptContext, Context))
        assert stays == anew
        return anew

    return said


@pytest.mark.parametrize("algorithm", ["fedhe", "fedavg", "fml"])
def test_a_client_that_stays_forgets_a_round_that_has_failed(make_config, said_in_both, algorithm, monkeypatch):
    """Also its first one: it goes on from what it has saved, as one that is built anew for each message does."""
    config = make_config(algorithm=algorithm, models="lenet5")
    learn = chosen(config).client.learn

    def broken(self, download, round):
        learnt = learn(self, download, round)
        if round in (1, 3):
            raise RuntimeError("broke")
        return learnt

    def play(context):
        zeros = {one.name: np.zeros(one.shape, one.dtype) for one in holder_of(context).down.arrays}
        said = []
        for round in (1, 2, 3, 4):
            try:
                upload, metrics = holder_of(context).train(zeros, round)
            except RuntimeError:
                forget(context)
            else:
                said.append(({name: array.tobytes() for name, array in upload.items()}, metrics))
        return said

    monkeypatch.setattr(chosen(config).client, "learn", broken)
    assert len(said_in_both(config, play)) == 2


def resting(spec: DataSpec) -> nn.Module:
    """Return a model of a user's, in evaluation mode."""
    layers = (
        nn.Flatten(),
        nn.Linear(prod(spec.shape), 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Linear(8, spec.classes),
    )
    return nn.Sequential(*layers).eval()


def test_a_model_that_is_given_in_evaluation_mode_is_trained_in_training_mode(make_config, make_context, monkeypatch):
    """In each round, also after it was measured: dropout drops, and the statistics of batch norm go on."""
    config = make_config(algorithm="local", models="test_node:resting")
    context, learn, modes = make_context(config), chosen(config).client.learn, list[set[bool]]()

    def watched(self, download, round):
        modes.append({layer.training for layer in self.node.model.modules()})
        return learn(self, download, round)

    monkeypatch.setattr(chosen(config).client, "learn", watched)
    for round in (1, 2):
        holder_of(context).train({}, round)
        holder_of(context).measure({}, round)
    assert modes == [{True}, {True}]


def test_a_client_that_stays_drops_the_moments_that_a_round_has_not_asked_for(make_config, said_in_both, monkeypatch):
    """So does one that is built anew: it saves those of its optimizers of the round. Measuring changes nothing."""
    config = make_config(algorithm="local", models="lenet5")

    def two(self, download, round):
        optimizer = self.optimizer("odd" if round % 2 else "even")
        return {}, {"train-loss": self.train(self.batches(round), self.own_loss, optimizer)[1]}

    def play(context):
        said = [holder_of(context).train({}, round)[1] for round in (1, 2)]
        holder_of(context).measure({}, 2)
        return said + [holder_of(context).train({}, round)[1] for round in (3, 4)]

    monkeypatch.setattr(chosen(config).client, "learn", two)
    said_in_both(config, play)


def test_a_client_that_stays_forgets_what_no_state_holds(make_config, said_in_both, monkeypatch):
    """An attribute, a frozen layer; and its weights where its state is gone."""
    config = make_config(algorithm="local", models="lenet5")

    def careless(self, download, round):
        self.times = getattr(self, "times", 0) + 1
        bias = self.node.model.head.bias
        found = {"times": self.times, "learns": float(bias.requires_grad), "bias": float(bias.detach().sum())}
        bias.requires_grad_(requires_grad=False)
        bias.data += 1.0
        return {}, found

    def play(context):
        said = [holder_of(context).train({}, round)[1] for round in (1, 2)]
        holder_of(context).node.store.forget()
        forget(context)
        return [*said, holder_of(context).train({}, 3)[1]]

    monkeypatch.setattr(chosen(config).client, "learn", careless)
    first, second, third = said_in_both(config, play)
    assert (first["times"], second["times"]) == (1, 1)
    assert second["bias"] == pytest.approx(first["bias"] + 10, abs=1e-4)
    assert third == first


def test_a_client_that_stays_is_built_again_when_it_gets_public_samples(make_config, make_context):
    """What it declares may depend on them."""
    context = KeptContext(**vars(make_context(make_config(algorithm="fedmd", models="lenet5"))))
    before = holder_of(context)
    own = before.node.own_public_samples(labelled=True)
    before.node.keep_public_samples(to_record({f"{name}.1": rows for name, rows in own.items()}))
    after = holder_of(context)
    assert after is not before
    assert holder_of(context) is after
    assert len(after.node.pool) == 2 * len(own["labels"])


def test_a_client_of_an_own_method_is_built_anew_for_each_message(make_config, make_context):
    """It may keep what no state holds, as in a list of its own."""
    for algorithm, stays in (("fedhe", True), ("fixtures.echo", False)):
        context = KeptContext(**vars(make_context(make_config(algorithm=algorithm, models="lenet5"))))
        assert (holder_of(context).client is holder_of(context).client) == stays


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_process_that_stays_keeps_its_client_and_takes_the_state_from_where_it_lies(
    make_config, make_context, monkeypatch, tmp_path, stays, on_disk
):
    """Each message brings a Context of its own, with the records of the one before; a state may lie on disk instead."""
    monkeypatch.setattr(executor.os, "environ", {})
    if stays:  # the process is one that an executor keeps for all messages of an app
        monkeypatch.setattr(executor, "end_with_node", lambda alive: None)
        assert executor._answer_all(os.pipe(), {"keep": "resident", "alive": 0}) == 0
    config = make_config(models="lenet5", **({"state_dir": str(tmp_path)} if on_disk else {}))
    context = make_context(config, 0)
    first = holder_of(context)
    first.train({"logits": np.zeros((10, 10), np.float32), "known": np.zeros(10, bool)}, 1)
    later = Context(**vars(context))
    second = holder_of(later)
    assert (second is first, second.node.data is first.node.data) == (stays,) * 2
    assert second.node.read_state().round == 1
    second.node.write_state(ClientState(second.node.read_state().tensors, {}, 9))
    assert holder_of(Context(**vars(later))).node.read_state().round == 9
    other = holder_of(make_context(config.with_values({"seed": 1}), 0))
    assert other.node.data is not second.node.data


def test_a_model_of_the_user_s_own_is_built_anew(make_config, make_context):
    context = KeptContext(**vars(make_context(make_config(models="simulations.testing.lab:normed"))))
    assert holder_of(context).node.data is holder_of(context).node.data
    assert holder_of(context).node.model is not holder_of(context).node.model


def test_the_settings_of_data_and_threads_reach_the_node(make_config, make_node):
    """Digits' own test split has 360 rows; 2 clients share the other 1,437, half of them kept for validation."""
    config = make_config(threads=2, test_set="global", normalize="none", validation_fraction=0.5)
    node = make_node(config)
    assert torch.get_num_threads() == 2
    assert (len(node.data.train), len(node.data.validation), len(node.data.test)) == (359, 360, 360)
    pixels, _ = node.data.test.batch(torch.arange(360))
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)  # minus a mean image, some would be below 0


def test_one_training_sample_is_too_few_for_batch_norm(refusal, make_config, make_node):
    keys = {"clients": 8, "partition": "exponential"}
    assert len(make_node(make_config(**keys, models="mlp"), 0).data.train) == 1
    said = refusal(ConfigError, make_node, make_config(**keys, models="fedhe:5"), 0)
    assert said.startswith("client 0 has one training sample, and batch norm in its model 'fedhe:5' needs two: use ")
    assert len(make_node(make_config(**keys, models="fedhe:5"), 1).data.train) > 1
