"""Nodes that lie about their identity or data in a deployment, and what it costs the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.federations.grids import little
from fixtures.wrong.faults import GOOD, Fate, Scripted, on_its_clock
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, MEMBER, SHARE
from simulations.engine.clients import FIRST_NODE
from simulations.testing.contract import entries

REGISTRATION = MessageType.QUERY


def says(**fields: Any) -> Fate:
    """Return a fate that changes a registration."""

    def change(reply: Message) -> None:
        if reply.has_content() and MEMBER in reply.content:
            said = {**reply.content.config_records[MEMBER], **fields}
            reply.content = RecordDict({MEMBER: ConfigRecord(said)})

    return Fate(change=change)


def sends(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Fate:
    """Return a fate that changes the arrays of a reply."""

    def changed(reply: Message) -> None:
        if reply.has_content() and ARRAYS in reply.content:
            reply.content[ARRAYS] = to_record(change(from_record(reply.content.array_records[ARRAYS])))

    return Fate(change=changed)


@pytest.fixture
def play(make_config, run_federation, monkeypatch):
    """Run a short FedH2L in a deployment, and return its rounds."""

    def play(fate: Callable[[Scripted, Message], Fate], before: dict[int, Any], **keys: Any) -> list[dict[str, Any]]:
        few = {"rounds": 5, "evaluate-every": 9, "start-timeout": 30, "round-timeout": 100}
        config = make_config(**{**little("fedh2l"), "models": "mlp", **few, **keys})
        grid = Scripted(config, before, fate, clients=4)
        on_its_clock(grid, monkeypatch)
        return entries(run_federation(config, grid))

    return play


def trained(rounds: list[dict[str, Any]]) -> list[str]:
    return ["".join(sorted(k for k, of in one["clients"].items() if "train-loss" in of)) for one in rounds[1:]]


def reasons(rounds: list[dict[str, Any]]) -> list[str]:
    return [failure["reason"] for entry in rounds for failure in entry["failures"]]


def test_who_comes_back_with_more_public_samples_than_it_has_shared_is_refused_and_costs_nobody_a_round(play):
    """It shared 4 rows, registers again with 300, and teaches with rows that nobody has."""
    public = {"now": 4}

    def fate(grid: Scripted, message: Message) -> Fate:
        if grid.client_of(message) != 2:
            return GOOD
        return {
            REGISTRATION: says(public=public["now"]),
            SHARE: sends(lambda rows: {name: array[:4] for name, array in rows.items()}),
            MessageType.TRAIN: sends(lambda upload: signal(upload, public["now"])),
        }.get(message.metadata.message_type, GOOD)

    def come_back(grid: Scripted) -> None:
        public["now"] = 300
        grid.join(2, 1)

    rounds = play(fate, {3: lambda grid: grid.leave(2), 4: come_back}, rounds=6)
    assert [set("01") - set(here) for here in trained(rounds)] == [set()] * 6
    said = f"node {FIRST_NODE + 6}: says that it is client 2, but with 300 public samples"
    assert {line[: len(said)] for line in reasons(rounds) if "public samples" in line} == {said}


def signal(upload: dict[str, Any], public: int) -> dict[str, Any]:
    rows = min(8, public)
    posteriors = np.resize(upload["posteriors"], (rows, upload["posteriors"].shape[1]))
    return {**upload, "posteriors": posteriors, "indices": np.arange(public - rows, public, dtype=np.int32)}


def test_a_number_beyond_the_clients_is_refused_between_rounds_and_costs_nobody_a_round(play):
    """In FedH2L, clients would get one teacher more than they expect."""

    def fate(grid: Scripted, message: Message) -> Fate:
        lies = (grid.client_of(message), message.metadata.message_type) == (3, REGISTRATION)
        return says(client_id=7, clients=8) if lies else GOOD

    rounds = play(fate, {3: lambda grid: grid.come_back(3)})
    assert trained(rounds) == ["012"] * 5
    said = f"node {FIRST_NODE + 3}: says that it is client 7, but there are 3 clients"
    assert [line.startswith(said) for line in reasons(rounds)] == [True]
