"""Reports of runs as one self-contained HTML file, without scripts or network access.

The tables are those of the terminal, the pictures are SVG. Everything that comes from a run folder is escaped.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

import pandas as pd
from rich.table import Table

from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.config import KEYS, RunConfig, Value, load_toml, meaning, to_toml
from hetfl_flwr.errors import ConfigError, HetflError
from hetfl_flwr.runs.record import ClientRecord, name_of, read_notes
from hetfl_flwr.wire.naming import called
from simulations.reports.datasets import with_short_names
from simulations.reports.doubts import doubts, too_short
from simulations.reports.estimates import with_interval
from simulations.reports.gains import answer, gains_table
from simulations.reports.impact import impact_table
from simulations.reports.layout import NOTHING, cells_table, first, percent, table_of
from simulations.reports.plots.comparison import compare_figure, run_figure
from simulations.reports.plots.drawing import NARROW, WIDTH
from simulations.reports.plots.impact import methods_figure
from simulations.reports.plots.partition import split_figure
from simulations.reports.runs import Run, curve, group_runs, load_runs, method_of
from simulations.reports.tables import client_table, compare_table, shared_terms, summary_table, unequal_terms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulations.reports.partition import ClientRows

MAX_NOTES, MAX_FAILURES = 50, 100
"""Maximum number of notes on the data, and of rows of failures."""

MAX_NAMES = 5
"""Maximum number of algorithms in the title."""


def write_report(folders: Sequence[Path | str], path: Path | str = "report.html") -> Path:
    """Write the report of the runs in one or more folders, and return its path.

    Runs that have not ended are reported as far as they got. Raises `RunFolderError` if a folder contains no run or a
    broken file, or if the report cannot be written. In a notebook:
    ``IPython.display.IFrame(write_report(["runs/fedhe"]), "100%", 800)``.
    """
    page = report_page(load_runs(map(Path, folders)))
    path = Path(path)
    with writing(path, way_out="name another file"):
        replace_file(path, page.encode())
    return path


def report_page(runs: Sequence[Run]) -> str:
    """Return the HTML page of runs; raises RunFolderError if there is no run."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    shown, several = with_short_names(runs), len(runs) > 1
    groups = group_runs(shown)
    titles = {run.folder: f"{group.label}, seed {run.summary['seed']}" for group in groups for run in group.runs}
    found = (_split(run, str(short.config["dataset"])) for run, short in zip(runs, shown, strict=True))
    splits = {one if isinstance(one, str) else repr(one.to_json()): one for one in found}.values()
    environment = Environment(
        loader=DictLoader(load_toml(Path(__file__).with_name("page.toml"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page").render(
        title=_title(shown),
        terms=shared_terms(groups) if several else "",
        unequal=unequal_terms(groups),
        answer=_answer(shown),
        comparison=compare_table(shown) if several else None,
        doubts=[*too_short(shown), *doubts(shown)] if several else [],
        pictures=_pictures([run for run in shown if not curve(run).empty], titles),
        parts=[_part(run, titles[run.folder]) for run in runs],
        splits=[one if isinstance(one, str) else _image(partial(split_figure, one), one.title) for one in splits],
    )


def _title(runs: Sequence[Run]) -> str:
    algorithms = list(dict.fromkeys(map(method_of, runs)))
    datasets = dict.fromkeys(str(run.config["dataset"]) for run in runs)
    names = ", ".join(algorithms) if len(algorithms) <= MAX_NAMES else f"{len(algorithms)} algorithms"
    return f"{names} on {', '.join(datasets)}"


def _answer(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return a sentence for each method, a picture and tables of its gains; None if nothing can be compared."""
    found = answer(runs)
    if found is None:
        return None
    standing = found.standing
    described = "; ".join(f"{one.label}: {with_interval(one.impact.gain)} points" for one in standing)
    return {
        "sentences": list(found.sentences.values()),
        "pictures": [_image(partial(methods_figure, standing), described)] if standing else [],
        "tables": [*([impact_table(standing)] if standing else []), gains_table(found)],
    }


def _pictures(runs: Sequence[Run], titles: Mapping[Path, str]) -> list[dict[str, str]]:
    """Return the pictures of accuracy over rounds and costs; none if no round was evaluated."""
    if not runs:
        return []
    described = "; ".join(
        f"{titles[run.folder]}: accuracy from {percent(points.iloc[0])} to {percent(points.iloc[-1])} %"
        for run in runs
        for points in [curve(run).accuracy]
    )
    own = [_image(partial(run_figure, runs[0]), described)] if len(runs) == 1 else []
    return [*own, _image(partial(compare_figure, runs), described)]


def _image(draw: Callable[[float], Figure], described: str) -> dict[str, str]:
    """Return a picture, as data URIs for a wide and a narrow screen, with its alternative text."""
    return {"source": _drawn(draw, WIDTH, described), "narrow": _drawn(draw, NARROW, described), "text": described}


def _drawn(draw: Callable[[float], Figure], width: float, described: str) -> str:
    """Return a picture of a width in inches as a data URI."""
    from matplotlib import style

    file = BytesIO()
    with style.context({"svg.hashsalt": described}, after_reset=True), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing")
        draw(width).savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"


def _part(run: Run, title: str) -> dict[str, Any]:
    """Return the section of one run."""
    shown = run.summary
    made = [*shown.get("earlier_versions", []), shown["versions"]]
    tables = [summary_table(run), client_table(title, run.clients), *_recalls(run.clients), *_failures(run)]
    defaults = _defaults(str(run.config["algorithm"]))
    changed = [key for key, value in run.config.items() if defaults.get(key) != value]
    return {
        "name": run.name,
        "title": title,
        "state": run.unfinished,
        "tables": [*tables, _settings(run, changed, defaults)],
        "made": "; then ".join(", ".join(map(" ".join, one.items())) for one in made),
        "notes": first(read_notes(run.folder), MAX_NOTES, "and {:,} more in notes.txt"),
        "config": to_toml({key: value for key, value in run.config.items() if key not in changed}),
    }


def _recalls(clients: Sequence[ClientRecord]) -> Iterator[Table]:
    """Yield a table of each client's recall by class, the lowest first, if any is known."""

    def recalls(client: ClientRecord) -> str:
        never = client.get("unpredicted") or ()
        ordered = sorted((client.get("recall") or {}).items(), key=lambda one: one[1])
        return ", ".join(f"{name}: {percent(value)}{' never' * (name in never)}" for name, value in ordered)

    known = [client for client in clients if client.get("recall")]
    note = "Share of a class's test samples that the model classifies correctly. never: the class is never predicted."
    if known:
        columns = {"client": lambda client: called(client["partition"], name_of(client)), "class: recall": recalls}
        yield table_of("Recall of each class, in %", columns, known, words=columns, notes=[note])


def _failures(run: Run) -> Iterator[Table]:
    """Yield a table of failures and outliers, grouped by reason, if there are any."""
    rows = [
        (record.round, failure.client_id, failure.stage, " ".join(failure.reason.split()))
        for record in run.rounds
        for failure in (*record.failures, *record.outliers)
    ]
    if not rows:
        return
    names = {client["partition"]: name_of(client) for client in run.clients}
    each = pd.DataFrame(rows, columns=["rounds", "client", "stage", "reason"])
    found = each.groupby(["client", "stage", "reason"], sort=False).rounds.agg(lambda own: spans([*own])).reset_index()
    cells = found[each.columns][:MAX_FAILURES]
    cells["client"] = [called(key, names.get(key, "")) if key >= 0 else NOTHING for key in cells.client]
    notes = [f"And {len(found) - MAX_FAILURES:,} more in rounds.jsonl."] if len(found) > MAX_FAILURES else []
    yield cells_table("Failures and uploads left out", cells, words=set(cells), notes=notes)


def spans(rounds: Sequence[int]) -> str:
    """Format ascending numbers, with consecutive ones as ranges.

    Examples
    --------
    >>> spans([1, 2, 3, 7, 9, 10])
    '1\u20133, 7, 9\u201310'
    """
    numbered = enumerate(dict.fromkeys(rounds))
    found = [[number for _, number in own] for _, own in groupby(numbered, lambda one: one[1] - one[0])]
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]}\u2013{one[-1]}" for one in found)


def _settings(run: Run, changed: Sequence[str], defaults: Mapping[str, Value]) -> Table:
    """Return a table of the config keys that differ from their defaults."""
    columns = {
        "key": lambda key: key,
        "value": lambda key: _value(run.config[key]),
        "default": lambda key: _value(defaults[key]) if key in defaults else NOTHING,
        "meaning": lambda key: meaning(key) if key in KEYS else "",
    }
    return table_of("Settings that differ from the defaults", columns, changed, words=set(columns), notes=[])


def _defaults(algorithm: str) -> dict[str, Value]:
    """Return the default of each config key."""
    from hetfl_flwr.methods import find

    defaults = RunConfig().to_flat()
    with suppress(ConfigError):  # its package is not installed
        defaults |= find(algorithm).options
    return defaults


def _value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"


def _split(run: Run, dataset: str) -> ClientRows | str:
    """Return the partition of the rows of a data set with a short name, or why it cannot be computed any more."""
    from hetfl_flwr.methods import resolve
    from simulations.reports.partition import load_split

    clients = run.summary["clients"]
    if not clients:
        return f"{run.name}: no client is known yet"
    try:
        config = RunConfig.from_flat({**run.config, "clients": clients})
        if not config.dataset:
            return f"{run.name}: its nodes used their own data"
        split = load_split(resolve(config), dataset)
    except HetflError as error:
        return f"{run.name}: {error}"
    trained = {client["partition"]: client["train"] for client in run.clients if client["train"] is not None}
    if not config.pooled and any(trained.get(client, rows) != rows for client, rows in split.shares.training.items()):
        return f"{run.name}: its clients had different rows than its config gives here; they may have used other data"
    return split
