"""Does federation help? The difference of each client's final accuracy from training alone, and how sure it is.

Runs are paired as `simulations.reports.pairing` says. Measures and differences are fractions; in words and tables they
are percentage points.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.runs.schema import ClientRecord, name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.estimates import ACCURACY, Estimate, Measure, check_measured, compared, holm, over_seeds
from simulations.reports.pairing import LOCAL, Pairing, paired, run_label
from simulations.reports.runs import POOLED, Run

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
"""A difference counts as shown where its corrected p value is below this."""

NO_ANSWER = (
    "gains are differences from training alone: name runs of local, and of other methods on the same data and seeds"
)
"""What is said where there is nothing to compare."""

Verdict = Literal["helps", "harms", "unclear"]

VERBS = {LOCAL: ("helps", "harms"), POOLED: ("is above pooled for", "is below pooled for")}
"""What is said of a method that is better or worse, by what it is compared with."""


def client_label(client: ClientRecord) -> str:
    """Return what people call a client."""
    return called(client["partition"], name_of(client))


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
    measure : str
        What is compared.
    seeds : int
        How many pairs of runs there are.
    rows : int
        The fewest test rows that the client has in any of them.
    baseline, value : float
        The means over these of what it is compared with, and of the method.
    difference : float
        Of the two.
    low, high : float or None
        The 95 % interval of the difference by itself, within -1 and 1.
    p, p_corrected : float or None
        Two-sided p value of no difference, and the one that Holm's correction for all comparisons makes of it.
    source : {"seeds", "rows", "none"}
        Whether the interval is taken from the spread over seeds, or from the number of test rows, or is not known.
    verdict : {"helps", "harms", "unclear"}
        By `p_corrected`.
    words : str
        The verdict as a person would say it.
    """

    method: str
    client: int
    name: str
    measure: str
    seeds: int
    rows: int
    baseline: float
    value: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    source: Literal["seeds", "rows", "none"]
    verdict: Verdict
    words: str


@dataclass(frozen=True)
class Answer:
    """What a set of runs says of the clients' gains.

    Parameters
    ----------
    baseline : str
        What methods are compared with: `LOCAL`, or where there is none `POOLED`.
    measure : str
        What is compared.
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
    measure: str
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

        frame = pd.DataFrame([asdict(gain) for gain in self.gains], columns=list(Gain.__dataclass_fields__))
        return frame.astype(dict.fromkeys(("low", "high", "p", "p_corrected"), float))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return asdict(self) | {"comparisons": _comparisons(self.gains)}


def answer(runs: Sequence[Run], measure: Measure = ACCURACY) -> Answer | None:
    """Compare the runs of each method with those of training alone; None without such a run, or without others.

    Parameters
    ----------
    runs : sequence of Run
        Of any number of methods and seeds, at least one.
    measure : Measure
        What is compared.

    Raises
    ------
    ConfigError
        No client of any run has the measure.
    """
    found = paired(runs)
    if found is None:
        return None
    check_measured([client for run in runs for client in run.clients], measure)
    baseline, left_out = found.baseline, list(found.left_out)
    estimates = _estimates(found.pairs, measure, left_out)
    known = [one.estimate for one in estimates if one.estimate.p is not None]
    corrected = dict(zip(map(id, known), holm([one.p for one in known if one.p is not None]), strict=True))
    gains = tuple(_gain(one, measure, corrected.get(id(one.estimate)), baseline, len(known)) for one in estimates)
    means = {label: _mean_over_clients(several, measure) for label, several in found.pairs.items()}
    by_method = {label: [gain for gain in gains if gain.method == label] for label in found.pairs}
    sentences = {label: _sentence(label, own, means[label], baseline) for label, own in by_method.items() if own}
    return Answer(baseline, measure.words, gains, sentences, means, tuple(left_out), _notes(gains, measure, found))


@dataclass(frozen=True)
class _Found:
    """A client's values with a method and with the baseline, the fewest test rows, and what comes of them."""

    method: str
    client: ClientRecord
    after: list[float]
    alone: list[float]
    rows: int
    estimate: Estimate


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
                    left_out.append(f"{run_label(lacking)}: {client_label(client)} has no final {measure.words}")
                    continue
                own = values.setdefault(client["partition"], (client, [], [], []))
                own[1].append(after)
                own[2].append(alone)
                own[3].append(client["test"] or 0)
        for client, after_each, alone_each, rows in (values[key] for key in sorted(values)):
            estimate = compared(after_each, alone_each, min(rows) if measure.of_rows else None)
            found.append(_Found(label, client, after_each, alone_each, min(rows), estimate))
    return found


def _means_over_clients(pairs: Sequence[tuple[Run, Run]], measure: Measure) -> NDArray[np.float64]:
    """Return the difference of the mean over clients for each pair of runs in which a client has both values."""
    differences = []
    for run, base in pairs:
        before = {client["partition"]: measure.of(client) for client in base.clients}
        both = [(measure.of(client), before.get(client["partition"])) for client in run.clients]
        known = [after - alone for after, alone in both if after is not None and alone is not None]
        if known:
            differences.append(fmean(known))
    return np.array(differences)


def _mean_over_clients(pairs: Sequence[tuple[Run, Run]], measure: Measure) -> Estimate | None:
    """Return the difference of the mean over clients; None with one seed, whose clients may share their test rows."""
    spread = _means_over_clients(pairs, measure)
    return over_seeds(spread) if len(spread) > 1 and spread.std() > 1e-9 else None


# --- words ---------------------------------------------------------------------------------------


def points(value: float, *, sign: bool = False) -> str:
    """Return a fraction in percentage points, as in ``4.2`` or ``+4.2``; none is ``-0.0``."""
    rounded = round(100 * value, 1) + 0.0
    return f"{rounded:+.1f}" if sign and rounded else f"{rounded:.1f}"


def interval(low: float | None, high: float | None) -> str:
    """Return an interval in percentage points, as in ``(2.1 to 6.3)``; of one that is not known, nothing."""
    return "" if low is None or high is None else f"({points(low)} to {points(high)})"


def _within(estimate: Estimate) -> str:
    """Return a difference in points, with its interval where it has one."""
    shown = interval(estimate.low, estimate.high)
    return f"{points(estimate.mean, sign=True)} points" + f" {shown}" * bool(shown)


def _gain(found: _Found, measure: Measure, corrected: float | None, baseline: str, comparisons: int) -> Gain:
    estimate = found.estimate
    shown = corrected is not None and corrected < LEVEL
    verdict: Verdict = "unclear" if not shown else "helps" if estimate.mean > 0 else "harms"
    return Gain(
        method=found.method,
        client=found.client["partition"],
        name=client_label(found.client),
        measure=measure.words,
        seeds=len(found.after),
        rows=found.rows,
        baseline=fmean(found.alone),
        value=fmean(found.after),
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p=estimate.p,
        p_corrected=corrected,
        source=estimate.source,
        verdict=verdict,
        words=_words(verdict, found, measure, baseline, comparisons),
    )


def _words(verdict: Verdict, found: _Found, measure: Measure, baseline: str, comparisons: int) -> str:
    """Say what the numbers carry, and no more."""
    name, estimate, seeds = client_label(found.client), found.estimate, len(found.after)
    better, worse = VERBS[baseline]
    if verdict == "helps":
        return f"{better} {name} by {points(estimate.mean)} points {interval(estimate.low, estimate.high)}"
    if verdict == "harms" and estimate.low is not None and estimate.high is not None:
        return f"{worse} {name} by {points(-estimate.mean)} points {interval(-estimate.high, -estimate.low)}"
    if estimate.p is None:
        why = "equal under all seeds" if seeds > 1 else "one seed does not tell how sure it is"
        return f"{name}: {_within(estimate)}{measure.among}; {why}"
    means = f"{seeds} seeds" if seeds > 1 else f"1 seed and {found.rows} test rows"
    corrected = f" among {comparisons} comparisons" if estimate.p < LEVEL else ""
    return f"{name}: no difference that {means} can show{corrected}: {_within(estimate)}"


def _sentence(method: str, gains: Sequence[Gain], mean: Estimate | None, baseline: str) -> str:
    """Say of a method whom it helps and harms: ``fedhe helps 3 of 4 clients, harms none, ...``."""
    better, worse = VERBS[baseline]
    helped, harmed, unclear = (
        sum(gain.verdict == verdict for gain in gains) for verdict in ("helps", "harms", "unclear")
    )
    clients = f"{len(gains)} clients" if len(gains) > 1 else "1 client"
    among = "" if gains[0].measure == ACCURACY.words else f" in {gains[0].measure}"
    said = f"{method} {better} {helped or 'none'} of {clients}, {worse} {harmed or 'none'}{among}"
    if unclear == len(gains):
        said = f"{method}: a difference from {baseline}{among} can be shown for none of {clients}"
    elif unclear:
        said += f", for {'one' if unclear == 1 else unclear} no difference can be shown"
    if mean:
        said += f"; mean over clients {_within(mean)}"
    return f"{said}."


def _comparisons(gains: Iterable[Gain]) -> int:
    return sum(gain.p is not None for gain in gains)


def _notes(gains: Sequence[Gain], measure: Measure, found: Pairing) -> tuple[str, ...]:
    """Say how it was computed."""
    if not gains:
        return (*found.unequal, "No run could be paired, so nothing is known of differences.")
    sources = {gain.source for gain in gains}
    lines = [
        *found.unequal,
        f"Percentage points of final test {measure.words} against {found.baseline} on the same rows, with a 95 % "
        "interval each.",
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
    if "none" in sources:
        lines.append(
            f"One seed, or equal differences under all, give no interval of {measure.words}, and no verdict: run "
            "several."
        )
    if tested := _comparisons(gains):
        count = "1 comparison" if tested == 1 else f"{tested} comparisons"
        lines.append(
            f"{count}: the words hold at 5 % after Holm's correction for all of them; an interval stands for itself "
            "alone."
        )
    return (*lines, *_upper_marks(gains, measure, found))


def _upper_marks(gains: Sequence[Gain], measure: Measure, found: Pairing) -> list[str]:
    """Say what training on all data in one place is, and where it is not above training alone."""
    lines, methods = [], dict.fromkeys(gain.method for gain in gains if gain.method.startswith(POOLED))
    for method in methods:
        mean = float(_means_over_clients(found.pairs[method], measure).mean())
        if mean <= 0:
            lines.append(
                f"{method}: each client trained on the rows of all, and is not above local in the mean over clients "
                f"({points(mean, sign=True)} points): no upper mark."
            )
        else:
            lines.append(
                f"{method}: each client trained on the rows of all, as if all data were in one place: the upper mark, "
                "where the clients' data say the same."
            )
    return lines


def names_of(gains: Iterable[Gain]) -> dict[int, str]:
    """Return what people call each client, by its id."""
    return {gain.client: gain.name for gain in sorted(gains, key=lambda gain: gain.client)}
