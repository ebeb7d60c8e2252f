"""Warnings about results: runs that are too short, columns that differ, small test sets, test sets of one class."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

from hetfl_flwr.runs.record import ClientRecord, Round, name_of
from hetfl_flwr.text import LONGEST_NAME, printable, some
from hetfl_flwr.wire.naming import called
from simulations.reports.layout import first
from simulations.reports.runs import Run, method_of

MIN_TEST_ROWS = 30
"""Number of test samples below which a client's results are reported as unreliable."""

LAST_PART, LEAST_RISE = 0.75, 0.02
"""A run is too short if accuracy rises by `LEAST_RISE` or more after this part of its rounds; fractions."""

MAX_NOTED = 5
"""Maximum number of clients, and of classes of one client, that are named."""


def notes(run: Run) -> list[str]:
    """Return warnings about a run: whether it seems too short, then `doubts`.

    If it does not and classes are never predicted, the first line suggests class weights.
    """
    lines = too_short([run])
    unpredicted = any(client.get("unpredicted") for client in run.clients)
    if not lines and unpredicted and run.config.get("class-weights", "none") == "none":
        lines = ["some classes are never predicted: class-weights=balanced gives rare ones more weight"]
    return lines + doubts([run])


def too_short(runs: Sequence[Run]) -> list[str]:
    """Return a line if accuracy still rose at the end: by how much for one run, in how many for several."""
    lines = [still_rising(run.rounds, sum(client["test"] or 0 for client in run.clients)) for run in runs]
    if len(runs) == 1 or not any(lines):
        return lines[0] if lines else []
    count = Counter(method_of(run) for run, line in zip(runs, lines, strict=True) if line)
    which = ", ".join(f"{method} {several}" for method, several in count.items())
    return [
        f"accuracy was still rising at the end of {count.total()} of {len(runs)} runs ({which}): more rounds may help"
    ]


def doubts(runs: Sequence[Run]) -> list[str]:
    """Return the warnings on clients' data, and a line for each client that has others, at most `MAX_NOTED` of them.

    The first are the ``warnings`` of `Summary`, each once. Of a client are reported test sets of fewer than
    `MIN_TEST_ROWS` samples or of one class, classes that are trained on and never tested, and classes that are tested
    and never predicted. In a comparison, client k is the same client in all runs; a warning that does not hold in all
    of them says in which. Classes that differ between seeds are not named.
    """
    names = {client["partition"]: name_of(client) for run in runs for client in run.clients}
    said = defaultdict[int, list[str]](list)
    for client, line in (*_few_rows(runs), *_class_doubts(runs)):
        said[client].append(line)
    lines = [f"{called(client, names[client])}: {'; '.join(said[client])}" for client in sorted(said)]
    on_data = dict.fromkeys(line for run in runs for line in run.summary.get("warnings", []))
    return [*map(printable, on_data), *first(lines, MAX_NOTED)]


def _few_rows(runs: Sequence[Run]) -> Iterator[tuple[int, str]]:
    """Yield each client with few test rows in any run, and how many it has in all of them."""
    rows = defaultdict[int, list[int]](list)
    for run in runs:
        counts = {client["partition"]: client["test"] for client in run.clients if client["test"] is not None}
        for client, count in counts.items() if any(counts.values()) else ():
            rows[client].append(count)
    for client, its in rows.items():
        least, most = min(its), max(its)
        if least < MIN_TEST_ROWS:
            span = str(most or "no") if least == most else f"{least} to {most}"
            yield client, f"{span} test row{'s' * (most != 1)}"


def _class_doubts(runs: Sequence[Run]) -> Iterator[tuple[int, str]]:
    """Yield each client and a problem with its classes; those that differ between seeds are not named."""
    found = defaultdict[tuple[int, str], dict[str, list[Run]]](dict)
    for run in runs:
        for client in run.clients:
            for kind, line in _of_classes(client):
                found[client["partition"], kind].setdefault(line, []).append(run)
    for (number, kind), lines in found.items():
        holding = [run for several in lines.values() for run in several]
        if len(lines) > 1 and len({_seed(run) for run in holding}) > 1:
            lines = {kind: holding}
        yield from ((number, _placed(line, several, runs)) for line, several in lines.items())


def _of_classes(client: ClientRecord) -> Iterator[tuple[str, str]]:
    """Yield each problem with a client's classes, first without and then with the names of classes."""
    if len(recall := client.get("recall") or {}) == 1:
        yield "all test rows are of one class", f"all test rows are of {_listed([*recall])}"
    if untested := client.get("untested"):
        yield "no test row of some classes it trains on", f"no test row of {_listed(untested)}, on which it trains"
    if unpredicted := client.get("unpredicted"):
        yield "never predicts some classes", f"never predicts {_listed(unpredicted)}"


def _placed(line: str, holding: Sequence[Run], runs: Sequence[Run]) -> str:
    """Add to a warning that holds in some runs only the seeds and, if not all, the methods."""
    if len(holding) == len(runs):
        return line
    seeds, every = {_seed(run) for run in holding}, {_seed(run) for run in runs}
    if len(every) > 1:
        line = f"in {f'seed {min(seeds)}' if len(seeds) == 1 else f'{len(seeds)} of {len(every)} seeds'} {line}"
    if len(holding) < sum(_seed(run) in seeds for run in runs):
        line += f" ({', '.join(dict.fromkeys(map(method_of, holding)))})"
    return line


def _seed(run: Run) -> int:
    return run.summary["seed"]


def _listed(names: Sequence[str]) -> str:
    """Return class names for a message, at most `MAX_NOTED` of them."""
    shown = some([printable(name, LONGEST_NAME) for name in names], MAX_NOTED)
    return ("class " if len(names) == 1 else "classes ") + shown


def still_rising(rounds: Iterable[Round], samples: int) -> list[str]:
    """Return a line if accuracy still rose over the last quarter of a run, else nothing.

    The rise must be at least `LEAST_RISE`, and at least two standard errors of an accuracy on `samples` test samples,
    those of all clients. `rounds` must be in ascending order.
    """
    known = [(one.round, one.accuracy) for one in rounds if one.accuracy is not None]
    before = [one for one in known if one[0] <= LAST_PART * known[-1][0] and one[0] < known[-1][0]]
    if not before or not samples:
        return []
    (since, earlier), (_, accuracy) = before[-1], known[-1]
    rise, error = accuracy - earlier, 2 * sqrt(accuracy * (1 - accuracy) / samples)
    if rise < max(LEAST_RISE, error):
        return []
    return [f"accuracy was still rising, by {100 * rise:.1f} points since round {since}: more rounds may help"]
