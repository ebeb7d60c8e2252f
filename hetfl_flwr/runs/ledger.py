"""The results of a run so far, in memory: its rounds, each client's figures, and the server state."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, cast

from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.learning.metrics import mean, weighted_mean
from hetfl_flwr.runs.record import QUALITIES, ClientRecord, PerClass, Round, Summary, client_of, summary_of
from hetfl_flwr.server.exchange import Reply, Traffic
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import unlike_columns
from hetfl_flwr.server.rounds import RoundResult
from hetfl_flwr.server.upload_counts import UploadCounts
from hetfl_flwr.wire.cost_metrics import COST_METRICS, together
from hetfl_flwr.wire.messages import EXAMPLES, SEEN
from hetfl_flwr.wire.naming import distinct
from hetfl_flwr.wire.privacy import epsilon
from hetfl_flwr.wire.spec import Arrays

SEVERAL = "several"
"""Data set name of a run in which no data set belongs to more than half of the clients."""


class Ledger:
    """The results of a run so far.

    `noise` is the source of the noise on uploads, ``seed`` or ``system``, or None without noise. ``rounds`` includes
    round 0, ``done`` is the last finished round, and ``arrays`` is the server state after it. ``versions`` lists
    the versions (`environment`), threads and device with which the run was executed, those of this process last, and
    ``data`` digests of the data that it had, if these can change.
    """

    def __init__(self, config: RunConfig, engine: str, uploads: UploadCounts, noise: str | None = None) -> None:
        self.config, self.engine, self.uploads, self.noise = config, engine, uploads, noise
        self.rounds: list[Round] = []
        self.done = 0
        self.arrays: Arrays = {}
        self.versions = [{**environment(), "threads": str(config.threads), "device": config.device}]
        self._traffic: dict[int, Traffic] = {}
        self._latest: dict[int, dict[str, float]] = {}
        self._samples: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self.data: list[str] = []
        self._carries = False
        self._changes = -1  # the roster's count of changes when the members were read

    def begin(self, arrays: Arrays, members: Iterable[Member], data: Sequence[str] = (), *, carries: bool) -> None:
        """Add the server state before round 1, the clients, and a digest of their local data if there is one.

        `carries`: metrics of earlier rounds stay valid.
        """
        self.arrays, self.data, self._carries = arrays, [*data], carries
        self._members = {member.client_id: member for member in members}

    def add(self, number: int, seconds: float, played: RoundResult, federation: Federation) -> Round:
        """Add a round."""
        trained, evaluated = played.trained, played.evaluated
        if self._changes != (changes := federation.roster.changes):
            self._changes = changes
            self._members |= {member.client_id: member for member in federation.roster}
        measured = {reply.client_id: dict(reply.metrics) for reply in evaluated.replies}
        tested = {client: int(values.pop(EXAMPLES)) for client, values in measured.items()}
        self._samples |= tested
        for client in (client for client, count in tested.items() if not count):
            measured[client].pop("loss", None)  # of no samples, clients report 0
        clients = {str(client): dict(values) for client, values in measured.items()}
        for client, own in _training_metrics([*trained.replies, *trained.left_out]).items():
            known = clients.setdefault(str(client), {})  # evaluation metrics take precedence
            known |= {key: value for key, value in own.items() if key not in {EXAMPLES, *known}}
        for client_id, traffic in trained.traffic.items():
            self._traffic.setdefault(client_id, Traffic()).add(traffic)
        evaluation = _total(evaluated.traffic.values())
        entry = Round(
            number,
            round(seconds, 3),
            clock=federation.exchange.clock if self.config.simulates_time else None,
            **asdict(_total(trained.traffic.values())),
            evaluation_wire=evaluation.wire_up + evaluation.wire_down,
            clients=clients,
            failures=[*played.noted, *trained.failures, *evaluated.failures],
            classes={str(one.client_id): cast(PerClass, one.classes) for one in evaluated.replies if one.classes},
            outliers=trained.outliers,
            not_averaged=played.not_averaged,
        )
        if measured:
            self._latest = {**self._latest, **measured} if self._carries else measured
            self._average(entry)
        self.rounds.append(entry)
        self.done, self.arrays = number, played.arrays
        return entry

    def _average(self, entry: Round) -> None:
        """Fill in the means over clients of their latest metrics."""
        for name in ("accuracy", "validation_accuracy", "acc", "fwt", *QUALITIES):
            setattr(entry, name, mean(self._measured(name).values()))
        if entry.fwt is not None:
            entry.bwt = entry.accuracy  # the accuracy on each client's own domain
        entry.global_accuracy = weighted_mean(self._measured("global_accuracy"), self._samples)

    def _measured(self, name: str) -> dict[int, float]:
        key = name.replace("_", "-")
        return {client: values[key] for client, values in self._latest.items() if key in values}

    def counts(self) -> dict[str, dict[int, Any]]:
        """Return each client's counts so far and, in a deployment, the registrations, as JSON."""
        return {
            "traffic": {client: asdict(traffic) for client, traffic in self._traffic.items()},
            "latest": self._latest,
            "samples": self._samples,
            "uploads": self.uploads.counts,
            "members": {k: one.values() for k, one in self._members.items()} if self.engine == "deployment" else {},
        }

    def restore(self, counts: Mapping[str, Mapping[int, Any]], members: Iterable[Member]) -> None:
        """Restore the counts of `counts`, except the uploads; `members` are the clients of this run."""
        known = counts.get("members", {})  # checkpoints of older versions lack it
        self._members = {client: Member.checked(values, values["node"]) for client, values in known.items()}
        self._members |= {member.client_id: member for member in members}
        self._traffic = {client: Traffic(**traffic) for client, traffic in counts["traffic"].items()}
        self._latest, self._samples = dict(counts["latest"]), dict(counts["samples"])

    @property
    def dataset(self) -> str:
        """The data set of more than half of the clients, else that of the run config, else `SEVERAL`."""
        said = Counter(member.dataset for member in self._members.values()).most_common(1)
        shared = [word for word, count in said if 2 * count > len(self._members)]
        return shared[0] if shared else dataset_called(self.config.dataset) or SEVERAL

    def epsilon(self, uploads: int) -> float | None:
        """Return a client's epsilon after a number of uploads; None without noise.

        It is infinite if upload counts were lost, as there may have been more uploads.
        """
        if not self.noise:
            return None
        return inf if self.uploads.lost else epsilon(self.config.noise_multiplier, uploads)

    def summary(self) -> Summary:
        """Return the contents of ``summary.json``."""
        found = {entry.round for entry in self.rounds}
        members = [member for _, member in sorted(self._members.items())]
        unlike = unlike_columns(members) if self.config.features == "all" else ""
        lost = [number for number in range(self.done + 1) if number not in found]
        return summary_of(
            self.rounds,
            self.clients(),
            algorithm=self.config.algorithm,
            dataset=self.dataset,
            clients=len(self._members),
            rounds=self.done,
            seed=self.config.seed,
            engine=self.engine,
            epsilon=self.epsilon(self.uploads.most()),
            noise_source=self.noise,
            versions=self.versions[-1],
            **({"data": self.data} if self.data else {}),
            **({"warnings": [unlike]} if unlike else {}),
            **({"lost_rounds": lost} if lost else {}),
            **({"earlier_versions": earlier} if (earlier := self.versions[:-1]) else {}),
        )

    def clients(self) -> Iterator[ClientRecord]:
        """Yield the entries of ``clients.json``, by client id."""
        names = distinct({client: member.name for client, member in self._members.items()})
        nothing = Traffic()
        for client, member in sorted(self._members.items()):
            yield client_of(
                self.rounds,
                client,
                member.class_names,
                carries=self._carries,
                name=names[client] or None,
                model=member.model,
                dataset=member.dataset,
                owners=member.owners or None,
                parameters=member.parameters,
                train=member.train,
                validation=member.validation,
                test=member.test,
                bytes_up=self._traffic.get(client, nothing).bytes_up,
                bytes_down=self._traffic.get(client, nothing).bytes_down,
                versions=member.versions,
                uploads=None if self.uploads.lost else self.uploads.counts.get(client, 0),
                epsilon=self.epsilon(self.uploads.counts.get(client, 0)),
                class_names=list(member.class_names) or None,
            )


def _training_metrics(replies: Iterable[Reply]) -> dict[int, dict[str, float]]:
    """Return each client's metrics of training: costs and ``samples-seen`` of all replies, the others of the last."""
    found: dict[int, dict[str, float]] = {}
    for reply in replies:
        own = found.setdefault(reply.client_id, {})
        for key, value in reply.metrics.items():
            adds = key in own and key in (SEEN, *COST_METRICS)
            own[key] = together(key, (own[key], value)) if adds else value
    return found


def _total(traffic: Iterable[Traffic]) -> Traffic:
    total = Traffic()
    for one in traffic:
        total.add(one)
    return total
