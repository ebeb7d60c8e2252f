"""Local training: the loop one would write by hand, and nothing on the wire."""

import json

import torch
from fixtures.federations.members import member
from torch.nn import functional

from clients.local import LocalClient
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.messages import ROUND
from strategies.local import Local


def test_three_rounds_equal_a_loop_by_hand(make_config, make_node):
    """Bit for bit, with one Adam that goes on from round to round, though the client is built anew for each."""
    config = make_config(algorithm="local", models="simulations.testing.lab:normed")
    node, by_hand = make_node(config), make_node(config)
    optimizer = torch.optim.Adam(by_hand.model.parameters(), lr=config.learning_rate, fused=True)
    for round in (1, 2, 3):
        _, samples, metrics = LocalClient(node).fit([], {ROUND: round})
        losses = []
        with seeded(config.seed, 0, round, "train"):
            order = generator(config.seed, 0, round, "batches")
            for rows in draw_batches(order, len(node.data.train), config.batch_size, epochs=1, batches=3):
                inputs, labels = by_hand.data.train.batch(rows)
                optimizer.zero_grad()
                loss = functional.cross_entropy(by_hand.model(inputs), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert (samples, metrics["samples-seen"]) == (len(node.data.train), 3 * config.batch_size)
        assert abs(metrics["train-loss"] - sum(losses) / 3) < 1e-6
    for key, tensor in by_hand.model.state_dict().items():
        assert torch.equal(node.model.state_dict()[key], tensor), key


def test_nothing_crosses_the_wire(make_config, run_federation):
    run = run_federation(make_config(algorithm="local"))
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["bytes_up"], summary["bytes_down"], summary["global_accuracy"]) == (0, 0, None)


def test_clients_need_not_even_agree_on_the_classes():
    members = [member(k, classes=2 + k) for k in (0, 1)]
    Local().check(Roster(members))
