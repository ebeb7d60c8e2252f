"""FedProx: its proximal term by hand, equal to the loop one would write by hand, and FedAvg where it has no weight."""

from json import loads
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import floats, put, train_by_hand, weighted
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file

from clients.fedprox import FedProxClient
from hetfl_flwr.models import build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.wire.messages import ROUND

NORMED = "simulations.testing.lab:normed"
"""8 x 8 inputs to 8 units with batch norm to 10 classes."""


def test_two_steps_by_hand():
    """Logits z of (1, 0), column 0 of W, from (1, 0). A step of rate 0.1 takes ``0.1 (softmax(z) - (1, 0))`` off; the
    second one also 0.1 * 2 times the way that the first has gone. The second loss has ``2 / 2`` times its square.
    """
    client = FedProxClient(linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]], local_batches=2), mu=2.0)
    [weight], samples, metrics = client.fit([np.float32([[1, 0], [0, 2]])], {ROUND: 1})
    first = 1 / (1 + exp(-1))
    way = 0.1 * (1 - first)
    second = 1 / (1 + exp(-(1 + 2 * way)))
    step = 0.1 * (1 - second) - 0.1 * 2 * way
    np.testing.assert_allclose(weight, [[1 + way + step, 0], [-way - step, 2]], rtol=1e-6, atol=1e-7)
    assert (samples, metrics["samples-seen"]) == (1, 2)
    assert metrics["train-loss"] == pytest.approx((-log(first) - log(second) + 2 * way**2) / 2, rel=1e-6)


@pytest.mark.parametrize("clients", [1, 3])
def test_two_rounds_equal_a_loop_by_hand(clients, make_config, make_node, run_federation):
    """The term is over the trainable parameters, without the running statistics, from where each round begins; weights
    and statistics are averaged by the samples trained on.
    """
    config = make_config(
        algorithm="fedprox",
        models=NORMED,
        clients=clients,
        partition="dirichlet:0.5",
        local_batches=0,
        optimizer="sgd",
        learning_rate=0.1,
        seed=2,
        **{"fedprox.mu": 0.5},
    )
    nodes = [make_node(config, client_id) for client_id in range(clients)]
    average = floats(build_model(NORMED, nodes[0].data.spec, seed=config.seed, scope=("global",)))
    losses = []
    for round in (1, 2):
        losses.append([by_hand(node, average, round) for node in nodes])
        average = weighted([floats(node.model) for node in nodes], [len(node.data.train) for node in nodes])
    run = run_federation(config)
    found = load_file(run / SERVER_STATE_FILE)
    assert found.keys() == average.keys()
    for key, array in found.items():
        np.testing.assert_allclose(array, average[key], rtol=1e-4, atol=1e-5, err_msg=key)
    for line, expected in zip((run / "rounds.jsonl").read_text().splitlines()[1:], losses, strict=True):
        said = [one["train-loss"] for one in loads(line)["clients"].values()]
        np.testing.assert_allclose(said, expected, rtol=1e-4)


def by_hand(node: Any, start: dict[str, np.ndarray], round: int) -> float:
    """Train the global model for one epoch, the gradient of the proximal term, ``0.5 (w - w_t)``, added to that of
    cross-entropy; return the mean loss."""
    put(node.model, start)

    def pull() -> float:
        distance = 0.0
        for name, weight in node.model.named_parameters():
            way = weight.detach() - torch.from_numpy(start[name])
            weight.grad += 0.5 * way
            distance += float((way.double() ** 2).sum())
        return 0.5 / 2 * distance

    return train_by_hand(node, torch.optim.SGD(node.model.parameters(), lr=node.config.learning_rate), round, also=pull)
