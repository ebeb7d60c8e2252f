"""AGG: the loop one would write by hand over own and public samples, and nothing on the wire after the seeds."""

import torch
from fixtures.federations.loops import share
from torch.nn import functional

from clients.agg import AGGClient
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.lab import NORMED


def test_three_rounds_equal_a_loop_by_hand(make_config, make_node):
    """Bit for bit, with one Adam that goes on, over the own rows and then the public ones of clients 0 and 2."""
    config = make_config(algorithm="agg", models=NORMED, clients=3, partition="classes:4")
    node, by_hand = make_node(config, 1), make_node(config, 1)
    others = [make_node(config, client_id) for client_id in (0, 2)]
    share([node, *others], labelled=True)
    parts = [by_hand.data.train, *(other.data.public for other in others)]
    assert all(len(part) > 0 for part in parts)
    inputs, labels = (torch.cat(some) for some in zip(*(p.batch(torch.arange(len(p))) for p in parts), strict=True))
    optimizer = torch.optim.Adam(by_hand.model.parameters(), lr=config.learning_rate, fused=True)
    foreign = 0
    for round in (1, 2, 3):
        _, samples, metrics = AGGClient(node).fit([], {ROUND: round})
        losses = []
        with seeded(config.seed, 1, round, "train"):
            order = generator(config.seed, 1, round, "batches")
            for rows in draw_batches(order, len(labels), config.batch_size, epochs=1, batches=3):
                foreign += int((rows >= len(parts[0])).sum())
                optimizer.zero_grad()
                loss = functional.cross_entropy(by_hand.model(inputs[rows]), labels[rows])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert (samples, metrics["samples-seen"]) == (len(node.data.train), 3 * config.batch_size)
        assert abs(metrics["train-loss"] - sum(losses) / 3) < 1e-6
    assert foreign > 0
    for key, tensor in by_hand.model.state_dict().items():
        assert torch.equal(node.model.state_dict()[key], tensor), key
