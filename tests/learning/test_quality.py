"""What is measured beside accuracy, against scikit-learn, and what a class weighs in training."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.nodes import linear_node
from fixtures.tiers import exhaustive
from flwr.app import Message, MessageType, MetricRecord, RecordDict
from sklearn import metrics as reference
from sklearn.utils.class_weight import compute_class_weight

from clients.local import LocalClient
from hetfl_flwr.errors import TooFewClients
from hetfl_flwr.learning.quality import Hits, auc, balanced_weights, baseline, measure
from hetfl_flwr.runs.record import Round, mean_recall, named_classes, read_clients, read_summary
from hetfl_flwr.wire.classes import listed, wrong_list
from hetfl_flwr.wire.messages import METRICS, ROUND
from simulations.engine.grid import LocalGrid
from simulations.reports.doubts import notes, still_rising
from simulations.reports.report import write_report
from simulations.reports.runs import figures, load_run, selected_accuracy
from simulations.reports.tables import best_of, summary_table
from simulations.reports.terminal import client_table, lines
from simulations.testing.contract import entries

IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
"""A model whose logits are its inputs."""

FRAMES = pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels (N,) of which some classes may be missing, and scores (N, C) with many ties."""
    draw = np.random.default_rng(seed)
    count, classes = int(draw.integers(1, 40)), int(draw.integers(2, 7))
    there = draw.choice(classes, int(draw.integers(1, classes + 1)), replace=False)
    return draw.choice(there, count), draw.normal(size=(count, classes)).round(int(draw.integers(0, 3)))


@FRAMES
@pytest.mark.parametrize("seed", range(60))
def test_figures_of_predictions_are_scikit_learn_s(seed):
    labels, scores = drawn(seed)
    predicted, classes = scores.argmax(1), scores.shape[1]
    hits = Hits.of(labels, predicted, classes)
    assert hits.balanced_accuracy == pytest.approx(reference.balanced_accuracy_score(labels, predicted))
    assert hits.macro_f1 == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
    recalls = reference.recall_score(labels, predicted, labels=range(classes), average=None, zero_division=np.nan)
    np.testing.assert_allclose(hits.recall, recalls)
    assert hits.unpredicted.tolist() == sorted(set(labels.tolist()) - set(predicted.tolist()))


@pytest.mark.parametrize("seed", range(60))
def test_the_area_under_the_curve_is_scikit_learn_s_mean_over_classes_that_have_one(seed):
    labels, scores = drawn(seed)
    mixed = [label for label in range(scores.shape[1]) if 0 < (labels == label).sum() < len(labels)]
    areas = [reference.roc_auc_score(labels == label, scores[:, label]) for label in mixed]
    assert auc(scores, labels) == (pytest.approx(np.mean(areas)) if areas else None)


def test_a_tie_counts_half_and_one_class_alone_has_no_area():
    assert auc(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([0, 1])) == 0.5
    assert auc(np.array([[0.9, 0.1], [0.5, 0.5]]), np.array([1, 1])) is None


def test_a_model_is_measured_in_one_pass_in_evaluation_mode(monkeypatch):
    """Predictions 0, 0, 2, 0 of labels 0, 1, 2, 2: recalls 1, 0, 1/2. Class 1 is never predicted."""
    inputs = [[3.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    node = linear_node(inputs, [0, 1, 2, 2], IDENTITY)
    calls: list[int] = []
    node.model.register_forward_hook(lambda model, given, logits: calls.append(len(logits)))
    told = measure(node.model, node.data.test)
    assert calls == [4]
    of_classes = {name: told[name] for name in told if "." in name}
    assert of_classes == {"recall.0": 1.0, "recall.1": 0.0, "recall.2": 0.5, "unpredicted.1": 1}
    scores = torch.tensor(inputs, dtype=torch.float64).softmax(1).numpy()
    expected = reference.roc_auc_score([0, 1, 2, 2], scores, multi_class="ovr", average="macro")
    assert told["auc"] == pytest.approx(expected)
    assert (told["accuracy"], told["balanced-accuracy"]) == (0.5, 0.5)
    assert told["macro-f1"] == pytest.approx(reference.f1_score([0, 1, 2, 2], [0, 0, 2, 0], average="macro"))


def test_saturated_scores_are_no_ties():
    """The softmax of 20 and that of 30, beside zeros, are both 1.0 in float32, and two in float64."""
    inputs, labels = [[20.0, 0.0, 0.0], [30.0, 0.0, 0.0], [0.0, 9.0, 0.0]], [1, 0, 1]
    node = linear_node(inputs, labels, IDENTITY)
    scores = torch.tensor(inputs, dtype=torch.float64).softmax(1).numpy()
    areas = [reference.roc_auc_score(np.equal(labels, label), scores[:, label]) for label in (0, 1)]
    assert areas[0] == 1.0
    assert measure(node.model, node.data.test)["auc"] == pytest.approx(np.mean(areas))


def test_without_samples_there_is_nothing_but_zeros():
    node = linear_node([[1.0, 0.0, 0.0]], [0], IDENTITY)
    assert measure(node.model, node.data.test.first(0)) == {"accuracy": 0.0, "loss": 0.0, "num-examples": 0}
    assert baseline(replace(node.data, test=node.data.test.first(0))) == {}


def test_the_baseline_predicts_the_most_frequent_class_of_training():
    """Class 2 is the most frequent in training, and one of two test samples is of it; class 1 is never tested."""
    node = linear_node([[0.0, 0.0, 0.0]] * 5, [2, 0, 2, 1, 2], IDENTITY)
    assert baseline(replace(node.data, test=node.data.test.first(2))) == {"majority": 0.5, "untested.1": 1}
    _, _, told = LocalClient(node).evaluate([], {ROUND: 1})
    assert told["majority"] == 0.6


# --- class weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_weights_are_scikit_learn_s_and_1_for_a_class_without_samples(seed):
    labels, scores = drawn(seed)
    weights = balanced_weights(torch.bincount(torch.from_numpy(labels), minlength=scores.shape[1]))
    present = np.unique(labels)
    expected = np.ones(scores.shape[1])
    expected[present] = compute_class_weight("balanced", classes=present, y=labels)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6)


def test_the_loss_of_all_training_samples_is_scikit_learn_s_weighted_one():
    draw = np.random.default_rng(5)
    labels, logits = [0, 0, 0, 1, 2, 0], draw.normal(size=(6, 3)).astype(np.float32)
    node = linear_node([[0.0] * 3] * 6, labels, IDENTITY, class_weights="balanced")
    weights = compute_class_weight("balanced", classes=np.arange(3), y=labels)[labels]
    scores = torch.from_numpy(logits).double().softmax(1).numpy()
    expected = reference.log_loss(labels, scores, sample_weight=weights)
    assert float(node.data_loss(torch.from_numpy(logits), torch.tensor(labels))) == pytest.approx(expected)
    halves = [float(node.data_loss(torch.from_numpy(logits[i::2]), torch.tensor(labels[i::2]))) for i in (0, 1)]
    assert np.mean(halves) == pytest.approx(expected)


def test_without_weights_the_loss_is_the_cross_entropy_to_the_bit():
    node = linear_node([[1.0, 0.0, 0.0]] * 3, [0, 0, 1], IDENTITY)
    logits, labels = torch.randn(3, 3), torch.tensor([0, 0, 1])
    assert torch.equal(node.data_loss(logits, labels), torch.nn.functional.cross_entropy(logits, labels))


FIRST = {"fedmd": {"fedmd.pretrain-epochs": 0, "fedmd.pretrain-private-epochs": 1}}
"""What lets the first round show weights, where the defaults are slow."""


@pytest.mark.parametrize(
    "algorithm",
    ["local", "fedhe", "fedavg", "fml", *map(exhaustive, ("fedprox", "fedrep", "fedhenn", "fedmd"))]
    + [exhaustive(name) for name in ("fedh2l", "chfl", "agg")],
)
def test_every_algorithm_weighs_the_client_s_own_labels(algorithm, tmp_path, make_config, run_federation):
    """The loss of the first batches is another one, although the same samples are drawn."""
    losses = []
    for weights in ("none", "balanced"):
        keys = {**FIRST.get(algorithm, {}), "partition": "dirichlet:0.5", "width": 8, "class-weights": weights}
        run = run_federation(
            make_config(algorithm=algorithm, models="mlp", rounds=1, output_dir=str(tmp_path / weights), **keys)
        )
        losses.append([own["train-loss"] for own in entries(run)[-1]["clients"].values()])
    assert all(abs(one - other) > 1e-6 for one, other in zip(*losses, strict=True))


def test_an_algorithm_that_knows_no_weights_is_refused(make_config, run_federation):
    config = make_config(algorithm="fixtures.echo", models="mlp", class_weights="balanced", rounds=1, min_clients=1)
    with pytest.raises(TooFewClients, match=r"class-weights"):
        run_federation(config)


@pytest.mark.slow
def test_weights_hold_for_any_number_of_workers(tmp_path, make_config, run_federation):
    seen = []
    for workers in (1, 2):
        config = make_config(
            models="mlp", class_weights="balanced", output_dir=str(tmp_path / str(workers))
        )  # fmt: skip
        with LocalGrid(config.to_flat(), config.clients, 7, workers) as grid:
            last = entries(run_federation(config, grid))[-1]
        seen.append([[own["train-loss"], own["auc"]] for own in last["clients"].values()])
    assert seen[0] == seen[1]


# --- what travels --------------------------------------------------------------------------------


class Lying(LocalGrid):
    """Client 1's answers to evaluations have other metrics."""

    said: dict[str, Any]

    def pull_messages(self, message_ids):
        return [self._changed(reply) for reply in super().pull_messages(message_ids)]

    def _changed(self, reply: Message) -> Message:
        kind = reply.metadata.message_type
        if kind == MessageType.EVALUATE and reply.metadata.src_node_id == max(self.get_node_ids()):
            metrics = {**reply.content.metric_records[METRICS], **self.said}
            reply.content = RecordDict({METRICS: MetricRecord(metrics)})
        return reply


LIES = {
    "auc": 1.5,
    "majority": -0.5,
    "recall": [0.5] * 9,
    "untested": [3, 3],
    "unpredicted": [10],
    "precision": [0.5] * 10,
}


@pytest.mark.parametrize("name", LIES)
def test_what_a_client_says_of_its_quality_is_checked(name, make_config, run_federation):
    config = make_config(algorithm="local", models="mlp", rounds=1)
    with LocalGrid(config.to_flat(), config.clients, 7, 1) as _, Lying(config.to_flat(), config.clients, 7, 1) as grid:
        grid.said = {name: LIES[name]}
        last = entries(run_federation(config, grid))[-1]
    assert list(last["classes"]) == ["0"]
    assert [failure["partition"] for failure in last["failures"]] == [1]
    assert f"'{name}'" in last["failures"][0]["reason"]


@pytest.mark.parametrize(
    ("kind", "value", "classes"),
    [
        ("recall", [0.5, 1.5], 2),
        ("recall", [0.5, math.inf], 2),
        ("recall", [1, 0], 2),
        ("recall", [0.5] * 300, 300),
        ("untested", [1, 0], 2),
        ("untested", [0, 1, 1], 2),
        ("untested", [0.0], 2),
        ("untested", [-1], 2),
        ("loss", [0.5, 0.5], 2),
    ],
)
def test_lists_of_strangers_are_refused(kind, value, classes):
    assert wrong_list(kind, value, classes)


def test_a_metric_of_that_name_of_an_algorithm_s_own_travels_as_it_is():
    told = {"recall": 0.25, "recall.0": 1.0, "untested.macro": 2.0}
    assert listed(told, 2) == {"recall": 0.25, "untested.macro": 2.0}


# --- what a run leaves ---------------------------------------------------------------------------


@pytest.fixture
def skewed(make_config, run_federation) -> Path:
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


def test_the_figures_are_those_of_the_saved_model(skewed):
    """As scikit-learn has them of the model that the folder holds... predictions of the client's test samples."""
    from simulations.inference.loading import load_client

    for client in read_clients(skewed):
        node = load_client(skewed, client["partition"])
        inputs, labels = node.data.test.batch(torch.arange(len(node.data.test)))
        with torch.no_grad():
            predicted = node.model.eval()(inputs).argmax(1)
        assert client["macro_f1"] == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
        frequent = node.data.train.class_counts(10).argmax()
        assert client["majority"] == pytest.approx(float((labels == frequent).double().mean()))


def test_the_best_model_s_figures_are_kept_together(tmp_path, make_config, run_federation):
    """With keep-best, each round's figures are those of one round, the one with the best validation accuracy so far."""
    keys = {"algorithm": "local", "models": "mlp", "rounds": 4, "learning_rate": 0.05}
    plain = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "plain"))))
    kept = entries(run_federation(make_config(**keys, output_dir=str(tmp_path / "kept"), keep_best=True)))
    for client in ("0", "1"):
        best = max(plain, key=lambda entry: (entry["clients"][client]["validation-accuracy"], -entry["round"]))
        assert kept[-1]["classes"][client] == best["classes"][client]
        assert kept[-1]["clients"][client]["macro-f1"] == best["clients"][client]["macro-f1"]


def test_tables_and_report_show_them(skewed, tmp_path):
    run = load_run(skewed)
    table = lines(client_table(run.name, run.clients))
    assert max(map(len, table)) <= 100
    assert table[1].split()[-6:] == ["bal.", "F1", "AUC", "maj.", "up", "down"]
    shown = "\n".join(lines(summary_table(run)))
    assert "balanced / F1 / AUC %" in shown
    said = notes(run.clients, run.rounds)
    assert said
    assert all(line in shown for line in said)
    page = write_report([skewed], tmp_path / "report.html").read_text()
    assert "Recall of each class" in page
    assert "balanced / F1 / AUC %" in page
    assert all(line in page for line in said)
    assert len(re.findall(r"\d never", page)) == sum(len(client["unpredicted"]) for client in run.clients) > 0


def test_a_run_that_was_killed_has_them_of_its_rounds(skewed):
    whole = load_run(skewed)
    (skewed / "clients.json").unlink()
    (skewed / "summary.json").unlink()
    run = load_run(skewed)
    assert [client["macro_f1"] for client in run.clients] == [client["macro_f1"] for client in whole.clients]
    assert [client["recall"] for client in run.clients] == [client["recall"] for client in whole.clients]


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


def test_notes_are_a_line_a_client_and_bounded():
    few = notes([record(0, 30), record(1, 29), record(2, 1), record(3, 0), record(4, None)], [])
    assert [line.partition(":")[0] for line in few] == ["client 1", "client 2", "client 3"]
    both = record(0, 40, untested=["ill"], unpredicted=list("abcdefg"))
    [hint, line] = notes([both], [])
    assert ("class-weights" in hint, "class ill" in line, "a, b, c, d, e and 2 more" in line) == (True, True, True)
    assert notes([both], [], "balanced") == [line]
    short = [Round(number, 0.0, accuracy=number / 10) for number in range(9)]
    assert [one == line for one in notes([both], short)] == [False, True]
    assert notes([record(n, 5) for n in range(9)], [])[-1] == "and 4 more"
    assert notes([record(n, 0) for n in range(9)], []) == []


def test_best_is_chosen_by_validation_where_there_is_any(tmp_path, make_config, run_federation):
    rounds = [
        Round(n, 0.0, accuracy=accuracy, validation_accuracy=validated)
        for n, (accuracy, validated) in enumerate([(0.1, 0.2), (0.5, 0.9), (0.8, 0.9), (0.9, 0.3)])
    ]
    folder = run_federation(make_config(algorithm="local", models="mlp", rounds=1))
    run = replace(load_run(folder), rounds=rounds)
    assert selected_accuracy(run) == 0.5
    assert best_of([run]) == ("best by validation %", selected_accuracy)
    silent = replace(run, rounds=[replace(entry, validation_accuracy=None) for entry in rounds])
    heading, chosen = best_of([run, silent])
    assert (heading, chosen(silent)) == ("best test %", 0.9)


@pytest.mark.parametrize(
    ("accuracies", "samples", "said"),
    [
        ([0.1, 0.3, 0.5, 0.6, 0.7], 400, "10.0 points from round 3 to 4"),
        ([0.1, 0.3, 0.5, 0.6, 0.7], 80, ""),  # two standard errors are 10.2 points
        ([0.1, 0.3, None, None, 0.7], 400, "40.0 points from round 1 to 4"),
        ([0.1, 0.5, 0.7, 0.9, 0.91], 10**6, ""),
        ([0.1, 0.5, 0.7, 0.9, 0.8], 400, ""),
        ([0.1, 0.5], 400, "40.0 points from round 0 to 1"),
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
    assert notes([record(0, samples)], rounds)[: len(found)] == found


def test_the_mean_recall_of_a_class_is_over_those_who_are_tested_on_it(skewed):
    clients = [record(0, 9, recall={"ill": 0.5, "well": 1.0}), record(1, 9, recall={"well": 0.5}), record(2, 9)]
    assert mean_recall(clients) == {"ill": 0.5, "well": 0.75}
    run = load_run(skewed)
    assert read_summary(skewed)["recall"] == mean_recall(run.clients) == figures(replace(run, summary=None))["recall"]
    lowest = min(run.summary["recall"], key=run.summary["recall"].get)
    [row] = [line for line in lines(summary_table(run)) if line.startswith("recall %")]
    assert row.split()[2] == lowest
