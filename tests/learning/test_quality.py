"""What is measured: scores over domains, figures beside accuracy against scikit-learn, weights of classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.federations.nodes import linear_node
from fixtures.tiers import exhaustive
from sklearn import metrics as reference
from sklearn.utils.class_weight import compute_class_weight

from clients.local import LocalClient
from hetfl_flwr.errors import TooFewClients
from hetfl_flwr.learning.quality import Hits, auc, balanced_weights, baseline, measure
from hetfl_flwr.wire.messages import ROUND
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
    """The softmax of 20 and that of 30, beside zeros, are both 1.0 in float32, and two in float64: both areas are 1."""
    node = linear_node([[20.0, 0.0, 0.0], [30.0, 0.0, 0.0], [0.0, 9.0, 0.0]], [1, 0, 1], IDENTITY)
    assert measure(node.model, node.data.test)["auc"] == 1


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
