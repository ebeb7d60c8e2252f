"""Membership inference: which samples a client trained on."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from torch import Tensor

from simulations.audit.imitation import logits_of
from simulations.audit.measures import (
    LOW_RATE,
    AttackResult,
    Figure,
    ScorePair,
    Scores,
    auc,
    pooled,
    true_positive_rate,
)
from simulations.audit.readings import PayloadReading, compared
from simulations.audit.subject import Predictor, joined
from simulations.reports.runs import mean_of

MIN_DEVIATION = 1e-6
"""Minimum standard deviation of the confidences of shadow models."""


def confidences(logits: Tensor, labels: Tensor) -> Scores:
    """Return log(p / (1 - p)) for the probability p of each sample's class, (N,), which is close to normal.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, section V: logit scaling, in the
    numerically stable form z_y - log(sum of exp z over the other classes).
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -inf).logsumexp(1)
    found: Scores = (own - others).cpu().numpy()
    return found


def likelihood_ratios(own: Scores, shadows: Sequence[Scores]) -> Scores:
    """Score each sample (N,) by how unlikely its confidence is for models that have not seen it.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022: offline LiRA. A sample's score is 1
    - Pr[Z > confidence] for a normal Z with the mean of at least two shadow models' confidences of that sample and, as
    recommended for few shadow models, one variance for all samples. The result is the z value, a monotone function of
    the score that does not round to 1.

    Examples
    --------
    >>> likelihood_ratios(np.array([3.0, 1.0]), [np.array([0.0, 0.0]), np.array([2.0, 2.0])]).tolist()
    [2.0, 0.0]
    """
    known = np.stack(shadows)
    deviation = max(float(np.sqrt(known.var(axis=0).mean())), MIN_DEVIATION)
    return np.asarray((own - known.mean(axis=0)) / deviation)


def chance_rate(others: int) -> float:
    """Return the expected `true_positive_rate` if positives and `others` negatives have the same distribution.

    The threshold is the (k + 1)-th highest score of n negatives, where k false positives are allowed: (k + 1) / (n +
    1).

    Examples
    --------
    >>> chance_rate(199)
    0.01
    """
    return (int(others * LOW_RATE) + 1) / (others + 1)


def by_likelihood(readings: Sequence[PayloadReading], shadows: int) -> AttackResult:
    """Infer membership from high confidence relative to shadow models: for each client this many, 2 or more."""

    def scorer(reading: PayloadReading) -> Callable[[Predictor], ScorePair]:
        subject, known = reading.subject, reading.subject.known
        size = min(len(subject.trained_on), max(len(known) // 2, 2))
        rows = joined([subject.members, subject.strangers])  # scaled together: scores do not depend on the group

        def confident(predictor: Predictor) -> Scores:
            return confidences(logits_of(predictor, rows), rows.labels)

        others = list[Scores]()  # for uploads of clients without this client's samples
        for number in range(shadows):
            rng = subject.rng("shadow", number)
            others.append(confident(reading.imitated(known.some(rng.permutation(len(known))[:size]), rng)))
        return lambda one: np.split(likelihood_ratios(confident(one), others), [len(subject.members)])

    own, without = compared(readings, scorer)
    areas = [mean_of([auc(*one) for one in several]) for several in (own, without)]
    rates = [pooled(true_positive_rate, several) for several in (own, without)]
    guessed = chance_rate(sum(len(negative) for _, negative in own))
    figures: list[Figure] = [
        ("AUC", areas[0], areas[1], 0.5, None),
        ("TPR at 1 % FPR", rates[0], rates[1], guessed, None),
    ]
    return AttackResult(readings[0].payload, f"{readings[0].knows}; {shadows} shadow models", figures)
