"""Local differential privacy: what leaves a client is clipped and gets Gaussian noise before it is sent.

All arrays of an upload that are computed from private data, together as one vector, are clipped to the L2 norm
``C = clipping-norm``; each entry then gets Gaussian noise with standard deviation ``noise-multiplier * C``. Of an array
that the server has sent in the same declaration, such as weights, the vector holds the change. Processing of the
result (rounding, bounds, the simplex) costs no privacy.

The L2 sensitivity of a clipped upload is 2 C where a client's data are replaced by any others, C where the client is
left out. Hence the guarantee is a client's, for its data as a whole, towards everyone, the server too: see `epsilon`.
An upload that is repeated after a resume counts again. Metrics, sizes and row numbers are not covered, and
public samples only by keys of their own. Noise is floating-point, of a statistical generator, and not hardened against
attacks on its lowest bits (Mironov, CCS 2012).
"""

from dataclasses import dataclass
from math import inf, log, prod, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hetfl_flwr.common.flower import acts_as_server, simulates_clients
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.spec import Arrays, ArraySpec, PayloadSpec

Rows = NDArray[np.float64]

DELTA = 1e-5
"""The delta for which reports state epsilon."""

LARGEST_EPSILON = 1e9
"""Epsilon above this value is reported as infinite: the solver runs out of digits, then of range."""


@dataclass(frozen=True)
class GaussianMechanism:
    """Clips rows to an L2 norm and adds Gaussian noise in proportion to it.

    Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A; clipping as in McMahan et
    al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (flat clipping).

    Parameters
    ----------
    clipping_norm : float
        C, above 0, in the units of the rows.
    noise_multiplier : float
        Standard deviation of the noise on each entry, in C; 0 or more. 0: clipping alone, which bounds what one client
        can do to the others, and hides nothing.
    """

    clipping_norm: float
    noise_multiplier: float

    def __call__(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Return rows (N, F), each clipped by itself, with noise."""
        clipped = torch.renorm(torch.from_numpy(rows), p=2, dim=0, maxnorm=self.clipping_norm).numpy()
        released: Rows = clipped + rng.normal(0.0, self.noise_multiplier * self.clipping_norm, rows.shape)
        return released


def private_upload(
    upload: Arrays, spec: PayloadSpec, sent: Arrays, sent_spec: PayloadSpec, config: RunConfig, *scope: int | str
) -> Arrays:
    """Clip an upload and add noise, as the run config sets.

    Parameters
    ----------
    upload, sent : mapping of str to array
        The upload, and what the server has sent in the round.
    spec, sent_spec : PayloadSpec
        Their declarations. An array that both declare alike is an update: its change is clipped.
    config : RunConfig
        ``clipping-norm``, ``noise-multiplier``, ``noise-source`` and ``seed``.
    *scope : int or str
        Identifies the upload, as in `hetfl_flwr.seeding.generator`.

    Returns
    -------
    mapping of str to array
        Arrays that fit the declaration: floating-point ones and `ArraySpec.sensitive` counts clipped and noised,
        others unchanged. A count becomes 1 if its clipped and noised value is above the noise's standard deviation,
        else 0: so clipping alone changes no 1 or 0, and much noise drops more than it makes up.
    """
    released = [one for one in spec.arrays if one.sensitive or np.dtype(one.dtype).kind == "f"]
    if config.clipping_norm == 0 or not released:
        return upload
    origins = [sent[one.name].astype(np.float64) if one in sent_spec.arrays else 0.0 for one in released]
    learnt = [upload[one.name] > 0 if one.sensitive else upload[one.name] for one in released]
    changes = [np.ravel(values - origin) for values, origin in zip(learnt, origins, strict=True)]
    mechanism = GaussianMechanism(config.clipping_norm, config.noise_multiplier)
    noised = mechanism(np.concatenate(changes, dtype=np.float64)[None], _noise(config, *scope))[0]
    private, deviation, end = dict(upload), config.clipping_norm * config.noise_multiplier, 0
    for one, values, origin in zip(released, learnt, origins, strict=True):
        start, end = end, end + values.size
        values = origin + noised[start:end].reshape(values.shape)
        private[one.name] = _fitted((values > deviation).astype(np.float64) if one.sensitive else values, one)
    return private


def private_rows(rows: Arrays, spec: PayloadSpec, config: RunConfig, *scope: int | str) -> Arrays:
    """Clip each public sample and add noise, as the run config sets: (N, *shape), on the scale of the stored values.

    A row's L2 sensitivity is 2 C where it is replaced by any other, so the guarantee is a row's, for each time that it
    is shared. Labels are shown as they are.

    Raises
    ------
    ConfigError
        The rows are texts: tokens have no norm.
    """
    if config.public_clipping_norm == 0:
        return rows
    inputs, declared = rows["inputs"], spec.arrays[spec.names.index("inputs")]
    if declared.maximum is not None:
        raise ConfigError(
            "public-clipping-norm: texts are tokens, which cannot be clipped; set it to 0, or take an algorithm that "
            "shares no public samples"
        )
    mechanism = GaussianMechanism(config.public_clipping_norm, config.public_noise_multiplier)
    flat = inputs.reshape(len(inputs), prod(inputs.shape[1:])).astype(np.float64)
    return {**rows, "inputs": _fitted(mechanism(flat, _noise(config, *scope)).reshape(inputs.shape), declared)}


def _fitted(values: NDArray[np.float64], spec: ArraySpec) -> NDArray[Any]:
    """Return the nearest array that a declaration allows."""
    dtype = np.dtype(spec.dtype)
    least, most = -inf, inf
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = np.rint(values)
    if spec.sums_to_one:
        values = onto_simplex(values)
    low = least if spec.minimum is None else spec.minimum
    high = most if spec.maximum is None else spec.maximum
    return np.asarray(np.clip(values, low, high), dtype)


def onto_simplex(rows: Rows) -> Rows:
    """Return the nearest probability distribution to each row (N, C), in L2 norm.

    Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient Projections onto the l1-Ball", ICML 2008, Fig. 1.

    Examples
    --------
    >>> onto_simplex(np.array([[0.5, 0.5, 0.0], [2.0, 0.0, 0.0], [0.4, 0.4, -0.6]]))
    array([[0.5, 0.5, 0. ],
           [1. , 0. , 0. ],
           [0.5, 0.5, 0. ]])
    """
    rows = rows - rows.max(-1, keepdims=True)  # which moves no nearest point, and keeps digits
    descending = np.sort(rows, axis=-1)[..., ::-1]
    excess = (np.cumsum(descending, axis=-1) - 1) / np.arange(1, rows.shape[-1] + 1)
    kept = (descending > excess).sum(-1, keepdims=True)
    return np.maximum(rows - np.take_along_axis(excess, kept - 1, -1), 0.0)


def epsilon(noise_multiplier: float, uploads: int, delta: float = DELTA, *, sensitivity: float = 2.0) -> float:
    """Return the epsilon of a client's (epsilon, delta) guarantee after a number of uploads: exact, no bound.

    R uploads, each with Gaussian noise, are one with a noise multiplier smaller by sqrt(R) (Dong, Roth and Su,
    "Gaussian Differential Privacy", JRSS B 2022, corollary 3.3), whose epsilon is that of Balle and Wang, "Improving
    the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise in clipping norms, 0 or more. 0, or next to nothing: no guarantee, infinite.
    uploads : int
        R, 0 or more.
    delta : float
        In (0, 1).
    sensitivity : float
        L2 sensitivity of an upload in clipping norms, above 0: 2 where a client's data are replaced, 1 where the client
        is left out.

    Examples
    --------
    >>> round(epsilon(3.7306, 1, 1e-5, sensitivity=1.0), 3)
    1.0
    >>> epsilon(10.0, 25) == epsilon(2.0, 1)
    True
    """
    if uploads == 0 or noise_multiplier == 0:
        return inf if uploads else 0.0
    from scipy.optimize import brentq  # slow to import, and few runs add noise
    from scipy.special import log_ndtr, ndtr

    mu = sensitivity * sqrt(uploads) / noise_multiplier

    def excess(value: float) -> float:
        return float(ndtr(mu / 2 - value / mu) - np.exp(value + log_ndtr(-mu / 2 - value / mu))) - delta

    most = mu * mu / 2 + mu * sqrt(2 * log(1 / delta))  # of the zero-concentrated accounting, which is an upper bound
    if most > LARGEST_EPSILON:
        return inf
    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, most))  # type: ignore[no-untyped-call]


SOURCES = {"seed": "the run's seed, which anyone who knows it can subtract", "system": "the operating system's entropy"}
"""The sources of noise in words, by `noise_source`."""


UNKNOWN = "the number of a client's uploads is not known, and so no epsilon"
"""Replaces `guarantee` where the count of uploads is lost."""


def guarantee(noise_multiplier: float, uploads: int) -> str:
    """Return the guarantee of a noise multiplier, in words.

    Examples
    --------
    >>> guarantee(10.0, 50)
    'a client has (6.57, 1e-05)-differential privacy after 50 uploads'
    """
    said = f"({epsilon(noise_multiplier, uploads):.3g}, {DELTA:g})"
    return f"a client has {said}-differential privacy after {uploads} upload{'s' * (uploads != 1)}"


def caveats(source: str) -> str:
    """Return the assumptions of a guarantee, and what it does not cover.

    Examples
    --------
    >>> caveats("system")
    "noise from the operating system's entropy, by the run config (nodes may have own keys); metrics not covered"
    """
    return f"noise from {SOURCES[source]}, by the run config (nodes may have own keys); metrics not covered"


def noise_source(chosen: str, engine: str) -> str:
    """Return the source of noise in an engine, for nodes without a key of their own: seed or system.

    Examples
    --------
    >>> noise_source("auto", "local"), noise_source("auto", "deployment")
    ('seed', 'system')
    """
    return chosen if chosen != "auto" else "system" if engine == "deployment" else "seed"


def _noise(config: RunConfig, *scope: int | str) -> np.random.Generator:
    """Return the generator of the noise: from the operating system's entropy, or the run's seed."""
    if config.noise_source == "system" or (config.noise_source == "auto" and not simulated()):
        return np.random.default_rng()
    return generator(config.seed, *scope, "noise")


def simulated() -> bool:
    """Return whether this process runs simulated clients: the local engine's, or an actor of Flower's."""
    return acts_as_server() or simulates_clients()
