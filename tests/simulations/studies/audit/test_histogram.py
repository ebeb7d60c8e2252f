"""Label inference: counts as they are sent, and the label of one sample from its gradient."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from simulations.studies.audit.attacks import of_histograms
from simulations.studies.audit.histogram import calibrated, drawn_rows, features_of, shares_of_changes
from simulations.studies.audit.measures import total_variation
from simulations.studies.audit.reconstruction import inferred_label
from simulations.studies.audit.subject import Rows


def bias_gradient(labels: list[int], classes: int = 4) -> torch.Tensor:
    bias = torch.zeros(classes, requires_grad=True)
    functional.cross_entropy(bias.expand(len(labels), -1), torch.tensor(labels)).backward()
    return bias.grad


@pytest.mark.parametrize("label", [0, 3])
def test_the_label_of_a_batch_of_one_is_read_from_its_gradient(label):
    gradient = bias_gradient([label])
    assert inferred_label(gradient) == label
    assert shares_of_changes([-gradient.numpy()]).tolist() == np.eye(4)[label].tolist()


def test_the_shares_of_a_batch_are_read_from_one_step_from_equal_predictions():
    """With one class absent, and all predicted alike, the bias grows by the share of each class."""
    gradient = bias_gradient([0, 0, 0, 1, 2, 2])
    assert shares_of_changes([-0.1 * gradient.numpy()]) == pytest.approx([1 / 2, 1 / 6, 1 / 3, 0], abs=1e-6)


def test_features_that_are_the_histogram_are_read_and_noise_is_not():
    rng = np.random.default_rng(0)
    truth = [rng.dirichlet(np.ones(5)) for _ in range(40)]
    total = calibrated(truth[0][:, None], [one[:, None] for one in truth[1:]], truth[1:], 1e-6)
    assert total_variation(total, truth[0]) < 1e-6
    noise = calibrated(rng.normal(size=(5, 1)), [rng.normal(size=(5, 1)) for _ in truth[1:]], truth[1:])
    assert total_variation(noise, np.full(5, 0.2)) < 0.05


def test_a_predictor_shows_the_classes_that_it_answers():
    labels = torch.tensor([0, 1, 1])
    found = features_of(torch.tensor([[9.0, -9.0], [9.0, -9.0], [9.0, -9.0]]), labels, 2)
    assert found == pytest.approx(np.array([[1, 1], [0, 0]]), abs=1e-6)


def test_the_attackers_own_shares_do_not_speak_for_the_clients():
    """Who answers each sample rightly has learnt both classes alike, however many of each there are to ask about."""
    labels = torch.tensor([0] * 9 + [1])
    found = features_of(torch.nn.functional.one_hot(labels, 3) * 30.0, labels, 3)
    assert found == pytest.approx(np.array([[0.5, 1], [0.5, 1], [0, 0]]), abs=1e-6)


def test_even_shares_are_no_better_than_chance():
    """The attacker's own samples lack what the client has most of, so a guess by them is the farther one."""
    known = Rows(torch.zeros(100, 1), torch.tensor([0] * 10 + [1] * 90))
    case = SimpleNamespace(subject=SimpleNamespace(classes=2, counts=np.array([8, 2]), known=known))
    found = of_histograms("x", "", "", [case], [np.full(2, 0.5)], []).findings[0]
    assert found.figure == pytest.approx(0.3)
    assert found.chance == found.figure


def test_rows_are_drawn_by_the_shares_of_their_classes():
    labels = np.array([0] * 90 + [1] * 10)
    rows = drawn_rows(labels, np.array([0.2, 0.8]), 5000, np.random.default_rng(0))
    assert np.bincount(labels[rows]) / 5000 == pytest.approx([0.2, 0.8], abs=0.03)
    alone = drawn_rows(labels, np.array([0.0, 0.0]), 100, np.random.default_rng(0))
    assert len(alone) == 100
