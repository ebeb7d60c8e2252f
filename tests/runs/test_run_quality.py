"""What clients say of their quality: what travels, and what a run leaves of it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.federations.members import member
from flwr.app import MessageType

from clients.fedhe import FedHeClient
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.runs.record import Round, mean_recall, named_classes, read_clients, read_summary, summary_of
from hetfl_flwr.server.exchange import expectation
from hetfl_flwr.wire.classes import listed, wrong_list
from simulations.reports.doubts import doubts, notes, still_rising
from simulations.reports.layout import lines
from simulations.reports.runs import Run, load_run, selected_accuracy
from simulations.reports.tables import best_of, summary_table
from simulations.testing.contract import entries

# --- what travels --------------------------------------------------------------------------------


LIES = [
    *(("auc", 1.5), ("majority", -0.5), ("loss", [0.5, 0.5])),
    *(("recall", [0.5, 1.5]), ("recall", [0.5, math.inf]), ("recall", [1, 0]), ("recall", [0.5])),
    *(("untested", [1, 0]), ("untested", [0, 1, 1]), ("untested", [0.0]), ("untested", [-1]), ("untested", [1, 1])),
    *(("unpredicted", [2]), ("precision", [0.5, 0.5])),
]


@pytest.mark.parametrize(("name", "value"), LIES, ids=str)
def test_what_a_client_says_of_its_quality_is_checked(refusal, name, value):
    expected = expectation(None, MessageType.EVALUATE, member(1, classes=2, test=9))
    expected.check({"num-examples": 9, "recall": [0.5, math.nan], "untested": [1]})
    assert f"'{name}'" in refusal(PayloadError, expected.check, {"num-examples": 9, name: value})
    assert wrong_list("recall", [0.5] * 300, 300)


def test_a_metric_of_that_name_of_an_algorithm_s_own_travels_as_it_is():
    told = {"recall": 0.25, "recall.0": 1.0, "untested.macro": 2.0}
    assert listed(told, 2) == {"recall": 0.25, "untested.macro": 2.0}


# --- what a run leaves ---------------------------------------------------------------------------


@pytest.fixture
def skewed(make_config, run_federation):
    """Two clients that lack classes, after one round."""
    return run_federation(
        make_config(algorithm="local", models="mlp", rounds=1, partition="shards:3", test_fraction=0.02)
    )


def test_a_run_folder_has_the_figures_of_each_client_and_their_means(skewed):
    last, clients, summary = entries(skewed)[-1], read_clients(skewed), read_summary(skewed)
    for name in ("balanced_accuracy", "macro_f1", "auc", "majority"):
        own = [last["clients"][str(client["partition"])][name.replace("_", "-")] for client in clients]
        assert [client[name] for client in clients] == own
        assert summary[name] == last[name] == pytest.approx(sum(own) / 2)
    for client in clients:
        listed = last["classes"][str(client["partition"])]
        assert client["recall"] == {str(n): value for n, value in enumerate(listed["recall"]) if value is not None}
        assert client["balanced_accuracy"] == pytest.approx(np.mean(list(client["recall"].values())))
        assert client["unpredicted"] == [str(label) for label in listed.get("unpredicted", [])]
        assert client["untested"] == [str(label) for label in listed.get("untested", [])]
    assert 0 < len(clients[0]["recall"]) < 10


def test_the_best_model_s_figures_are_kept_together(tmp_path, make_config, run_federation):
    """With keep-best, each round's figures are those of one round, the one with the best validation accuracy so far."""
    keys = {"algorithm": "local", "models": "mlp", "rounds": 4, "learning_rate": 0.05}
    plain = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "plain"))))
    kept = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "kept"), keep_best=True)))
    for client in ("0", "1"):
        best = max(plain, key=lambda entry: (entry["clients"][client]["validation-accuracy"], -entry["round"]))
        assert kept[-1]["classes"][client] == best["classes"][client]
        assert kept[-1]["clients"][client]["macro-f1"] == best["clients"][client]["macro-f1"]


def test_classes_have_their_names_where_there_is_one_each():
    entry = Round(1, 0.0, classes={"3": {"recall": [0.5, None, 1.0], "untested": [1], "unpredicted": [0]}})
    assert named_classes(entry, 3, ("ill", "well", "dead")) == {
        "recall": {"ill": 0.5, "dead": 1.0},
        "untested": ["well"],
        "unpredicted": ["ill"],
    }
    for names in ((), ("ill", "ill", "dead")):
        assert named_classes(entry, 3, names)["recall"] == {"0": 0.5, "2": 1.0}
    assert named_classes(entry, 0)["recall"] is None


def record(client: int, test: int | None, **known: Any) -> Any:
    return {"partition": client, "test": test, **known}


def noted(clients: list[Any], rounds: list[Round], weights: str = "none") -> list[str]:
    return notes(Run(Path("r"), "r", {"algorithm": "fedhe", "class-weights": weights}, rounds, {}, clients))  # type: ignore[typeddict-item]


def test_doubts_of_runs_of_several_seeds_say_in_how_many_they_hold():
    """Client 0 has other data under another seed. fd fails at a class under one seed; rows are few under one alone."""
    runs = []
    for seed, test in enumerate((16, 40, 63)):
        for method in ("local", "fd"):
            never = (["ill"] if seed else []) + (["well"] if seed == 2 else [])
            known = [
                record(0, test, unpredicted=never),
                record(1, 50, untested=["ill"]),
                record(2, 50, unpredicted=["ill"] if (seed, method) == (2, "fd") else [], recall={"ill": 1.0}),
                record(3, 50, untested=["ill"] if seed == 1 else []),
            ]
            runs.append(Run(Path("r"), "r", {"algorithm": method}, [], {"seed": seed}, known))  # type: ignore[typeddict-item]
    several, all_seeds, one_method, one_seed = doubts(runs)
    assert ("16 to 63 test rows" in several, "2 of 3 seeds" in several, "ill" in several) == (True, True, False)
    assert ("class ill" in all_seeds, "seed" in all_seeds) == (True, False)
    assert one_method.endswith("in seed 2 never predicts class ill (fd)")
    assert ("in seed 1" in one_seed, "class ill" in one_seed, "fd" in one_seed) == (True, True, False)


def test_notes_are_a_line_a_client_and_bounded():
    few = noted([record(0, 30), record(1, 29), record(2, 1), record(3, 0), record(4, None)], [])
    assert [line.partition(":")[0] for line in few] == ["client 1", "client 2", "client 3"]
    both = record(0, 40, untested=["ill"], unpredicted=list("abcdefg"))
    [hint, line] = noted([both], [])
    assert ("class-weights" in hint, "class ill" in line, "a, b, c, d, e and 2 more" in line) == (True, True, True)
    assert noted([both], [], "balanced") == [line]
    short = [Round(number, 0.0, accuracy=number / 10) for number in range(9)]
    assert [one == line for one in noted([both], short)] == [False, True]
    assert noted([record(n, 5) for n in range(9)], [])[-1] == "and 4 more"
    assert noted([record(n, 0) for n in range(9)], []) == []


def test_best_is_chosen_by_validation_where_there_is_any(tmp_path, make_config, run_federation):
    rounds = [
        Round(n, 0.0, accuracy=accuracy, validation_accuracy=validated)
        for n, (accuracy, validated) in enumerate([(0.1, 0.2), (0.5, 0.9), (0.8, 0.9), (0.9, 0.3)])
    ]
    folder = run_federation(make_config(algorithm="local", models="mlp", rounds=1))
    run = replace(load_run(folder), rounds=rounds)
    assert selected_accuracy(run) == 0.5
    heading, _, chosen = best_of([run])
    assert (heading, chosen) == ("best round %", selected_accuracy)
    silent = replace(run, rounds=[replace(entry, validation_accuracy=None) for entry in rounds])
    heading, _, chosen = best_of([run, silent])
    assert (heading, chosen(silent)) == ("best round by test %", 0.9)


@pytest.mark.parametrize(
    ("accuracies", "samples", "said"),
    [
        ([0.1, 0.3, 0.5, 0.6, 0.7], 400, "10.0 points since round 3"),
        ([0.1, 0.3, 0.5, 0.6, 0.7], 80, ""),  # two standard errors are 10.2 points
        ([0.1, 0.3, None, None, 0.7], 400, "40.0 points since round 1"),
        ([0.1, 0.5, 0.7, 0.9, 0.91], 10**6, ""),
        ([0.1, 0.5, 0.7, 0.9, 0.8], 400, ""),
        ([0.1, 0.5], 400, "40.0 points since round 0"),
        ([None, None, 0.9], 400, ""),
        ([0.4], 400, ""),
        ([0.1, 0.3, 0.5, 0.6, 0.7], 0, ""),
        ([], 400, ""),
    ],
)
def test_a_run_that_ends_while_accuracy_rises_is_noted(accuracies, samples, said):
    rounds = [Round(number, 0.0, accuracy=value) for number, value in enumerate(accuracies)]
    found = still_rising(rounds, samples)
    assert [said in line for line in found] == [True] * bool(said)
    assert noted([record(0, samples)], rounds)[: len(found)] == found


def test_the_mean_recall_of_a_class_is_over_those_who_are_tested_on_it(skewed):
    clients = [record(0, 9, recall={"ill": 0.5, "well": 1.0}), record(1, 9, recall={"well": 0.5}), record(2, 9)]
    assert mean_recall(one.get("recall") for one in clients) == {"ill": 0.5, "well": 0.75}
    run = load_run(skewed)
    recall = mean_recall(one.get("recall") for one in run.clients)
    assert read_summary(skewed)["recall"] == recall == summary_of(run.rounds, run.clients)["recall"]
    lowest = min(run.summary["recall"], key=run.summary["recall"].get)
    [row] = [line for line in lines(summary_table(run)) if line.startswith("recall %")]
    assert row.split()[2] == f"{lowest}:"


def test_the_best_figures_stay_where_a_client_gives_itself_other_numbers(
    make_config, run_federation, tmp_path, monkeypatch
):
    keys = {"algorithm": "fedhe", "keep_best": True, "validation_fraction": 0.2, "rounds": 3, "learning_rate": 0.1}
    before = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "before"))))
    learn = FedHeClient.learn

    def forgetful(self, download, round):
        self.numbers = {}
        return learn(self, download, round)

    monkeypatch.setattr(FedHeClient, "learn", forgetful)
    after = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "after"))))
    assert [entry["clients"] for entry in after] == [entry["clients"] for entry in before]
