"""Local training: the loop one would write by hand, and nothing on the wire."""

import pytest
import torch
from fixtures.federations.loops import adam, train_by_hand

from clients.local import LocalClient
from hetfl_flwr.wire.messages import ROUND


def test_three_rounds_equal_a_loop_by_hand(make_config, make_node):
    """Bit for bit, with one Adam that goes on from round to round, though the client is built anew for each."""
    config = make_config(algorithm="local", models="simulations.testing.lab:normed")
    node, by_hand = make_node(config), make_node(config)
    optimizer = adam(by_hand)
    for round in (1, 2, 3):
        _, samples, metrics = LocalClient(node).fit([], {ROUND: round})
        loss = train_by_hand(by_hand, optimizer, round, batches=3)
        assert (samples, metrics["samples-seen"]) == (len(node.data.train), 3 * config.batch_size)
        assert metrics["train-loss"] == pytest.approx(loss, abs=1e-6)
    for key, tensor in by_hand.model.state_dict().items():
        assert torch.equal(node.model.state_dict()[key], tensor), key
