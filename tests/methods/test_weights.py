"""What methods that average weights weight by: the numbers of the clients' training samples."""

import json
from types import SimpleNamespace

import pytest
from fixtures.federations.grids import Meddled
from flwr.app import ArrayRecord, Message, MessageType

from hetfl_flwr.methods import names
from hetfl_flwr.wire.codec import from_record
from simulations.engine.clients import FIRST_NODE

UNEQUAL = {"clients": 4, "partition": "square", "models": "mlp", "local_batches": 3, "batch_size": 8, "rounds": 1}
"""Client k has (k + 1) squared parts of the digits, and each trains on three batches of eight."""


@pytest.fixture
def recorded(make_config, run_federation):
    """Run a federation; return what clients have said and uploaded, the run folder and their training samples."""

    def run(**keys):
        config = make_config(**{**UNEQUAL, **keys})
        said, uploaded = {}, {}

        def keep(reply: Message) -> Message:
            if reply.metadata.message_type == MessageType.TRAIN:
                client = reply.metadata.src_node_id - FIRST_NODE
                said[client] = dict(reply.content.metric_records["metrics"])
                uploaded[client] = from_record(reply.content.array_records.get("arrays", ArrayRecord()))
            return reply

        folder = run_federation(config, Meddled(config, answered=keep))
        return (
            SimpleNamespace(said=said, uploaded=uploaded),
            folder,
            [one["train"] for one in json.loads((folder / "clients.json").read_text())],
        )

    return run


@pytest.mark.parametrize("algorithm", names())
def test_every_method_says_how_many_training_samples_a_client_has_and_how_many_it_saw(algorithm, recorded):
    short = {"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 0} if algorithm == "fedmd" else {}
    grid, folder, samples = recorded(algorithm=algorithm, **short)
    assert [grid.said[k]["num-examples"] for k in range(4)] == samples
    seen = 8 if algorithm == "fedh2l" else 24
    assert [grid.said[k]["samples-seen"] for k in range(4)] == [seen] * 4
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert [last["clients"][str(k)]["samples-seen"] for k in range(4)] == [seen] * 4
