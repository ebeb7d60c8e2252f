"""Losses by which one model teaches another. Pure functions; teachers are detached."""

from torch import Tensor
from torch.nn import functional


def kl_divergence(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(teacher || student), mean over the batch.

    Parameters
    ----------
    teacher_logits, student_logits : Tensor
        Shape (B, C), before the softmax. No gradient flows to the teacher.
    temperature : float
        Softens both distributions, above 0; 1 leaves them as they are. The result is not multiplied by its square.

    Returns
    -------
    Tensor
        A scalar, 0 or more.
    """
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, 1)
    student = functional.log_softmax(student_logits / temperature, 1)
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
