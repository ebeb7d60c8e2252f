"""The ``hetfl`` command. Nothing heavy is imported before a command needs it."""

import os
import sys
from enum import StrEnum
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from hetfl_flwr.common.errors import (
    ConfigError,
    FederationError,
    HetflError,
    Interrupted,
    RunFolderError,
    TooFewClients,
)
from hetfl_flwr.common.notices import warn
from hetfl_flwr.common.packages import working_directory_last
from hetfl_flwr.common.text import printable
from hetfl_flwr.config import DEFAULT_CLIENTS, RunConfig, Value, parse_settings, read_toml, renamed, usable_path
from hetfl_flwr.node.allocation import keep_freed_memory
from hetfl_flwr.runs.schema import check_no_run_file
from simulations.engine.run import run_locally

if TYPE_CHECKING:
    from rich.console import Console


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning across heterogeneous models.",
)

RECIPES = Path(__file__).parent / "recipes"

MOST_WORKERS = 256
"""Processes at a time, at most: each takes hundreds of megabytes."""


def path(text: str) -> Path:
    """Read an argument that names a file or a folder, as `usable_path` does; a pipe is refused: opening it may wait."""
    named = usable_path(str(text))
    if named.is_fifo() and not named.is_relative_to("/dev"):  # /dev/stdout may be one, which somebody reads
        raise ConfigError(f"{named}: is a pipe, expected a file or a folder")
    return named


def target(text: str) -> Path:
    """Read an argument that names a file to write; what belongs to a run is refused."""
    return check_no_run_file(path(text))


DatasetOption = Annotated[
    str | None,
    typer.Option(help="Name from `hetfl list datasets`, a hub id, your folder (./photos) or your file (./wine.csv)."),
]
FolderOption = Annotated[Path | None, typer.Option(parser=path, help="Folder with local copies in the hub's layout.")]
ClientsOption = Annotated[
    int | None, typer.Option(help=f"Number of clients (default {DEFAULT_CLIENTS}, or the number of owners or folders).")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all random numbers.")]
RecipeOption = Annotated[
    Path | None, typer.Option(parser=path, help="TOML file of config keys, or a name from `hetfl list recipes`.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any config key; repeatable, the last value of a key wins."),
]


RunsArgument = Annotated[
    list[Path], typer.Argument(parser=path, metavar="DIR...", help="Run folders, or folders of such.")
]


class Kind(StrEnum):
    """What `hetfl list` can show."""

    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    RECIPES = "recipes"
    TABLES = "tables"
    KEYS = "keys"


@app.command()
def run(
    algorithm: Annotated[
        str, typer.Argument(help="Name from `hetfl list algorithms`, or package.module for one of your own.")
    ],
    dataset: DatasetOption = None,
    data_dir: FolderOption = None,
    clients: ClientsOption = None,
    rounds: Annotated[int | None, typer.Option(help="Number of training rounds.")] = None,
    seed: SeedOption = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Worker processes; results do not depend on their number.")
    ] = 1,
    recipe: RecipeOption = None,
    settings: SettingsOption = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE...",
            help="Run every combination of these values, each in a folder of --out, --workers at a time: "
            '"fedhe.alpha=0,0.5 seed=0:5". a:b means a to b - 1; quote a value that contains a comma.',
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="local",
            help="Run the same also with each client training alone (local), or on the data of all (pooled), or both "
            "(local,pooled), in folders of --out, --workers at a time, and say whom the algorithm helps.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(parser=path, help="Run folder (default: a new one under runs/).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="With --resume: continue although the newest checkpoint or a client's state is damaged, from the "
            "previous checkpoint or, if that is damaged too, without what is lost.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Flower's log and the clients' tracebacks.")] = False,
) -> None:
    """Run a federation on this machine.

    Example: hetfl run fedhe --dataset digits --clients 10 --rounds 50 --set partition=dirichlet:0.3 --set
    fedhe.alpha=0.5
    """
    chosen = _chosen(
        recipe,
        settings,
        algorithm=algorithm,
        dataset=dataset,
        data_dir=None if data_dir is None else str(data_dir),
        clients=clients,
        rounds=rounds,
        seed=seed,
        output_dir=None if out is None else str(out),
        accept_loss=accept_loss or None,
    )
    if sweep is not None or against is not None:
        _many(chosen, None if sweep is None else " ".join(sweep), against, workers)
    else:
        _show(_run(chosen, resume=resume, workers=workers, verbose=verbose))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="DIR", help="Run folder, or the state-dir of a node.")],
    client: Annotated[str, typer.Option(metavar="NAME|NUMBER", help="Client, by its name or its number.")],
    out: Annotated[Path, typer.Option(parser=target, metavar="FILE", help="model.pt2 (torch.export) or model.onnx.")],
) -> None:
    """Export a client's trained model as a program that takes raw inputs and does not need this project.

    Beside the program, the file holds a description (hetfl.json): the names of the classes; of a table, its columns,
    each with its kind, notation and categories; of images, height, width, range of the pixels and how to resize; of
    texts, the length, what a word is and how it becomes a token; of time series, channels and length. Scaling is done
    by the program itself.

    Example: hetfl export runs/fedhe --client "St. Mary" --out model.onnx
    """
    from simulations.api import export as write

    typer.echo(f"model: {write(folder, client, out)}")


@app.command()
def predict(
    model: Annotated[
        Path, typer.Argument(parser=path, metavar="MODEL", help="model.pt2 of `hetfl export`, or a run folder.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            parser=path,
            metavar="FILE",
            help="Table (csv, parquet, json), texts (a table, or .txt: one a line), time series (parquet, json, npz), "
            "an image or a folder of images.",
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME|NUMBER", help="Client, by its name or its number, where MODEL is a run folder."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=target, metavar="FILE.csv", help="File to write (default: standard output).")
    ] = None,
) -> None:
    """Predict the class of each row, image or text, with a client's trained model.

    A .pt2 file is a program: open only those of people whom you trust.

    Columns are found by name; others are ignored. An image that cannot be read is named, the others are predicted, and
    the exit status is 2.

    Example: hetfl predict model.pt2 patients.csv --out predictions.csv
    """
    from simulations.predict import predict as predict_all

    done = predict_all(model, file, client)
    if out is None:
        done.write(sys.stdout)
    else:
        with out.open("w", newline="", encoding="utf-8") as written:
            done.write(written)
        typer.echo(f"predictions: {out}")
    for line in done.unreadable:
        warn(printable(line))
    if done.unreadable:
        raise typer.Exit(2)


@app.command()
def partition(
    dataset: DatasetOption = None,
    data_dir: FolderOption = None,
    clients: ClientsOption = None,
    seed: SeedOption = None,
    recipe: RecipeOption = None,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option(parser=target, metavar="FILE.png", help="Picture to write.")] = None,
    json: Annotated[
        Path | None, typer.Option(parser=target, metavar="FILE.json", help="The same counts as JSON.")
    ] = None,
) -> None:
    """Show how samples are split over clients, before any training.

    Example: hetfl partition --dataset digits --clients 10 --set partition=dirichlet:0.3 --out split.png
    """
    from hetfl_flwr.algorithms import resolve
    from hetfl_flwr.runs.resolution import default_clients
    from simulations.reports.partition import load_split, split_table, write_json
    from simulations.reports.plots import plot_split

    folder = None if data_dir is None else str(data_dir)
    chosen = _chosen(recipe, settings, dataset=dataset, data_dir=folder, clients=clients, seed=seed)
    config = RunConfig.from_flat(chosen)
    split = load_split(resolve(config.with_values({"clients": config.clients or default_clients(config)})))
    for line in split.notes:
        warn(printable(line))
    _print(split_table(split))
    if json is not None:
        write_json(split, json)
    if out is not None:
        plot_split(split, out)
        typer.echo(f"picture: {out}")


@app.command()
def keys(
    host: Annotated[
        list[str],
        typer.Option("--host", help="Host name or IP address under which clients reach the server; repeatable."),
    ],
    out: Annotated[
        Path, typer.Option(parser=target, metavar="DIR", help="Folder to write to; existing files are kept.")
    ],
    nodes: Annotated[int, typer.Option(min=0, max=10_000, help="Number of key pairs: node-0, node-1 and so on.")] = 0,
) -> None:
    """Create a private CA, a server certificate and a key pair for each node, for a deployment with TLS.

    Example: hetfl keys --host server.example.org --nodes 3 --out keys
    """
    from simulations.deployment.keys import make_keys

    made = make_keys(out, host, nodes)
    typer.echo(f"new in {out}: {', '.join(path.name for path in made) or 'nothing, all files existed'}")


@app.command()
def rehearse(
    algorithm: Annotated[str, typer.Argument(help="Name from `hetfl list algorithms`.")] = "fedhe",
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Number of SuperNodes to start.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Number of training rounds.")] = 3,
    settings: SettingsOption = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="New folder for all output (default: under runs/).")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the federation running after the run, until Ctrl-C.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Use Flower's own SuperNodes.")] = False,
) -> None:
    """Rehearse a deployment on this machine: TLS, node authentication, and a model and folders for each node.

    Example: hetfl rehearse fedhe --nodes 3 --rounds 3
    """
    from simulations.deployment.rehearsal import hold, rehearsal

    chosen = _chosen(None, settings, algorithm=algorithm, rounds=rounds)
    try:
        with rehearsal(chosen, nodes, out, typer.echo, plain=plain) as (federation, folder):
            _show(folder)
            if keep:
                hold(federation, nodes, typer.echo)
    except FederationError as error:
        typer.echo(f"hetfl: {error}", err=True)
        raise typer.Exit(1) from None


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def supernode(
    arguments: typer.Context,
    keep: Annotated[
        str, typer.Option(help="fork: a process for each message. resident: one that keeps models, data and CUDA.")
    ] = "fork",
    poll: Annotated[float, typer.Option(help="Seconds between two looks for a message.")] = 0.5,
) -> None:
    """Run a SuperNode whose ClientApps start at once. It takes all flags of `flower-supernode`.

    Among these are --superlink, --root-certificates, --auth-supernode-private-key, --node-config and --insecure.

    Example: hetfl supernode --insecure --superlink 127.0.0.1:9092 --node-config 'partition-id=0 num-partitions=3'
    """
    from simulations.deployment.supernode import run_supernode

    run_supernode(arguments.args, keep, poll)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name, such as moments, or my_pkg.moments in a package of yours.")],
) -> None:
    """Create a small working algorithm in the working directory, as a starting point for your own.

    Example: hetfl new moments
    """
    from simulations.new import write_algorithm

    here = Path.cwd()
    folder = write_algorithm(name, here).relative_to(here)
    typer.echo(f"written: {folder} (server side strategy.py, client side client.py, test_{folder.name}.py)")
    typer.echo(f"run it:  hetfl run {name} --clients 4 --rounds 10")
    typer.echo(f"test it: pytest {folder}")


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list (default: everything).")] = None,
    data_dir: Annotated[str, typer.Option(help="Folder with local copies in the hub's layout.")] = "",
    dataset: Annotated[str, typer.Option(help="Data set for which model sizes are shown.")] = "digits",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How to read that data set, such as image-size=64."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="With keys: print the table that `flwr run` reads.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="FILE", help="With keys: write that table into a pyproject.toml."),
    ] = None,
) -> None:
    """List algorithms, data sets, models, recipes, tables and config keys.

    Example: hetfl list models --dataset mnist
    """
    from simulations import listing as catalogue

    if (toml or into is not None) and kind != Kind.KEYS:
        raise ConfigError("--toml and --into are for `hetfl list keys`")
    if into is not None:
        catalogue.write_keys(into)
        return
    if toml:
        typer.echo(catalogue.keys_toml(), nl=False)
        return
    config = RunConfig.from_flat({"data-dir": data_dir, "dataset": dataset, **parse_settings(settings or [])})

    tables = {
        Kind.ALGORITHMS: catalogue.algorithms,
        Kind.DATASETS: lambda: catalogue.datasets(data_dir),
        Kind.MODELS: lambda: catalogue.models(config.dataset, config.reading),
        Kind.RECIPES: lambda: catalogue.recipes(RECIPES),
        Kind.TABLES: catalogue.tables,
        Kind.KEYS: catalogue.keys,
    }
    for each in [kind] if kind else list(Kind):
        _print(tables[each]())


@app.command()
def reproduce(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE...", help="Names from `hetfl list tables`, files, or `all`.")
    ],
    seeds: Annotated[
        int, typer.Option(min=0, max=1000, help="Number of seeds, starting at 0 (default: the recipe's).")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Quick variant: bundled data, few rounds, one seed.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Short variant, if there is one: the same data, sized for a small machine.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only rows and columns whose name contains this; repeatable."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Number of runs at a time, each in its own process.")
    ] = 1,
    data_dir: FolderOption = None,
    settings: SettingsOption = None,
    out: Annotated[
        Path, typer.Option(parser=target, metavar="DIR", help="Folder for runs, tables and pictures.")
    ] = Path("reproduced"),
    results: Annotated[
        Path | None,
        typer.Option(
            parser=target,
            metavar="FILE.md",
            help="File that collects all tables; runs recorded there are not repeated.",
        ),
    ] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing; report earlier runs.")] = False,
) -> None:
    """Reproduce the papers' tables and figures, with the paper's figures beside ours.

    Finished runs under --out are not repeated; interrupted ones continue. With --results, the figures of each run are
    kept beside that file, in results/, so that a table can be made in parts and on several machines.

    Example: hetfl reproduce fedh2l-table2 --seeds 3 --workers 2 --data-dir data
    """
    from simulations.studies.reproduce.command import Request
    from simulations.studies.reproduce.command import reproduce as reproduce_all
    from simulations.studies.reproduce.recipe import Variant

    extra = parse_settings(settings or [])
    if data_dir is not None:
        extra["data-dir"] = str(data_dir)
    if quick and short:
        raise ConfigError("--quick and --short: one of them")
    variant: Variant = "quick" if quick else "short" if short else "full"
    request = Request(out, variant, only or (), seeds, workers, extra, results, report_only)
    if not reproduce_all(recipes, request, _console()):
        raise typer.Exit(1)


@app.command()
def compare(
    folders: RunsArgument,
    out: Annotated[Path, typer.Option(parser=target, metavar="FILE.png", help="Picture to write.")] = Path(
        "compare.png"
    ),
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Accuracy at which bytes are counted (default: 95 % of the lowest best)."),
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What gains are of: accuracy, balanced-accuracy, macro-f1 or auc.",
        ),
    ] = "accuracy",
    csv: Annotated[
        Path | None,
        typer.Option(parser=target, metavar="FILE.csv", help="Gains of each method and client, as rows."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(parser=target, metavar="FILE.json", help="The same, with the sentences, as JSON.")
    ] = None,
) -> None:
    """Compare runs in a table and in a picture of accuracy over rounds and over bytes.

    With runs of local among them, say which clients each method helps, by how much and how sure that is.

    Below the tables stands what makes the figures of any run doubtful, such as small test sets.

    Example: hetfl compare runs/fedhe runs/local --measure balanced-accuracy
    """
    _compare(folders, out, target, measure, csv, json)


@app.command()
def report(
    folders: RunsArgument,
    out: Annotated[Path, typer.Option(parser=target, metavar="FILE.html", help="File to write.")] = Path("report.html"),
) -> None:
    """Write a report of one or several runs as a self-contained HTML file.

    Example: hetfl report runs/fedhe runs/local --out report.html
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # who had which rows is told from data that are here, or not at all
    from simulations.reports.html.report import write_report

    typer.echo(f"report: {write_report(folders, out)}")


def _unwrapped(text: str) -> str:
    """Return a docstring whose paragraphs are a line each, which any terminal folds to its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for _command in app.registered_commands:
    _command.help = _unwrapped(getdoc(_command.callback) or "")


def main() -> None:
    """Run the command; a user's mistake is one line on standard error and exit status 2."""
    working_directory_last()
    keep_freed_memory()
    try:
        ended = app(standalone_mode=False)
        status = 2 if ended == 2 else 1 if ended else 0  # typer would end with 130 on Ctrl-C
    except HetflError as error:
        typer.echo(f"hetfl: {error}", err=True)
        status = 1 if isinstance(error, TooFewClients) else 2
    except click.ClickException as error:
        if message := error.format_message():  # none where `hetfl` alone has shown the help
            typer.echo(f"hetfl: {printable(message)}", err=True)
        status = error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"hetfl: {printable(f'{error.filename}: {error.strerror}')}", err=True)
        status = 2
    except (KeyboardInterrupt, click.Abort):
        status = 1
    sys.exit(status)


def _chosen(recipe: Path | None, settings: list[str] | None, **named: Value | None) -> dict[str, Value]:
    """Return the config keys that a command line names: its options win over its recipe, and ``--set`` over both."""
    return {
        **(read_toml(_recipe(recipe)) if recipe is not None else {}),
        **{key.replace("_", "-"): value for key, value in named.items() if value is not None},
        **parse_settings(settings or []),
    }


def _run(chosen: dict[str, Value], *, resume: bool, workers: int, verbose: bool) -> Path:

    try:
        return run_locally(chosen, resume=resume, workers=workers, verbose=verbose)
    except Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(1) from None


def _many(chosen: dict[str, Value], sweep: str | None, against: str | None, workers: int) -> None:
    from simulations.studies.against import jobs_against, parse_against
    from simulations.studies.sweeps import jobs, parse_grid, run_jobs

    if "output-dir" not in chosen:
        option = "--sweep" if against is None else "--against"
        raise ConfigError(f"{option} needs --out: the folder of its run folders, in which it also goes on")
    out = check_no_run_file(Path(str(chosen.pop("output-dir"))))
    grid = {} if sweep is None else renamed(parse_grid(sweep))
    wanted = jobs(chosen, grid, out) if against is None else jobs_against(chosen, parse_against(against), grid, out)
    try:
        folders, failed = run_jobs(wanted, workers, _console())
    except Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(1) from None
    ended = [folder for folder in folders if folder not in failed]
    if ended:
        _compare(ended, out / "compare.png", None)
    if failed:
        raise typer.Exit(1)


def _compare(
    folders: list[Path],
    out: Path,
    target: float | None,
    measure: str = "accuracy",
    csv: Path | None = None,
    json: Path | None = None,
) -> None:
    from simulations.reports.doubts import doubts_of
    from simulations.reports.estimates import measure_named
    from simulations.reports.gains import NO_ANSWER, answer
    from simulations.reports.gains_shown import gains_table, in_words, write_csv, write_json
    from simulations.reports.impact import impact_table, standings
    from simulations.reports.plots import plot_compare, plot_impact
    from simulations.reports.runs import load_run, run_folders
    from simulations.reports.tables import compare_table

    damage = list[str]()
    runs = [load_run(folder, damage.append) for folder in run_folders(folders)]
    compared = measure_named(measure)
    found = answer(runs, compared)
    if found is None and (csv or json):
        raise ConfigError(f"{'--csv' if csv else '--json'}: {NO_ANSWER}")
    _print(compare_table(runs, target, compared))
    standing = standings(runs, compared)
    if found is not None:
        typer.echo()
        _print(impact_table(standing, compared))
        typer.echo()
        _print(gains_table(found))
        typer.echo("\n" + "\n".join(in_words(found)) + "\n")
    if doubtful := doubts_of(runs):
        typer.echo("\n".join(("Mind:", *(f"  {line}" for line in doubtful))) + "\n")
    try:
        plot_compare(runs, out)
        if standing:
            plot_impact(standing, gains_picture := out.with_stem(f"{out.stem}-gains"))
    except OSError as error:
        raise RunFolderError(f"{out} cannot be written: {error.strerror}") from None
    for line in damage:
        warn(line)
    typer.echo(f"picture: {out}" + (f", {gains_picture}" if standing else ""))
    for file, write in ((csv, write_csv), (json, write_json)):
        if found is not None and file is not None:
            write(found, file)
            typer.echo(f"gains: {file}")


def _recipe(path: Path) -> Path:
    named = RECIPES / f"{path}.toml"
    return named if not path.exists() and named.exists() else path


def _show(folder: Path) -> None:
    from hetfl_flwr.runs.tables import client_table
    from simulations.reports.plots import plot_run
    from simulations.reports.runs import load_run
    from simulations.reports.tables import summary_table

    finished = load_run(folder)
    _print(client_table(finished.name, finished.clients), summary_table(finished))
    if any(record.accuracy is not None for record in finished.rounds):  # else no client has test samples
        plot_run(finished, folder / "accuracy.png")
    typer.echo(f"results: {folder}")


def _print(*tables: Any) -> None:
    from hetfl_flwr.runs.tables import fitted, lines

    console = _console()
    for table in tables:
        if not console.is_terminal:
            typer.echo("\n".join(lines(table)))
            continue
        for part in fitted(table, console):
            console.print(part)


def _console() -> "Console":
    from rich.console import Console

    # what is shown are names and texts of others: no markup, no emoji
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
