"""The parts of attacks, where the answer is known: a total leak, none at all, and what is in between by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from simulations.audit import pictures
from simulations.audit.labels import calibrated, drawn_rows, features_of, of_histograms, shares_of_changes
from simulations.audit.measures import auc, true_positive_rate
from simulations.audit.membership import chance_rate, confidences, likelihood_ratios
from simulations.audit.pictures import inferred_label, invert_gradient, invert_outputs, matched, psnr
from simulations.audit.subject import Rows

CENTRE = torch.full((1, 8, 8), 0.3)


class TestMembership:
    def test_shadow_models_tell_members_where_a_threshold_cannot(self):
        """Members are hard samples and others are easy ones, so the loss alone points the wrong way."""
        rng = np.random.default_rng(0)
        easiness = np.concatenate([rng.normal(-5, 1, 100), rng.normal(5, 1, 100)])
        member = np.arange(200) < 100
        own = easiness + 2.0 * member
        ratios = likelihood_ratios(own, [easiness + rng.normal(0, 0.1, 200) for _ in range(8)])
        assert auc(own[member], own[~member]) < 0.1
        assert auc(ratios[member], ratios[~member]) == 1

    def test_a_model_like_the_shadow_models_is_a_coin(self):
        rng = np.random.default_rng(0)
        easiness = rng.normal(0, 5, 4000)
        own, *shadows = (easiness + rng.normal(size=4000) for _ in range(9))
        ratios = likelihood_ratios(own, shadows)
        assert auc(ratios[:2000], ratios[2000:]) == pytest.approx(0.5, abs=0.03)

    def test_confidences_are_the_logit_of_the_probability(self):
        logits, labels = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]), torch.tensor([1, 0])
        p = logits.softmax(1).gather(1, labels[:, None])[:, 0].double()
        assert confidences(logits, labels) == pytest.approx((p / (1 - p)).log().numpy(), abs=1e-6)
        assert np.isfinite(confidences(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))).all()

    def test_what_cannot_be_divided_or_has_no_rate(self):
        assert np.isfinite(likelihood_ratios(np.array([1.0]), [np.array([1.0])] * 3)).all()
        assert auc(np.array([]), np.array([1.0])) is None
        assert true_positive_rate(np.array([1.0]), np.array([])) is None

    @pytest.mark.parametrize(("others", "rate"), [(100, 0.5), (99, 0.25)])
    def test_true_positives_are_counted_below_the_rate_alone(self, others, rate):
        """Of 100 others one may be taken for a member: the threshold is the second highest; of 99 none may."""
        assert true_positive_rate(np.array([200.0, others - 1.5, 97.5, 0.0]), np.arange(others)) == rate

    @pytest.mark.parametrize("others", [40, 140])
    def test_the_rate_by_chance_is_what_scores_of_one_distribution_give(self, others):
        """Of 2,000 draws the mean has a standard deviation of about 0.0005."""
        rng = np.random.default_rng(0)
        found = [true_positive_rate(rng.normal(size=300), rng.normal(size=others)) for _ in range(2000)]
        assert np.mean(found) == pytest.approx(chance_rate(others), abs=0.001)


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "shares"), [([0], [1, 0, 0, 0]), ([3], [0, 0, 0, 1]), ([0, 0, 0, 1, 2, 2], [1 / 2, 1 / 6, 1 / 3, 0])]
    )
    def test_a_step_from_equal_predictions_says_the_shares_of_its_batch(self, labels, shares):
        """With one class absent, the bias grows by the share of each class."""
        bias = torch.zeros(4, requires_grad=True)
        functional.cross_entropy(bias.expand(len(labels), -1), torch.tensor(labels)).backward()
        assert shares_of_changes([-0.1 * bias.grad.numpy()]) == pytest.approx(shares, abs=1e-6)
        assert inferred_label(bias.grad) == labels[0]

    def test_features_that_are_the_histogram_are_read_and_noise_is_not(self):
        """With 5 classes of 39 clients, the penalty of 1 takes 1 / 196 of each share's distance from the mean."""
        rng = np.random.default_rng(0)
        truth = [rng.dirichlet(np.ones(5)) for _ in range(40)]
        total = calibrated(truth[0][:, None], [one[:, None] for one in truth[1:]], truth[1:])
        assert np.abs(total - truth[0]).sum() < 0.01
        noise = calibrated(rng.normal(size=(5, 1)), [rng.normal(size=(5, 1)) for _ in truth[1:]], truth[1:])
        assert np.abs(noise - 0.2).sum() < 0.1

    @pytest.mark.parametrize(
        ("labels", "answers", "found"),
        [
            ([0, 1, 1], [0, 0, 0], [[1, 1], [0, 0], [0, 0]]),
            ([0] * 9 + [1], [0] * 9 + [1], [[0.5, 1], [0.5, 1], [0, 0]]),
        ],
    )
    def test_a_predictor_shows_the_classes_that_it_answers_and_not_the_shares_of_who_asks(self, labels, answers, found):
        logits = functional.one_hot(torch.tensor(answers), 3) * 30.0
        assert features_of(logits, torch.tensor(labels), 3) == pytest.approx(np.array(found), abs=1e-6)

    def test_even_shares_are_no_better_than_chance(self):
        """The attacker's own samples lack what the client has most of, so a guess by them is the farther one."""
        known = Rows(torch.zeros(100, 1), torch.tensor([0] * 10 + [1] * 90))
        subject = SimpleNamespace(classes=2, counts=np.array([8, 2]), known=known)
        [(_, figure, _, chance, _), _] = of_histograms("", "", [subject], [np.full(2, 0.5)], []).figures
        assert figure == chance == pytest.approx(0.3)

    def test_rows_are_drawn_by_the_shares_of_their_classes(self):
        labels = np.array([0] * 90 + [1] * 10)
        rows = drawn_rows(labels, np.array([0.2, 0.8]), 5000, np.random.default_rng(0))
        assert np.bincount(labels[rows]) / 5000 == pytest.approx([0.2, 0.8], abs=0.03)
        assert len(drawn_rows(labels, np.array([0.0, 0.0]), 100, np.random.default_rng(0))) == 100


class TestPictures:
    @staticmethod
    def smooth(number: int) -> torch.Tensor:
        """Pictures in [0, 1] with edges, (N, 1, 8, 8)."""
        found = torch.zeros(number, 1, 8, 8)
        for one in range(number):
            found[one, 0, one : one + 4, 2:6] = 1.0
        return found

    @staticmethod
    def likeness(found: torch.Tensor, originals: torch.Tensor) -> float:
        return float(np.mean([psnr(a, b) for a, b in zip((found + CENTRE).numpy(), originals.numpy(), strict=True)]))

    def test_the_outputs_of_an_identity_are_the_pictures_and_noise_gives_none(self, monkeypatch):
        """A flat picture of the pixels' mean is as like as what noise gives: PSNR of about 7 dB."""
        monkeypatch.setattr(pictures, "SMOOTH_OUTPUTS", 0.0)
        originals = self.smooth(3)
        found = invert_outputs(nn.Flatten(), (originals - CENTRE).flatten(1), CENTRE)
        assert self.likeness(found, originals) > 35
        noise = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
        flat = originals.mean().expand_as(originals) - CENTRE
        found = invert_outputs(nn.Flatten(), noise, CENTRE)
        assert self.likeness(found, originals) < self.likeness(flat, originals)

    @pytest.mark.parametrize("known", [True, False])
    def test_the_gradient_of_one_sample_is_that_sample_and_noise_is_none(self, known, monkeypatch):
        monkeypatch.setattr(pictures, "STARTS", 2)
        monkeypatch.setattr(pictures, "LONG", 300)
        monkeypatch.setattr(pictures, "SMOOTH_GRADIENT", 0.0)
        torch.manual_seed(0)
        model, originals, labels = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), self.smooth(1), torch.tensor([3])
        loss = functional.cross_entropy(model(originals - CENTRE), labels)
        gradient = [one.detach() for one in torch.autograd.grad(loss, list(model.parameters()))]
        gradient = gradient if known else [torch.randn_like(one) for one in gradient]
        found = invert_gradient(model, [*model.parameters()], gradient, labels, CENTRE)
        assert (self.likeness(found, originals) > 30) == known

    def test_each_picture_is_set_beside_its_own(self):
        originals = np.random.default_rng(0).random((4, 1, 8, 8))
        assert (matched(originals[[2, 0, 3, 1]], originals) == originals).all()
