"""Keys of the federation: who takes part, and how the server runs the rounds."""

from decimal import Decimal
from math import ceil, inf
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config.keys import MOST, Keys, checked_path

MOST_CLIENTS = 100_000

DEFAULT_CLIENTS = 10
"""Clients of a local run that names no number."""


def _written(value: object) -> object:
    """Return one number as it would be written among several."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _seconds(text: str) -> str:
    simulated_seconds(text)
    return text


def simulated_seconds(text: str) -> list[float]:
    """Read the value of ``client-seconds``; an empty one is 1 for all.

    Raises
    ------
    ConfigError
        Not numbers above 0, separated by commas.

    Examples
    --------
    >>> simulated_seconds("1,1,20")
    [1.0, 1.0, 20.0]
    """
    try:
        seconds = [float(part) for part in (text or "1").split(",")]
    except ValueError:
        seconds = []
    if not seconds or not all(0 < value <= 1e9 for value in seconds):
        raise ConfigError(f"client-seconds = {text!r}: expected numbers above 0, at most 1e9, separated by commas")
    return seconds


def _speed(text: str, info: ValidationInfo) -> str:
    simulated_speeds(text)
    if text and info.data.get("client_seconds"):
        raise ConfigError("client-speed and client-seconds: both say how long training takes; set one of them")
    return text


def simulated_speeds(text: str) -> list[float]:
    """Read the value of ``client-speed``: floating-point operations a second; an empty one is infinitely many for all.

    Raises
    ------
    ConfigError
        Not numbers above 0, separated by commas.

    Examples
    --------
    >>> simulated_speeds("10,0.5")
    [10000000000.0, 500000000.0]
    """
    if not text:
        return [inf]
    try:
        speeds = [float(part) for part in text.split(",")]
    except ValueError:
        speeds = []
    if not speeds or not all(1e-6 <= value <= 1e9 for value in speeds):
        raise ConfigError(f"client-speed = {text!r}: expected GFLOP/s from 1e-6 to 1e9, separated by commas")
    return [1e9 * value for value in speeds]


def _mbits(text: str) -> str:
    simulated_links(text)
    return text


def simulated_links(text: str) -> list[tuple[float, float]]:
    """Read the value of ``client-mbits``: megabits a second, down and up; an empty one is infinitely many for all.

    Raises
    ------
    ConfigError
        Not numbers above 0 or pairs of them, separated by commas.

    Examples
    --------
    >>> simulated_links("50:10,2")
    [(50.0, 10.0), (2.0, 2.0)]
    """
    if not text:
        return [(inf, inf)]
    try:
        links = [tuple(map(float, part.split(":"))) for part in text.split(",")]
    except ValueError:
        links = []
    if not links or not all(len(link) <= 2 and all(1e-6 <= value <= 1e9 for value in link) for link in links):
        raise ConfigError(
            f"client-mbits = {text!r}: expected numbers from 1e-6 to 1e9, or DOWN:UP, separated by commas"
        )
    return [(link[0], link[-1]) for link in links]


def _latency(text: str) -> str:
    simulated_latency(text)
    return text


def simulated_latency(text: str) -> list[float]:
    """Read the value of ``client-latency``: seconds each way; an empty one is 0 for all.

    Raises
    ------
    ConfigError
        Not numbers from 0 on, separated by commas.

    Examples
    --------
    >>> simulated_latency("0.02,0.5")
    [0.02, 0.5]
    """
    try:
        seconds = [float(part) for part in (text or "0").split(",")]
    except ValueError:
        seconds = []
    if not seconds or not all(0 <= value <= 1e6 for value in seconds):
        raise ConfigError(f"client-latency = {text!r}: expected numbers from 0 to 1e6, separated by commas")
    return seconds


def idle_clients(nonparticipating_fraction: float, clients: int) -> int:
    """Return how many of so many clients never train."""
    return round(nonparticipating_fraction * clients)


def sampled_clients(fraction: float, clients: int) -> int:
    """Return how many of so many clients that may train are sampled in a round."""
    return ceil(Decimal(str(fraction)) * clients)


def _min_clients(number: int, info: ValidationInfo) -> int:
    clients = info.data.get("clients") or 0
    if not clients:
        return number
    idle = idle_clients(info.data.get("nonparticipating_fraction", 0.0), clients)
    most = sampled_clients(info.data.get("fraction", 1.0), clients - idle)
    if number > clients:
        raise ConfigError(f"min-clients = {number}: more than clients = {clients}")
    if number > most:
        drawn = f"of clients = {clients}, fraction and nonparticipating-fraction let {most} train in a round"
        raise ConfigError(f"min-clients = {number}: {drawn}")
    return number


def _start_clients(number: int, info: ValidationInfo) -> int:
    clients = info.data.get("clients") or number
    if number > clients:
        raise ConfigError(f"start-clients = {number}: more than clients = {clients}")
    return number


def _outlier_factor(factor: float) -> float:
    if 0 < factor < 1:
        raise ValueError("expected 1 or more, or 0 for no guard")
    return factor


class FederationKeys(Keys):
    """The clients, the rounds, and what the server waits for and sets aside."""

    clients: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_CLIENTS,
            description="Number of clients. In the local engine and the simulation, none may fail before round 1; a "
            "deployment waits for them (start-clients, start-timeout). 0: as many as owners in the local engine "
            "where partition is natural:COLUMN or files, else 10; all that exist and do not fail in a simulation; "
            "those in node-keys, or start-clients, in a deployment.",
        ),
    ] = 0
    rounds: Annotated[int, Field(ge=1, le=MOST, description="Number of training rounds.")] = 50
    fraction: Annotated[float, Field(gt=0, le=1, description="Fraction of clients sampled per round, rounded up.")] = (
        1.0
    )
    nonparticipating_fraction: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Fraction of clients, drawn by the seed, that never train, for example because they are too "
            "weak. They are evaluated like all others.",
        ),
    ] = 0.0
    min_clients: Annotated[
        int,
        AfterValidator(_min_clients),
        Field(
            ge=1,
            le=MOST,
            description="Abort the run when a round has fewer valid replies than this. A deployment that has fewer "
            "clients waits for others between rounds, for up to start-timeout.",
        ),
    ] = 1
    round_timeout: Annotated[
        float,
        Field(gt=0, le=1e9, description="Seconds that the server waits for the replies of a round."),
    ] = 3600.0
    start_clients: Annotated[
        int,
        AfterValidator(_start_clients),
        Field(
            ge=0,
            description="Number of clients with which a deployment may start; it aborts if fewer have registered "
            "after start-timeout. 0: wait for all of clients or node-keys, and after start-timeout start "
            "with more than half of them.",
        ),
    ] = 0
    start_timeout: Annotated[
        float,
        Field(
            ge=0,
            description="Seconds to wait for nodes before round 1, and in a deployment whenever there are fewer than "
            "min-clients. 0: round-timeout, in a deployment 600 at most.",
        ),
    ] = 0.0
    node_keys: Annotated[
        str,
        AfterValidator(checked_path),
        Field(
            description="File with the nodes' public keys (node-keys.toml, written by `hetfl keys`), on the server of "
            "a deployment: a node is accepted only as the client for which its key is listed. Empty: no "
            "check."
        ),
    ] = ""
    outlier_factor: Annotated[
        float,
        AfterValidator(_outlier_factor),
        Field(
            ge=0,
            description="Set an upload aside if one of its arrays is more than this many times as large as the median "
            "client's (and more than three standard deviations away). 1 or more; 0: off.",
        ),
    ] = 5.0
    evaluate_every: Annotated[
        int, Field(ge=1, le=MOST, description="Evaluate the clients every N rounds, and after the last.")
    ] = 1
    evaluate_fraction: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Fraction of clients that are evaluated, rounded up, others each time, drawn by the seed; "
            "means are over those. After the last round all are. Saves time where there are many clients.",
        ),
    ] = 1.0
    keep_best: Annotated[
        bool,
        Field(description="Clients keep and report their model with the best validation accuracy so far."),
    ] = False
    best_on: Annotated[
        Literal["own", "domains"],
        Field(
            description="Validation samples that decide keep-best: own, the client's; or domains, those of all "
            'domains, which only a simulation knows (FedH2L\'s "maximal ACC").'
        ),
    ] = "own"
    client_seconds: Annotated[
        str,
        BeforeValidator(_written),
        AfterValidator(_seconds),
        Field(
            description="Simulated seconds a client takes per round, assigned round-robin to the clients: '1,1,20' "
            "makes every third one slow. Local engine only: it orders the replies and is recorded as "
            "clock. Empty: 1."
        ),
    ] = ""
    client_speed: Annotated[
        str,
        BeforeValidator(_written),
        AfterValidator(_speed),
        Field(
            description="Speed of the clients' simulated devices in GFLOP/s, assigned round-robin: '10,1,0.1'. "
            "Training takes the time of its floating-point operations, counted as by costs = flops. Local engine only; "
            "models = fit needs it in simulations. Empty: training takes client-seconds."
        ),
    ] = ""
    client_mbits: Annotated[
        str,
        BeforeValidator(_written),
        AfterValidator(_mbits),
        Field(
            description="Simulated megabits per second of each client's link, one number or DOWN:UP, assigned "
            "round-robin: '50:10,2:0.5'. Local engine only: each training message and public sample takes the time of "
            "its bytes on the wire, beside client-seconds. Empty: none."
        ),
    ] = ""
    client_latency: Annotated[
        str,
        BeforeValidator(_written),
        AfterValidator(_latency),
        Field(
            description="Simulated seconds that a message takes each way beside its bytes, assigned round-robin. Local "
            "engine only. Empty: 0."
        ),
    ] = ""
    seed: Annotated[int, Field(ge=0, lt=2**32, description="Seed of all random numbers.")] = 0
