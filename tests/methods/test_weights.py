"""What methods that average weights weight by: the numbers of the clients' training samples."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file

from hetfl_flwr.methods import names
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.server.replies import arrays_of
from simulations.engine.clients import FIRST_NODE
from simulations.engine.grid import LocalGrid

UNEQUAL = {"clients": 4, "partition": "square", "models": "mlp", "local_batches": 3, "batch_size": 8, "rounds": 1}
"""Client k has (k + 1) squared parts of the digits, and each trains on three batches of eight."""


class Recording(LocalGrid):
    """Keeps what each client has uploaded, and the metrics with it."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.message_type == MessageType.TRAIN:
                client = reply.metadata.src_node_id - FIRST_NODE
                self.said[client] = dict(reply.content.metric_records["metrics"])
                self.uploaded[client] = arrays_of(reply)
        return replies


@pytest.fixture
def recorded(make_config, run_federation):
    """Run a federation, and return the grid, the run folder and the clients' training samples."""

    def run(**keys):
        config = make_config(**{**UNEQUAL, **keys})
        grid = Recording(config.to_flat(), config.clients, run=7)
        grid.said, grid.uploaded = {}, {}
        with grid:
            folder = run_federation(config, grid)
        return grid, folder, [one["train"] for one in json.loads((folder / "clients.json").read_text())]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox"},
        {"algorithm": "fedrep"},
        {"algorithm": "lgfedavg"},
        {"algorithm": "fedhenn", "fedhenn.mode": "homogeneous"},
    ],
    ids=lambda keys: keys["algorithm"],
)
def test_clients_are_weighted_by_their_training_samples_and_not_by_the_samples_of_a_round(keys, recorded):
    """All see 24 samples in the round; the server state is sum n_k w_k / sum n_k of what they have uploaded."""
    grid, folder, samples = recorded(**keys)
    assert samples[3] > 10 * samples[0]
    assert [grid.said[k]["samples-seen"] for k in range(4)] == [24] * 4
    found = load_file(folder / SERVER_STATE_FILE)
    for name, array in found.items():
        uploaded = [grid.uploaded[k][name].astype(np.float64) for k in range(4)]
        expected = np.average(uploaded, axis=0, weights=samples)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7, err_msg=name)
    assert any(
        not np.allclose(found[name], np.mean([grid.uploaded[k][name] for k in range(4)], axis=0)) for name in found
    )


@pytest.mark.parametrize("algorithm", names())
def test_every_method_says_how_many_training_samples_a_client_has_and_how_many_it_saw(algorithm, recorded):
    short = {"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 0} if algorithm == "fedmd" else {}
    grid, folder, samples = recorded(algorithm=algorithm, **short)
    assert [grid.said[k]["num-examples"] for k in range(4)] == samples
    seen = 8 if algorithm == "fedh2l" else 24
    assert [grid.said[k]["samples-seen"] for k in range(4)] == [seen] * 4
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert [last["clients"][str(k)]["samples-seen"] for k in range(4)] == [seen] * 4


@pytest.mark.parametrize(
    ("algorithm", "head"),
    [("fedavg", {"head.weight"}), ("fedhenn", {"head.weight"}), ("fml", {"head.weight"}), ("fedrep", set())],
)
def test_heads_without_bias_are_averaged_without_it(make_config, run_federation, algorithm, head):
    config = make_config(algorithm=algorithm, models="mlp", rounds=1, public_fraction=0.2, head_bias=False)
    options = {"fedhenn.mode": "homogeneous"} if algorithm == "fedhenn" else {}
    folder = run_federation(config.with_values(options | ({"fml.meme": "mlp"} if algorithm == "fml" else {})))
    entries = [json.loads(line) for line in (folder / "rounds.jsonl").open()]
    assert [entry["failures"] for entry in entries] == [[] for _ in entries]
    assert {name for name in load_file(folder / SERVER_STATE_FILE) if name.startswith("head.")} == head
