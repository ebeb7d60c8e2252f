from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.learning.distillation import decoupled_kd, kl_divergence

LABELS = torch.tensor([3, 0, 1, 1, 2])


def logits(seed):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


def softmax(values):
    powers = [exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def divergence(teacher, student):
    return sum(p * log(p / q) for p, q in zip(teacher, student, strict=True))


def slow_decoupled_kd(student_logits, teacher_logits, labels, temperature):
    """Sample by sample, by the definition of CHFL's Eq. (6)-(7)."""
    target_term = non_target_term = 0.0
    for student, teacher, label in zip(student_logits.tolist(), teacher_logits.tolist(), labels.tolist(), strict=True):
        own, distillation = softmax(student)[label], softmax(teacher)[label]
        target_term += divergence([distillation, 1 - distillation], [own, 1 - own])
        student_rest = [value for place, value in enumerate(student) if place != label]
        teacher_rest = [value / temperature for place, value in enumerate(teacher) if place != label]
        non_target_term += divergence(softmax(teacher_rest), softmax(student_rest))
    return target_term / len(labels), non_target_term / len(labels)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_of_two_classes_by_hand(temperature):
    """At temperature T the logits (T log 3, 0) are the distribution (3/4, 1/4); the student says (1/2, 1/2).

    First sample: 3/4 log(3/2) + 1/4 log(1/2) = 3/4 log 3 - log 2 = 0.1308. Second sample: 0. Mean: 0.0654. Of
    probabilities of 0 in float32 p log p must be 0, not NaN: there KL is the gap of the logits, 1000.
    """
    teacher = torch.tensor([[temperature * log(3), 0.0], [0.0, 0.0]])
    found = kl_divergence(teacher, torch.zeros(2, 2), temperature)
    assert found.shape == ()
    assert float(found) == pytest.approx((0.75 * log(3) - log(2)) / 2, rel=1e-6)
    far = kl_divergence(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.0, 1000.0]]))
    assert float(far) == pytest.approx(1000.0)


@pytest.mark.parametrize("loss", [kl_divergence, lambda t, s: sum(decoupled_kd(s, t, LABELS, 2.0))])
def test_the_teacher_is_detached_and_the_student_learns(loss):
    teacher, student = logits(0).requires_grad_(), logits(1).requires_grad_()
    loss(teacher, student).backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0


@given(st.integers(1, 6), st.integers(2, 7), st.floats(0.3, 20), st.floats(0.1, 6), st.integers(0, 1000))
@settings(max_examples=60)
def test_decoupled_terms_are_the_slow_ones(batch, classes, temperature, spread, seed):
    rng = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(batch, classes, generator=rng, dtype=torch.float64) * spread for _ in range(2))
    labels = torch.randint(classes, (batch,), generator=rng)
    expected = slow_decoupled_kd(student, teacher, labels, temperature)
    found = decoupled_kd(student, teacher, labels, temperature)
    assert [term.item() for term in found] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_two_classes_have_no_non_target_term():
    teacher, student = logits(0)[:, :2], logits(1)[:, :2].requires_grad_()
    target_term, non_target_term = decoupled_kd(student, teacher, LABELS % 2, 2.0)
    assert torch.allclose(target_term, kl_divergence(teacher, student), rtol=1e-5)
    non_target_term.backward()
    assert non_target_term.item() == 0
    assert not student.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 11.0])
def test_saturated_logits_leave_terms_and_gradients_finite(dtype, temperature):
    """Each of teacher and student is sure of class 0, of class 1, of all but one or of none, up to 10,000."""
    sure = [[1e4, 0, 0], [0, 1e4, 0], [-1e4, 0, 0], [1e4, 1e4, -1e4], [-1e4, -1e4, 1e4], [0, 0, 0], [1e4, -1e4, 0]]
    rows = torch.tensor(sure, dtype=dtype)
    teacher = rows.repeat_interleave(len(sure), 0).repeat(3, 1)
    student = rows.repeat(3 * len(sure), 1).requires_grad_()
    labels = torch.arange(3).repeat_interleave(len(sure) ** 2)
    terms = decoupled_kd(student, teacher, labels, temperature)
    sum(terms).backward()
    for term in terms:
        assert term.dtype == dtype
        assert 100 < term.item() < 2e4
    assert student.grad.isfinite().all()
    assert student.grad.any()
