"""Many clients with little memory: clients that rest in files, and workers that load them."""

import errno
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fixtures.folders.reached import server_state
from fixtures.tiers import exhaustive
from flwr.app import Message, MessageType, RecordDict

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import StateError
from hetfl_flwr.node import state as states
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.wire.codec import from_record, to_record
from simulations.engine.clients import FIRST_NODE
from simulations.engine.grid import LocalEngine
from simulations.engine.workers import share_out
from simulations.testing.contract import downloads, entries

RUN = 7


@pytest.fixture
def small_grid():
    """Build a LocalEngine with one awake client per process."""
    grids = []

    def make(config: RunConfig, *, workers: int = 1, **keys: Any) -> LocalEngine:
        grids.append(LocalEngine(config, RUN, workers, **{"memory": 0, **keys}))
        return grids[-1]

    yield make
    for grid in grids:
        grid.__exit__(None, None, None)


@pytest.fixture
def config_for(make_config, tmp_path):
    """Build the config of a run with three different clients, of whom a round draws two."""

    def make(algorithm: str, name: str, **keys: Any) -> RunConfig:
        own = {"models": "fixtures.models:linear,mlp,lenet5", "clients": 3, "rounds": 3, "fraction": 0.6}
        return make_config(algorithm=algorithm, **{**own, **keys}, output_dir=str(tmp_path / name))

    return make


def result(folder: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the results of a run, without times."""
    return server_state(folder), [{**line, "seconds": 0} for line in entries(folder)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "workers"),
    [exhaustive("fedhe", 1), ("fedh2l", 1), exhaustive("fedh2l", 2), exhaustive("fml", 1)],
    ids=lambda value: str(value),
)
def test_clients_that_rest_after_each_message_end_with_the_same_bits(
    algorithm, workers, config_for, run_federation, small_grid
):
    """FedH2L's clients keep other clients' public samples in their Contexts, in addition to state."""
    awake = run_federation(config_for(algorithm, "awake"))
    config = config_for(algorithm, "resting")
    grid = small_grid(config, workers=workers)
    assert result(run_federation(config, grid)) == result(awake)
    assert len(list(grid._scratch.glob("client-*.safetensors"))) == 3
    grid.__exit__(None, None, None)
    assert [path.name for path in Path(config.output_dir).iterdir() if path.name.startswith(".")] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("algorithm", ["fedh2l", "fedhe"])
def test_clients_that_change_their_worker_at_every_message_keep_all_they_have(
    config_for, run_federation, small_grid, monkeypatch, algorithm
):
    settings = {"rounds": 5, "evaluate_every": 2}
    expected = result(run_federation(config_for(algorithm, "stay", **settings)))
    shares = []

    def exchanged(seconds, owners, workers):
        shares.append({client: (owner + 1) % workers for client, owner in owners.items()})
        return shares[-1]

    monkeypatch.setattr("simulations.engine.workers.share_out", exchanged)
    config = config_for(algorithm, "change", **settings)
    assert result(run_federation(config, small_grid(config, workers=2, memory=2**30))) == expected
    assert len(shares) >= 5 + 4  # rounds and evaluations


def test_a_checkpoint_writes_only_the_states_that_have_changed(config_for, make_federation, small_grid, tmp_path):
    config = config_for("local", "run")
    federation: Federation = make_federation(config, small_grid(config))
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, trained in zip(folders, ((0, 1), (1,)), strict=True):
        folder.mkdir()
        train(federation, trained)
        federation.grid.save_clients(folder)
    assert [path.name for path in sorted(folders[1].iterdir())] == ["client-0", "client-1"]
    same = [(folders[0] / name).samefile(folders[1] / name) for name in ("client-0", "client-1")]
    assert same == [True, False]
    assert (folders[0] / "client-1").read_bytes() != (folders[1] / "client-1").read_bytes()


def train(federation: Federation, client_ids: tuple[int, ...]) -> None:
    arrays = federation.strategy.prepare(federation.roster, federation.config)
    asked = [one for one in downloads(federation, arrays, 1) if one[0].client_id in client_ids]
    assert len(federation.exchange.ask(MessageType.TRAIN, 1, asked).replies) == len(client_ids)


@pytest.mark.slow
def test_a_client_that_cannot_be_put_to_rest_ends_the_run(refusal, config_for, run_federation, small_grid, monkeypatch):
    monkeypatch.setattr(states, "_replace_scratch", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    config = config_for("fedhe", "run")
    said = refusal(StateError, run_federation, config, small_grid(config))
    assert "client-1.safetensors cannot be written: No space left on device; once this is fixed, continue" in said


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ([3, 1, 3, 1], [0, 1, 1, 0]),
        ([1.0, 1.05, 1.0, 1.0], [0, 1, 0, 1]),
        ([8, 1, 1, 1], [0, 1, 1, 1]),
        ([0, 0, 0, 0], [0, 1, 0, 1]),
    ],
    ids=["uneven", "even enough", "one long", "nothing"],
)
def test_work_is_shared_out_evenly_and_clients_stay_where_it_is(seconds, chosen):
    """Clients 0 and 2 belong to the first worker, 1 and 3 to the second.

    Uneven: of 8 s a worker may have 4.4. The two long ones come first; client 2 would make it 6 s, so it moves. Of the
    short ones, client 1 stays, as both workers have 3 s, and client 3 would make it 5 s, so it moves. One long: of 11 s
    a worker may have 6.05; client 2 moves.
    """
    owners = dict(enumerate([0, 1, 0, 1]))
    shared = share_out(dict(enumerate(seconds)), owners, 2)
    assert [shared[client] for client in range(4)] == chosen


@pytest.mark.slow
def test_messages_and_replies_larger_than_any_pipe_do_not_block_each_other(make_config, small_grid):
    """Each worker is sent its next message of 4 MB before its reply of 4 MB has been read."""
    grid = small_grid(make_config(clients=6), workers=2, app="fixtures.apps.echoes:app")
    patience = Timer(60, lambda: [process.kill() for process in grid._host._processes])
    patience.start()
    sent = {FIRST_NODE + k: np.full(2**20, k, np.float32) for k in range(6)}
    messages = [
        Message(RecordDict({"arrays": to_record({"a": array})}), node, MessageType.TRAIN)
        for node, array in sent.items()
    ]
    replies = grid.send_and_receive(messages)
    patience.cancel()
    assert len(replies) == 6
    for reply in replies:
        came = from_record(reply.content.array_records["arrays"])["a"]
        assert np.array_equal(came, sent[reply.metadata.src_node_id])
