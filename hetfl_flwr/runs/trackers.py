"""Trackers: TensorBoard, Weights & Biases, MLflow and Prometheus. Each needs its library, an optional dependency.

The server logs to them, in every engine, under the same names everywhere:

- config keys and their values, as hyperparameters;
- after each round, with the round as the step: the numbers of ``rounds.jsonl`` under their names (``accuracy``,
  ``bytes_up``, ...), the number of ``failures``, the means over clients of all losses (``loss``, ``train_loss``), and
  each client's metrics as ``client/PARTITION/accuracy``;
- at the end, the figures of ``summary.json`` as ``summary/accuracy`` and so on.

``rounds.jsonl`` is the source of truth: a resumed run logs to each tracker the rounds that it lacks, and none twice.
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
from hetfl_flwr.learning.metrics import FRACTIONS, mean
from hetfl_flwr.runs.callbacks import Guarded, RoundCallback, RunInfo
from hetfl_flwr.runs.record import Round, Summary
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.cost_metrics import DEVICE_MEMORY, MEMORY
from hetfl_flwr.wire.naming import distinct

PROJECT = "hetfl"
"""Default name of the W&B project and the MLflow experiment; environment variables override it."""

IDS_FILE = "trackers.json"
"""File in the run folder with the id of the run in each tracker."""

Scalars = dict[str, float]

_IDS = TypeAdapter(dict[str, str])


class Tracker(RoundCallback):
    """One tracker of one run.

    `known` is the run's id in the tracker, empty for a new run. ``id`` is the same after the start, empty where the
    tracker uses none. ``reached`` is the last round that the tracker already has, or -1. ``members`` are the current
    clients; more may join.
    """

    id = ""
    reached = -1
    members: Iterable[Member] = ()

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        self.config, self.folder, self.id = config, folder, known

    def log(self, round: int, scalars: Scalars) -> None:
        """Log the numbers of a round."""

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Log the summary and close the run, with the error that ended it, if any."""

    def begin(self, run: RunInfo) -> None:
        """Log the earlier rounds of a resumed run."""
        for entry in run.rounds:
            self.round(entry)

    def round(self, entry: Round) -> None:
        """Log a round, unless the tracker already has it."""
        if entry.round > self.reached:
            self.log(entry.round, scalars(entry))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Log the summary and the end of the run."""
        keys = self.config.to_flat()
        figures = {
            f"summary/{key}": value
            for key, value in {**summary, **_underscored(summary.get("costs", {}))}.items()
            if isinstance(value, int | float) and key not in keys
        }
        self.finish(summary["rounds"], figures, error)


class TensorBoard(Tracker):
    """TensorBoard event files in ``tensorboard`` in the run folder; a resumed run rewrites them."""

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        super().__init__(config, folder, "")
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        *begin, self._end = hparams(config.to_flat(), {"accuracy": 0})  # type: ignore[no-untyped-call]
        for summary in begin:
            self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]

    def log(self, round: int, scalars: Scalars) -> None:
        """Log the numbers of a round."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Log the summary."""
        self.log(round, summary)
        self._writer._get_file_writer().add_summary(self._end)
        self._writer.close()


class WandB(Tracker):
    """A Weights & Biases run, with its files in ``wandb`` in the run folder.

    W&B's environment variables apply: ``WANDB_MODE=offline``, ``WANDB_PROJECT``, ``WANDB_API_KEY`` and so on.
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
        """Log the numbers of a round."""
        self._run.log(scalars, step=round, commit=True)

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Log the summary."""
        self._run.summary.update(summary)
        self._run.finish(exit_code=int(error is not None))


class MLflow(Tracker):
    """An MLflow run, on the server at ``MLFLOW_TRACKING_URI``, or else in ``mlflow.db`` in the run folder.

    ``MLFLOW_EXPERIMENT_NAME`` applies as well.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        getLogger("alembic").setLevel(WARNING)  # it logs every table that it creates
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
        """Log the numbers of a round."""
        from mlflow.entities import Metric

        now = int(1000 * time())
        self._client.log_batch(self.id, [Metric(name, value, now, round) for name, value in scalars.items()])

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Log the summary and how the run ended."""
        self.log(round, summary)
        ended = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self.id, ended)


PROMETHEUS_FILE = "metrics.prom"
"""File name in the run folder. In ``PROMETHEUS_TEXTFILE_DIR``, the file is named after the run folder."""

SUMS = ("bytes_up", "bytes_down", "wire_up", "wire_down", "failures", "left_out", "seconds")
"""Numbers that are Prometheus counters over the rounds; all others are gauges."""

UNITS: Mapping[str, str] = {
    "seconds": "duration_seconds",
    "clock": "simulated_seconds",
    "bytes_up": "payload_up_bytes",
    "bytes_down": "payload_down_bytes",
    **{name: f"{name}_bytes" for name in ("wire_up", "wire_down", "evaluation_wire")},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_bytes" for one in (MEMORY, DEVICE_MEMORY)},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_ratio" for one in (*FRACTIONS, "bwt")},
}
"""Prometheus names, with units, of numbers whose names in other trackers have no unit."""


class Prometheus(Tracker):
    """A text file of a run's metrics for the Prometheus node exporter, replaced after each round.

    Node exporters read such files from their ``--collector.textfile.directory``; set ``PROMETHEUS_TEXTFILE_DIR`` to it
    on the server. ``hetfl_round``, ``hetfl_accuracy_ratio`` and so on are gauges of the last round, with the names of
    the other trackers plus units (`UNITS`); ``hetfl_payload_up_bytes_total`` and so on are counters over the rounds
    (`SUMS`). A resumed run restores the counters and the clients' names from the file, so counters never decrease, and
    a round that is run again counts twice. Each metric of a client, such as ``hetfl_client_accuracy_ratio``, has the
    labels ``client`` and ``name``. ``hetfl_client_last_round`` is the last round in which the client reported, and
    ``hetfl_client_present_since_round`` the first round since which it has reported in every round. ``hetfl_finished``
    is 1 if the run has ended, and ``hetfl_failed`` is 1 if an error ended it; ``hetfl_written_timestamp_seconds`` is
    the time when the file was written.
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
        """Restore names and counters from the file of a resumed run, add its earlier rounds, and write the file."""
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
        """Log the numbers of a round."""
        self._take(round, scalars)
        self._write(finished=False, error=None)

    def _samples(self) -> list[Any]:
        """Return the samples in the file; none if it is missing or damaged."""
        from prometheus_client.parser import text_string_to_metric_families

        with suppress(OSError, ValueError, KeyError):
            return [one for family in text_string_to_metric_families(self._path.read_text()) for one in family.samples]
        return []

    def _take(self, round: int, scalars: Scalars, *, counts: bool = True) -> None:
        """Set the gauges to the numbers of a round, and increase the counters if `counts`."""
        here = distinct({member.client_id: member.name for member in self.members})
        names = self._names = {
            **{str(client): name for client, name in here.items()},
            **self._names,
        }  # first name stays
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
        """Write the file with the end of the run."""
        self._write(finished=True, error=error)

    def _metric(self, name: str, *client: str, counts: bool = False) -> Any:
        """Return a gauge or counter, created on first use; characters that Prometheus does not allow become ``_``."""
        from prometheus_client import Counter, Gauge

        metric = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if metric.endswith("_total"):  # Prometheus reserves this suffix for counters
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
        if self._path.name != PROMETHEUS_FILE:  # the node exporter reads it as another user
            self._path.chmod(0o644)


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "prometheus": Prometheus,
}


def check_trackers(config: RunConfig) -> None:
    """Raise a `ConfigError`, with the command to install it, if the library of a tracker is missing."""
    for name in listed(config.track):
        found = find_spec("prometheus_client" if name == "prometheus" else name)
        if found is None or found.origin is None:  # missing, or a folder of that name
            raise ConfigError(f'track = {config.track!r}: {name} is not installed: pip install "hetfl[{name}]"')


def start_trackers(config: RunConfig, folder: Path, members: Iterable[Member] = ()) -> Guarded:
    """Start the trackers of a run; raise a `ConfigError` if one cannot be started.

    A tracker that fails later is dropped, and the run continues.
    """
    path, ids = folder / IDS_FILE, dict[str, str]()
    with suppress(OSError, ValueError):  # missing or damaged: trackers start new runs
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
    """Return the numbers of a round by their names in trackers.

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
