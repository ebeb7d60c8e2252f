"""FedMRL: its loss by hand, against a slow reference loop."""

from copy import deepcopy
from math import exp, log

import numpy as np
import pytest
import torch
from fixtures.federations.loops import Linear, fit, softmax
from fixtures.federations.nodes import linear_node
from torch import nn

from clients.fedmrl import FedMRLClient
from hetfl_flwr import (
    DataSpec,
    SplitModel,
    Upload,
    draw_batches,
    generator,
    model_arrays,
    train,
)
from hetfl_flwr.wire.messages import ROUND

LINEAR = "fixtures.models:linear"


def narrow(spec: DataSpec) -> SplitModel:
    """A model with one feature, ``head(u . x)``."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(spec.shape[0], 1, bias=False))
    return SplitModel(body, nn.Linear(1, spec.classes, bias=False))


def one_sample(small: str = "test_fedmrl:narrow", **options: float) -> FedMRLClient:
    """A client with the sample (1, 0) of class 0 and the own model ``W x``, W = [[1, 0], [0, 2]]; d1 = 1, d2 = 2."""
    node = linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]])
    return FedMRLClient(node, small=small, **options)


# --- the client, one step by hand ----------------------------------------------------------------


def test_the_own_head_predicts_from_fused_representations():
    """The projector gives (0, x_1) = (0, 1), so the logits are (0, 2), while W x is (1, 0) and class 0 is true."""
    client = one_sample()
    projector = client.fused.projector
    projector.weight.data, projector.bias.data = torch.tensor([[0.0, 0, 0], [0, 1, 0]]), torch.zeros(2)
    loss, _, metrics = client.evaluate([], {ROUND: 0})
    assert (loss, metrics["accuracy"]) == (pytest.approx(log(1 + exp(2)), rel=1e-6), 0.0)


def test_of_a_narrower_own_embedding_the_small_head_sees_zeros_beyond_it():
    """d1 = 2, d2 = 1: the small head's weights of the second dimension have no gradient."""
    node = linear_node([[1.0, 0.0]], [0], [[1.0], [0.0]], body=nn.Linear(2, 1))
    client = FedMRLClient(node, small=LINEAR)
    before = model_arrays(client.small)
    back, _ = client.learn(before, 1)
    changed = back["head.weight"] != before["head.weight"]
    assert changed.tolist() == [[True, False], [True, False]]


# --- two rounds against a slow loop --------------------------------------------------------------


def slow_round(own, small, projector, node, round, part):
    """Train three layers sample by sample: both bodies are the input itself, so r = P [x, x]; return the mean loss."""
    config, (inputs, labels) = node.config, node.data.train.batch(torch.arange(len(node.data.train)))
    table, losses = inputs.flatten(1).double().numpy(), []
    order = generator(config.seed, node.client_id, round, "batches")
    for rows in draw_batches(order, len(labels), config.batch_size, epochs=config.local_epochs, batches=0):
        xs = [np.concatenate([table[row], table[row]]) for row in rows.tolist()]
        rs, ys = [projector(x) for x in xs], [int(labels[row]) for row in rows.tolist()]
        ps, qs = [softmax(own(r)) for r in rs], [softmax(small(r)) for r in rs]
        losses += [-np.log(p[y]) - part * np.log(q[y]) for p, q, y in zip(ps, qs, ys, strict=True)]
        by_own = [p - np.eye(10)[y] for p, y in zip(ps, ys, strict=True)]
        by_small = [part * (q - np.eye(10)[y]) for q, y in zip(qs, ys, strict=True)]
        by_r = [own.weight.T @ g + small.weight.T @ h for g, h in zip(by_own, by_small, strict=True)]
        for layer, slopes, seen in ((own, by_own, rs), (small, by_small, rs), (projector, by_r, xs)):
            layer.step(slopes, seen, config)
    return np.mean(losses)


SIDES = {"algorithm": "fedmrl", "models": LINEAR, "fedmrl.small": LINEAR, "partition": "dirichlet:0.5"}
EPOCH = {"local_batches": 0, "local_epochs": 1, "learning_rate": 0.1}


def test_two_rounds_equal_a_loop_over_samples(halves):
    """Unequal clients: the momentum of what stays goes on, the small model's starts anew."""
    keys = {"clients": 3, "batch_size": 50, "momentum": 0.9, "fedmrl.small_loss": 0.7, "learning_rate": 0.05}
    sides = halves(**SIDES | EPOCH | keys)
    nodes, clients, strategy, members, state = sides.nodes, sides.clients, sides.strategy, sides.members, sides.state
    counts = [len(node.data.train) for node in nodes]
    assert len(set(counts)) == 3
    own, projectors = [
        [Linear(part) for part in parts]
        for parts in zip(*((client.node.model.head, client.fused.projector) for client in clients), strict=True)
    ]
    average, losses, said = deepcopy(clients[0].small.head), [], []
    average.load_state_dict({name: torch.from_numpy(state[f"head.{name}"]) for name in ("weight", "bias")})
    for round in (1, 2):
        small = [Linear(average) for _ in nodes]
        parts = zip(own, small, projectors, nodes, strict=True)
        losses += [slow_round(*part, round, 0.7) for part in parts]
        for name, tensor in average.named_parameters():
            mean = np.average([getattr(one, name) for one in small], axis=0, weights=counts)
            tensor.data = torch.from_numpy(mean)
        uploads = []
        for client, one in zip(clients, members, strict=True):
            back, metrics = fit(client, strategy.download_for(one, state, round).values(), round)
            said.append(metrics["train-loss"])
            uploads.append(Upload(one.client_id, back, one.train))
        state = strategy.aggregate(state, uploads, round)
    close = {"rtol": 1e-3, "atol": 1e-5}
    np.testing.assert_allclose(said, losses, rtol=1e-4)
    np.testing.assert_allclose(state["head.weight"], average.weight.detach(), **close)
    np.testing.assert_allclose(state["head.bias"], average.bias.detach(), **close)
    for client, head, projector in zip(clients, own, projectors, strict=True):
        np.testing.assert_allclose(client.node.model.head.weight.detach(), head.weight, **close)
        np.testing.assert_allclose(client.fused.projector.weight.detach(), projector.weight, **close)


# --- where it is something simpler ---------------------------------------------------------------


def test_one_client_without_the_small_head_s_loss_trains_alone(halves):
    """Its mean is its own small model, so it is local training of the predictor, to the bit."""
    keys = {"clients": 1, "fedmrl.small_loss": 0.0, "fedmrl.small": "lenet5", "models": "mlp", "batch_size": 50}
    sides = halves(**SIDES | EPOCH | keys)
    [node], [client], strategy, members, state = sides.nodes, sides.clients, sides.strategy, sides.members, sides.state
    [one], alone, initial = members, deepcopy(client.predictor()), state
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for round in (1, 2):
        back, _ = fit(client, strategy.download_for(one, state, round).values(), round)
        state = strategy.aggregate(state, [Upload(0, back, one.train)], round)
        train(node.data.train, client.batches(round), optimizer, lambda x, y: node.data_loss(alone(x), y))
    assert all((state[name] == array).all() for name, array in model_arrays(alone.small).items())
    fused = client.fused.state_dict()
    assert all(torch.equal(fused[name], tensor) for name, tensor in alone.state_dict().items())
    assert all((state[name] == initial[name]).all() for name in ("head.weight", "head.bias"))
    assert all((state[name] != initial[name]).any() for name in initial if name.startswith("body."))
