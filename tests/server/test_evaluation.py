"""Whom the server asks to measure its model: those that are drawn for it, and of these whose model has changed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures.federations.grids import Watched
from fixtures.folders.reached import clients_of, reached, server_state
from fixtures.tiers import exhaustive

from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs.record import read_rounds
from hetfl_flwr.runs.trackers import scalars
from hetfl_flwr.server import rounds
from hetfl_flwr.server.roster import draw_to_evaluate
from simulations.engine.clients import FIRST_NODE
from simulations.engine.workers import Task
from simulations.testing.contract import entries

FEW = {"models": "mlp", "clients": 4, "rounds": 4, "fraction": 0.25, "validation_fraction": 0.2}
"""One of four clients trains in a round."""


class Asked(Watched):
    """Writes down who is told to train and to evaluate, by round."""

    def __init__(self, config: RunConfig) -> None:
        self.log: dict[tuple[str, int], list[int]] = {}
        super().__init__(config, lambda grid, task: self._see(task))

    def _see(self, task: Task) -> None:
        self.log.setdefault((task.kind, task.round), []).append(task.node - FIRST_NODE)


def told(folder: Path) -> list[Any]:
    """All that a run says, but for its time and for what evaluation has cost."""
    rounds, summary, *rest = reached(folder)
    return [[{**entry, "evaluation_wire": 0} for entry in rounds], {**summary, "evaluation_wire": 0}, *rest]


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedhe"},
        {"algorithm": "fedhe", "keep_best": True},
        exhaustive({"algorithm": "local"}),
        exhaustive({"algorithm": "fedh2l"}),
        exhaustive({"algorithm": "fedhenn", "fedhenn.rad-size": 32}),
        exhaustive({"algorithm": "fedhe", "dataset": "rotated-digits", "test_set": "client"}),
    ],
    ids=str,
)
def test_a_model_that_has_not_changed_is_not_measured_again_and_nobody_sees_a_difference(
    make_config, run_federation, tmp_path, monkeypatch, keys
):
    found = []
    for known in (True, False):
        if not known:
            monkeypatch.setattr(rounds, "engine_of", lambda grid: "deployment")
        config = make_config(**FEW, **keys, output_dir=str(tmp_path / str(known)))
        with Asked(config) as grid:
            folder = run_federation(config, grid)
        for number in (1, 2, 3, 4):
            trained = grid.log["train", number]
            assert grid.log["evaluate", number] == (trained if known else [0, 1, 2, 3])
            assert len(entries(folder)[number]["clients"]) == 4
        found.append(told(folder))
    assert found[0] == found[1]


@pytest.mark.parametrize("restores", [True, False])
def test_metrics_are_restored_only_with_the_models_that_they_are_of(
    make_federation, make_config, monkeypatch, restores
):
    """In Flower's simulation, one client may have lost its state, and is measured again."""
    federation = make_federation(make_config(**FEW, algorithm="local"))
    federation.roster.trained = {1: 4}
    if not restores:
        monkeypatch.setattr(federation, "grid", object())
    evaluation = rounds.Evaluation(federation)
    evaluation.restore({client: {"metrics": {"accuracy": 0.5}, "classes": {}} for client in ("0", "1")})
    assert list(evaluation.hold()) == (["0", "1"] if restores else ["0"])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtgp"])
def test_who_is_measured_with_what_the_server_knows_is_always_asked(make_config, run_federation, algorithm):
    config = make_config(**FEW, algorithm=algorithm, width=8)
    with Asked(config) as grid:
        run_federation(config, grid)
    assert [grid.log["evaluate", number] for number in (1, 2, 3, 4)] == [[0, 1, 2, 3]] * 4


# --- evaluate-fraction -----------------------------------------------------------------------------


def test_so_many_are_drawn_others_each_time_and_all_after_the_last_round(make_federation, make_config):
    config = make_config(clients=10, rounds=30, evaluate_fraction=0.25)
    federation = make_federation(config)

    def draws() -> list[list[int]]:
        return [[one.client_id for one in draw_to_evaluate(federation.roster, config, number)] for number in range(31)]

    *drawn, last = draws()
    assert last == list(range(10))
    assert {len(those) for those in drawn} == {3}
    assert all(those == sorted(set(those)) for those in drawn)
    assert len({tuple(those) for those in drawn}) > 15
    counts = Counter(client for those in drawn for client in those)
    assert min(counts[client] for client in range(10)) >= 3  # nine are expected, give or take 2.4
    assert draws() == [*drawn, last]


def both_ways(make_config, run_federation, tmp_path, mode: str) -> list[Path]:
    """Run with half of the clients evaluated, and with all."""
    keys = {"algorithm": "fedhe", "fedhe.mode": mode, "models": "mlp", "clients": 4, "rounds": 3}
    return [
        run_federation(make_config(**keys, evaluate_fraction=one, output_dir=str(tmp_path / str(one))))
        for one in (0.5, 1.0)
    ]


def accuracies(folder: Path) -> list[dict[str, float]]:
    return [
        {client: one["accuracy"] for client, one in entry["clients"].items() if "accuracy" in one}
        for entry in entries(folder)
    ]


def test_means_are_over_those_that_were_drawn_and_the_last_over_all(make_config, run_federation, tmp_path):
    """Training goes on alike: what the server knows at the end is the same as with everybody evaluated."""
    half, whole = both_ways(make_config, run_federation, tmp_path, "sync")
    for number, (own, all_of_them) in enumerate(zip(accuracies(half), accuracies(whole), strict=True)):
        assert len(own) == (4 if number == 3 else 2)
        assert own.items() <= all_of_them.items()
        assert entries(half)[number]["accuracy"] == pytest.approx(sum(own.values()) / len(own))
    assert entries(half)[-1]["accuracy"] == entries(whole)[-1]["accuracy"]
    assert server_state(half) == server_state(whole)
    clients = clients_of(half)
    assert sum(client["accuracy_before"] is None for client in clients) == 2
    assert all(client["accuracy"] is not None for client in clients)


def test_a_client_without_test_rows_has_no_loss(make_config, run_federation, tmp_path):
    """Client c has two rows, both to train on."""
    rows = [f"{row % 7},{row % 2},{'c' if row > 99 else 'ab'[row // 50]}" for row in range(102)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,label,who", *rows]))
    keys = {"dataset": str(tmp_path / "rows.csv"), "label_column": "label", "partition": "natural:who", "clients": 3}
    folder = run_federation(make_config(algorithm="local", models="mlp", rounds=1, **keys))
    assert [client["test"] for client in clients_of(folder)][2] == 0
    for entry in read_rounds(folder):
        own = [client["loss"] for client in entry.clients.values() if "loss" in client]
        assert len(own) == 2
        assert scalars(entry)["loss"] == pytest.approx(sum(own) / 2)


def test_an_asynchronous_run_asks_as_many(make_config, run_federation, tmp_path):
    half, whole = (accuracies(folder) for folder in both_ways(make_config, run_federation, tmp_path, "async"))
    assert (len(half[0]), len(half[-1]), len(whole[0])) == (2, 4, 4)
    assert 2 * sum(map(len, half[1:-1])) <= sum(map(len, whole[1:-1])) + 2  # some are asked after the next upload
