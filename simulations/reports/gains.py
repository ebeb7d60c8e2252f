"""Gains of federation: the difference of each client's final accuracy from local training, with its uncertainty.

Gains are fractions; texts and tables show them in percentage points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.text import as_cell
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
from simulations.reports.impact import MethodImpact, standings
from simulations.reports.layout import NOTHING, cells_table, first
from simulations.reports.pairing import LOCAL, paired
from simulations.reports.runs import POOLED, Run

if TYPE_CHECKING:
    import pandas as pd

SIGNIFICANCE = 0.05
"""A difference is significant if its corrected p value is below this."""

NO_ANSWER = (
    "gains are differences from training alone: name runs of local, and of other methods on the same data and seeds"
)
"""Message if there is nothing to compare."""

VERBS = {LOCAL: ("helps", "harms"), POOLED: ("is above pooled for", "is below pooled for")}
"""Verbs for a better and a worse method, by baseline."""

MAX_CLIENTS, ENDS = 30, 10
"""Maximum number of clients in a table; of more, it shows the `ENDS` lowest and the `ENDS` highest gains."""

MAX_LEFT_OUT, MAX_WORDS = 10, 12
"""Maximum number of unpaired runs and clients in the notes of a table, and of verdicts after it."""

COLUMNS = (
    *("method", "client", "name", "measure", "seeds", "rows", "baseline", "value", "difference", "low", "high", "p"),
    *("p_corrected", "source", "verdict", "words"),
)
"""Columns of a frame of gains, which has one row per method and client.

``baseline`` and ``value`` are means over ``seeds``; ``rows`` is the smallest number of test rows of any seed. The 95 %
interval and ``p`` are for this comparison alone and come from the spread over seeds or from the number of test rows
(``source``). ``p_corrected`` is Holm's correction for all comparisons; it decides the verdict: helps, harms or unclear.
"""


@dataclass(frozen=True)
class ClientGains:
    """The clients' gains over a baseline, one of `BASELINES`.

    `gains` has `COLUMNS` and a row for each method and client, NaN where unknown; `sentences` sum up each method.
    `standing` has the methods and the baseline, the largest mean gain first, `left_out` the runs and clients without a
    pair and the reason, `notes` how everything was computed.
    """

    baseline: str
    measure: str
    gains: pd.DataFrame
    sentences: dict[str, str]
    standing: list[MethodImpact]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as values that JSON can represent."""
        facts = {name: value for name, value in vars(self).items() if name != "standing"}
        means = {one.label: asdict(one.impact.gain) for one in self.standing if one.label in self.sentences}
        gains = self.gains.to_dict("records")
        return facts | {"gains": gains, "means": means, "comparisons": int(self.gains.p.count())}


def answer(runs: Sequence[Run], measure: Measure = ACCURACY) -> ClientGains | None:
    """Compare the runs of each method with baseline runs; None if either kind is missing.

    Raises ConfigError if no client of any run has the measure.
    """
    found = paired(runs)
    if found is None:
        return None
    check_measured([client for run in runs for client in run.clients], measure)
    values = found.values(measure)
    whole = values.dropna(subset=["value", "baseline"])
    gains, standing = _gains(whole[whole.method != found.baseline], measure, found.baseline), standings(found, whole)
    by_method = dict(iter(gains.groupby("method", sort=False)))
    means = {one.label: one.impact.gain for one in standing if one.label in by_method}
    unmeasured = values[~values.index.isin(whole.index) & (values.method != found.baseline)]
    lacking = [f"{one.lacking}: {one.name} has no final {measure.words}" for one in unmeasured.itertuples()]
    return ClientGains(
        baseline=found.baseline,
        measure=measure.words,
        gains=gains,
        sentences={
            method: _sentence(own, means[method], found.baseline, gains.p.count()) for method, own in by_method.items()
        },
        standing=standing,
        left_out=(*found.left_out, *lacking),
        notes=_notes(gains, measure, means),
    )


def _gains(values: pd.DataFrame, measure: Measure, baseline: str) -> pd.DataFrame:
    """Return the frame of gains from paired values without NaN."""
    import pandas as pd

    gains = []
    for (method, client), own in values.groupby(["method", "client"], sort=False):
        after, alone, rows = own.value.tolist(), own.baseline.tolist(), int(own.rows.min())
        estimate = asdict(compared(after, alone, rows if measure.of_rows else None))
        facts = {"method": method, "client": client, "name": own["name"].iloc[0], "measure": measure.words}
        means = {"baseline": fmean(alone), "value": fmean(after), "difference": estimate.pop("mean")}
        gains.append(facts | {"seeds": len(own), "rows": rows} | means | estimate)
    frame = pd.DataFrame(gains, columns=COLUMNS)
    frame = frame.astype(dict.fromkeys(("low", "high", "p", "p_corrected", "difference"), float))
    tested = frame.p.notna()
    frame.loc[tested, "p_corrected"] = holm(frame.p[tested].tolist())
    shown = frame.difference.gt(0).map({True: "helps", False: "harms"})
    frame["verdict"] = shown.where(frame.p_corrected < SIGNIFICANCE, "unclear")
    frame["words"] = [_words(gain, *VERBS[baseline], tested.sum()) for gain in frame.itertuples()]
    return frame


def _words(gain: Any, better: str, worse: str, comparisons: int) -> str:
    if gain.verdict == "helps":
        return f"{better} {gain.name} by {points(gain.difference)} points {interval(gain.low, gain.high)}"
    if gain.verdict == "harms":
        return f"{worse} {gain.name} by {points(-gain.difference)} points {interval(-gain.high, -gain.low)}"
    if isnan(gain.p):
        return f"{gain.name}: {_difference(gain, ' points')}, not tested"
    corrected = f" after correction for {comparisons} comparisons" * bool(gain.p < SIGNIFICANCE)
    return f"{gain.name}: no significant difference{corrected}: {_difference(gain, ' points')}"


def _difference(gain: Any, unit: str = "") -> str:
    return with_interval(Estimate(gain.difference, gain.low, gain.high), unit)


def _sentence(gains: pd.DataFrame, mean: Estimate, baseline: str, comparisons: int) -> str:
    """Say how many clients a method helps and harms: ``fedhe helps 3 of 4 clients, harms none, ...``."""
    method, measure, (better, worse) = gains.method.iloc[0], gains.measure.iloc[0], VERBS[baseline]
    helped, harmed, unclear = (int(gains.verdict.eq(verdict).sum()) for verdict in ("helps", "harms", "unclear"))
    clients = f"{len(gains)} clients" if len(gains) > 1 else "1 client"
    among = "" if measure == ACCURACY.words else f" in {measure}"
    said = f"{method} {better} {helped or 'none'} of {clients}, {worse} {harmed or 'none'}{among}"
    average = f"{with_interval(mean, ' points')} on average over clients" if mean.source == "seeds" else ""
    if gains.p.isna().all():
        return f"{method}: {points(mean.mean, sign=True)} points{among} on average over clients, not tested."
    if unclear == len(gains):
        any_client = f"any of the {clients}" if len(gains) > 1 else "the only client"
        corrected = f" after correction for {comparisons} comparisons" * bool((gains.p < SIGNIFICANCE).any())
        said = f"no significant difference from {baseline}{among} for {any_client}{corrected}"
        return f"{method}: {'; '.join(filter(None, (average, said)))}."
    if unclear:
        said += f", no significant difference for {unclear}"
    return f"{'; '.join(filter(None, (said, average)))}."


def _notes(gains: pd.DataFrame, measure: Measure, means: Mapping[str, Estimate]) -> tuple[str, ...]:
    """Say how the gains were computed."""
    if gains.empty:
        return ("No run could be paired, so all differences are unknown.",)
    said = {
        "seeds": "Intervals over seeds (Student's t).",
        "rows": "One seed, or equal gains for all seeds: intervals over its test rows; other seeds may differ.",
        "none": f"One seed, or equal gains for all seeds: no interval for {measure.words}; run several seeds.",
    }
    tested = gains.p.count()
    corrected = f"Helps, harms: significant at the 5 % level, corrected for {tested} comparisons (Holm)."
    return (
        *(line for source, line in said.items() if source in set(gains.source)),
        *([corrected] if tested else []),
        *_upper_bounds(means),
    )


def _upper_bounds(means: Mapping[str, Estimate]) -> list[str]:
    """Explain pooled training, and say if it is not above the baseline."""
    return [
        f"{method}: an upper bound if the clients' data are consistent."
        if estimate.mean > 0
        else f"{method}: not an upper bound: {points(estimate.mean, sign=True)} points over local on average."
        for method, estimate in means.items()
        if method.startswith(POOLED)
    ]


def gains_table(answer: ClientGains) -> Table:
    """Return the table of gains, one row per client and one column per method.

    If there are more than `MAX_CLIENTS`, it has only those with the smallest and the largest mean gains.
    """
    import pandas as pd

    gains, methods = answer.gains, list(answer.sentences)
    clients = gains.groupby("client")
    facts = {
        "client": clients.name.first(),
        "test" if gains.seeds.max() == 1 else "test (min)": clients.rows.min().map("{:,}".format),
        f"{answer.baseline} %": pd.Series({client: _alone(own.baseline) for client, own in clients}, dtype=object),
    }
    changes = gains.assign(change=[_change(gain) for gain in gains.itertuples()])
    by_method = changes.pivot(index="client", columns="method", values="change")[methods]
    cells = pd.DataFrame(facts).join(by_method.fillna(NOTHING))
    if len(cells) > MAX_CLIENTS:
        ordered = cells.loc[_mean_gains(gains).sort_values(kind="stable").index]
        gap = pd.DataFrame({"client": [f"... {len(cells) - 2 * ENDS} between ..."]})
        cells = pd.concat([ordered[:ENDS], gap, ordered[-ENDS:]]).fillna("")
    title = f"Gains over {answer.baseline}: points of {answer.measure} (95 % interval)"
    return cells_table(title, cells, words={"client"}, whole=methods, notes=[*answer.notes, *left_out(answer)])


def _alone(baselines: pd.Series[float]) -> str:
    return " / ".join(dict.fromkeys(map(points, baselines)))


def _change(gain: Any) -> str:
    return _difference(gain) + ("" if gain.verdict == "unclear" else f" {gain.verdict}")


def _mean_gains(gains: pd.DataFrame) -> pd.Series[float]:
    """Return the mean gain of each client over all methods; pooled training counts only if there is no other."""
    federated = gains[~gains.method.str.startswith(POOLED)]
    means = [some.groupby("client").difference.mean() for some in (federated, gains)]
    return means[0].combine_first(means[1])


def left_out(answer: ClientGains) -> list[str]:
    """Return one line for each run or client that could not be paired, with the reason."""
    lines = [f"Not paired: {line}" for line in answer.left_out]
    return first(lines, MAX_LEFT_OUT, "and {} more, which `hetfl compare --json` lists")


def in_words(answer: ClientGains) -> list[str]:
    """Return a sentence for each method, followed by the clients with a significant difference."""
    lines = []
    for method, sentence in answer.sentences.items():
        shown = answer.gains.words[(answer.gains.method == method) & (answer.gains.verdict != "unclear")]
        lines += [sentence, *(f"  {words}" for words in first([*shown], MAX_WORDS))]
    return lines


def write_csv(gains: pd.DataFrame, path: Path) -> Path:
    """Write one row per method and client, and return the path."""
    with writing(path, way_out="name another file"):
        replace_file(path, gains.map(as_cell).to_csv(index=False).encode())
    return path
