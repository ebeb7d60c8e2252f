"""FedMRL: its loss by hand, against a slow twin."""

from copy import deepcopy
from math import exp, log

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit, put
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend, mean_state
from torch import nn
from torch.nn import functional

from clients.fedmrl import FedMRLClient
from hetfl_flwr import Upload, model_arrays, train
from hetfl_flwr.wire.messages import ROUND

LINEAR = "fixtures.models:linear"


def test_the_own_head_predicts_from_fused_representations():
    """Of ``x = (1, 0)``, embedded as itself by both models, the projector makes (0, x_1) = (0, 1). So the logits are
    (0, 2), while W x is (1, 0) and class 0 is true."""
    client = FedMRLClient(linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]]), small=LINEAR)
    projector = client.fused.projector
    projector.weight.data, projector.bias.data = torch.tensor([[0.0] * 4, [0, 0, 1, 0]]), torch.zeros(2)
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


# --- both sides ----------------------------------------------------------------------------------

KEYS = {"algorithm": "fedmrl", "partition": "dirichlet:0.5", "local_batches": 0, "batch_size": 50}


def test_two_rounds_equal_a_slow_twin(halves):
    """Unequal clients: the momentum of what stays goes on, the small model's starts anew."""
    models = {"models": "fixtures.models:wide", "fedmrl.small": "fixtures.models:narrow"}
    sides = halves(**KEYS, **models, clients=3, momentum=0.9, learning_rate=0.05, **{"fedmrl.small_loss": 0.7})
    twins = [Twin(node) for node in sides.nodes]
    counts = [len(twin.y) for twin in twins]
    assert len(set(counts)) == 3
    projectors = [deepcopy(client.fused.projector).double() for client in sides.clients]
    optimizers = [twin.descent(twin.model, projector) for twin, projector in zip(twins, projectors, strict=True)]
    average, losses = deepcopy(sides.clients[0].small), []
    put(average, sides.state)
    average.double()
    for round in (1, 2):
        smalls = [deepcopy(average) for _ in twins]
        for twin, small, projector, own in zip(twins, smalls, projectors, optimizers, strict=True):
            renewed, mean = twin.descent(small), 0.0
            for x, y in twin.batches(round):
                r = projector(torch.cat([small.body(x), twin.model.body(x)], dim=1))
                by_small = functional.cross_entropy(small.head(r[:, :3]), y)
                loss = functional.cross_entropy(twin.model.head(r), y) + 0.7 * by_small
                descend(loss, own, renewed)
                mean += float(loss) * len(y) / len(twin.y)
            losses.append(mean)
        average.load_state_dict(mean_state(smalls, counts))
    state, said = sides.play(2)
    np.testing.assert_allclose([one["train-loss"] for one in said], losses, rtol=1e-4)
    for name, tensor in average.state_dict().items():
        np.testing.assert_allclose(state[name], tensor, rtol=1e-3, atol=1e-5)
    for client, twin, projector in zip(sides.clients, twins, projectors, strict=True):
        assert_near(client.node.model, twin.model, rtol=1e-3)
        assert_near(client.fused.projector, projector, rtol=1e-3)


# --- where it is something simpler ---------------------------------------------------------------


def test_one_client_without_the_small_head_s_loss_trains_alone(halves):
    """Its mean is its own small model, so it is local training of the predictor, to the bit."""
    keys = {"clients": 1, "fedmrl.small_loss": 0.0, "fedmrl.small": "lenet5", "models": "mlp", "learning_rate": 0.1}
    sides = halves(**KEYS, **keys)
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
