"""Does federation help? The difference of each client's final accuracy from training alone, and how sure it is.

Runs are paired with the run of `local` on the same rows and seed. Accuracies and differences are fractions; in words
and tables they are percentage points.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.config.data_keys import DataKeys
from hetfl_flwr.runs.schema import ClientRecord, name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.runs import INCIDENTAL, POOLED, Group, Run, figures, group_runs, method_of
from simulations.reports.tables import UNEQUAL_KEYS

if TYPE_CHECKING:
    import pandas as pd

LOCAL = "local"
"""What others are compared with: the algorithm in which each client trains by itself."""

LEVEL = 0.05
"""A difference counts as shown where its corrected p value is below this."""

WAYS = {"data-dir", "normalize", "augment", "pooled"}
"""Keys of the data that do not say which rows a client has, or what is in them."""

SAME = (
    "seed",
    "clients",
    *(key for key in sorted(str(field.alias) for field in DataKeys.model_fields.values()) if key not in WAYS),
)
"""Keys in which two runs must agree to be paired."""

NO_ANSWER = (
    "gains are differences from training alone: name runs of local, and of other methods on the same data and seeds"
)
"""What is said where there is nothing to compare."""

Verdict = Literal["helps", "harms", "unclear"]

VERBS = {LOCAL: ("helps", "harms"), POOLED: ("is above pooled for", "is below pooled for")}
"""What is said of a method that is better or worse, by what it is compared with."""


@dataclass(frozen=True)
class Measure:
    """What is compared: its name, and where a client's final value stands."""

    name: str
    of: Callable[[ClientRecord], float | None]


ACCURACY = Measure("accuracy", lambda client: client["accuracy"])


def client_label(client: ClientRecord) -> str:
    """Return what people call a client."""
    return called(client["partition"], name_of(client))


@dataclass(frozen=True)
class Estimate:
    """A mean difference, its 95 % interval, the two-sided p value of no difference, and what both are taken from."""

    mean: float
    low: float
    high: float
    p: float
    source: Literal["seeds", "rows"]


@dataclass(frozen=True)
class Gain:
    """The difference that a method makes to one client.

    Parameters
    ----------
    method : str
        As `group_runs` labels it.
    client : int
        The client id.
    name : str
        What people call the client.
    seeds : int
        How many pairs of runs there are.
    rows : int
        The fewest test rows that the client has in any of them.
    baseline, accuracy : float
        The means over these of what it is compared with, and of the method.
    difference, low, high : float
        Their difference, and its 95 % interval by itself.
    p, p_corrected : float
        Two-sided p value of no difference, and the one that Holm's correction for all comparisons makes of it.
    source : {"seeds", "rows"}
        Whether the interval is taken from the spread over seeds, or from the number of test rows.
    verdict : {"helps", "harms", "unclear"}
        By `p_corrected`.
    words : str
        The verdict as a person would say it.
    """

    method: str
    client: int
    name: str
    seeds: int
    rows: int
    baseline: float
    accuracy: float
    difference: float
    low: float
    high: float
    p: float
    p_corrected: float
    source: Literal["seeds", "rows"]
    verdict: Verdict
    words: str


@dataclass(frozen=True)
class Answer:
    """What a set of runs says of the clients' gains.

    Parameters
    ----------
    baseline : str
        What methods are compared with: `LOCAL`, or where there is none `POOLED`.
    gains : tuple of Gain
        By method, then by client.
    sentences : dict
        One a method.
    means : dict
        By method, the difference of the mean over clients; None with one seed.
    left_out : tuple of str
        Runs and clients that are in no pair, each with the reason.
    notes : tuple of str
        How all of it was computed.
    """

    baseline: str
    gains: tuple[Gain, ...]
    sentences: dict[str, str]
    means: dict[str, Estimate | None]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def methods(self) -> dict[str, list[Gain]]:
        """The gains of each method."""
        found: dict[str, list[Gain]] = {}
        for gain in self.gains:
            found.setdefault(gain.method, []).append(gain)
        return found

    def frame(self) -> "pd.DataFrame":
        """Return one row a method and client."""
        import pandas as pd

        return pd.DataFrame([asdict(gain) for gain in self.gains], columns=list(Gain.__dataclass_fields__))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return asdict(self) | {"comparisons": len(self.gains)}


def answer(runs: Sequence[Run], measure: Measure = ACCURACY) -> Answer | None:
    """Compare the runs of each method with those of training alone; None without such a run, or without others.

    Parameters
    ----------
    runs : sequence of Run
        Of any number of methods and seeds, at least one.
    measure : Measure
        What is compared; more is better.
    """
    groups = group_runs(runs)
    baseline = next((name for name in VERBS if any(method_of(run) == name for run in runs)), None)
    others = [group for group in groups if method_of(group.runs[0]) != baseline]
    if baseline is None or not others:
        return None
    bases = [run for run in runs if method_of(run) == baseline]
    ready = [base for base in bases if not _unfinished(base)]
    left_out = [f"{_called(base)}: {_unfinished(base)}" for base in bases if _unfinished(base)]
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for group in others:
        for run in group.runs:
            partner = _unfinished(run) or _partner(run, ready, baseline)
            if isinstance(partner, str):
                left_out.append(f"{_called(run)}: {partner}")
            else:
                pairs.setdefault(group.label, []).append((run, partner))
    used = {base.folder for several in pairs.values() for _, base in several}
    left_out += [
        f"{_called(base)}: no run of another method has its data and seed" for base in ready if base.folder not in used
    ]
    found = _estimates(pairs, measure, left_out)
    corrected = holm([estimate.p for *_, estimate in found])
    gains = tuple(_gain(one, p, baseline, len(found)) for one, p in zip(found, corrected, strict=True))
    means = {label: _mean_over_clients(several, measure) for label, several in pairs.items()}
    by_method = {label: [gain for gain in gains if gain.method == label] for label in pairs}
    sentences = {label: _sentence(label, own, means[label], baseline) for label, own in by_method.items() if own}
    notes = _notes(gains, baseline, _unequal(others, pairs, baseline))
    return Answer(baseline, gains, sentences, means, tuple(left_out), notes)


# --- who is compared with whom -------------------------------------------------------------------


@cache
def _defaults() -> dict[str, Value]:
    return RunConfig().to_flat()


def _setting(run: Run, key: str) -> Value | None:
    """Return a key's value; a run that is older than the key has its default."""
    return figures(run)["clients"] if key == "clients" else run.config.get(key, _defaults().get(key))


def _called(run: Run) -> str:
    """Return a run's method and folder: in several sweeps folders have the same names."""
    return f"{method_of(run)} {run.name}"


def _unfinished(run: Run) -> str:
    reached, planned = figures(run)["rounds"], run.config["rounds"]
    return "" if reached == planned else f"it has not ended: {reached} of {planned} rounds"


def _partner(run: Run, bases: Sequence[Run], baseline: str) -> Run | str:
    """Return the run to pair a run with, or why there is none.

    Of several, it is the one with the most other settings in common.
    """
    bases = [base for base in bases if _setting(base, "seed") == _setting(run, "seed")] or bases
    unlike = {base.folder: _unlike(run, base) for base in bases}
    fitting = [base for base in bases if not unlike[base.folder]]
    if fitting:
        return min(fitting, key=lambda base: _other_settings(run, base))
    if not bases:
        return f"no run of {baseline} has ended"
    nearest = min(bases, key=lambda base: len(unlike[base.folder]))
    return f"no run of {baseline} to pair it with; {_called(nearest)} differs in {', '.join(unlike[nearest.folder])}"


def _unlike(run: Run, base: Run) -> list[str]:
    """Return in what two runs cannot be paired: each key with both values."""
    both = {key: (_setting(run, key), _setting(base, key)) for key in SAME}
    found = [f"{key} ({one} / {other})" for key, (one, other) in both.items() if one != other]
    return found or _unlike_rows(run, base)


def _unlike_rows(run: Run, base: Run) -> list[str]:
    """Return in what the rows of two runs differ, as far as ``clients.json`` tells."""
    for one in (run, base):
        if not one.clients or any(client["test"] is None for client in one.clients):
            return [f"clients.json ({_called(one)} does not say how many test rows its clients have)"]
    counts: list[Literal["test", "train"]] = ["test"]
    if POOLED not in map(method_of, (run, base)):
        counts.append("train")
    for count in counts:
        own, others = ({client["partition"]: client[count] for client in one.clients} for one in (run, base))
        for client_id in sorted(own.keys() | others.keys()):
            if own.get(client_id) != others.get(client_id):
                return [f"{count} rows of client {client_id} ({own.get(client_id)} / {others.get(client_id)})"]
    return []


def _other_settings(run: Run, base: Run) -> int:
    """Return in how many settings two runs differ, those of one algorithm left out."""
    keys = {key for key in run.config.keys() | base.config.keys() if "." not in key and key not in INCIDENTAL}
    return sum(_setting(run, key) != _setting(base, key) for key in keys)


def _unequal(groups: Sequence[Group], pairs: Mapping[str, Sequence[tuple[Run, Run]]], baseline: str) -> list[str]:
    """Say which methods have trained otherwise than what they are compared with, apart from their algorithm."""
    lines = []
    for label in (group.label for group in groups if group.label in pairs):
        found = {
            f"{key} ({_setting(run, key)} / {_setting(base, key)})": None
            for run, base in pairs[label]
            for key in ("rounds", *UNEQUAL_KEYS)
            if key not in SAME and _setting(run, key) != _setting(base, key)
        }
        if found:
            lines.append(f"Not on equal terms: {label} and {baseline} differ in {', '.join(found)}.")
    return lines


# --- figures -------------------------------------------------------------------------------------

_Found = tuple[str, ClientRecord, list[float], list[float], int, Estimate]
"""Method, client, its values with the method and with the baseline, the fewest test rows, and what comes of them."""


def _estimates(pairs: Mapping[str, Sequence[tuple[Run, Run]]], measure: Measure, left_out: list[str]) -> list[_Found]:
    found: list[_Found] = []
    for label, several in pairs.items():
        values: dict[int, tuple[ClientRecord, list[float], list[float], list[int]]] = {}
        for run, base in several:
            before = {client["partition"]: measure.of(client) for client in base.clients}
            for client in run.clients:
                after, alone = measure.of(client), before.get(client["partition"])
                if after is None or alone is None:
                    lacking = run if after is None else base
                    left_out.append(f"{_called(lacking)}: {client_label(client)} has no final {measure.name}")
                    continue
                own = values.setdefault(client["partition"], (client, [], [], []))
                own[1].append(after)
                own[2].append(alone)
                own[3].append(client["test"] or 0)
        for client, after_each, alone_each, rows in (values[key] for key in sorted(values)):
            estimate = compared(after_each, alone_each, min(rows))
            found.append((label, client, after_each, alone_each, min(rows), estimate))
    return found


def compared(after: Sequence[float], before: Sequence[float], rows: int) -> Estimate:
    """Return the mean difference of fractions that were measured under the same seeds.

    Its interval is Student's t over the seeds. Where there is one seed, or all differences are equal, it is the normal
    approximation for two proportions of `rows` independent rows each.

    Examples
    --------
    >>> estimate = compared([0.8, 0.9, 0.85], [0.7, 0.75, 0.8], 100)
    >>> round(estimate.mean, 3), round(estimate.low, 3), round(estimate.high, 3), estimate.source
    (0.1, -0.024, 0.224, 'seeds')
    """
    differences = np.subtract(after, before)
    if len(differences) > 1 and differences.std() > 1e-9:
        return over_seeds(differences)
    return of_rows(fmean(after), fmean(before), rows)


def over_seeds(differences: NDArray[np.float64]) -> Estimate:
    """Return the mean of two or more unequal differences, its interval and p value by Student's t."""
    from scipy.special import stdtr, stdtrit

    freedom = len(differences) - 1
    mean, error = differences.mean(), differences.std(ddof=1) / np.sqrt(len(differences))
    half = stdtrit(freedom, 0.975) * error
    p = 2 * stdtr(freedom, -abs(mean) / error)
    return Estimate(float(mean), float(mean - half), float(mean + half), float(p), "seeds")


def of_rows(after: float, before: float, rows: int) -> Estimate:
    """Return the difference of two proportions of as many rows each, by the normal approximation (Wald).

    Where that has no width, since both are 0 or 1, one success and one failure are added to each for the width.
    """
    from scipy.special import ndtr, ndtri

    rows = max(rows, 1)
    variance = (after * (1 - after) + before * (1 - before)) / rows
    if variance <= 0:
        added = [(value * rows + 1) / (rows + 2) for value in (after, before)]
        variance = sum(value * (1 - value) for value in added) / (rows + 2)
    mean, error = after - before, float(np.sqrt(variance))
    half = float(ndtri(0.975)) * error
    return Estimate(mean, mean - half, mean + half, float(2 * ndtr(-abs(mean) / error)), "rows")


def holm(values: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction for as many comparisons (Scand. J. Statist., 1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(values, kind="stable")
    steps = np.asarray(values, dtype=float)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(values) else steps
    return [float(value) for value in corrected]


def _mean_over_clients(pairs: Sequence[tuple[Run, Run]], measure: Measure) -> Estimate | None:
    """Return the difference of the mean over clients; None with one seed, whose clients may share their test rows."""
    differences = []
    for run, base in pairs:
        before = {client["partition"]: measure.of(client) for client in base.clients}
        both = [(measure.of(client), before.get(client["partition"])) for client in run.clients]
        known = [after - alone for after, alone in both if after is not None and alone is not None]
        if known:
            differences.append(fmean(known))
    spread = np.array(differences)
    return over_seeds(spread) if len(spread) > 1 and spread.std() > 1e-9 else None


# --- words ---------------------------------------------------------------------------------------


def points(value: float, *, sign: bool = False) -> str:
    """Return a fraction in percentage points, as in ``4.2`` or ``+4.2``; none is ``-0.0``."""
    rounded = round(100 * value, 1) + 0.0
    return f"{rounded:+.1f}" if sign and rounded else f"{rounded:.1f}"


def interval(low: float, high: float) -> str:
    """Return an interval in percentage points, as in ``(2.1 to 6.3)``."""
    return f"({points(low)} to {points(high)})"


def _gain(found: _Found, corrected: float, baseline: str, comparisons: int) -> Gain:
    method, client, after, alone, rows, estimate = found
    shown = corrected < LEVEL
    verdict: Verdict = "unclear" if not shown else "helps" if estimate.mean > 0 else "harms"
    name = client_label(client)
    return Gain(
        method=method,
        client=client["partition"],
        name=name,
        seeds=len(after),
        rows=rows,
        baseline=fmean(alone),
        accuracy=fmean(after),
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p=estimate.p,
        p_corrected=corrected,
        source=estimate.source,
        verdict=verdict,
        words=_words(verdict, name, estimate, len(after), rows, baseline, comparisons),
    )


def _words(
    verdict: Verdict, name: str, estimate: Estimate, seeds: int, rows: int, baseline: str, comparisons: int
) -> str:
    """Say what the numbers carry, and no more."""
    better, worse = VERBS[baseline]
    if verdict == "helps":
        return f"{better} {name} by {points(estimate.mean)} points {interval(estimate.low, estimate.high)}"
    if verdict == "harms":
        return f"{worse} {name} by {points(-estimate.mean)} points {interval(-estimate.high, -estimate.low)}"
    means = f"{seeds} seeds" if seeds > 1 else f"1 seed and {rows} test rows"
    corrected = f" among {comparisons} comparisons" if estimate.p < LEVEL else ""
    return (
        f"{name}: no difference that {means} can show{corrected}: {points(estimate.mean, sign=True)} points "
        f"{interval(estimate.low, estimate.high)}"
    )


def _sentence(method: str, gains: Sequence[Gain], mean: Estimate | None, baseline: str) -> str:
    """Say of a method whom it helps and harms: ``fedhe helps 3 of 4 clients, harms none, ...``."""
    better, worse = VERBS[baseline]
    helped, harmed, unclear = (
        sum(gain.verdict == verdict for gain in gains) for verdict in ("helps", "harms", "unclear")
    )
    clients = f"{len(gains)} clients" if len(gains) > 1 else "1 client"
    said = f"{method} {better} {helped or 'none'} of {clients}, {worse} {harmed or 'none'}"
    if unclear == len(gains):
        said = f"{method}: a difference from {baseline} can be shown for none of {clients}"
    elif unclear:
        said += f", for {'one' if unclear == 1 else unclear} no difference can be shown"
    if mean:
        said += f"; mean over clients {points(mean.mean, sign=True)} points {interval(mean.low, mean.high)}"
    return f"{said}."


def _notes(gains: Sequence[Gain], baseline: str, unequal: Sequence[str]) -> tuple[str, ...]:
    """Say how it was computed."""
    if not gains:
        return (*unequal, "No run could be paired, so nothing is known of differences.")
    sources = {gain.source for gain in gains}
    lines = [
        *unequal,
        f"Percentage points of final test accuracy against {baseline} on the same rows, with a 95 % interval each.",
    ]
    if "seeds" in sources:
        lines.append(
            "Several seeds: Student's t over the paired differences; seeds redraw the split and the weights, so the "
            "interval covers both. More seeds make it narrower."
        )
    if "rows" in sources:
        lines.append(
            "One seed, or equal differences under all: normal approximation of two unpaired proportions on the test "
            "rows of one seed, as outcomes row by row are not kept; it says nothing of other seeds."
        )
    count = "1 comparison" if len(gains) == 1 else f"{len(gains)} comparisons"
    lines.append(
        f"{count}: the words hold at 5 % after Holm's correction for all of them; an interval stands for itself alone."
    )
    if any(gain.method.startswith(POOLED) for gain in gains):
        lines.append(
            "pooled: each client trained on the rows of all, as if all data were in one place: the upper mark, where "
            "the clients' data say the same."
        )
    return tuple(lines)


def names_of(gains: Iterable[Gain]) -> dict[int, str]:
    """Return what people call each client, by its id."""
    return {gain.client: gain.name for gain in sorted(gains, key=lambda gain: gain.client)}
