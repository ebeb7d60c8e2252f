"""What a run has reached so far, in memory: its rounds, what each client has come to, and the server state."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from flwr.app import ArrayRecord

from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.learning.metrics import mean, weighted_mean
from hetfl_flwr.runs.figures.cost_totals import total_costs
from hetfl_flwr.runs.figures.quality import client_quality, mean_quality, mean_recall, named_classes, per_class
from hetfl_flwr.runs.schema import QUALITIES, ClientRecord, Round, Summary
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.exchange import Traffic
from hetfl_flwr.server.messaging.grids import simulated_time
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.upload_counts import UploadCounts
from hetfl_flwr.server.rounds import RoundResult
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.naming import distinct
from hetfl_flwr.wire.privacy import epsilon

SEVERAL = "several"
"""What is said in place of the name of a data set where most clients do not have the same."""


class Ledger:
    """What a run has reached so far.

    Parameters
    ----------
    config : RunConfig
        The run.
    engine : str
        ``local``, ``simulation`` or ``deployment``.
    uploads : UploadCounts
        How many uploads each client has made.
    noise : str or None
        What noise on uploads is drawn from, ``seed`` or ``system``; None without noise.

    Attributes
    ----------
    rounds : list of Round
        The rounds so far, round 0 among them.
    done : int
        The last round that has been played.
    arrays : ArrayRecord
        What the server knows after it.
    versions : list of dict
        What the run was made with, as `environment` has it, with threads and device: the last is this process's.
    """

    def __init__(self, config: RunConfig, engine: str, uploads: UploadCounts, noise: str | None = None) -> None:
        self.config = config
        self.engine = engine
        self.uploads = uploads
        self.noise = noise
        self.rounds: list[Round] = []
        self.done = 0
        self.arrays = ArrayRecord()
        self.versions = [{**environment(), "threads": str(config.threads), "device": config.device}]
        self._traffic: dict[int, Traffic] = {}
        self._latest: dict[int, dict[str, float]] = {}
        self._samples: dict[int, int] = {}
        self._members: dict[int, Member] = {}

    def begin(self, arrays: ArrayRecord, members: Iterable[Member]) -> None:
        """Take note of what the server knows before round 1, and of its clients."""
        self.arrays = arrays
        self._members = {member.client_id: member for member in members}

    def add(self, round: int, seconds: float, played: RoundResult, federation: Federation) -> Round:
        """Take in a round that has been played."""
        roster, trained, evaluated = federation.roster, played.trained, played.evaluated
        self._members |= {member.client_id: member for member in roster}
        entry = Round.blank(round, round_seconds(seconds))
        if self.config.simulates_time:
            entry.clock = simulated_time(federation.grid)
        measured = {reply.client_id: dict(reply.metrics) for reply in evaluated.replies}
        self._samples |= {client: int(values.pop(EXAMPLES)) for client, values in measured.items()}
        entry.clients = {str(client): dict(values) for client, values in measured.items()}
        entry.classes = {str(reply.client_id): per_class(reply.classes) for reply in evaluated.replies if reply.classes}
        if measured:
            self._latest = {**self._latest, **measured} if played.carry else measured
            self._average(entry)
        for reply in trained.replies:
            entry.clients.setdefault(str(reply.client_id), {}).update(
                {key: value for key, value in reply.metrics.items() if key != EXAMPLES}
            )
        for client_id, traffic in trained.traffic.items():
            self._traffic.setdefault(client_id, Traffic()).add(traffic)
        total = _total(trained.traffic.values())
        entry.numbers_up, entry.numbers_down = total.numbers_up, total.numbers_down
        entry.bytes_up, entry.bytes_down = total.bytes_up, total.bytes_down
        entry.wire_up, entry.wire_down = total.wire_up, total.wire_down
        evaluation = _total(evaluated.traffic.values())
        entry.evaluation_wire = evaluation.wire_up + evaluation.wire_down
        entry.failures = [*played.left_out, *trained.failures, *evaluated.failures]
        entry.not_averaged = played.not_averaged
        self.rounds.append(entry)
        self.done, self.arrays = round, played.arrays
        return entry

    def _average(self, entry: Round) -> None:
        """Fill in the means over clients of what was measured last."""
        for name in ("accuracy", "validation_accuracy", "acc", "fwt", *QUALITIES):
            setattr(entry, name, mean(self._measured(name).values()))
        if entry.fwt is not None:
            entry.bwt = entry.accuracy  # the accuracy on each client's own domain
        entry.global_accuracy = weighted_mean(self._measured("global_accuracy"), self._samples)

    def _measured(self, name: str) -> dict[int, float]:
        key = name.replace("_", "-")
        return {client: values[key] for client, values in self._latest.items() if key in values}

    def counts(self) -> dict[str, dict[int, Any]]:
        """Return what is counted of each client so far, as JSON can hold it."""
        return {
            "traffic": {client: asdict(traffic) for client, traffic in self._traffic.items()},
            "latest": self._latest,
            "samples": self._samples,
            "uploads": self.uploads.counts,
        }

    def restore(self, counts: Mapping[str, Mapping[int, Any]], members: Iterable[Member]) -> None:
        """Take up what `counts` has returned, save for the uploads, in a run of these clients."""
        self._members = {member.client_id: member for member in members}
        self._traffic = {client: Traffic(**traffic) for client, traffic in counts["traffic"].items()}
        self._latest, self._samples = dict(counts["latest"]), dict(counts["samples"])

    @property
    def dataset(self) -> str:
        """What more than half of the clients call their data, else what the run config does: no client names a run.

        Where neither has a word for it, it is `SEVERAL`.
        """
        said = Counter(member.dataset for member in self._members.values()).most_common(1)
        return next(
            (word for word, count in said if 2 * count > len(self._members)),
            dataset_called(self.config.dataset) or SEVERAL,
        )

    def summary(self) -> Summary:
        """Return the run in one object. Keys that mean nothing here are None."""
        last = self._last_evaluated
        latest = _values(last, "accuracy")
        validated = [entry.validation_accuracy for entry in self.rounds if entry.validation_accuracy is not None]
        summary: Summary = {
            "algorithm": self.config.algorithm,
            "dataset": self.dataset,
            "clients": len(self._members),
            "rounds": self.reached,
            "seed": self.config.seed,
            "engine": self.engine,
            "accuracy": last.accuracy if last else None,
            "accuracy_per_client": [latest.get(client) for client in sorted(self._members)],
            "acc": last.acc if last else None,
            "bwt": last.bwt if last else None,
            "fwt": last.fwt if last else None,
            "global_accuracy": last.global_accuracy if last else None,
            "best_validation_accuracy": max(validated, default=None),
            "bytes_up": sum(entry.bytes_up for entry in self.rounds),
            "bytes_down": sum(entry.bytes_down for entry in self.rounds),
            "wire_up": sum(entry.wire_up for entry in self.rounds),
            "wire_down": sum(entry.wire_down for entry in self.rounds),
            "seconds": round_seconds(sum(entry.seconds for entry in self.rounds)),
            "failures": sum(len(entry.failures) for entry in self.rounds),
            "epsilon": self.epsilon(self.uploads.most()),
            "noise_source": self.noise,
            "versions": self.versions[-1],
            **mean_quality(last),  # type: ignore[typeddict-item]  # which has no lost_rounds
        }
        if earlier := self.versions[:-1]:
            summary["earlier_versions"] = earlier
        if self.lost:
            summary["lost_rounds"] = self.lost
        if costs := total_costs(self.rounds):
            summary["costs"] = costs
        if recall := mean_recall(self.clients()):
            summary["recall"] = recall
        return summary

    def epsilon(self, uploads: int) -> float | None:
        """Return the epsilon of a client after so many uploads, by the run config; None without noise.

        Where there may have been more uploads, it is infinite.
        """
        if not self.noise:
            return None
        return inf if self.uploads.lost else epsilon(self.config.noise_multiplier, uploads)

    @property
    def reached(self) -> int:
        """The last round that has been played."""
        return self.done

    @property
    def lost(self) -> list[int]:
        """The rounds whose lines are lost: what is summed over rounds lacks them."""
        known = {entry.round for entry in self.rounds}
        return [round for round in range(self.done + 1) if round not in known]

    @property
    def _last_evaluated(self) -> Round | None:
        return next((entry for entry in reversed(self.rounds) if entry.accuracy is not None), None)

    def clients(self) -> list[ClientRecord]:
        """Return one object a client: model, samples, accuracy before and after, bytes."""
        before = _values(next((entry for entry in self.rounds if entry.round == 0), None), "accuracy")
        after = _values(self._last_evaluated, "accuracy")
        names = distinct({client: member.name for client, member in self._members.items()})
        return [
            {
                "partition": client,
                "name": names[client] or None,
                "model": member.model,
                "dataset": member.dataset,
                "owners": member.owners or None,
                "parameters": member.parameters,
                "train": member.train,
                "validation": member.validation,
                "test": member.test,
                "accuracy_before": before.get(client),
                "accuracy": after.get(client),
                "bytes_up": self._traffic.get(client, Traffic()).bytes_up,
                "bytes_down": self._traffic.get(client, Traffic()).bytes_down,
                "versions": member.versions,
                "uploads": None if self.uploads.lost else self.uploads.counts.get(client, 0),
                "epsilon": self.epsilon(self.uploads.counts.get(client, 0)),
                **client_quality(self._last_evaluated, client),
                **named_classes(self._last_evaluated, client, member.class_names),
                "class_names": list(member.class_names) or None,
            }
            for client, member in sorted(self._members.items())
        ]


def _values(entry: Round | None, metric: str) -> dict[int, float]:
    if entry is None:
        return {}
    return {int(client): values[metric] for client, values in entry.clients.items() if metric in values}


def _total(traffic: Iterable[Traffic]) -> Traffic:
    total = Traffic()
    for one in traffic:
        total.add(one)
    return total


def round_seconds(seconds: float) -> float:
    """Return seconds to the millisecond."""
    return round(seconds, 3)
