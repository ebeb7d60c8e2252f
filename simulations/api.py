"""The Python API of runs, for scripts and notebooks.

`run` does what ``hetfl run`` does, with the same folder and bit-identical results. In a script, but not in a notebook,
code that needs more than one process (``workers``, sweeps) must be called under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from hetfl_flwr.common.notices import called_in_python
from hetfl_flwr.config import Value, flattened
from hetfl_flwr.errors import ConfigError, HetflError
from hetfl_flwr.runs.record import QUALITIES, name_of, named_classes
from hetfl_flwr.seeding import seeded
from simulations.engine.run import process_as_it_was, run_locally
from simulations.reports.doubts import notes
from simulations.reports.runs import Run, differences, load_run, load_runs

Runs = PathLike[str] | str | Iterable[PathLike[str] | str]
"""Results, run folders, or folders that contain run folders; or one of these."""

SHADOWS = 8
"""Models that the attacker of `audit` trains for each client."""

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from hetfl_flwr.node.node import Node
    from hetfl_flwr.runs.callbacks import RoundCallback
    from hetfl_flwr.runs.record import Round


@called_in_python
def run(
    algorithm: str = "fedhe",
    *,
    out: Path | str | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool = True,
    callbacks: str | Iterable[str | RoundCallback | type[RoundCallback]] = (),
    settings: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Result:
    """Run a federation on this machine, as ``hetfl run`` does.

    The first Ctrl-C, or interrupt of a notebook, lets the round finish and keeps the run; the second one ends it at
    once.

    Parameters
    ----------
    algorithm : str
        A name from ``hetfl list algorithms``, or ``package.module`` for one of your own.
    out : path, optional
        Run folder. Default: a new one under ``runs/`` in the working directory.
    resume : bool
        Continue the run in `out` from its last checkpoint. Of its keys, ``rounds`` may
        differ, and those that the page "Run and compare" lists.
    workers : int
        Number of worker processes, 1 or more; results are bit-identical for any number.
    progress : bool
        Whether to show a progress bar, in a terminal or a notebook.
    callbacks : str or iterable
        Called after each round: objects with the methods of a `RoundCallback`, or names, ``"module:Class"``. The
        run folder records only the names.
    settings : mapping, optional
        Config keys as listed by ``hetfl list keys``: ``{"learning-rate": 0.01, "fedhe.alpha": 0.5}``.
    **keys
        Config keys with underscores, ``learning_rate=0.01``, and an algorithm's own as a mapping,
        ``fedhe={"alpha": 0.5}``. A list becomes a comma-separated list: ``models=["mlp", "lenet5"]``. ``dataset`` may
        also be data: a pandas or polars data frame, a ``datasets.Dataset`` or ``DatasetDict``, a torch data set of
        (image, label) or (vector, label) pairs, or a dict of arrays by column; or a list of these, one per client, or a
        dict by the clients' names. It is written to the cache folder of the datasets library, and the run's config
        names that folder.

    Returns
    -------
    Result
        The run, read from its folder.

    Raises
    ------
    HetflError
        A key, the data or a model is invalid, or too few clients are left. The message is one line.
    Interrupted
        After a ``KeyboardInterrupt``, at the end of the round. The message says how to resume.

    Examples
    --------
    >>> from hetfl_flwr import run
    >>> result = run("fedhe", clients=2, rounds=1, out=getfixture("tmp_path") / "run", progress=False)
    >>> result.summary["rounds"], result.folder.name
    (1, 'run')
    """
    chosen = {**config_keys(settings, keys), "algorithm": algorithm}
    names, objects = _split_callbacks(callbacks)
    if names:
        chosen["callbacks"] = ",".join(names)
    if out is not None:
        chosen["output-dir"] = str(out)
    return Result(
        run_locally(chosen, resume=resume, workers=workers, verbose=False, progress=progress, callbacks=objects)
    )


def load(folder: PathLike[str] | str) -> Result:
    """Read the folder of a run in any engine, which has ended, was stopped or is still active.

    Raises
    ------
    RunFolderError
        There is no run in it, or a file is damaged.
    """
    return Result(folder)


@called_in_python
def sweep(
    algorithm: str = "fedhe",
    *,
    grid: Mapping[str, Iterable[Value]],
    out: Path | str,
    workers: int = 1,
    on: str = "local",
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    **keys: Any,
) -> list[Result]:
    """Run a federation with every combination of some values, as ``hetfl run --sweep`` does.

    Finished runs in `out` are not repeated; stopped runs are resumed.

    Parameters
    ----------
    grid : mapping
        Values by config key: ``{"fedhe.alpha": [0, 0.5, 1], "seed": range(5)}``. They override `settings` and `keys`.
    out : path
        Parent of the run folders.
    workers : int
        Number of parallel runs, each in its own process.
    on : {"local", "ray"}
        Where to execute the runs: on this machine, or on the Ray cluster that it belongs to or that RAY_ADDRESS names.
    algorithm, progress, settings, **keys
        As in `run`.

    Returns
    -------
    list of Result
        One per combination, with the values of the last key varying fastest; `compare` turns them into a table.

    Raises
    ------
    HetflError
        Raised before the first run if any run is invalid, and after the last, with the reasons, if some have failed.
        Finished runs are kept.
    """
    from rich.console import Console

    from simulations.studies.backends import backend
    from simulations.studies.jobs import run_all
    from simulations.studies.sweeps import check, jobs

    axes = {_key(key): [_value(key, value) for value in values] for key, values in grid.items()}
    base = {**config_keys(settings, keys), "algorithm": algorithm}
    with process_as_it_was(log=False, bars=progress):
        console = Console(stderr=True, quiet=not progress, markup=False, emoji=False)
        wanted = jobs(base, axes, Path(out))
        check(wanted)
        failed = run_all(wanted, backend(on, workers), console)
    if failed:
        reasons = "; ".join(f"{folder.name}: {one.reason}" for folder, one in list(failed.items())[:3])
        raise HetflError(f"{len(failed)} of {len(wanted)} runs have not finished: {reasons}")
    return [Result(job.folder) for job in wanted]


class Result:
    """A run that has ended, was stopped or is active, read from its folder. Functions of run folders accept it.

    Parameters
    ----------
    folder : path
        The run folder.

    Attributes
    ----------
    folder : Path
        The absolute path.
    config : dict
        All config keys with their values.
    summary : dict
        The figures of ``summary.json``: accuracies are fractions, means over the clients on their own test samples.
    """

    def __init__(self, folder: PathLike[str] | str) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._run = load_run(self.folder)
        self.config: dict[str, Value] = dict(self._run.config)
        self.summary: dict[str, Any] = dict(self._run.summary)

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per round, from 0, before any training: accuracies, bytes, seconds, failures and uploads left out."""
        own = ("clients", "classes", "failures", "outliers", "not_averaged")
        rows = [
            {key: value for key, value in vars(record).items() if key not in own}
            | {"failures": len(record.failures), "left_out": record.left_out}
            for record in self._run.rounds
        ]
        return _frame(rows)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client and round: its name and model, and its metrics, such as accuracy.

        If per-class metrics were measured, ``recall`` is a dict from class name to recall on the client's test set;
        ``untested`` and ``unpredicted`` are lists of class names. As in `clients.json`, numbers stand for names that
        stay on the node. ``frame.recall.apply(pandas.Series)`` has one column per class.
        """
        models = {client["partition"]: client["model"] for client in self._run.clients}
        names = {client["partition"]: name_of(client) or None for client in self._run.clients}
        class_names = {client["partition"]: client.get("class_names") or () for client in self._run.clients}
        rows = [
            {"round": record.round, "client": int(client), "name": names.get(int(client))}
            | {"model": models.get(int(client))}
            | {key.replace("-", "_"): value for key, value in scores.items()}
            | _classes(record, client, class_names.get(int(client), ()))
            for record in self._run.rounds
            for client, scores in record.clients.items()
        ]
        return _frame(rows)

    @property
    def notes(self) -> list[str]:
        """Caveats of the figures: too few rounds, small test sets, classes not tested or predicted."""
        return notes(self._run)

    def node(self, client: int | str) -> Node:
        """Return a client, by number or name, with its trained model and its data.

        See `simulations.inference.loading.load_client`.
        """
        from simulations.inference.loading import load_client

        with process_as_it_was(log=False, bars=False):
            return load_client(self.folder, client)

    def model(self, client: int | str) -> nn.Module:
        """Return the model that was evaluated for a client; it takes inputs as in the data of `node`.

        If that is the client's own model, it is a SplitModel.
        """
        node = self.node(client)
        return node.predictor or node.model

    def export(self, client: int | str, path: Path | str) -> Path:
        """Write a client's trained model to a file that does not need this project; see `export`."""
        return export(self.folder, client, path)

    def plot(self) -> Figure:
        """Return a figure of the accuracy over rounds, which a notebook displays as the value of a cell."""
        from simulations.reports.plots.comparison import run_figure

        figure = run_figure(self._run)
        figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]  # matplotlib shows pyplot's own only
        return figure

    def __fspath__(self) -> str:
        """Return the run folder, so that a result is a path to it."""
        return str(self.folder)

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Result({str(self.folder)!r}: {self._in_words})"

    def _repr_html_(self) -> str:
        """Return the form for notebooks: one line, and a row for each client."""
        rows = [
            {
                "client": client["partition"],
                "name": name_of(client) or None,
                "model": client["model"],
                "training samples": client["train"],
                "accuracy before": client["accuracy_before"],
                "accuracy": client["accuracy"],
            }
            | {name.replace("_", " "): value for name, value in client.items() if name in QUALITIES}
            for client in self._run.clients
        ]
        table: str = _frame(rows).to_html(index=False, max_rows=20, float_format="{:.3f}".format, na_rep="-")
        return f"<p>{escape(self._in_words)}<br><code>{escape(str(self.folder))}</code></p>{table}"

    @property
    def _in_words(self) -> str:
        summary = self.summary
        accuracy = "" if summary["accuracy"] is None else f"accuracy {summary['accuracy']:.1%}, "
        sent = decimal(summary["bytes_up"] + summary["bytes_down"])
        of = "" if summary["rounds"] == self.config["rounds"] else f" of {self.config['rounds']}"
        return (
            f"{summary['algorithm']} on {summary['dataset']}, {summary['clients']} clients, "
            f"{summary['rounds']}{of} rounds: {accuracy}{sent} sent"
        )


def compare(runs: Runs) -> pd.DataFrame:
    """Return one row per run: the config keys in which the runs differ, and their figures.

    The index is the name of the run folder. Over seeds: ``compare(results).groupby("fedhe.alpha").accuracy.mean()``.

    Parameters
    ----------
    runs : iterable
        Results, run folders, or folders of such: of a sweep, or of ``hetfl reproduce``. Or one of them.
    """
    import pandas as pd

    return pd.DataFrame(differences(_read(runs))).set_index("run")


@called_in_python
def gains(runs: Runs, measure: str = "accuracy") -> pd.DataFrame:
    """Return each method's gain over local training for each client: one row per method and client.

    Runs are paired with runs of `local` on the same rows and seed or, if there are none, with runs that train on all
    data in one place (``pooled``).

    Parameters
    ----------
    runs : iterable
        Results, run folders, or folders of such: of a sweep, or of ``hetfl reproduce``. Or one of them.
    measure : {"accuracy", "balanced-accuracy", "macro-f1", "auc"}
        The metric to compare. With one seed, only accuracy has an interval.

    Returns
    -------
    DataFrame
        Method, client and its name; the number of seeds; mean final values, and their difference with its 95 %
        interval, as fractions; p values before and after Holm's correction; the verdict, and the verdict in ``words``,
        which name the method if there are several. ``attrs`` has the ``sentences`` by method, the runs that are
        ``left_out`` and why, and ``notes`` on how the gains were computed.

    Raises
    ------
    ConfigError
        There is no baseline run, or no other run; or the measure is unknown, or was not measured.
    """
    from simulations.reports.estimates import measure_named
    from simulations.reports.gains import NO_ANSWER, answer

    found = answer(_read(runs), measure_named(str(measure)))
    if found is None:
        raise ConfigError(NO_ANSWER)
    frame = found.gains
    if frame.method.nunique() > 1:
        own = zip(frame.method, frame.verdict, frame.words, strict=True)
        frame["words"] = [f"{method}{',' * (verdict == 'unclear')} {words}" for method, verdict, words in own]
    frame.attrs = {"sentences": found.sentences, "left_out": list(found.left_out), "notes": list(found.notes)}
    return frame


@called_in_python
def audit(
    result: PathLike[str] | str,
    *,
    device: str = "cpu",
    shadows: int = SHADOWS,
    clients: int = 0,
    nodes: Mapping[int, Path | str] | None = None,
) -> pd.DataFrame:
    """Measure what an attacker learns from the uploads of a run with ``keep-uploads``, as ``hetfl audit`` does.

    Parameters
    ----------
    result : Result or path
        The run, or its folder.
    device : str
        Device of the attacks, as in the config key ``device``.
    shadows : int
        Models that the attacker trains for LiRA for each client, 2 or more.
    clients : int
        Number of clients to attack, starting with the first. 0: all.
    nodes : mapping of int to path, optional
        For a deployment: the ``state-dir`` of each client's node, or its data, by client id; at least two.

    Returns
    -------
    DataFrame
        One row per figure, with the fields of `simulations.audit.measures.Finding`. ``attrs`` has the
        ``skipped`` attacks and why, the ``guarantees`` of the noise on uploads, the paths of the ``pictures`` and, for
        a deployment without `nodes`, the ``estimates`` from the uploads alone. ``audit/`` in the run folder has the
        same as ``audit.json``, and the pictures.

    Raises
    ------
    HetflError
        The run has no uploads, or none that an attack supports, or the device is not available.
    """
    import pandas as pd

    from simulations.audit.report import audited

    with process_as_it_was(log=False, bars=False):
        places = {client: Path(place).expanduser() for client, place in (nodes or {}).items()}
        found = audited(Path(result).expanduser(), device=device, shadows=shadows, clients=clients, places=places)
    frame = pd.DataFrame([vars(one) for one in found.findings])
    frame.attrs = {
        "skipped": dict(found.skipped),
        "guarantees": [vars(one) for one in found.guarantees],
        "estimates": [one._asdict() for one in found.estimates],
        "pictures": [str(path) for path in found.pictures],
    }
    return frame


def export(folder: PathLike[str] | str, client: int | str, path: Path | str) -> Path:
    """Write a client's trained model to a file for a device without this project; as ``hetfl export``.

    Parameters
    ----------
    folder : Result or path
        A run, its folder, or a node's ``state-dir``; as in `simulations.inference.loading.load_client`.
    client : int or str
        Its number or its name.
    path : path
        ``.pt2`` for torch.export, or ``.onnx``.

    Returns
    -------
    Path
        The file. Its program takes inputs as stored; see `simulations.inference.export`.
    """
    from simulations.inference.export import export_node
    from simulations.inference.loading import load_client

    with process_as_it_was(log=False, bars=False):
        return export_node(load_client(folder, client, data=False), Path(path))


def _read(runs: Runs) -> list[Run]:
    """Return the runs of some folders, or of one.

    Raises
    ------
    ConfigError
        There are none, or one is neither a result nor a path.
    """
    places = [runs] if isinstance(runs, str | PathLike) else list(runs)
    if not places:
        raise ConfigError("no run is given: name results, or run folders, such as runs/NAME")
    for place in places:
        if not isinstance(place, str | PathLike):
            raise ConfigError(f"{place!r} is not a run: give results or paths of run folders")
    return load_runs(Path(place).expanduser() for place in places)


def _split_callbacks(given: str | Iterable[object]) -> tuple[list[str], list[RoundCallback]]:
    """Split callbacks into names and objects; classes are built.

    Raises
    ------
    ConfigError
        One is neither a name nor a callback.
    """
    from hetfl_flwr.runs.callbacks import built

    items = [given] if isinstance(given, str) else list(given)
    names = [item for item in items if isinstance(item, str) and item.strip()]
    return names, [built(item, "callbacks") for item in items if not isinstance(item, str)]


def config_keys(settings: Mapping[str, Any] | None, keys: Mapping[str, Any]) -> dict[str, Value]:
    """Return config keys in the form of the run config.

    Raises
    ------
    ConfigError
        A key is given twice, or has a value of a type that no key accepts.

    Examples
    --------
    >>> config_keys({"batch-size": 20}, {"fedhe": {"alpha": 0.5}, "local_epochs": 2, "models": ["mlp", "lenet5"]})
    {'batch-size': 20, 'fedhe.alpha': 0.5, 'local-epochs': 2, 'models': 'mlp,lenet5'}
    """
    given: dict[str, Any] = {}
    for some in (settings or {}, keys):
        own = dict(flattened({key: value for key, value in some.items() if key != "dataset"}))  # which may be a dict
        for key, value in [*own.items(), *(("dataset", some[key]) for key in some if key == "dataset")]:
            if _key(key) in given:
                raise ConfigError(f"{_key(key)} is given twice: as a keyword, and in settings")
            given[_key(key)] = value
    return {key: _value(key, value) for key, value in _with_folder(given).items()}


def _with_folder(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config keys in which a data set in memory is replaced by the folder that it is written to."""
    from simulations.engine.objects import is_object, stored

    if not is_object(keys.get("dataset", "")):
        return keys
    with seeded(0, "dataset"):  # its transforms may draw: equal data sets are equal files
        folder, several = stored(keys["dataset"], keys.get("series-column", ""))
    return {**({"partition": "files"} if several else {}), **keys, "dataset": str(folder)}


def _key(key: str) -> str:
    """Return a key with dashes; the name of an algorithm before it stays as it is."""
    algorithm, dot, own = key.rpartition(".")
    return f"{algorithm}{dot}{own.replace('_', '-')}"


def _value(key: str, value: Any) -> Value:
    """Return a config value: numbers of NumPy as those of Python, paths and functions as texts, lists with commas."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return ",".join(str(_value(key, each)) for each in value)
    if callable(value):
        return _function(key, value)
    if isinstance(value, Path):
        from hetfl_flwr.data.reading import comma_list

        return comma_list([str(value)]) if key == "dataset" else str(value)
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(f"{_key(key)} = {value!r}: expected a number, a text, True or False")
    return value


def _function(key: str, value: Any) -> str:
    """Return the name of a function or a class, by which other processes import it."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules.get(module), name or " ", None) is not value:
        raise ConfigError(
            f"{_key(key)} = {name or value!r}: put this function in a separate module that other processes can "
            f"import, and give 'module:{name or 'function'}'"
        )
    return f"{module}:{name}"


def _classes(record: Round, client: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a client's per-class metrics in a round, by class name; empty if there are none."""
    return dict(named_classes(record, int(client), names)) if client in record.classes else {}


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame; columns without any value hold NaN."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    empty = frame.columns[frame.isna().all()]
    return frame.astype(dict.fromkeys(empty, float))


def _png(figure: Figure) -> bytes:
    image = BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()
