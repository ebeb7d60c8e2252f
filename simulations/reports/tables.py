"""Tables of runs: the results of one run, and several runs side by side."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from statistics import fmean, pstdev, stdev
from typing import Any, Literal

from rich.table import Table

from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.runs.record import ClientRecord, name_of
from hetfl_flwr.text import LONGEST_NAME, printable, some
from simulations.reports.doubts import notes
from simulations.reports.estimates import ACCURACY, Measure, check_measured
from simulations.reports.layout import NOTHING, byte_size, cost_line, first, percent, table_of, thousands
from simulations.reports.runs import (
    INCIDENTAL,
    Group,
    Run,
    best_accuracy,
    data_called,
    group_runs,
    known,
    mean_of,
    selected_accuracy,
    spent,
)

EPSILON_NOTE = (
    "of the client with the most uploads, at delta 1e-05, by the run config; metrics are not covered; `hetfl report` "
    "says where the noise came from."
)
LEFT_OUT_NOTE = "uploads that the guard (outlier-factor) or a robust average left out; these are not failures."
MAX_FAILURES, MAX_CLASSES = 10, 5
QUALITY_HEADINGS = {
    "bal.": ("balanced_accuracy", "balanced accuracy"),
    "F1": ("macro_f1", "macro F1"),
    "AUC": ("auc", "one class against the rest"),
    "maj.": ("majority", "accuracy of always predicting the most frequent class"),
}
"""Headings of the client table, with the key of each value and its meaning."""
OF_METHODS = {"algorithm", "algorithm-options", "pooled", "projection", "min-clients"}
"""Config keys that tell methods apart, or matter only if clients fail."""

UNEQUAL_SAMPLES = 1.5
"""Smallest ratio of trained samples per client and round at which runs are not directly comparable."""


def shared_terms(groups: Sequence[Group]) -> str:
    """Return one line of the data set, clients, rounds and seeds that all groups have in common."""
    common = {name: {term(group) for group in groups} for name, term in TERMS.items()}
    return ", ".join(f"{name} {values.pop()}" for name, values in common.items() if len(values) == 1)


def unequal_terms(groups: Sequence[Group]) -> str | None:
    """Return one line that names the settings in which groups differ and which make a comparison unfair."""
    found = {name: list(map(TERMS[name], groups)) for name in ("dataset", "clients", "seed")}
    found["data"] = [data_called(group.runs[0]) for group in groups]
    keys = {key for group in groups for key in group.runs[0].config if "." not in key} - INCIDENTAL - OF_METHODS
    for key in sorted(keys - found.keys()):
        values = [group.runs[0].config.get(key) for group in groups]
        found[key] = ["" if value is None else str(value) or "not set" for value in values]
    samples = [_samples(group) for group in groups]
    if max(samples) >= UNEQUAL_SAMPLES * min((one for one in samples if one), default=inf):
        found["samples per client and round"] = [f"{one:.0f}" if one else "" for one in samples]
    unequal = {name: values for name, values in found.items() if len({*values} - {""}) > 1}
    differences = [f"{name} ({_by_value(values, groups)})" for name, values in unequal.items()]
    return f"Not directly comparable: these runs differ in {', '.join(differences)}." if differences else None


def _samples(group: Group) -> float:
    """Return how many samples a client of these runs trains on in a round, on average; 0 if unknown."""
    seen = [
        values["samples-seen"]
        for run in group.runs
        for at in run.rounds
        for values in at.clients.values()
        if values.get("samples-seen")
    ]
    return fmean(seen) if seen else 0.0


def _by_value(values: Sequence[str], groups: Sequence[Group]) -> str:
    """Return which groups have which value; the groups of the most frequent one are not named if it has several."""
    labels: dict[str, list[str]] = {}
    for value, group in zip(values, groups, strict=True):
        labels.setdefault(value, []).append(group.label)
    labels.pop("", None)
    usual = max(labels, key=lambda value: len(labels[value]))
    if len(labels[usual]) > 1:
        labels = {value: several for value, several in labels.items() if value != usual} | {usual: ["the others"]}
    return "; ".join(f"{value}: {some(several)}" for value, several in labels.items())


def client_table(name: str, clients: Sequence[ClientRecord], most: int = 0) -> Table:
    """Return a table of clients: name, model, samples, accuracy before and after, other measures, payload.

    All measures are on the client's own test set. With more clients than ``most``, it has those with the lowest
    accuracy; 0 shows all. Without names it fits into 100 characters a line if model names have at most ten.
    """
    every = len(clients)
    if 0 < most < every:
        worst = sorted(clients, key=lambda client: 1.0 if client["accuracy"] is None else client["accuracy"])
        clients = sorted(worst[:most], key=lambda client: client["partition"])
    measured = {
        head: key
        for head, (key, _) in QUALITY_HEADINGS.items()
        if any(client.get(key) is not None for client in clients)
    }
    columns: dict[str, Callable[[ClientRecord], str | None]] = {
        "client": lambda client: str(client["partition"]),
        "name": lambda client: name_of(client) or None,
        "model": lambda client: client["model"] or NOTHING,
        "params": lambda client: thousands(client["parameters"]),
        "train": lambda client: thousands(client["train"]),
        "test": lambda client: thousands(client["test"]),
        "before": lambda client: percent(client["accuracy_before"]),
        "after": lambda client: percent(client["accuracy"]),
        **{heading: partial(_quality, key) for heading, key in measured.items()},
        "up": lambda client: byte_size(client["bytes_up"]),
        "down": lambda client: byte_size(client["bytes_down"]),
    }
    meanings = "; ".join(f"{heading} {QUALITY_HEADINGS[heading][1]}" for heading in measured)
    note = "Accuracy in % before and after training on the client's test set" + f"; {meanings}" * bool(meanings)
    notes = [f"{note}; up, down: payload."]
    notes += [f"The {most} clients of {every} with the lowest accuracy; clients.json has all."] * (len(clients) < every)
    return table_of(f"Clients of {name}", columns, clients, words={"name", "model"}, notes=notes)


def _quality(key: str, client: ClientRecord) -> str:
    value: Any = client.get(key)
    return percent(value)


def summary_table(run: Run) -> Table:
    """Return the results of one run, one per row, with the reasons of the first failures and outliers."""
    shown, (best, best_note, chosen) = run.summary, best_of([run])
    facts = {
        "algorithm": shown["algorithm"],
        "dataset": shown["dataset"],
        "clients": clients_in_words(run),
        "rounds": _rounds(run),
        "seed": str(shown["seed"]),
        "engine": shown["engine"],
        "accuracy %": _accuracy([run]),
        "balanced / F1 / AUC %": _joined([shown.get("balanced_accuracy"), shown.get("macro_f1"), shown.get("auc")]),
        "recall %": _lowest(shown.get("recall", {})),
        "majority class %": _joined([shown.get("majority")]),
        best: percent(chosen(run)),
        "ACC / BWT / FWT %": _joined([shown["acc"], shown["bwt"], shown["fwt"]]),
        "global accuracy %": _joined([shown["global_accuracy"]]),
        "payload up": byte_size(shown["bytes_up"]),
        "payload down": byte_size(shown["bytes_down"]),
        "wire up": byte_size(shown["wire_up"]),
        "wire down": byte_size(shown["wire_down"]),
        "costs": cost_line(shown.get("costs", {})) or None,
        "seconds": _seconds(shown["seconds"]),
        "failures": thousands(shown["failures"]),
        "left out": thousands(shown["left_out"]) if shown.get("left_out") else None,
        "privacy": privacy(run),
    }
    reasons = [
        f"round {one.round}: {' '.join(failure.reason.split())}"
        for one in run.rounds
        for failure in (*one.failures, *one.outliers)
    ]
    rows = [(name, value) for name, value in facts.items() if value is not None]
    rows += [("", line) for line in first(reasons, MAX_FAILURES, "and {:,} more in rounds.jsonl")]
    rows += [("note", note) for note in notes(run)]
    columns: dict[str, Callable[[tuple[str, str]], str]] = {"figure": itemgetter(0), "value": itemgetter(1)}
    below = [best_note, "Accuracy: mean ± standard deviation over clients."]
    table = table_of(run.name, columns, rows, words={"value"}, whole={"figure"}, notes=below)
    table.show_header, table.columns[1].min_width = False, 40
    return table


def _lowest(recall: Mapping[str, float]) -> str | None:
    """Return the classes with the lowest recall, all if there are few; None if there are none."""
    ordered = sorted(recall.items(), key=lambda one: one[1])
    more = len(ordered) > MAX_CLASSES
    said = ", ".join(f"{printable(name, LONGEST_NAME)}: {percent(value)}" for name, value in ordered[:MAX_CLASSES])
    return (f"{said} (the lowest {MAX_CLASSES} of {len(ordered)} classes)" if more else said) or None


def best_of(runs: Sequence[Run]) -> tuple[str, str, Callable[[Run], float | None]]:
    """Return the heading of the column of best rounds, a note that explains it, and the function that fills it.

    The best round is chosen by validation accuracy if all runs have it, else by test accuracy.
    """
    found = [selected_accuracy(run) for run in runs if best_accuracy(run) is not None]
    if found and None not in found:
        note = "Best round: chosen by validation accuracy."
        return "best round %", note, selected_accuracy
    note = "Best round by test: optimistic, since it is chosen on the test set."
    return "best round by test %", note, best_accuracy


def compare_table(runs: Sequence[Run], target: float | None = None, measure: Measure = ACCURACY) -> Table:
    """Return one row per group of runs that differ only in their seed.

    Standard deviations over clients are of the population (0 for one client), those over seeds of a sample (n - 1).
    Data set, clients, rounds and seed are columns if the rows differ in them, else part of the title. `target` is an
    accuracy in (0, 1]; by default 95 % of the lowest best accuracy, which every run has reached. A `measure` other than
    accuracy gets a column of its own. Raises ConfigError if `target` is out of range or no client has the measure.
    """
    groups = group_runs(runs)
    check_measured([client for run in runs for client in run.clients], measure)
    goal, (best, best_note, chosen) = _target(runs, target), best_of(runs)
    measured = {f"{measure.words} %": lambda group: percent(mean_of(measure.of(run.summary) for run in group.runs))}
    some_left_out = any(run.summary.get("left_out") for run in runs)
    columns: dict[str, Callable[[Group], str | None]] = {
        "algorithm": lambda group: group.label,
        **{name: term for name, term in TERMS.items() if len(set(map(term, groups))) > 1},
        "accuracy %": lambda group: _accuracy(group.runs),
        "± seeds %": _over_seeds,
        **(measured if measure is not ACCURACY else {}),
        "ACC / BWT / FWT %": lambda group: _joined(list(map(group.mean, ("acc", "bwt", "fwt")))),
        "global %": lambda group: _joined([group.mean("global_accuracy")]),
        best: lambda group: percent(mean_of(map(chosen, group.runs))),
        "payload": lambda group: byte_size(group.both_ways("bytes")),
        "wire": lambda group: byte_size(group.both_ways("wire")),
        _to_reach(goal, "payload"): lambda group: _reached(group, goal, "payload", byte_size) or NOTHING,
        _to_reach(goal, "clock"): lambda group: _reached(group, goal, "clock", _seconds),
        "seconds": lambda group: _seconds(fmean(group.values("seconds"))),
        "failures": lambda group: _listed(group.values("failures")),
        "left out": lambda group: _listed(known(group.values("left_out"))) if some_left_out else None,
        "epsilon": lambda group: f"{max(found):.3g}" if (found := known(group.values("epsilon"))) else None,
    }
    below = [unequal_terms(groups), best_note, *_notes_on(goal, groups, given=target is not None)]
    if some_left_out:
        below.append(f"Left out: {LEFT_OUT_NOTE}")
    if any(run.summary.get("epsilon") is not None for run in runs):
        below.append(f"Epsilon: {EPSILON_NOTE}")
    below.append("Accuracy: mean ± standard deviation over clients. Payload, wire: up + down.")
    return table_of(shared_terms(groups), columns, groups, words={"algorithm", "dataset"}, notes=below)


def _target(runs: Sequence[Run], target: float | None) -> float | None:
    if target is not None:
        if not 0 < target <= 1:
            raise ConfigError(f"target = {target}: not a fraction in (0, 1]; write 0.9 for 90 %")
        return target
    best = known(map(best_accuracy, runs))
    return 0.95 * min(best) if best else None


def _to_reach(goal: float | None, what: str) -> str:
    return f"{what} to reach {'target' if goal is None else f'{percent(goal)} %'}"


def _notes_on(goal: float | None, groups: Sequence[Group], *, given: bool) -> Iterator[str]:
    """Yield where a goal that is not given comes from, and what a clock is."""
    if goal and not given:
        yield f"{percent(goal)} %: 95 % of the lowest peak test accuracy; --target sets another, such as 0.9."
    if any(map(_has_clock, groups)):
        yield "Clock: simulated seconds; seconds: real time on this machine."


def _has_clock(group: Group) -> bool:
    return any(record.clock is not None for run in group.runs for record in run.rounds)


def _reached(
    group: Group, target: float | None, what: Literal["payload", "clock"], shown: Callable[[float], str]
) -> str | None:
    """Return the mean payload or time that runs spent until they reached a target; None without a target or a clock."""
    if target is None or (what == "clock" and not _has_clock(group)):
        return None
    paid = known(spent(run, target, what) for run in group.runs)
    if not paid:
        return "never"
    partly = f" ({len(paid)} of {len(group.runs)} seeds)" if len(paid) < len(group.runs) else ""
    return shown(fmean(paid)) + partly


def _accuracy(runs: Sequence[Run]) -> str:
    """Return the mean accuracy and the deviation over clients, both as means over runs."""
    mean = mean_of(run.summary["accuracy"] for run in runs)
    clients = [known(run.summary["accuracy_per_client"]) for run in runs]
    deviation = mean_of(pstdev(scores) if scores else None for scores in clients)
    return percent(mean) if mean is None or deviation is None else f"{percent(mean)} ± {percent(deviation)}"


def _over_seeds(group: Group) -> str | None:
    accuracies = known(group.values("accuracy"))
    return percent(stdev(accuracies)) if len(accuracies) > 1 else None


def clients_in_words(run: Run) -> str:
    """Return the number of clients, and the number of owners or files from which they were merged."""
    clients, owners = run.summary["clients"], sum(client["owners"] or 1 for client in run.clients)
    what = "files" if run.config.get("partition") == "files" else "owners"
    merged = any((client["owners"] or 1) > 1 for client in run.clients)
    return f"{clients} ({owners} {what}, some of them merged)" if merged else str(clients)


def privacy(run: Run) -> str | None:
    """Describe the privacy guarantee of the client with the most uploads; None without noise."""
    noise = float(run.config.get("noise-multiplier", 0.0))
    if noise == 0:
        return None
    from hetfl_flwr.wire.privacy import UNKNOWN, caveats, guarantee  # torch is not needed to compare runs

    shown = run.summary
    counted = [client["uploads"] for client in run.clients if client["uploads"] is not None]
    lost = not counted and any(client["epsilon"] is not None for client in run.clients)
    said = UNKNOWN if lost else guarantee(noise, max(counted, default=0) or shown["rounds"])
    source = shown["noise_source"]
    return said + (f"; {caveats(source)}" if source else "")


def _joined(values: Sequence[float | None]) -> str | None:
    """Format fractions in %, separated by slashes; None if all of them are None."""
    return " / ".join(map(percent, values)) if known(values) else None


def _rounds(run: Run) -> str:
    return run.unfinished.removesuffix(" rounds") or str(run.summary["rounds"])


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


TERMS: dict[str, Callable[[Group], str]] = {
    "dataset": lambda group: _listed(map(dataset_called, group.values("dataset"))),
    "clients": lambda group: _listed(group.values("clients")),
    "rounds": lambda group: _listed(map(_rounds, group.runs)),
    "seed": lambda group: _listed(group.values("seed")),
}
"""Terms that comparable runs have in common, each with the function that formats it for one group."""


def _seconds(value: float) -> str:
    return f"{value:,.1f}"
