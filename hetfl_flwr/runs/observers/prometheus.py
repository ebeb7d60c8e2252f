"""A text file of a run's state for Prometheus, by its own library, which is an extra.

Node exporters read such files from their ``--collector.textfile.directory``; set ``PROMETHEUS_TEXTFILE_DIR`` to it,
where the server runs. Each file is replaced as a whole after each round.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time
from typing import Any

from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs.schema import read_clients
from hetfl_flwr.server.messaging.exchange import FRACTIONS
from hetfl_flwr.wire.cost_metrics import DEVICE_MEMORY, MEMORY

FILE = "metrics.prom"
"""In the run folder; in one that the environment names, it is called as the run folder."""

CLIENT = re.compile(r"client/(\d+)/(.+)")

OTHER = re.compile(r"[^a-zA-Z0-9_]")
"""What a client's metric may have in its name, and for which many readers refuse the whole text file: becomes _."""

SUMS = ("bytes_up", "bytes_down", "wire_up", "wire_down", "failures", "seconds")
"""What is added up over the rounds."""

UNITS: Mapping[str, str] = {
    "seconds": "duration_seconds",
    "clock": "simulated_seconds",
    "bytes_up": "payload_up_bytes",
    "bytes_down": "payload_down_bytes",
    **{name: f"{name}_bytes" for name in ("wire_up", "wire_down", "evaluation_wire")},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_bytes" for one in (MEMORY, DEVICE_MEMORY)},
    **{one.replace("-", "_"): f"{one.replace('-', '_')}_ratio" for one in (*FRACTIONS, "bwt")},
}
"""Names with their units, where those of trackers have none."""


class Prometheus:
    """The file of one run, rewritten from its first round on where it goes on.

    ``hetfl_round``, ``hetfl_accuracy_ratio`` and so on are gauges of the last round, by the names that trackers have
    for them and their units (`UNITS`), of accuracies those last measured; ``hetfl_payload_up_bytes_total`` and so on
    are counters over the rounds. Each client has ``hetfl_client_accuracy_ratio`` and so on, whatever metrics it has,
    with the labels ``client`` and ``name``, ``hetfl_client_last_round``, and ``hetfl_client_present_since_round``:
    since when it has reported in each round. ``hetfl_finished`` is 1 where the run has ended, and ``hetfl_failed``
    where an error has ended it; ``hetfl_written_timestamp_seconds`` says when the file was written.
    """

    id = ""
    reached = -1

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        from prometheus_client import CollectorRegistry, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._folder = folder
        elsewhere = os.environ.get("PROMETHEUS_TEXTFILE_DIR")
        self._path = Path(elsewhere) / f"hetfl-{folder.name}.prom" if elsewhere else folder / FILE
        self._labels = {"algorithm": config.algorithm, "run": folder.name}
        self._metrics: dict[str, Any] = {}
        self._last, self._since = dict[str, int](), dict[str, int]()

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Write the numbers of a round."""
        clients = read_clients(self._folder) or []
        names = {str(one["partition"]): str(one.get("name") or "") for one in clients}
        self._set("round", round)
        for name, value in scalars.items():
            if own := CLIENT.fullmatch(name):
                self._set(f"client_{_with_unit(own[2])}", value, client=own[1], name=names.get(own[1], ""))
                if self._last.get(own[1], round) < round - 1:
                    del self._since[own[1]]
                self._last[own[1]] = round
                self._since.setdefault(own[1], round)
            elif name in SUMS:
                self._add(_with_unit(name), value)
            else:
                self._set(f"mean_{name}" if name.startswith("client") else _with_unit(name), value)
        for client, last in self._last.items():
            self._set("client_last_round", last, client=client, name=names.get(client, ""))
            self._set("client_present_since_round", self._since[client], client=client, name=names.get(client, ""))
        self._write(finished=False, error=None)

    def finish(self, round: int, summary: Mapping[str, float], error: BaseException | None) -> None:
        """Write that the run has ended."""
        self._write(finished=True, error=error)

    def _set(self, metric: str, value: float, /, **labels: str) -> None:
        from prometheus_client import Gauge

        metric = OTHER.sub("_", metric)
        if metric.endswith("_total"):  # a client's own name for it: such an ending says that it only grows
            metric += "_value"
        self._of(Gauge, metric, labels).set(value)

    def _add(self, metric: str, value: float) -> None:
        from prometheus_client import Counter

        self._of(Counter, metric, {}).inc(value)

    def _of(self, kind: Callable[..., Any], metric: str, labels: Mapping[str, str]) -> Any:
        """Return a metric with its labels, made where it is new."""
        if metric not in self._metrics:
            what = f"{metric.replace('_', ' ')} of a hetfl run"
            self._metrics[metric] = kind(f"hetfl_{metric}", what, [*self._labels, *labels], registry=self._registry)
        return self._metrics[metric].labels(*self._labels.values(), *labels.values())

    def _write(self, *, finished: bool, error: BaseException | None) -> None:
        from prometheus_client import write_to_textfile

        self._set("finished", int(finished))
        self._set("failed", int(error is not None))
        self._set("written_timestamp_seconds", time())
        new = self._path.with_suffix(".new")
        write_to_textfile(str(new), self._registry)
        if self._path.name != FILE:  # read by the node exporter, another user
            new.chmod(0o644)
        new.replace(self._path)


def _with_unit(name: str) -> str:
    return UNITS.get(name, name)
