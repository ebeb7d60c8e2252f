"""Answers on public samples as payloads: those of a client, and what a server makes of those of all."""

from typing import Literal

from hetfl_flwr.wire.spec import ArraySpec, Dim, PayloadSpec, learnt, probabilities, row_numbers

Answers = Literal["logits", "softmax"]
"""What clients answer with: logits, or softmax scores."""


def public_consensus(pool: int, classes: int, of: Answers) -> PayloadSpec:
    """Declare what goes down: the mean answer on some rows of the pool, (R, C), and the numbers of others, (A,).

    The rows' own numbers, (R,), come first; the others are those whose answers are asked for next.
    """
    rows = Dim("R", pool)
    form = (rows, classes)
    return PayloadSpec(
        (
            row_numbers("digested", rows, pool),
            ArraySpec("consensus", form, "float32") if of == "logits" else probabilities("consensus", form),
            row_numbers("asked", Dim("A", pool), pool),
        )
    )


def public_answers(rows: int | Dim, classes: int, of: Answers) -> PayloadSpec:
    """Declare what goes up: answers on public samples, in the order in which they were asked for, (A, C).

    They are called ``logits`` or ``softmax``, as what they are.
    """
    form = (rows, classes)
    return PayloadSpec((learnt("logits", form) if of == "logits" else probabilities("softmax", form),))
