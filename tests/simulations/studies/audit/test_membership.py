"""Membership inference: a total leak is found, and where there is nothing to read it is a coin's toss."""

import numpy as np
import pytest
import torch

from simulations.studies.audit.measures import auc, confidences, likelihood_ratios


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
