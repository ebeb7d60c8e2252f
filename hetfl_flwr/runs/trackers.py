"""Trackers: TensorBoard, Weights & Biases, MLflow and Prometheus, each by its own library, which is an extra.

The server writes them, in every engine. What they get has the same names everywhere:

- config keys and their values, as hyper-parameters;
- after each round, as step: the numbers of ``rounds.jsonl`` under their names (``accuracy``, ``bytes_up``, ...), how
  many ``failures`` there were, the clients' means of whatever losses there are (``loss``, ``train_loss``), and each
  client's own as ``client/PARTITION/accuracy``;
- at the end, the figures of ``summary.json`` as ``summary/accuracy`` and so on.

``rounds.jsonl`` is what holds: a run that goes on gives each tracker the rounds that it lacks, and no round twice.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from logging import WARNING, getLogger
from pathlib import Path
from time import time
from typing import Any

from pydantic import TypeAdapter

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.config import RunConfig, listed
from hetfl_flwr.errors import ConfigError, cause
from hetfl_flwr.learning.metrics import mean
from hetfl_flwr.runs.callbacks import Guarded, RoundCallback, RunInfo
from hetfl_flwr.runs.record import Round, Summary
from hetfl_flwr.server.exchange import FRACTIONS
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.cost_metrics import DEVICE_MEMORY, MEMORY
from hetfl_flwr.wire.naming import distinct

PROJECT = "hetfl"
"""Name of the W&B project and the MLflow experiment, where the environment names no other."""

IDS_FILE = "trackers.json"
"""File in the run folder that says under which id each tracker knows the run."""

Scalars = dict[str, float]

_IDS = TypeAdapter(dict[str, str])


class Tracker(RoundCallback):
    """One tracker of one run.

    Parameters
    ----------
    config : RunConfig
        The run.
    folder : Path
        The run folder.
    known : str
        The id under which the tracker knows the run already; empty if it is new to it.

    Attributes
    ----------
    id : str
        Under which the tracker knows the run; empty if it needs none.
    reached : int
        The last round that it has from before; -1 if none.
    members : iterable of Member
        The clients that are here; more may join.
    """

    id = ""
    reached = -1
    members: Iterable[Member] = ()

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        self.config, self.folder, self.id = config, folder, known

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write the summary, and that the run has ended, or with which error."""

    def begin(self, run: RunInfo) -> None:
        """Write the rounds that a resumed run has already."""
        for entry in run.rounds:
            self.round(entry)

    def round(self, entry: Round) -> None:
        """Write a round, unless the tracker has it from before."""
        if entry.round > self.reached:
            self.log(entry.round, scalars(entry))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write the end."""
        keys = self.config.to_flat()
        figures = {
            f"summary/{key}": value
            for key, value in {**summary, **_underscored(summary.get("costs", {}))}.items()
            if isinstance(value, int | float) and key not in keys
        }
        self.finish(summary["rounds"], figures, error)


class TensorBoard(Tracker):
    """Event files in the folder ``tensorboard`` of the run folder; one that goes on is rewritten."""

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        super().__init__(config, folder, "")
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        *begin, self._end = hparams(config.to_flat(), {"accuracy": 0})  # type: ignore[no-untyped-call]
        for summary in begin:
            self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write the summary."""
        self.log(round, summary)
        self._writer._get_file_writer().add_summary(self._end)
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases; its files lie in the folder ``wandb`` of the run folder.

    W&B's own variables hold: ``WANDB_MODE=offline``, ``WANDB_PROJECT``, ``WANDB_API_KEY`` and so on.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        import wandb

        super().__init__(config, folder, known)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=folder,
            config=config.to_flat(),
            allow_val_change=True,
            id=known or None,
            resume="allow" if known else None,
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        self.id, self.reached = self._run.id, self._run.step - 1

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""
        self._run.log(scalars, step=round, commit=True)

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write the summary."""
        self._run.summary.update(summary)
        self._run.finish(exit_code=int(error is not None))


class MLflow(Tracker):
    """A run of MLflow, at the server that ``MLFLOW_TRACKING_URI`` names, or else in ``mlflow.db`` of the run folder.

    ``MLFLOW_EXPERIMENT_NAME`` holds as well.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        getLogger("alembic").setLevel(WARNING)  # which logs each table that it makes
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.tracking import is_tracking_uri_set

        super().__init__(config, folder, known)
        own = not is_tracking_uri_set()
        self._client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}" if own else None)
        if known:
            self._client.update_run(known, status="RUNNING")
            self.reached = max((at.step for at in self._client.get_metric_history(known, "seconds")), default=-1)
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        if found := self._client.get_experiment_by_name(name):
            experiment = found.experiment_id
        else:
            experiment = self._client.create_experiment(name, (folder / "mlflow").as_uri() if own else None)
        self.id = self._client.create_run(experiment, run_name=folder.name).info.run_id
        self._client.log_batch(self.id, params=[Param(key, str(value)) for key, value in config.to_flat().items()])

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""
        from mlflow.entities import Metric

        now = int(1000 * time())
        self._client.log_batch(self.id, [Metric(name, value, now, round) for name, value in scalars.items()])

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write the summary and how the run has ended."""
        self.log(round, summary)
        ended = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self.id, ended)


PROMETHEUS_FILE = "metrics.prom"
"""In the run folder; in one that the environment names, it is called as the run folder."""

SUMS = ("bytes_up", "bytes_down", "wire_up", "wire_down", "failures", "left_out", "seconds")
"""What Prometheus counts over the rounds."""

UNITS: Mapping[str, str] = {
    "seconds": "duration_seconds",
    "clock": "simulated_seconds",
    "bytes_up": "payload_up_bytes",
    "bytes_down": "payload_down_bytes",
    **{name: f"{name}_bytes" for name in ("wire_up", "wire_down", "evaluation_wire")},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_bytes" for one in (MEMORY, DEVICE_MEMORY)},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_ratio" for one in (*FRACTIONS, "bwt")},
}
"""Names with their units for Prometheus, where those of trackers have none."""


class Prometheus(Tracker):
    """A text file of a run's state for a node exporter, replaced after each round.

    Node exporters read such files from their ``--collector.textfile.directory``; set ``PROMETHEUS_TEXTFILE_DIR`` to it,
    where the server runs. ``hetfl_round``, ``hetfl_accuracy_ratio`` and so on are gauges of the last round, by the
    names that trackers have for them and their units (`UNITS`); ``hetfl_payload_up_bytes_total`` and so on are counters
    over the rounds (`SUMS`). A resumed run takes up the counters and the clients' names that the file has, so counters
    never decrease: a round that is played again counts twice. Each client has ``hetfl_client_accuracy_ratio`` and so
    on, whatever metrics it has, with the labels ``client`` and ``name``, ``hetfl_client_last_round``, and
    ``hetfl_client_present_since_round``: since when it has reported in each round. ``hetfl_finished`` is 1 where the
    run has ended, and ``hetfl_failed`` where an error has ended it; ``hetfl_written_timestamp_seconds`` says when the
    file was written.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        from prometheus_client import CollectorRegistry, disable_created_metrics

        super().__init__(config, folder, "")
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        elsewhere = os.environ.get("PROMETHEUS_TEXTFILE_DIR")
        self._path = Path(elsewhere) / f"hetfl-{folder.name}.prom" if elsewhere else folder / PROMETHEUS_FILE
        self._metrics: dict[str, Any] = {}
        self._last, self._since = dict[str, int](), dict[str, int]()
        self._names = dict[str, str]()

    def begin(self, run: RunInfo) -> None:
        """Take up names and counters of the file of a resumed run, and write once all rounds that it has already."""
        samples = self._samples() if run.after is not None else []
        self._names = {one.labels["client"]: one.labels["name"] for one in samples if "client" in one.labels}
        found = {one.name: one.value for one in samples}
        for name in SUMS:
            self._metric(UNITS.get(name, name), counts=True).inc(found.get(f"hetfl_{UNITS.get(name, name)}_total", 0.0))
        for entry in run.rounds:
            self._take(entry.round, scalars(entry), counts=entry.round > found.get("hetfl_round", -1))
        if run.rounds:
            self._write(finished=False, error=None)

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""
        self._take(round, scalars)
        self._write(finished=False, error=None)

    def _samples(self) -> list[Any]:
        """Return what the file says; nothing where there is none, or a damaged one."""
        from prometheus_client.parser import text_string_to_metric_families

        with suppress(OSError, ValueError, KeyError):
            return [one for family in text_string_to_metric_families(self._path.read_text()) for one in family.samples]
        return []

    def _take(self, round: int, scalars: Scalars, *, counts: bool = True) -> None:
        """Take in the numbers of a round; those that are counted only if they are new."""
        here = distinct({member.client_id: member.name for member in self.members})
        names = self._names = {**{str(client): name for client, name in here.items()}, **self._names}  # the first stays
        self._metric("round").set(round)
        for name, value in scalars.items():
            if own := re.fullmatch(r"client/(\d+)/(.+)", name):
                self._metric(f"client_{UNITS.get(own[2], own[2])}", own[1], names.get(own[1], "")).set(value)
                if self._last.get(own[1], round) < round - 1:
                    del self._since[own[1]]
                self._last[own[1]] = round
                self._since.setdefault(own[1], round)
            elif name in SUMS:
                self._metric(UNITS.get(name, name), counts=True).inc(value if counts else 0)
            else:
                self._metric(f"mean_{name}" if name.startswith("client") else UNITS.get(name, name)).set(value)
        for client, last in self._last.items():
            self._metric("client_last_round", client, names.get(client, "")).set(last)
            self._metric("client_present_since_round", client, names.get(client, "")).set(self._since[client])

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write that the run has ended."""
        self._write(finished=True, error=error)

    def _metric(self, name: str, *client: str, counts: bool = False) -> Any:
        """Return a gauge or counter, made where it is new; characters that Prometheus does not have become _."""
        from prometheus_client import Counter, Gauge

        metric = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if metric.endswith("_total"):  # such an ending says that it only grows
            metric += "_value"
        if metric not in self._metrics:
            what, labels = f"{metric.replace('_', ' ')} of a hetfl run", ["algorithm", "run", "client", "name"]
            kind = Counter if counts else Gauge
            self._metrics[metric] = kind(f"hetfl_{metric}", what, labels[: 2 + len(client)], registry=self._registry)
        return self._metrics[metric].labels(self.config.algorithm, self.folder.name, *client)

    def _write(self, *, finished: bool, error: BaseException | None) -> None:
        from prometheus_client import generate_latest

        for name, value in {
            "finished": finished,
            "failed": error is not None,
            "written_timestamp_seconds": time(),
        }.items():
            self._metric(name).set(value)
        replace_file(self._path, generate_latest(self._registry))
        if self._path.name != PROMETHEUS_FILE:  # read by the node exporter, another user
            self._path.chmod(0o644)


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "prometheus": Prometheus,
}


def check_trackers(config: RunConfig) -> None:
    """Check that the libraries of a run's trackers are installed.

    Raises
    ------
    ConfigError
        Names one that is not, and how to install it.
    """
    for name in listed(config.track):
        found = find_spec("prometheus_client" if name == "prometheus" else name)
        if found is None or found.origin is None:  # none, or a folder of that name
            raise ConfigError(f'track = {config.track!r}: {name} is not installed: pip install "hetfl[{name}]"')


def start_trackers(config: RunConfig, folder: Path, members: Iterable[Member] = ()) -> Guarded:
    """Start the trackers of a run of these clients. A tracker that fails is dropped; the run continues.

    Raises
    ------
    ConfigError
        A tracker cannot be started.
    """
    path, ids = folder / IDS_FILE, dict[str, str]()
    with suppress(OSError, ValueError):  # none yet, or broken: trackers start over
        ids = _IDS.validate_json(path.read_bytes())
    started: dict[str, Tracker] = {}
    for name in listed(config.track):
        try:
            started[name] = TRACKERS[name](config, folder, ids.get(name, ""))
            started[name].members = members
        except Exception as error:
            raise ConfigError(f"track = {name!r}: cannot be started: {cause(error)}") from None
    if found := {name: tracker.id for name, tracker in started.items() if tracker.id}:
        replace_file(path, (json.dumps(ids | found, allow_nan=False) + "\n").encode())
    return Guarded({f"track: {name}": tracker for name, tracker in started.items()})


def scalars(entry: Round) -> Scalars:
    """Return the numbers of a round by the names that trackers know them by.

    Examples
    --------
    >>> entry = Round(1, 0.5, accuracy=0.75, clients={"0": {"accuracy": 0.75, "train-loss": 2.0}})
    >>> {name: value for name, value in scalars(entry).items() if value}
    {'seconds': 0.5, 'accuracy': 0.75, 'train_loss': 2.0, 'client/0/accuracy': 0.75, 'client/0/train_loss': 2.0}
    """
    numbers: Scalars = {
        name: value for name, value in vars(entry).items() if isinstance(value, int | float) and name != "round"
    }
    numbers |= {"failures": len(entry.failures), "left_out": entry.left_out}
    clients = {client: _underscored(own) for client, own in entry.clients.items()}
    for loss in sorted({key for own in clients.values() for key in own if key.endswith("loss")}):
        numbers[loss] = mean(own[loss] for own in clients.values() if loss in own) or 0.0
    for client, own in clients.items():
        numbers |= {f"client/{client}/{key}": value for key, value in own.items()}
    return numbers


def _underscored(numbers: Mapping[str, float]) -> Scalars:
    return {key.replace("-", "_"): value for key, value in numbers.items()}
