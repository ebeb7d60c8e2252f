"""Pair each run with a baseline run on the same rows and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hetfl_flwr.config import DATA_KEYS, Value
from hetfl_flwr.runs.record import name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.estimates import Measure
from simulations.reports.runs import INCIDENTAL, POOLED, Run, data_called, group_runs, method_of

if TYPE_CHECKING:
    import pandas as pd

LOCAL = "local"
"""The algorithm in which each client trains alone."""

BASELINES = {LOCAL: "training alone", POOLED: "pooled training"}
"""Methods to compare with, and their names in texts. The first one that has a run is used."""

SAME = ("seed", "clients", *sorted({*DATA_KEYS} - {"data-dir", "normalize", "augment", "pooled"}))
"""Keys that must be equal in two runs to pair them: they decide which rows a client has."""


@dataclass(frozen=True)
class Pairing:
    """Runs, each paired with a run of the baseline, which is one of `BASELINES`.

    `pairs` has (run, baseline run) by method, as `group_runs` labels it; last are the baseline's runs, each paired with
    itself. `left_out` names the runs without a pair, each with the reason.
    """

    baseline: str
    pairs: Mapping[str, list[tuple[Run, Run]]]
    left_out: tuple[str, ...]

    def values(self, measure: Measure) -> "pd.DataFrame":
        """Return a row for each pair and client: its final ``value`` and that of the ``baseline``, NaN if not measured.

        ``rows`` is the number of its test rows; ``lacking`` names the run without a value.
        """
        import pandas as pd

        rows = []
        for method, pairs in self.pairs.items():
            for pair, (run, base) in enumerate(pairs):
                alone = {client["partition"]: measure.of(client) for client in base.clients}
                for client in run.clients:
                    own, value = client["partition"], measure.of(client)
                    label, lacking = called(own, name_of(client)), run_label(run if value is None else base)
                    rows.append((method, pair, own, label, client["test"] or 0, value, alone.get(own), lacking))
        frame = pd.DataFrame(rows, columns=["method", "pair", "client", "name", "rows", "value", "baseline", "lacking"])
        return frame.astype({"value": float, "baseline": float})


def paired(runs: Sequence[Run]) -> Pairing | None:
    """Pair the runs of each method with baseline runs; None if either kind is missing."""
    groups = group_runs(runs)
    baseline = next((name for name in BASELINES if any(method_of(run) == name for run in runs)), None)
    others = [group for group in groups if method_of(group.runs[0]) != baseline]
    if baseline is None or not others:
        return None
    bases = [run for run in runs if method_of(run) == baseline]
    ready = [base for base in bases if not base.unfinished]
    left_out = [f"{run_label(base)}: it has not ended: {base.unfinished}" for base in bases if base.unfinished]
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for group in others:
        for run in group.runs:
            partner = f"it has not ended: {run.unfinished}" if run.unfinished else _partner(run, ready, baseline)
            if isinstance(partner, str):
                left_out.append(f"{run_label(run)}: {partner}")
            else:
                pairs.setdefault(group.label, []).append((run, partner))
    used = {base.folder: base for several in pairs.values() for _, base in several}
    unused = [run_label(base) for base in ready if base.folder not in used]
    left_out += [f"{label}: no run of another method has its data and seed" for label in unused]
    return Pairing(baseline, pairs | {baseline: [(base, base) for base in used.values()]}, tuple(left_out))


def run_label(run: Run) -> str:
    """Return a run's method and folder name; folder names alone repeat across sweeps."""
    return f"{method_of(run)} {run.name}"


def _setting(run: Run, key: str) -> Value | None:
    return run.summary["clients"] if key == "clients" else run.config.get(key)


def _partner(run: Run, bases: Sequence[Run], baseline: str) -> Run | str:
    """Return the baseline run with the most settings in common, or why none can be paired."""
    bases = [base for base in bases if _setting(base, "seed") == _setting(run, "seed")] or bases
    unlike = {base.folder: _unlike(run, base) for base in bases}
    fitting = [base for base in bases if not unlike[base.folder]]
    if fitting:
        return min(fitting, key=lambda base: _other_settings(run, base))
    if not bases:
        return f"no run of {baseline} has ended"
    nearest = min(bases, key=lambda base: len(unlike[base.folder]))
    return f"no run of {baseline} to pair it with; {run_label(nearest)} differs in {', '.join(unlike[nearest.folder])}"


def _unlike(run: Run, base: Run) -> list[str]:
    """Return the differences that prevent pairing two runs: each key with both values."""
    both = {key: (_setting(run, key), _setting(base, key)) for key in SAME}
    found = [f"{key} ({one} / {other})" for key, (one, other) in both.items() if one != other]
    data = {data_called(one) for one in (run, base)} - {""}
    found += ["its data, which have changed between the runs"] * (len(data) > 1)
    return found or _unlike_rows(run, base)


def _unlike_rows(run: Run, base: Run) -> list[str]:
    """Return the first difference in the clients' numbers of rows, by ``clients.json``."""
    for one in (run, base):
        if not one.clients or any(client["test"] is None for client in one.clients):
            return [f"clients.json ({run_label(one)} does not say how many test rows its clients have)"]
    counts: list[Literal["test", "train"]] = ["test"] if POOLED in map(method_of, (run, base)) else ["test", "train"]
    for count in counts:
        own, others = ({client["partition"]: client[count] for client in one.clients} for one in (run, base))
        for client in sorted(own.keys() | others.keys()):
            if own.get(client) != others.get(client):
                return [f"{count} rows of client {client} ({own.get(client)} / {others.get(client)})"]
    return []


def _other_settings(run: Run, base: Run) -> int:
    """Return the number of settings that differ, except those of one algorithm only."""
    keys = {key for key in run.config.keys() | base.config.keys() if "." not in key and key not in INCIDENTAL}
    return sum(_setting(run, key) != _setting(base, key) for key in keys)
