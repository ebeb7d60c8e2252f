"""Run folders as one HTML file that needs nothing else: no script, no network; to be read, sent on and printed.

Pictures are SVG in the page and follow its colours, light or dark. All that comes from a run folder is escaped.
Accuracies are fractions in [0, 1], bytes in powers of 1000.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.errors import ConfigError, HetflError, RunFolderError
from hetfl_flwr.runs.figures.quality import notes
from hetfl_flwr.runs.figures.tables import NOTHING
from hetfl_flwr.runs.schema import read_notes
from simulations.reports.doubts import doubts_of
from simulations.reports.gains import answer, gains_table, left_out, title_of
from simulations.reports.html.sheets import (
    MOST_CELLS,
    client_sheet,
    comparison_sheet,
    config_sheets,
    costs_sheet,
    differing_sheet,
    failure_sheet,
    recall_sheet,
    sheet_of,
    split_sheet,
    traffic_sheet,
)
from simulations.reports.html.svg import of_clients, of_gains, over_payload, over_rounds, with_sign
from simulations.reports.impact import impact_table, standings
from simulations.reports.runs import Run, figures, group_runs, load_run, method_of, run_folders
from simulations.reports.tables import best_of, clients_in_words, privacy, shared_terms, unequal_terms

if TYPE_CHECKING:
    from simulations.reports.partition import Split

MOST_SAID = 50
MOST_NAMES = 5
"""Of algorithms, in the title."""


def write_report(folders: Sequence[Path | str], path: Path | str = "report.html") -> Path:
    """Write the report of one run, or of several side by side, and return its path.

    In a notebook: ``IPython.display.IFrame(write_report(["runs/fedhe"]), "100%", 800)``.

    Parameters
    ----------
    folders : sequence of path
        Run folders, at least one, or folders of such; runs that have not ended are reported as far as they got.
    path : path
        The file; missing folders are made.

    Raises
    ------
    RunFolderError
        One line, for a folder that holds no run, a broken file in it, or a report that cannot be written.
    """
    page = report_page([load_run(folder) for folder in run_folders(map(Path, folders))])
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}; name another file") from None
    return path


def report_page(runs: Sequence[Run]) -> str:
    """Return the page that `write_report` writes.

    Raises
    ------
    RunFolderError
        If there is no run.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    groups, several = group_runs(runs), len(runs) > 1
    unequal = unequal_terms(groups) or ""
    splits = [_split(run) for run in runs]
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=_title(runs),
        terms=shared_terms(groups) if several else "",
        unequal=unequal,
        answer=_answer(runs),
        comparison=comparison_sheet(runs, unequal) if several else None,
        doubts=doubts_of(runs) if several else [],
        differing=differing_sheet(groups) if several else None,
        pictures=[picture for picture in (over_rounds(groups), over_payload(groups)) if picture is not None],
        parts=[_part(run, split) for run, split in zip(runs, splits, strict=True)],
        splits=[_split_part(split) for split in dict.fromkeys(splits)],
    )


def _answer(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return whether federation helps: a sentence a method, tables, a picture, and what is in no pair; or None."""
    found = answer(runs)
    if found is None:
        return None
    standing = standings(runs)
    gains = replace(sheet_of(title_of(found), gains_table(found)), note=" ".join(found.notes))
    return {
        "sentences": list(found.sentences.values()),
        "sheets": [*([sheet_of("Methods by gain", impact_table(standing))] if standing else []), gains],
        "picture": of_gains(standing, found.baseline) if standing else None,
        "left_out": left_out(found),
    }


def _title(runs: Sequence[Run]) -> str:
    algorithms, datasets = (
        list(dict.fromkeys(of(run) for run in runs))
        for of in (method_of, lambda run: dataset_called(str(run.config["dataset"])))
    )
    names = ", ".join(algorithms) if len(algorithms) <= MOST_NAMES else f"{len(algorithms)} algorithms"
    return f"{names} on {', '.join(datasets)}"


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return the figures to be seen first: name, figure, and what to say of it."""
    shown = figures(run)
    scores = [score for score in shown["accuracy_per_client"] if score is not None]
    best, chosen = best_of([run])
    spread = f"± {with_sign(pstdev(scores))} over clients, " if scores else ""
    each = [
        ("Accuracy", shown["accuracy"], f"{spread}{best.removesuffix(' %')} {with_sign(chosen(run))}"),
        ("Balanced accuracy", shown.get("balanced_accuracy"), "the mean recall of the classes"),
        ("Macro F1", shown.get("macro_f1"), "the mean F1 of the classes"),
        ("AUC", shown.get("auc"), "one class against the rest"),
        ("Majority class", shown.get("majority"), "accuracy of always predicting it"),
        ("Global model", shown["global_accuracy"], "its accuracy"),
        ("ACC", shown["acc"], "accuracy over all domains"),
        ("BWT", shown["bwt"], "on the clients' own domains"),
        ("FWT", shown["fwt"], "on the other domains"),
    ]
    tiles = [(name, with_sign(value), note) for name, value, note in each if value is not None or name == "Accuracy"]
    for name, kind in (("Payload", "bytes"), ("On the wire", "wire")):
        up, down = shown[f"{kind}_up"], shown[f"{kind}_down"]  # type: ignore[literal-required]
        tiles.append((name, decimal(up + down), f"{decimal(up)} up, {decimal(down)} down"))
    tiles.append(("Rounds", f"{shown['rounds']:,}", f"of {run.config['rounds']:,}, in {shown['seconds']:,.1f} s"))
    return [*tiles, ("Failures", f"{shown['failures']:,}", "clients left out of a round, or an evaluation")]


def _part(run: Run, split: Split | str) -> dict[str, Any]:
    """Return all that is told of one run."""
    shown = figures(run)
    state = "" if shown["rounds"] == run.config["rounds"] else f"{shown['rounds']} of {run.config['rounds']} rounds"
    changed, unchanged = config_sheets(run)
    return {
        "name": run.name,
        "title": f"{method_of(run)}, seed {shown['seed']}",
        "state": state,
        "tiles": _tiles(run),
        "facts": _facts(run),
        "traffic": traffic_sheet(run),
        "costs": costs_sheet(run),
        "notes": notes(run.clients, run.rounds, run.config.get("class-weights", "none")),
        "said": _said(run),
        "clients": client_sheet(run, split),
        "recalls": recall_sheet(run.clients),
        "small": of_clients(run),
        "failures": failure_sheet(run),
        "changed": changed,
        "unchanged": unchanged,
    }


def _said(run: Run) -> list[str]:
    """Return what was done with the data that nobody has asked for; of very many lines, the first ones."""
    lines = read_notes(run.folder)
    more = len(lines) - MOST_SAID
    return [*lines[:MOST_SAID], *([f"and {more:,} more in notes.txt"] if more > 0 else [])]


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what was run."""
    shown, config = figures(run), run.config
    made = [*shown.get("earlier_versions", []), shown["versions"]]
    models = Counter(client["model"] for client in run.clients if client["model"] is not None)
    assigned = ", ".join(f"{name} ({count} clients)" if count > 1 else name for name, count in models.items())
    facts = {
        "Algorithm": f"{shown['algorithm']}: {_purpose(shown['algorithm'])}".removesuffix(": "),
        "Data": f"{shown['dataset']}, partition {config.get('partition', NOTHING)}",
        "Models": assigned or config.get("models"),
        "Clients": clients_in_words(run),
        "Seed": shown["seed"],
        "Engine": shown["engine"],
        "Privacy": privacy(run),
        "Made with": "; then ".join(", ".join(map(" ".join, one.items())) for one in made) or None,
        "Run folder": run.name,
    }
    return [(name, str(fact)) for name, fact in facts.items() if fact is not None]


def _purpose(algorithm: str) -> str:
    """Return the first line of an algorithm's docstring; empty where the algorithm is not here."""
    from hetfl_flwr.methods import find

    with suppress(ConfigError):
        return (find(algorithm).strategy.__doc__ or "").partition("\n")[0]
    return ""


def _split(run: Run) -> Split | str:
    """Return who had which rows, or why that is not known any more."""
    from hetfl_flwr.methods import resolve
    from simulations.reports.partition import load_split

    clients = figures(run)["clients"]
    if not clients:
        return f"{run.name}: no client is known yet"
    try:
        config = RunConfig.from_flat({**run.config, "clients": clients})
        if not config.dataset:
            return f"{run.name}: its nodes had data of their own"
        split = load_split(resolve(config))
    except HetflError as error:
        return f"{run.name}: {error}"
    trained = {client["partition"]: client["train"] for client in run.clients if client["train"] is not None}
    if not config.pooled and any(share.training != trained.get(share.client, share.training) for share in split.shares):
        return f"{run.name}: its clients had other rows than its config gives them here: data of their own, it may be."
    return split


def _split_part(split: Split | str) -> dict[str, Any]:
    """Return who had which rows: a table or, of many clients and classes, a picture as a data URI; or why neither."""
    if isinstance(split, str):
        return {"why": split}
    many = len(split.shares) * split.classes > MOST_CELLS
    return (
        {"why": "", "title": split.title, "picture": _picture(split)}
        if many
        else {"why": "", "sheet": split_sheet(split)}
    )


def _picture(split: Split) -> str:
    from simulations.reports.plots.partition import split_figure

    file = BytesIO()
    split_figure(split).savefig(file, format="png", dpi=110)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
