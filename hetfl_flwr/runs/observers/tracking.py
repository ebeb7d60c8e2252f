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
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from logging import WARNING, getLogger
from pathlib import Path
from time import time
from typing import Any, Protocol

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.config import RunConfig, parse_trackers
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.metrics import mean
from hetfl_flwr.runs.callbacks import Guarded, RoundCallback, RunInfo, one_line
from hetfl_flwr.runs.observers.prometheus import Prometheus
from hetfl_flwr.runs.schema import Round, Summary

PROJECT = "hetfl"
"""Name of the W&B project and the MLflow experiment, where the environment names no other."""

IDS_FILE = "trackers.json"
"""File in the run folder that says under which id each tracker knows the run."""

Scalars = dict[str, float]


class Tracker(Protocol):
    """One tracker of one run.

    Attributes
    ----------
    id : str
        Under which the tracker knows the run; empty if it needs none.
    reached : int
        The last round that it has from before; -1 if none.
    """

    id: str
    reached: int

    def log(self, round: int, scalars: Scalars) -> None:
        """Write the numbers of a round."""

    def finish(self, round: int, summary: Scalars, error: BaseException | None) -> None:
        """Write the summary, and that the run has ended, or with which error."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of the run folder; one that goes on is rewritten."""

    id = ""
    reached = -1

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        *begin, self._end = hparams(config.to_flat(), {"accuracy": 0})  # type: ignore[no-untyped-call]
        file = self._writer._get_file_writer()  # type: ignore[no-untyped-call]
        for summary in begin:
            file.add_summary(summary)

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


class WandB:
    """A run of Weights & Biases; its files lie in the folder ``wandb`` of the run folder.

    W&B's own variables hold: ``WANDB_MODE=offline``, ``WANDB_PROJECT``, ``WANDB_API_KEY`` and so on.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        import wandb

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


class MLflow:
    """A run of MLflow, at the server that ``MLFLOW_TRACKING_URI`` names, or else in ``mlflow.db`` of the run folder.

    ``MLFLOW_EXPERIMENT_NAME`` holds as well.
    """

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        getLogger("alembic").setLevel(WARNING)  # which tells of each table that it makes
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.tracking import is_tracking_uri_set

        own = not is_tracking_uri_set()
        self._client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}" if own else None)
        self.reached = -1
        if known:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            self.reached = max((at.step for at in self._client.get_metric_history(known, "seconds")), default=-1)
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = (
            found.experiment_id
            if found
            else self._client.create_experiment(name, (folder / "mlflow").as_uri() if own else None)
        )
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


TRACKERS: Mapping[str, Callable[[RunConfig, Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "prometheus": Prometheus,
}

MODULES = {"prometheus": "prometheus_client"}
"""What a tracker's library is called, where it is not as the tracker."""


def check_trackers(config: RunConfig) -> None:
    """See that the libraries of a run's trackers are there.

    Raises
    ------
    ConfigError
        Names one that is not, and how to install it.
    """
    for name in parse_trackers(config.track):
        found = find_spec(MODULES.get(name, name))
        if found is None or found.origin is None:  # none, or a folder of that name
            raise ConfigError(f'track = {config.track!r}: {name} is not installed: pip install "hetfl[{name}]"')


class Tracking(RoundCallback):
    """Tells one tracker of a run's rounds.

    Parameters
    ----------
    tracker : Tracker
        Which.
    config : RunConfig
        The run.
    """

    def __init__(self, tracker: Tracker, config: RunConfig) -> None:
        self.tracker = tracker
        self._config = config.to_flat()

    def begin(self, run: RunInfo) -> None:
        """Tell of the rounds that a resumed run has already."""
        for entry in run.rounds:
            self.round(entry)

    def round(self, entry: Round) -> None:
        """Tell of a round, unless the tracker has it from before."""
        if entry.round > self.tracker.reached:
            self.tracker.log(entry.round, scalars(entry))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Tell of the end."""
        figures = {
            f"summary/{key}": value
            for key, value in {**summary, **_underscored(summary.get("costs", {}))}.items()
            if isinstance(value, int | float) and key not in self._config
        }
        self.tracker.finish(summary["rounds"], figures, error)


def start_trackers(config: RunConfig, folder: Path) -> Guarded:
    """Start the trackers of a run. One that fails is left out from there on; the run is not.

    Raises
    ------
    ConfigError
        A tracker cannot be started.
    """
    path, ids = folder / IDS_FILE, dict[str, str]()
    with suppress(OSError, ValueError):  # none yet, or broken: trackers starts over
        ids = json.loads(path.read_text())
    started: dict[str, Tracker] = {}
    for name in parse_trackers(config.track):
        try:
            started[name] = TRACKERS[name](config, folder, ids.get(name, ""))
        except Exception as error:
            raise ConfigError(f"track = {name!r}: cannot be started: {one_line(error)}") from None
    if found := {name: tracker.id for name, tracker in started.items() if tracker.id}:
        replace_file(path, (json.dumps(ids | found, allow_nan=False) + "\n").encode())
    return Guarded({f"track: {name}": Tracking(tracker, config) for name, tracker in started.items()})


def scalars(entry: Round) -> Scalars:
    """Return the numbers of a round by the names that trackers know them by.

    Examples
    --------
    >>> entry = Round.blank(1, 0.5, accuracy=0.75, clients={"0": {"accuracy": 0.75, "train-loss": 2.0}})
    >>> {name: value for name, value in scalars(entry).items() if value}
    {'seconds': 0.5, 'accuracy': 0.75, 'train_loss': 2.0, 'client/0/accuracy': 0.75, 'client/0/train_loss': 2.0}
    """
    numbers: Scalars = {
        name: value for name, value in vars(entry).items() if isinstance(value, int | float) and name != "round"
    }
    numbers["failures"] = len(entry.failures)
    clients = list(map(_underscored, entry.clients.values()))
    for loss in sorted({key for own in clients for key in own if key.endswith("loss")}):
        numbers[loss] = mean(own[loss] for own in clients if loss in own) or 0.0
    for client_id, own in zip(entry.clients, clients, strict=True):
        numbers |= {f"client/{client_id}/{key}": value for key, value in own.items()}
    return numbers


def _underscored(numbers: Mapping[str, float]) -> Scalars:
    return {key.replace("-", "_"): value for key, value in numbers.items()}
