"""Local differential privacy: a client clips its upload and adds Gaussian noise before sending it.

All arrays of an upload that are computed from private data are clipped together, as one vector, to the L2 norm
``C = clipping-norm``. Gaussian noise with standard deviation ``noise-multiplier * C`` is then added to each entry. For
an array that the server has sent with the same declaration, such as weights, the vector contains the change. Processing
the result (rounding, bounds, the simplex) does not weaken the guarantee.

The L2 sensitivity of a clipped upload is 2 C if a client's data are replaced by any others, and C if the client is left
out. Hence the guarantee holds for a client's data as a whole, against everyone, including the server: see `epsilon`. An
upload that is repeated after a resume counts again. Metrics, sizes and row numbers are not covered; public samples have
config keys of their own. The noise is floating-point noise from a statistical generator, and is not hardened against
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
"""The delta for which epsilon is reported."""

LARGEST_EPSILON = 1e9
"""Epsilon above this value is reported as infinite: the solver loses precision, then overflows."""


@dataclass(frozen=True)
class GaussianMechanism:
    """Clip rows to an L2 norm and add Gaussian noise in proportion to it.

    `clipping_norm` is C, above 0, in the units of the rows. `noise_multiplier` is the standard deviation of the noise
    on each entry as a multiple of C, 0 or more; 0 only clips, which limits a client's influence and hides nothing.

    Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A; clipping as in McMahan et
    al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (flat clipping).
    """

    clipping_norm: float
    noise_multiplier: float

    def __call__(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Clip each of the rows (N, F) separately and add noise."""
        clipped = torch.renorm(torch.from_numpy(rows), p=2, dim=0, maxnorm=self.clipping_norm).numpy()
        released: Rows = clipped + rng.normal(0.0, self.noise_multiplier * self.clipping_norm, rows.shape)
        return released


def private_upload(
    upload: Arrays, spec: PayloadSpec, sent: Arrays, sent_spec: PayloadSpec, config: RunConfig, *scope: int | str
) -> Arrays:
    """Clip an upload and add noise, as set in the run config.

    An array with the same declaration in the download (`sent`, `sent_spec`) is an update: its change is clipped.
    `scope` identifies the upload, as in `hetfl_flwr.seeding.generator`.

    Floating-point arrays and `ArraySpec.sensitive` counts are clipped and get noise; other arrays do not change. A
    count becomes 1 if its value is then above the standard deviation of the noise, else 0. So clipping alone preserves
    whether there are any samples, and strong noise removes more ones than it adds. An `ArraySpec.frozen` array that
    equals what the server has sent reveals nothing and does not change.
    """
    known = {one.name: sent[one.name].astype(np.float64) for one in spec.arrays if one in sent_spec.arrays}
    released = [
        one
        for one in spec.arrays
        if one.sensitive or np.dtype(one.dtype).kind == "f"
        if not (one.frozen and (upload[one.name] == known.get(one.name, 0.0)).all())
    ]
    if config.clipping_norm == 0 or not released:
        return upload
    origins = [known.get(one.name, 0.0) for one in released]
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
    """Clip each public sample (N, *shape) and add noise, as set in the run config, on the scale of the stored values.

    The L2 sensitivity of a row is 2 C if it is replaced by any other, so the guarantee holds for a row, each time that
    it is shared. Labels are shared unchanged. Raises ConfigError for texts, because tokens have no norm.
    """
    if config.public_clipping_norm == 0:
        return rows
    inputs, declared = rows["inputs"], spec.arrays[spec.names.index("inputs")]
    if declared.maximum is not None:
        raise ConfigError(
            "public-clipping-norm: texts are tokens, which cannot be clipped; set it to 0, or use an algorithm that "
            "shares no public samples"
        )
    mechanism = GaussianMechanism(config.public_clipping_norm, config.public_noise_multiplier)
    flat = inputs.reshape(len(inputs), prod(inputs.shape[1:])).astype(np.float64)
    return {**rows, "inputs": _fitted(mechanism(flat, _noise(config, *scope)).reshape(inputs.shape), declared)}


def _fitted(values: NDArray[np.float64], spec: ArraySpec) -> NDArray[Any]:
    """Return the nearest array that satisfies a declaration."""
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
    rows = rows - rows.max(-1, keepdims=True)  # does not change the result, and keeps precision
    descending = np.sort(rows, axis=-1)[..., ::-1]
    excess = (np.cumsum(descending, axis=-1) - 1) / np.arange(1, rows.shape[-1] + 1)
    kept = (descending > excess).sum(-1, keepdims=True)
    return np.maximum(rows - np.take_along_axis(excess, kept - 1, -1), 0.0)


def epsilon(noise_multiplier: float, uploads: int, delta: float = DELTA, *, sensitivity: float = 2.0) -> float:
    """Return the epsilon of a client's (epsilon, delta) guarantee after a number of uploads: the exact value, no bound.

    R uploads with Gaussian noise are equivalent to one with a noise multiplier smaller by sqrt(R) (Dong, Roth and Su,
    "Gaussian Differential Privacy", JRSS B 2022, corollary 3.3). The epsilon of that one is given by Balle and Wang,
    "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8.

    The noise multiplier, 0 or more, is the standard deviation of the noise in clipping norms; at or near 0 there is no
    guarantee, and epsilon is infinite. The L2 sensitivity of an upload, in clipping norms, is 2 if a client's data are
    replaced, and 1 if the client is left out.

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

    most = mu * mu / 2 + mu * sqrt(2 * log(1 / delta))  # the upper bound of zero-concentrated accounting
    if most > LARGEST_EPSILON:
        return inf
    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, most))  # type: ignore[no-untyped-call]


SOURCES = {"seed": "the run's seed, which anyone who knows it can subtract", "system": "the operating system's entropy"}
"""Descriptions of the sources of noise, by `noise_source`."""


UNKNOWN = "the number of a client's uploads is not known, and so no epsilon"
"""Replaces `guarantee` if the count of uploads is lost."""


def guarantee(noise_multiplier: float, uploads: int) -> str:
    """Describe the guarantee of a noise multiplier after a number of uploads.

    Examples
    --------
    >>> guarantee(10.0, 50)
    'a client has (6.57, 1e-05)-differential privacy after 50 uploads'
    """
    said = f"({epsilon(noise_multiplier, uploads):.3g}, {DELTA:g})"
    return f"a client has {said}-differential privacy after {uploads} upload{'s' * (uploads != 1)}"


def caveats(source: str) -> str:
    """Describe the assumptions of a guarantee, and what it does not cover.

    Examples
    --------
    >>> caveats("seed").split("; ")[1]
    'metrics and public samples not covered'
    """
    own = "by the run config (nodes may have own keys)"
    return f"noise from {SOURCES[source]}, {own}; metrics and public samples not covered"


def noise_source(chosen: str, engine: str) -> str:
    """Return the source of noise in an engine, "seed" or "system", for nodes that do not set their own.

    Examples
    --------
    >>> noise_source("auto", "local"), noise_source("auto", "deployment")
    ('seed', 'system')
    """
    return chosen if chosen != "auto" else "system" if engine == "deployment" else "seed"


def _noise(config: RunConfig, *scope: int | str) -> np.random.Generator:
    """Return the generator of the noise, seeded by the operating system's entropy or by the run's seed."""
    if config.noise_source == "system" or (config.noise_source == "auto" and not simulated()):
        return np.random.default_rng()
    return generator(config.seed, *scope, "noise")


def simulated() -> bool:
    """Return whether this process runs simulated clients, in the local engine or as an actor of Flower's simulation."""
    return acts_as_server() or simulates_clients()
