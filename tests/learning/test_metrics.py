"""Scores over domains, against the rows of FedH2L's tables."""

import pytest

from hetfl_flwr.learning.metrics import domain_scores


def test_the_scores_of_a_client_by_hand():
    """ACC (0.9 + 0.5 + 0.7) / 3 = 0.7; BWT 0.5, the own domain's; FWT (0.9 + 0.7) / 2 = 0.8."""
    scores = domain_scores({3: 0.9, 5: 0.5, 8: 0.7}, own=5)
    assert (scores.acc, scores.bwt, scores.fwt) == pytest.approx((0.7, 0.5, 0.8))


def test_a_row_of_the_paper_s_over_domains_of_unlike_sizes():
    """PACS, FedH2L on photo: BWT 99.80, FWT 80.66, ACC 83.86: photo is 1,670 of the 9,991 images, and
    (1670 * 99.80 + 8321 * 80.66) / 9991 = 83.86, where the plain mean of four domains would be 85.45.
    """
    accuracies, samples = {0: 0.9980, 1: 0.8066, 2: 0.8066, 3: 0.8066}, {0: 1670, 1: 2048, 2: 2344, 3: 3929}
    scores = domain_scores(accuracies, 0, samples)
    assert scores.acc == pytest.approx(0.8386, abs=1e-4)
    assert scores.bwt == 0.9980
    assert domain_scores(accuracies, 0).acc == pytest.approx(0.8545, abs=1e-4)


def test_a_client_alone_has_no_others():
    scores = domain_scores({2: 0.75}, own=2)
    assert (scores.acc, scores.bwt, scores.fwt) == (0.75, 0.75, None)


def test_domains_without_samples_have_no_mean():
    scores = domain_scores({0: 0.5, 1: 0.0}, 0, {0: 10, 1: 0})
    assert (scores.acc, scores.fwt) == (0.5, None)
    assert domain_scores({0: 0.0, 1: 0.0}, 0, {0: 0, 1: 0}).acc is None


def test_an_own_domain_that_was_not_tested_is_refused():
    with pytest.raises(ValueError, match="own domain 2"):
        domain_scores({1: 0.5, 0: 0.6}, own=2)
