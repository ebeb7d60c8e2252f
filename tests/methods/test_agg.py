"""AGG: the loop one would write by hand over own and public samples, and nothing on the wire after the seeds."""

import torch
from safetensors.torch import load_file
from torch.nn import functional

from clients.agg import AGGClient
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries


def test_three_rounds_equal_a_loop_by_hand(make_config, make_node):
    """Bit for bit, with one Adam that goes on, over the own rows and then the public ones of clients 0 and 2."""
    config = make_config(algorithm="agg", models="simulations.testing.lab:normed", clients=3, partition="classes:4")
    node, by_hand = make_node(config, 1), make_node(config, 1)
    others = [make_node(config, client_id) for client_id in (0, 2)]
    for other in others:
        shared = other.own_public_samples(labelled=True)
        node.keep_public_samples(to_record({f"{name}.{other.client_id}": array for name, array in shared.items()}))
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


def test_a_client_that_is_alone_is_trained_as_locally(make_config, run_federation, tmp_path):
    trained = []
    for name in ("agg", "local"):
        places = {"output_dir": str(tmp_path / name), "state_dir": str(tmp_path / f"{name}-state")}
        run_federation(make_config(algorithm=name, models="simulations.testing.lab:normed", clients=1, **places))
        trained.append(load_file(tmp_path / f"{name}-state" / "run-7" / "client-0.safetensors"))
    assert trained[0].keys() == trained[1].keys()
    assert all(torch.equal(trained[0][key], tensor) for key, tensor in trained[1].items())


def test_public_rows_cross_the_wire_once_and_nothing_else_does(make_config, run_federation):
    """64 bytes and 8 of the label for each of 60 rows, a tenth of 599: from three clients, and to the two others."""
    run = run_federation(make_config(algorithm="agg", clients=3))
    rounds = entries(run)
    public_samples = 3 * 60 * 72
    assert [(entry["bytes_up"], entry["bytes_down"]) for entry in rounds] == [
        (public_samples, 2 * public_samples),
        (0, 0),
        (0, 0),
    ]
