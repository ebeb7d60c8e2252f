"""Local training, and AGG over own and public samples: the loop that one would write by hand."""

from dataclasses import replace

import pytest
import torch
from fixtures.federations.loops import adam, share, train_by_hand

from hetfl_flwr.data import Samples
from hetfl_flwr.methods import build_client
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.lab import NORMED


@pytest.mark.parametrize("method", ["local", "agg"])
def test_three_rounds_equal_a_loop_by_hand(method, make_config, make_node):
    """Bit for bit, with one Adam that goes on from round to round, though the client is built anew for each. AGG trains
    on the own rows and then the public ones of all others."""
    config = make_config(algorithm=method, models=NORMED, clients=3, partition="classes:4")
    nodes = [make_node(config, client_id) for client_id in range(3)]
    share(nodes, labelled=True)
    node, by_hand = nodes[1], make_node(config, 1)
    if method == "agg":
        joined = Samples.joined((by_hand.data.train, nodes[0].data.public, nodes[2].data.public))
        by_hand = replace(by_hand, data=replace(by_hand.data, train=joined))
    optimizer = adam(by_hand)
    for round in (1, 2, 3):
        _, samples, metrics = build_client(config, node).fit([], {ROUND: round})
        loss = train_by_hand(by_hand, optimizer, round, batches=3)
        assert (samples, metrics["samples-seen"]) == (len(node.data.train), 3 * config.batch_size)
        assert metrics["train-loss"] == pytest.approx(loss, abs=1e-6)
    for key, tensor in by_hand.model.state_dict().items():
        assert torch.equal(node.model.state_dict()[key], tensor), key
