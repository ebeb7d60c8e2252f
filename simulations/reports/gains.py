"""Does federation help? The difference of each client's final accuracy from training alone, and how sure it is.

Runs are paired as `simulations.reports.pairing` says. Measures and differences are fractions; in words and tables they
are percentage points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.runs.record import ClientRecord, name_of
from hetfl_flwr.text import as_cell
from hetfl_flwr.wire.naming import called
from simulations.reports.estimates import (
    ACCURACY,
    Estimate,
    Measure,
    check_measured,
    compared,
    holm,
    interval,
    points,
    with_interval,
)
from simulations.reports.impact import Impact
from simulations.reports.pairing import LOCAL, Pairing, both, paired, run_label
from simulations.reports.runs import POOLED, Run
from simulations.reports.terminal import NOTHING, table_of

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

MOST_CLIENTS, ENDS = 30, 10
"""Clients that a table has at most; of more, it has so many with the least gains, and as many with the largest."""

MOST_LEFT_OUT, MOST_WORDS = 10, 12
"""Runs and clients in no pair that a table's notes name (files name all), and verdicts written out after a table."""


@dataclass(frozen=True)
class Gain:
    """The difference that a method makes to one client.

    `baseline` and `value` are means over as many `seeds`, `rows` the fewest test rows in any of them. The 95 % interval
    and `p` stand for this difference alone and are taken from the spread over seeds or from the number of test rows
    (`source`); `p_corrected` is Holm's for all comparisons, and gives the verdict.
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
        By method, the difference of the mean over clients; with one seed without an interval.
    left_out : tuple of str
        Runs and clients that are in no pair, each with the reason.
    notes : tuple of str
        How all of it was computed.
    """

    baseline: str
    measure: str
    gains: tuple[Gain, ...]
    sentences: dict[str, str]
    means: dict[str, Estimate]
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
    unjudged = [one for method, pairs in found.pairs.items() for one in _compared(method, pairs, measure)]
    corrected = iter(holm([one.p for one in unjudged if one.p is not None]))
    gains = tuple(_judged(one, None if one.p is None else next(corrected), found.baseline) for one in unjudged)
    by_method = {label: [gain for gain in gains if gain.method == label] for label in found.pairs}
    means = {label: Impact.of_pairs(found.pairs[label], measure).gain for label, own in by_method.items() if own}
    return Answer(
        baseline=found.baseline,
        measure=measure.words,
        gains=gains,
        sentences={label: _sentence(label, by_method[label], mean, found.baseline) for label, mean in means.items()},
        means=means,
        left_out=(*found.left_out, *_unmeasured(found, measure)),
        notes=_notes(gains, measure, found, means),
    )


def _compared(method: str, pairs: Sequence[tuple[Run, Run]], measure: Measure) -> list[Gain]:
    """Return the gain of each client, without a verdict."""
    found: dict[int, list[tuple[ClientRecord, float, float]]] = {}
    for run, base in pairs:
        for client, after, alone in both(run, base, measure):
            found.setdefault(client["partition"], []).append((client, after, alone))
    gains = []
    for number, several in sorted(found.items()):
        records, after_each, alone_each = map(list, zip(*several, strict=True))
        rows = min(client["test"] or 0 for client in records)
        estimate = compared(after_each, alone_each, rows if measure.of_rows else None)
        gains.append(
            Gain(
                method=method,
                client=number,
                name=_label(records[0]),
                measure=measure.words,
                seeds=len(several),
                rows=rows,
                baseline=fmean(alone_each),
                value=fmean(after_each),
                difference=estimate.mean,
                low=estimate.low,
                high=estimate.high,
                p=estimate.p,
                p_corrected=None,
                source=estimate.source,
                verdict="unclear",
                words="",
            )
        )
    return gains


def _judged(gain: Gain, corrected: float | None, baseline: str) -> Gain:
    """Return a gain with what its numbers carry, and no more."""
    shown = corrected is not None and corrected < LEVEL
    verdict: Verdict = "unclear" if not shown else "helps" if gain.difference > 0 else "harms"
    low, high, (better, worse) = gain.low, gain.high, VERBS[baseline]
    words = {
        "helps": f"{better} {gain.name} by {points(gain.difference)} points {interval(low, high)}",
        "harms": f"{worse} {gain.name} by {points(-gain.difference)} points "
        f"{interval(*(None if end is None else -end for end in (high, low)))}",
        "unclear": f"{gain.name}: no difference that these runs can show: {_difference(gain, ' points')}",
    }
    return replace(gain, p_corrected=corrected, verdict=verdict, words=words[verdict])


def _difference(gain: Gain, unit: str = "") -> str:
    return with_interval(Estimate(gain.difference, gain.low, gain.high), unit)


def _unmeasured(found: Pairing, measure: Measure) -> list[str]:
    """Return a line for each client of a pair that has no final value."""
    lines = []
    for run, base in (pair for pairs in found.pairs.values() for pair in pairs):
        known = [client["partition"] for client, _, _ in both(run, base, measure)]
        for client in run.clients:
            if client["partition"] not in known:
                lacking = run if measure.of(client) is None else base
                lines.append(f"{run_label(lacking)}: {_label(client)} has no final {measure.words}")
    return lines


# --- words ---------------------------------------------------------------------------------------


def _label(client: ClientRecord) -> str:
    return called(client["partition"], name_of(client))


def _sentence(method: str, gains: Sequence[Gain], mean: Estimate, baseline: str) -> str:
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
    if mean.source == "seeds":
        said += f"; mean over clients {with_interval(mean, ' points')}"
    return f"{said}."


def _comparisons(gains: Sequence[Gain]) -> int:
    return sum(gain.p is not None for gain in gains)


def _notes(gains: Sequence[Gain], measure: Measure, found: Pairing, means: Mapping[str, Estimate]) -> tuple[str, ...]:
    """Say how it was computed."""
    if not gains:
        return ("No run could be paired, so nothing is known of differences.",)
    said = {
        "seeds": "Several seeds: Student's t over the paired differences; seeds redraw the split and the weights.",
        "rows": "One seed, or equal differences under all: normal approximation of two unpaired proportions on the "
        "test rows of one seed; it says nothing of other seeds.",
        "none": f"One seed, or equal differences under all, give no interval of {measure.words}: run several.",
    }
    sources = {gain.source for gain in gains}
    tested = _comparisons(gains)
    return (
        f"Percentage points of final test {measure.words} against {found.baseline}, with a 95 % interval each.",
        *(line for source, line in said.items() if source in sources),
        *([f"The words hold at 5 % after Holm's correction for {tested} comparisons."] if tested else []),
        *_upper_marks(means),
    )


def _upper_marks(means: Mapping[str, Estimate]) -> list[str]:
    """Say what training on all data in one place is, and where it is not above training alone."""
    return [
        f"{method}: each client trained on the rows of all, as if all data were in one place: the upper mark, where "
        "the clients' data say the same."
        if estimate.mean > 0
        else f"{method}: each client trained on the rows of all, and is not above local in the mean over clients "
        f"({points(estimate.mean, sign=True)} points): no upper mark."
        for method, estimate in means.items()
        if method.startswith(POOLED)
    ]


# --- tables and files ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A client, or a gap between clients."""

    name: str
    gains: dict[str, Gain]

    @property
    def mean(self) -> float:
        """The mean gain over the methods, all data in one place left out where there is another."""
        federated = [gain.difference for method, gain in self.gains.items() if not method.startswith(POOLED)]
        return fmean(federated or [gain.difference for gain in self.gains.values()])


def title_of(answer: Answer) -> str:
    """Return what a table of gains is called."""
    measure = "" if answer.measure == ACCURACY.words else f" in {answer.measure}"
    return f"Gains over {answer.baseline}{measure} (95 % interval)"


def gains_table(answer: Answer) -> Table:
    """Return the table client by method, with how it was computed below it."""
    columns: dict[str, Callable[[_Row], str]] = {
        "client": lambda row: row.name,
        "test": lambda row: f"{min(gain.rows for gain in row.gains.values()):,}" if row.gains else "",
        f"{answer.baseline} %": lambda row: " / ".join(
            dict.fromkeys(points(gain.baseline) for gain in row.gains.values())
        ),
        **{method: partial(_cell, method=method) for method in answer.methods},
    }
    notes = [*answer.notes, *left_out(answer)]
    return table_of(title_of(answer), columns, _shown(answer), words={"client"}, whole=answer.methods, notes=notes)


def _cell(row: _Row, method: str) -> str:
    gain = row.gains.get(method)
    if gain is None:
        return NOTHING if row.gains else ""
    verdict = "" if gain.verdict == "unclear" else f" {gain.verdict}"
    return _difference(gain) + verdict


def _shown(answer: Answer) -> list[_Row]:
    """Return a row a client; of very many, those with the least and the largest mean gain, with a gap between."""
    rows: dict[int, _Row] = {}
    for gain in sorted(answer.gains, key=lambda gain: gain.client):
        rows.setdefault(gain.client, _Row(gain.name, {})).gains[gain.method] = gain
    if len(rows) <= MOST_CLIENTS:
        return list(rows.values())
    ordered = sorted(rows.values(), key=lambda row: row.mean)
    return [*ordered[:ENDS], _Row(f"... {len(rows) - 2 * ENDS} between ...", {}), *ordered[-ENDS:]]


def left_out(answer: Answer) -> list[str]:
    """Return a line for what is in no pair, with the reason."""
    lines = [f"Not paired: {line}" for line in answer.left_out[:MOST_LEFT_OUT]]
    more = len(answer.left_out) - MOST_LEFT_OUT
    return [*lines, f"and {more} more, which `hetfl compare --json` lists"] if more > 0 else lines


def in_words(answer: Answer) -> list[str]:
    """Return a sentence for each method, and below it the clients of which something could be shown."""
    lines = []
    for method, sentence in answer.sentences.items():
        shown = [gain.words for gain in answer.methods[method] if gain.verdict != "unclear"]
        lines += [sentence, *(f"  {words}" for words in shown[:MOST_WORDS])]
        if len(shown) > MOST_WORDS:
            lines.append(f"  and {len(shown) - MOST_WORDS} more")
    return lines


def write_csv(answer: Answer, path: Path) -> Path:
    """Write one row a method and client, and return the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answer.frame().map(as_cell).to_csv(index=False), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}") from None
    return path
