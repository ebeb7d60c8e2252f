"""What makes the figures of several runs doubtful, said once for all of them."""

from collections.abc import Iterable, Sequence

from hetfl_flwr.runs.figures.quality import DOUBTS, Doubts, doubts, first_ones, listed
from hetfl_flwr.runs.schema import name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.runs import Run, method_of


def doubts_of(runs: Sequence[Run]) -> list[str]:
    """Return a line a client; what does not hold in all runs says in which.

    Parameters
    ----------
    runs : sequence of Run
        Those of a comparison: client k of one is client k of the others.
    """
    each = [(method_of(run), doubts(run.clients)) for run in runs]
    names = {client["partition"]: name_of(client) for run in runs for client in run.clients}
    said = []
    for client, name in sorted(names.items()):
        found = [(method, by_client[client]) for method, by_client in each if client in by_client]
        lines = [*_rows(found, each), *_classes(found, each)]
        if lines:
            said.append(f"{called(client, name)}: {'; '.join(lines)}")
    return first_ones(said)


def _rows(found: Iterable[tuple[str, Doubts]], each: Sequence[tuple[str, object]]) -> list[str]:
    few = [(method, one.rows) for method, one in found if one.rows is not None]
    if not few:
        return []
    least, most = min(rows for _, rows in few), max(rows for _, rows in few)
    count = f"{least} to {most}" if least != most else str(least or "no")
    return [f"{count} test row{'s' * (most != 1)}{_where([method for method, _ in few], each)}"]


def _classes(found: Iterable[tuple[str, Doubts]], each: Sequence[tuple[str, object]]) -> list[str]:
    """Return a line for the classes that are doubtful in the same runs."""
    lines, seen = [], list(found)
    for kind, text in DOUBTS.items():
        runs = dict[str, list[int]]()
        for run, (_, one) in enumerate(seen):
            for name in one.classes.get(kind, ()):
                runs.setdefault(name, []).append(run)
        for same in dict.fromkeys(map(tuple, runs.values())):
            classes = [name for name, those in runs.items() if tuple(those) == same]
            lines.append(text.format(listed(classes)) + _where([seen[run][0] for run in same], each))
    return lines


def _where(methods: Sequence[str], each: Sequence[tuple[str, object]]) -> str:
    """Say in which runs something holds; nothing where in all."""
    if len(methods) == len(each):
        return ""
    total, parts = [method for method, _ in each], list[str]()
    for method in dict.fromkeys(methods):
        here, there = methods.count(method), total.count(method)
        parts.append(method if here == there else f"{here} of {there} runs of {method}")
    return f" ({', '.join(parts)})"
