"""Nodes that lie about who they are or what they have, in whole runs of a deployment: what it costs the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.wrong.faults import GOOD, Fate, Scripted, on_its_clock
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from hetfl_flwr.config import RunConfig
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, MEMBER, SHARE
from simulations.engine.clients import FIRST_NODE
from simulations.testing.contract import entries

REGISTRATION = MessageType.QUERY


class Deployed(Scripted):
    """Nodes of a deployment."""

    def come(self, client_id: int) -> None:
        """Let the node of a client appear for the first time."""
        self._nodes.append(FIRST_NODE + client_id)

    def rounds(self) -> int:
        """Return how many rounds of training have begun."""
        told = [
            message.content.config_records["config"]["server-round"]
            for event, message, _ in self.log
            if event == "sent" and message.metadata.message_type == MessageType.TRAIN
        ]
        return max(told, default=0)


def says(**fields: Any) -> Fate:
    """Return the fate of a registration that says something else."""

    def change(reply: Message) -> None:
        if reply.has_content() and MEMBER in reply.content:
            said = {**reply.content.config_records[MEMBER], **fields}
            reply.content = RecordDict({MEMBER: ConfigRecord(said)})

    return Fate(change=change)


def sends(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Fate:
    """Return the fate of a reply with other arrays."""

    def changed(reply: Message) -> None:
        if reply.has_content() and ARRAYS in reply.content:
            reply.content[ARRAYS] = to_record(change(from_record(reply.content.array_records[ARRAYS])))

    return Fate(change=changed)


@pytest.fixture
def play(make_config, run_federation, monkeypatch) -> Callable[..., list[dict[str, Any]]]:
    """Run a deployment with hardly any work, and return its rounds."""

    def play(
        name: str,
        fate: Callable[[int, str, int], Fate],
        before: dict[int, Callable[[Deployed], None]] | None = None,
        here: int = 3,
        nodes: int = 3,
        **keys: Any,
    ) -> list[dict[str, Any]]:
        flat = {"models": "mlp", "clients": 3, "local-batches": 1, "batch-size": 8, "public-fraction": 0.05}
        few = {"evaluate-every": 9, "start-timeout": 30, "round-timeout": 100}
        config: RunConfig = make_config(**{"algorithm": name, "rounds": 5, **flat, **few, **keys})
        grid = Deployed(config, before, fate, nodes)
        grid._nodes = grid._nodes[:here]
        on_its_clock(grid, monkeypatch)
        folder: Path = run_federation(config, grid)
        return entries(folder)

    return play


def trained(rounds: list[dict[str, Any]]) -> list[str]:
    return ["".join(sorted(k for k, of in one["clients"].items() if "train-loss" in of)) for one in rounds[1:]]


def reasons(rounds: list[dict[str, Any]]) -> list[str]:
    return [failure["reason"] for entry in rounds for failure in entry["failures"]]


def test_who_comes_back_with_more_public_samples_than_it_has_shared_is_refused_and_costs_nobody_a_round(play):
    """It has shared 4 rows; it comes back with 300, and teaches on those that nobody has."""
    public = {"now": 4}

    def fate(client_id: int, kind: str, look: int) -> Fate:
        if client_id != 2:
            return GOOD
        if kind == REGISTRATION:
            return says(public=public["now"])
        if kind == SHARE:
            return sends(lambda rows: {name: array[:4] for name, array in rows.items()})
        if kind == MessageType.TRAIN:
            return sends(lambda upload: signal(upload, public["now"]))
        return GOOD

    def come_back(grid: Deployed) -> None:
        public["now"] = 300
        grid.join(2, 1)

    rounds = play("fedh2l", fate, {3: lambda grid: grid.leave(2), 4: come_back}, rounds=6)
    assert [set("01") - set(here) for here in trained(rounds)] == [set()] * 6
    said = f"node {FIRST_NODE + 5}: says that it is client 2, but with 300 public samples"
    assert {line[: len(said)] for line in reasons(rounds) if "public samples" in line} == {said}


def signal(upload: dict[str, Any], public: int) -> dict[str, Any]:
    rows = min(8, public)
    posteriors = np.resize(upload["posteriors"], (rows, upload["posteriors"].shape[1]))
    return {**upload, "posteriors": posteriors, "indices": np.arange(public - rows, public, dtype=np.int32)}


def test_a_number_beyond_the_clients_is_refused_between_rounds_and_costs_nobody_a_round(play):
    """In FedH2L its signal would be one teacher more than any client expects."""
    rounds = play(
        "fedh2l",
        lambda client_id, kind, look: says(client_id=7, clients=8) if (client_id, kind) == (3, REGISTRATION) else GOOD,
        {3: lambda grid: grid.come(3)},
        nodes=4,
    )
    assert trained(rounds) == ["012"] * 5
    assert all(
        f"node {FIRST_NODE + 3}: says that it is client 7, but there are 3 clients" in one for one in reasons(rounds)
    )
    assert reasons(rounds)
