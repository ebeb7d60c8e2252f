"""How much was found out: membership inference where there is a total leak and none at all, rates and likeness."""

import numpy as np
import pytest
import torch

from simulations.studies.audit.measures import (
    auc,
    chance_rate,
    confidences,
    likelihood_ratios,
    true_positive_rate,
)


def test_shadow_models_tell_members_where_a_threshold_cannot():
    """Members are hard samples and others are easy ones, so the loss alone points the wrong way."""
    rng = np.random.default_rng(0)
    easiness = np.concatenate([rng.normal(-5, 1, 100), rng.normal(5, 1, 100)])
    member = np.arange(200) < 100
    shadows = [easiness + rng.normal(0, 0.1, 200) for _ in range(8)]
    own = easiness + 2.0 * member
    assert auc(own[member], own[~member]) < 0.1
    ratios = likelihood_ratios(own, shadows)
    assert auc(ratios[member], ratios[~member]) == 1


def test_a_model_like_the_shadow_models_is_a_coin():
    rng = np.random.default_rng(0)
    easiness = rng.normal(0, 5, 4000)
    ratios = likelihood_ratios(
        *(lambda draws: (draws[0], draws[1:]))([easiness + rng.normal(size=4000) for _ in "x" * 9])
    )
    assert auc(ratios[:2000], ratios[2000:]) == pytest.approx(0.5, abs=0.03)


def test_confidences_are_the_logit_of_the_probability():
    logits, labels = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]), torch.tensor([1, 0])
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0].double()
    assert confidences(logits, labels) == pytest.approx((p / (1 - p)).log().numpy(), abs=1e-6)
    assert np.isfinite(confidences(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))).all()


def test_shadow_models_that_agree_to_the_bit_divide_by_nothing():
    assert np.isfinite(likelihood_ratios(np.array([1.0]), [np.array([1.0])] * 3)).all()


def test_without_both_kinds_there_is_no_rate():
    assert auc(np.array([]), np.array([1.0])) is None
    assert true_positive_rate(np.array([1.0]), np.array([])) is None


def test_true_positives_are_counted_below_the_rate_alone():
    """100 others, one of which may be taken for a member: the threshold is the second highest of them."""
    others = np.arange(100.0)
    assert true_positive_rate(np.array([200.0, 98.5, 97.5, 0.0]), others) == 0.5
    assert true_positive_rate(np.array([200.0, 98.5, 97.5, 0.0]), others, rate=0.02) == 0.75


@pytest.mark.parametrize("others", [40, 140])
def test_the_rate_by_chance_is_what_scores_of_one_distribution_give(others):
    """Of 2,000 draws the mean has a standard deviation of about 0.0005."""
    rng = np.random.default_rng(0)
    found = [true_positive_rate(rng.normal(size=300), rng.normal(size=others)) for _ in range(2000)]
    assert np.mean(found) == pytest.approx(chance_rate(others), abs=0.001)
