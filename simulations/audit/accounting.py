"""Privacy guarantees of a run, including those against observers who cannot tell which clients were sampled.

With sampled clients, the accountant is Google's ``dp-accounting`` (the extra ``accounting``). It keeps privacy loss
distributions: Koskela, Jälkö and Honkela, "Computing Tight Differential Privacy Guarantees Using FFT",
AISTATS 2020, discretized as in Doroshenko et al., "Connect the Dots", PoPETs 2022, so that epsilon is an upper bound.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, isinf

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.packages import lacking
from hetfl_flwr.config import RunConfig, idle_clients, sampled_clients
from hetfl_flwr.wire.privacy import DELTA, UNKNOWN, epsilon
from simulations.reports.runs import Run

SENSITIVITY = 2.0
"""L2 sensitivity of a clipped upload, in clipping norms, if a client's data are replaced."""

FINEST, STEPS = 1e-4, 20_000
"""The privacy loss is rounded to multiples of the first or, if that is coarser, of epsilon divided by the second."""

FAR = 12.0
"""Standard deviations of the privacy loss, from its mean, that are kept; the rest, 1e-32, counts toward delta."""

Deltas = NDArray[np.float64]


@dataclass(frozen=True)
class Guarantee:
    """An epsilon at delta = 1e-5, for a client whose data are replaced by any others.

    `holds` says against whom, and by what. `uploads` is the number of uploads that count, or of rounds in which there
    may have been one; `rate` is the share of the clients that are sampled in a round, in (0, 1]. `epsilon` is 0 or
    more, and infinite if nothing is guaranteed.
    """

    holds: str
    uploads: int
    rate: float
    epsilon: float


def amplified(noise_multiplier: float, rate: float, rounds: int) -> float:
    """Return the epsilon at `DELTA` of a client whose sampled rounds are unknown, by ``dp-accounting``.

    In each round, a fixed number of clients is sampled without replacement. The delta of a round at an epsilon of 0 or
    more is then `rate` times the delta without sampling at log(1 + (exp(epsilon) - 1) / rate): Balle, Barthe and
    Gaboardi, "Privacy Amplification by Subsampling: Tight Analyses via Couplings and Divergences", NeurIPS 2018,
    theorem 9. Below 0, the two data sets are swapped, and the curve of both sides is composed: Lebeda, Regehr, Kamath
    and Steinke, "Avoiding Pitfalls for Privacy Accounting of Subsampled Mechanisms under Composition", SaTML 2025, show
    what goes wrong with only one side, or with the formulas for Poisson sampling. Raises `ModuleNotFoundError` if
    ``dp-accounting`` is not installed.

    `noise_multiplier` is the standard deviation of the noise in clipping norms, 0 or more, and `rate` as in
    `Guarantee`; 1: no amplification. Raises `ModuleNotFoundError` if ``dp-accounting`` is not installed.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    if rounds == 0 or noise_multiplier == 0 or isinf(most := epsilon(noise_multiplier, rounds)):
        return inf if rounds else 0.0
    mu = SENSITIVITY / noise_multiplier
    interval = _interval(rate * most)
    last = ceil((mu * mu / 2 + FAR * mu) / interval)
    above = _sampled(interval * np.arange(last + 1, dtype=np.float64), mu, rate)
    below = (1 - np.exp(-np.arange(1, last + 1) * interval) * (1 - above[1:]))[::-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -last, last, np.minimum.accumulate(np.concatenate([below, above]))
    )
    with np.errstate(all="ignore"):  # of losses so unlikely that they are rounded to nothing
        found = PrivacyLossDistribution(pmf).self_compose(rounds).get_epsilon_for_delta(DELTA)
    return min(float(found), most)


def guarantees(run: Run) -> tuple[list[Guarantee], str]:
    """Return the guarantees of the client with the most uploads, and why one of them is unknown.

    Both are empty without noise. With sampled clients and without ``dp-accounting``, the text says how to install it.
    """
    config = RunConfig.from_flat({**run.config, "clients": run.config.get("clients") or run.summary["clients"]})
    if not config.noise_multiplier:
        return [], ""
    counted = [client["uploads"] for client in run.clients if client["uploads"] is not None]
    if not counted:
        return [], UNKNOWN
    noise, uploads, rounds = config.noise_multiplier, max(counted), int(run.summary["rounds"])
    found = [Guarantee("everyone, the server too", uploads, 1.0, epsilon(noise, uploads))]
    try:
        rate = sampling_rate(config)
        if rate < 1 and sum(counted) > rate * able_clients(config) * rounds:
            return found, "no epsilon for sampled clients: a resumed run repeated rounds, with the same clients"
        if rate < 1:
            who = "those who cannot tell which clients were sampled"
            found.append(Guarantee(who, rounds, float(rate), amplified(noise, float(rate), rounds)))
    except ModuleNotFoundError as error:
        if (line := lacking(error)) is None:
            raise
        return found, f"no epsilon for sampled clients: {line}"
    return found, ""


def sampling_rate(config: RunConfig) -> Fraction:
    """Return the fraction of the clients that may train that is sampled in a round.

    Examples
    --------
    >>> sampling_rate(RunConfig.from_flat({"clients": 10, "fraction": 0.25}))
    Fraction(3, 10)
    """
    able = able_clients(config)
    return Fraction(sampled_clients(config.fraction, able), able)


def able_clients(config: RunConfig) -> int:
    """Return the number of clients that may train."""
    return config.clients - idle_clients(config.nonparticipating_fraction, config.clients)


def _sampled(values: Deltas, mu: float, rate: float) -> Deltas:
    """Return the delta of a round at values of epsilon, 0 or more."""
    from scipy.special import log_ndtr, ndtr

    own = values + np.log1p(-(1 - rate) * np.exp(-values)) - np.log(rate)
    deltas: Deltas = rate * (ndtr(mu / 2 - own / mu) - np.exp(own + log_ndtr(-mu / 2 - own / mu)))
    return np.clip(deltas, 0, 1)


def _interval(value: float) -> float:
    return max(FINEST, value / STEPS)
