"""Registration in the local engine: few clients are built, and each is registered as it would register itself."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from flwr.app import MessageType, RecordDict

from hetfl_flwr.data import reread
from hetfl_flwr.errors import FederationError, StateError
from hetfl_flwr.node import node as nodes
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.rounds import SyncRounds
from simulations.engine.grid import LocalEngine

FORTY = {"algorithm": "fedhe", "clients": 40, "models": "mlp,lenet5", "rounds": 9}
DRAWN = {"fraction": 0.05, "evaluate_fraction": 0.05, "min_clients": 1}


@pytest.fixture
def loaded(monkeypatch):
    """Return the clients whose data are loaded, in order."""
    found: list[int] = []
    load = nodes.load_client_data
    monkeypatch.setattr(nodes, "load_client_data", lambda split, client: found.append(client) or load(split, client))
    return found


def by_messages(grid: LocalEngine) -> list[Member]:
    """Return the registrations that clients send themselves."""
    asked = [grid.create_message(RecordDict(), MessageType.QUERY, node, "") for node in grid.get_node_ids()]
    members = map(Member.from_reply, grid.send_and_receive(asked))
    return sorted(members, key=lambda member: member.client_id)


def test_one_client_of_a_kind_is_built_and_then_those_that_are_drawn(make_config, make_federation, make_grid, loaded):
    config = make_config(**FORTY | DRAWN)
    federation: Federation = make_federation(config, make_grid(config))
    assert len(federation.roster) == 40
    assert loaded == [0, 1]  # one of each model
    rounds = SyncRounds(federation)
    with federation.generators_lent():
        arrays = federation.strategy.prepare(federation.roster, config)
    rounds.start(arrays)
    played = rounds.play(1, arrays)
    asked = {reply.client_id for reply in (*played.trained.replies, *played.evaluated.replies)}
    assert len(played.trained.replies) == len(played.evaluated.replies) == 2
    assert asked <= set(loaded)
    assert len(loaded) == len(set(loaded)) <= 2 + 3 * 2


def test_a_round_asks_nobody_who_is_here(make_config, make_federation, make_grid, monkeypatch):
    config = make_config(**FORTY | DRAWN)
    grid = make_grid(config)
    federation: Federation = make_federation(config, grid)
    for name in ("push_messages", "get_node_ids", "members"):
        monkeypatch.setattr(grid, name, Mock(side_effect=AssertionError))
    assert federation.registration.welcome(1) == []


KINDS = {
    "digits": {},
    "random models": {"assignment": "random", "models": "mlp,lenet5,mlp@0.5"},
    "few rows": {"clients": 8, "partition": "exponential", "models": "mlp", "public_fraction": 0.3},
    "global test": {"dataset": "waveform", "test_set": "global", "models": "tabular:0,tabular:1"},
    "domains": {"dataset": "rotated-digits", "clients": 9, "half_data_fraction": 0.4},
    "even evaluation": {"iid_evaluation": True, "partition": "dirichlet:0.5", "validation_fraction": 0.0},
    "pooled": {"pooled": True, "clients": 4},
    "own columns": {"dataset": "breast-cancer", "features": "slices:0.4", "models": "mlp", "clients": 3},
    "own model": {"models": "fixtures.models:linear,mlp", "clients": 4},
    "fit": {"models": "fit", "fit_models": "mlp,fedhenn:0", "fit_seconds": 1.0, "client_speed": "10,0.01"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_is_what_it_says_itself(kind, make_config, make_grid):
    config = make_config(**{"clients": 7, "models": "mlp,lenet5"} | KINDS[kind])
    assert make_grid(config).members() == by_messages(make_grid(config))


def table(place: Path, **columns: list[Any]) -> dict[str, str]:
    """Write a table, and return the keys that read it."""
    rows = len(next(iter(columns.values())))
    sick = ["ill" if row % 3 else "well" for row in range(rows)]
    frame = pd.DataFrame({"age": [row * 7 % 90 + 0.5 for row in range(rows)], "sick": sick} | columns)
    frame.to_csv(place, index=False)
    return {"dataset": str(place), "label_column": "sick"}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_owners_and_their_names_are_each_clients_own(workers, make_config, make_grid, tmp_path):
    keys = table(tmp_path / "beds.csv", ward=[f"w{row % 10}" for row in range(200)])
    config = make_config(clients=6, partition="natural:ward", models="tabular:0,mlp", **keys)
    members = make_grid(config, workers=workers).members()
    assert members == by_messages(make_grid(config))
    assert [(one.name, one.owners) for one in members][:2] == [("w0 + w6", 2), ("w1 + w7", 2)]


def test_state_in_a_folder_is_looked_at_client_by_client(make_config, make_grid, tmp_path, loaded):
    config = make_config(**FORTY | {"clients": 5}, state_dir=str(tmp_path))
    assert make_grid(config).members() == by_messages(make_grid(config))
    assert loaded == [0, 1, 2, 3, 4] * 2


def test_who_cannot_take_part_is_named_and_where_none_can_few_are_asked(
    make_config, make_federation, loaded, refusal, tmp_path
):
    wards = table(tmp_path / "beds.csv", ward=[f"w{row % 9 + 10}" for row in range(200)] + ["w5"])
    keys = wards | {"partition": "natural:ward", "models": "mlp"}
    said = refusal(FederationError, make_federation, make_config(clients=10, test_fraction=0.8, **keys))
    assert said.startswith(
        "client 9, client registration: partition 9 of 10 ('natural:ward'), w5, has 1 samples and none"
    )
    loaded.clear()
    said = refusal(FederationError, make_federation, make_config(clients=40, **{**keys, "label_column": "none"}))
    assert not said.startswith("client")
    assert len(loaded) == 2


def test_a_resumed_run_compares_all_data_and_names_whose_have_changed(make_config, make_grid, refusal, tmp_path):
    place = tmp_path / "rows.csv"

    def grid_over(changed: int | None) -> LocalEngine:
        ages = [row * 7 % 90 + 0.5 for row in range(200)]
        if changed is not None:
            ages[changed] += 1
        keys = table(place, age=ages)
        reread(str(place))
        grid = make_grid(make_config(**keys, clients=5, models="mlp"))
        grid.members()
        return grid

    before = grid_over(None).rows()
    assert set(before) == {"all", "0"}  # who has been asked
    grid_over(None).check_rows(before)
    said = {row: refusal(StateError, grid_over(row).check_rows, before) for row in range(0, 200, 20)}
    assert all("have changed, so results would differ: restore the data, " in line for line in said.values())
    assert {line.partition(" have changed")[0] for line in said.values()} == {
        "client 0: the training samples, labels or names",
        "the data of clients that have not taken part yet",
    }


def test_a_damaged_file_in_the_state_folder_is_named_with_what_to_do(make_config, make_grid, tmp_path):
    grid = make_grid(make_config(clients=2, models="mlp", state_dir=str(tmp_path / "state")))
    path = tmp_path / "state" / "run-7" / "client-1.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a state")
    first, second = grid.members()
    assert isinstance(first, Member)
    assert str(path) in second
    assert second.endswith("delete this file; the run continues from its checkpoint, which has the same state")
