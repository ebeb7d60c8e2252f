"""``hetfl compare``, ``hetfl report``, ``hetfl watch`` and ``hetfl audit``: inspecting runs."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetfl_flwr.common.notices import warn
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.runs.record import read_clients
from simulations.cli.options import JsonOption, RunsArgument, path, target
from simulations.cli.printing import make_console, print_json, print_tables

if TYPE_CHECKING:
    from simulations.reports.estimates import Measure
    from simulations.reports.impact import MethodImpact
    from simulations.reports.runs import Run


def compare(
    folders: RunsArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=target,
            metavar="FILE.png",
            help="Picture of accuracy over rounds, bytes and simulated seconds; FILE-gains.png has the gains.",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Accuracy until which bytes are counted (default: 95 % of the lowest best accuracy)."
        ),
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Measure of the gains: accuracy, balanced-accuracy, macro-f1, auc or recall:CLASS.",
        ),
    ] = "accuracy",
    csv: Annotated[
        Path | None,
        typer.Option(parser=target, metavar="FILE.csv", help="Gains of each method and client, as rows."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare runs in a table.

    If runs of local are among them, show which clients each method helps, by how much and how certain that is.

    Warnings below the tables name what makes the figures of a run unreliable, such as small test sets. docs/runs.md
    explains how each figure is computed.

    Example: hetfl compare runs/fedhe runs/local --measure balanced-accuracy
    """
    from simulations.reports.datasets import with_short_names
    from simulations.reports.doubts import doubts, too_short
    from simulations.reports.estimates import measure_named
    from simulations.reports.gains import NO_ANSWER, answer, gains_table, in_words, write_csv
    from simulations.reports.impact import impact_table
    from simulations.reports.runs import differences, load_runs
    from simulations.reports.tables import compare_table

    damage = list[str]()
    loaded = load_runs(folders, damage.append)
    runs = with_short_names(loaded)
    compared = measure_named(measure)
    found, table = answer(runs, compared), compare_table(runs, target, compared)
    if found is None and csv:
        raise ConfigError(f"--csv: {NO_ANSWER}")
    standing, doubtful = found.standing if found else [], too_short(runs) + doubts(runs)
    files = [] if csv is None or found is None else [f"gains: {write_csv(found.gains, csv)}"]
    files += [] if out is None else [f"picture: {', '.join(map(str, _draw(runs, standing, compared, out)))}"]
    if json:
        print_json(
            {
                "runs": differences(loaded),
                "methods": [one.to_json() for one in standing],
                "gains": found and found.to_json(),
                "doubts": doubtful,
            }
        )
    else:
        print_tables(table)
        if found is not None:
            typer.echo()
            print_tables(impact_table(standing, compared))
            typer.echo()
            print_tables(gains_table(found))
            typer.echo("\n" + "\n".join(in_words(found)) + "\n")
        if doubtful:
            typer.echo("\n".join(("Warnings:", *(f"  {line}" for line in doubtful))) + "\n")
        for line in files:
            typer.echo(line)
    for line in damage:
        warn(line)


def report(
    folders: RunsArgument,
    out: Annotated[Path, typer.Option(parser=target, metavar="FILE.html", help="File to write.")] = Path("report.html"),
) -> None:
    """Write a report of one or several runs as a self-contained HTML file.

    Example: hetfl report runs/fedhe runs/local --out report.html
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # which client had which rows is known only if the data are here
    from simulations.reports.report import write_report

    typer.echo(f"report: {write_report(folders, out)}")


def watch(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="DIR", help="The run folder.")],
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Refresh interval in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="List only clients with failures.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the progress of a run until it ends: round, accuracy, payload, each client's last round, and failures.

    Clients with failures come first, then those that are late, then those with the lowest accuracy. A terminal shows as
    many as fit on the screen; `--once` to a file or a pipe lists all.

    It only reads the run folder, so it works with every engine, on the server's machine. To a file or a pipe, and with
    --json, it writes a line whenever rounds have ended. The exit status is 1 if the run was stopped before its last
    round; the last line then says how to continue.

    Example: hetfl watch runs/fedhe
    """
    from rich.live import Live

    from simulations.reports.watching import standing

    console, now = make_console(), standing(folder, failed=failed)
    if not json and (once or sys.stdout.isatty()):
        try:
            if not once:
                with Live(now.shown(console), console=console, auto_refresh=False, transient=True) as live:
                    while not now.ended:
                        time.sleep(every)
                        now = standing(folder, failed=failed)
                        live.update(now.shown(console), refresh=True)
        finally:
            console.print(now.shown(console), soft_wrap=True)  # a command in it can be pasted
    else:
        said = -1
        while True:
            if now.ended or len(now.run.rounds) != said:
                print_json(now.facts) if json else typer.echo(now.line)
                said = len(now.run.rounds)
            if now.ended or once:
                break
            time.sleep(every)
            now = standing(folder, failed=failed)
    if now.facts["state"] == "stopped":
        raise typer.Exit(1)


def _draw(runs: "list[Run]", standing: "list[MethodImpact]", measure: "Measure", out: Path) -> list[Path]:
    """Draw a comparison of runs, and the gains of their methods in a measure; return the pictures."""
    from simulations.reports.plots.comparison import compare_figure
    from simulations.reports.plots.drawing import write_figure
    from simulations.reports.plots.impact import methods_figure

    write_figure(compare_figure(runs), out)
    if not standing:
        return [out]
    gains = out.with_stem(f"{out.stem}-gains")
    write_figure(methods_figure(standing, measure=measure), gains)
    return [out, gains]


def audit(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="RUN", help="Run folder of a run with keep-uploads.")],
    device: Annotated[str, typer.Option(help="Device of the attacks: cpu, cuda, cuda:1, mps or auto.")] = "cpu",
    shadows: Annotated[
        int, typer.Option(min=2, max=1024, help="Shadow models that the attacker trains for each client.")
    ] = 8,
    clients: Annotated[int, typer.Option(min=0, help="Number of clients to attack, from the first. 0: all.")] = 0,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="K=DIR", help="For a deployment: client K's state-dir, or its data; repeatable."),
    ] = None,
) -> None:
    """Measure what a server could infer from the clients' uploads: membership, labels, pictures.

    The run must have kept its uploads, and its data must be on this machine as the ground truth. For a deployment, name
    at least two nodes' folders with --node; otherwise, only the uploads themselves are read. Figures and pictures are
    written to RUN/audit/.

    Example: hetfl run fedproto --set keep-uploads=true --out runs/p && hetfl audit runs/p
    """
    from simulations.audit.report import FOLDER, JSON_FILE, audited, tables

    places = _places(node or [])
    found = audited(folder, device=device, shadows=shadows, clients=clients, places=places)
    names = next((one["class_names"] for one in read_clients(folder) or () if one.get("class_names")), None)
    print_tables(*tables(found, folder.name, names))
    if found.unknown:
        typer.echo(f"not known: {found.unknown}")
    for why in dict.fromkeys(found.skipped.values()):
        attacks = [attack.partition(" (")[0] for attack, reason in found.skipped.items() if reason == why]
        typer.echo(f"not run: {'; '.join(attacks)}: {why}")
    for picture in found.pictures:
        typer.echo(f"pictures: {picture}")
    typer.echo(f"figures: {folder / FOLDER / JSON_FILE}")


def _places(nodes: list[str]) -> dict[int, Path]:
    found = dict[int, Path]()
    for text in nodes:
        client, _, place = text.partition("=")
        if not (client.isascii() and client.isdecimal() and place):
            raise ConfigError(f"--node {text}: expected the number of a client and a folder: 0=STATE_DIR")
        if int(client) in found:
            raise ConfigError(f"--node {text}: client {client} is named twice")
        found[int(client)] = path(place)
    return found
