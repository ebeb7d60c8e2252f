"""A text file of a run's state for Prometheus, by its own library, which is an extra.

Node exporters read such files from their ``--collector.textfile.directory``; set ``PROMETHEUS_TEXTFILE_DIR`` to it,
where the server runs. Each file is replaced as a whole after each round.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, NamedTuple

from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs.schema import read_clients
from hetfl_flwr.server.messaging.exchange import FRACTIONS
from hetfl_flwr.wire.cost_metrics import DEVICE_MEMORY, MEMORY

if TYPE_CHECKING:
    from prometheus_client import Metric

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


class _Family(NamedTuple):
    """One metric: whether it is a counter, what its labels are called, and its values by them."""

    counter: bool
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float]


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
        self._folder = folder
        elsewhere = os.environ.get("PROMETHEUS_TEXTFILE_DIR")
        self._path = Path(elsewhere) / f"hetfl-{folder.name}.prom" if elsewhere else folder / FILE
        self._labels = {"algorithm": config.algorithm, "run": folder.name}
        self._families: dict[str, _Family] = {}
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

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics, as Prometheus' library asks of who is registered with it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, (counter, labels, values) in self._families.items():
            kind = CounterMetricFamily if counter else GaugeMetricFamily
            family = kind(f"hetfl_{name}", f"{name.replace('_', ' ')} of a hetfl run", labels=[*self._labels, *labels])
            for own, value in values.items():
                family.add_metric([*self._labels.values(), *own], value)
            yield family

    def _set(self, metric: str, value: float, /, **labels: str) -> None:
        metric = OTHER.sub("_", metric)
        if metric.endswith("_total"):  # a client's own name for it: such an ending says that it only grows
            metric += "_value"
        family = self._families.setdefault(metric, _Family(False, tuple(labels), {}))
        family.values[tuple(labels.values())] = value

    def _add(self, metric: str, value: float) -> None:
        values = self._families.setdefault(metric, _Family(True, (), {})).values
        values[()] = values.get((), 0.0) + value

    def _write(self, *, finished: bool, error: BaseException | None) -> None:
        from prometheus_client import CollectorRegistry, write_to_textfile

        self._set("finished", int(finished))
        self._set("failed", int(error is not None))
        self._set("written_timestamp_seconds", time())
        beside = self._path.with_suffix(".new")
        registry = CollectorRegistry()
        registry.register(self)
        write_to_textfile(str(beside), registry)
        if self._path.name != FILE:  # read by the node exporter, another user
            beside.chmod(0o644)
        beside.replace(self._path)


def _with_unit(name: str) -> str:
    return UNITS.get(name, name)
