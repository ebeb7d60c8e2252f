"""FedProx: its proximal term by hand, equal to the loop one would write by hand, and FedAvg where it has no weight."""

from json import loads
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import floats
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file
from torch.nn import functional

from clients.fedprox import FedProxClient
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.models import build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries

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
        trained = [by_hand(node, average, round) for node in nodes]
        total = sum(samples for _, samples, _ in trained)
        losses.append([loss for _, _, loss in trained])
        average = {
            key: sum(np.float32(samples / total) * model[key] for model, samples, _ in trained) for key in average
        }
    run = run_federation(config)
    found = load_file(run / SERVER_STATE_FILE)
    assert found.keys() == average.keys()
    for key, array in found.items():
        np.testing.assert_allclose(array, average[key], rtol=1e-4, atol=1e-5, err_msg=key)
    for line, expected in zip((run / "rounds.jsonl").read_text().splitlines()[1:], losses, strict=True):
        said = [one["train-loss"] for one in loads(line)["clients"].values()]
        np.testing.assert_allclose(said, expected, rtol=1e-4)


def by_hand(node: Any, start: dict[str, np.ndarray], round: int) -> tuple[dict[str, np.ndarray], int, float]:
    """Train the global model for one epoch, the gradient of the proximal term, ``0.5 (w - w_t)``, added to that of
    cross-entropy; return it, the samples seen and their mean loss."""
    model, config, samples, loss = node.model, node.config, 0, 0.0
    model.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in start.items()}, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    order = generator(config.seed, node.client_id, round, "batches")
    with seeded(config.seed, node.client_id, round, "train"):
        for rows in draw_batches(order, len(node.data.train), config.batch_size, epochs=1, batches=0):
            inputs, labels = node.data.train.batch(rows)
            optimizer.zero_grad()
            private = functional.cross_entropy(model(inputs), labels)
            private.backward()
            distance = 0.0
            for name, weight in model.named_parameters():
                way = weight.detach() - torch.from_numpy(start[name])
                weight.grad += 0.5 * way
                distance += float((way.double() ** 2).sum())
            optimizer.step()
            samples += len(rows)
            loss += len(rows) * (float(private.detach()) + 0.5 / 2 * distance)
    return floats(model), samples, loss / samples


@pytest.mark.slow
@pytest.mark.parametrize(("every", "moments"), [(1, "reset"), (2, "reset"), (1, "kept")])
def test_mu_0_is_fedavg(every, moments, make_config, run_federation, tmp_path):
    """Bit for bit, with batch norm, dropout and an optimizer with momentum; and a mu above 0 is not."""
    found = {}
    for name, keys in {
        "fedavg": {"algorithm": "fedavg", "fedavg.exchange-every": every},
        "mu 0": {"algorithm": "fedprox", "fedprox.mu": 0.0},
        "mu 1": {"algorithm": "fedprox", "fedprox.mu": 1.0},
    }.items():
        if name != "fedavg":
            keys |= {"fedprox.exchange-every": every}
        places = {"models": NORMED, "partition": "dirichlet:0.5", "output_dir": str(tmp_path / name)}
        run = run_federation(make_config(clients=3, moments=moments, **places, **keys))
        lines = entries(run)
        kept = ("clients", "accuracy", "global_accuracy", "bytes_up", "bytes_down", "failures")
        found[name] = (run / SERVER_STATE_FILE).read_bytes(), [{key: line[key] for key in kept} for line in lines]
    assert found["mu 0"] == found["fedavg"]
    assert found["mu 1"][0] != found["fedavg"][0]
