from math import log

import pytest
import torch
from torch.nn import functional

from hetfl_flwr.distillation import kl_divergence


def logits(seed):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_of_two_classes_by_hand(temperature):
    """At temperature T the logits (T log 3, 0) are the distribution (3/4, 1/4); the student says (1/2, 1/2).

    First sample: 3/4 log(3/2) + 1/4 log(1/2) = 3/4 log 3 - log 2 = 0.1308. Second sample: 0. Mean: 0.0654.
    """
    teacher = torch.tensor([[temperature * log(3), 0.0], [0.0, 0.0]])
    found = kl_divergence(teacher, torch.zeros(2, 2), temperature)
    assert found.shape == ()
    assert float(found) == pytest.approx((0.75 * log(3) - log(2)) / 2, rel=1e-6)
    assert float(found) == pytest.approx(0.0654, abs=1e-4)


def test_kl_is_torch_s_formula_over_probabilities():
    teacher, student = logits(0), logits(1)
    expected = functional.kl_div(
        functional.log_softmax(student / 3, 1), functional.softmax(teacher / 3, 1), reduction="batchmean"
    )
    assert torch.allclose(kl_divergence(teacher, student, 3.0), expected, rtol=1e-5)


def test_equal_logits_have_no_divergence_and_a_shift_of_all_logits_changes_nothing():
    teacher = logits(0)
    assert float(kl_divergence(teacher, teacher + 7.0)) == pytest.approx(0.0, abs=1e-6)


def test_the_teacher_is_detached_and_the_student_learns():
    teacher, student = logits(0).requires_grad_(), logits(1).requires_grad_()
    kl_divergence(teacher, student).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad.abs().sum() > 0


def test_logits_far_apart_stay_finite():
    """Probabilities of 0 in float32: p log p must be 0 there, not NaN. KL is the gap of the logits, 1000."""
    found = kl_divergence(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.0, 1000.0]]))
    assert float(found) == pytest.approx(1000.0)
