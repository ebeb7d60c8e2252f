"""Exchanges with clients: downloads and replies are counted, checked once and compared, however they are transported.

The kind of `Exchange` depends on the Grid: that of the local engine passes arrays by reference, and all others use
Flower's messages.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import catch_warnings, filterwarnings

from flwr.app import MessageType

from hetfl_flwr.errors import Failure, PayloadError
from hetfl_flwr.learning.metrics import FRACTIONS
from hetfl_flwr.server.guard import MIN_KNOWN, ROWS_FACTOR, Guard, Sizes, measure
from hetfl_flwr.server.member import Member
from hetfl_flwr.text import LONGEST_NAME, LONGEST_TEXT, brief, printable, quoted
from hetfl_flwr.wire.classes import numbered, wrong_list
from hetfl_flwr.wire.codec import halved
from hetfl_flwr.wire.cost_metrics import COST_METRICS
from hetfl_flwr.wire.messages import EXAMPLES, SEEN, SHARE, STAGES
from hetfl_flwr.wire.naming import called
from hetfl_flwr.wire.samples import MAX_SHARED, public_samples
from hetfl_flwr.wire.spec import Arrays, PayloadSpec, frozen, interned

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation
    from hetfl_flwr.strategy import KnowledgeStrategy

MAX_SAMPLES = 2**53
"""Upper limit of a client's samples; integers up to it are exact in float64."""

LONGEST_REASON = 500
"""Maximum length of a failure's reason in characters; it may quote any text from the client."""

MAX_METRICS = 100
"""Maximum number of metrics in a reply."""

METRIC_NAME = re.compile(r"[A-Za-z0-9_-]+([ ./:][A-Za-z0-9_-]+)*")
"""Pattern of metric names that every tracker accepts."""


Downloads = Sequence[tuple[Member, Arrays]]
"""Clients, each with its download."""

BUSY = "still busy with an earlier message"
"""Reason for a failure: the node was sent nothing, because it has not answered an earlier message."""


@dataclass
class Traffic:
    """Traffic of a client: numbers and bytes of payload, as papers count them, and bytes of whole messages (wire)."""

    numbers_up: int = 0
    numbers_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Add other traffic."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass(frozen=True)
class Upload:
    """One client's upload in one round, already checked.

    Parameters
    ----------
    client_id : int
        The client's id.
    arrays : mapping of str to array
        The arrays, as `KnowledgeStrategy.upload_spec` declares them.
    samples : int
        The number of its training samples, regardless of how many it used in the round.
    """

    client_id: int
    arrays: Arrays
    samples: int


@dataclass(frozen=True)
class Reply:
    """A client's reply, decoded and checked once, when it was received."""

    client_id: int
    metrics: Mapping[str, float]
    """The metrics, including ``num-examples``."""
    arrays: Arrays = field(default_factory=dict)
    """The upload."""
    classes: Mapping[str, list[float | None]] = field(default_factory=dict)
    """The per-class metrics, under their names in `hetfl_flwr.wire.classes`; None for a class without a value."""

    @property
    def samples(self) -> int:
        """The number of the client's training samples or, after an evaluation, of its test samples."""
        return int(self.metrics[EXAMPLES])

    @property
    def seen(self) -> int:
        """The number of samples it has trained on, repeats included."""
        return int(self.metrics.get(SEEN, self.samples))

    @property
    def upload(self) -> Upload:
        """The upload as the algorithm receives it."""
        return Upload(self.client_id, self.arrays, self.samples)


class SampleLimits(NamedTuple):
    """Limits on the numbers of samples that a client may report after training.

    Parameters
    ----------
    samples : int
        Limit of ``num-examples``.
    seen : int
        Limit of ``samples-seen``.
    """

    samples: int = MAX_SAMPLES
    seen: int = MAX_SAMPLES


ANY = SampleLimits()
"""The limits that hold for any client."""


@dataclass(eq=False)
class Request:
    """A request to a client that it has not answered yet."""

    member: Member
    kind: str
    """The message type."""
    number: int
    """The round that is sent to the client; for `SHARE`, whether labels are requested."""
    download: Arrays
    """The arrays as they are sent."""
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def stage(self) -> str:
        """The name of the message type in failures."""
        return STAGES.get(self.kind, self.kind)


@dataclass
class Expected:
    """What a client's reply is checked against."""

    member: Member
    spec: PayloadSpec | None = None
    """The declaration of its upload; None: it uploads nothing."""
    most: SampleLimits = ANY
    evaluated: bool = False
    """Whether the client was asked to evaluate its model."""
    why: str = ""
    """The reason for the limit of samples, for messages; empty: the number in its registration."""

    def reply(self, metrics: Mapping[str, Any], arrays: Arrays) -> Reply:
        """Return the reply with these metrics and arrays, which have been checked."""
        if not self.evaluated:
            return Reply(self.member.client_id, metrics, arrays)
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        return Reply(self.member.client_id, numbers, arrays, numbered(metrics))

    def check(self, metrics: Mapping[str, object]) -> None:
        """Raise a `PayloadError` unless the metrics are valid."""
        wrong = "" if len(metrics) <= MAX_METRICS else f"{len(metrics)} metrics, expected at most {MAX_METRICS}"
        for name, value in metrics.items():
            wrong = wrong or self._wrong(name, value)
        rows = self.why or f"the number of {'test ' * self.evaluated}samples in its registration"
        wrong = wrong or _wrong_count(EXAMPLES, metrics.get(EXAMPLES), self.most.samples, rows)
        wrong = wrong or _wrong_count(SEEN, metrics.get(SEEN, 0), self.most.seen, "the samples of a round")
        if wrong:
            raise PayloadError(f"{self.member}: {wrong}")

    def _wrong(self, name: str, value: object) -> str:
        """Return what is wrong with a metric, or an empty text."""
        if self.evaluated and isinstance(value, list):
            should = wrong_list(name, value, self.member.classes)
            return f"metric {brief(name)} is {brief(value)}, {should}" if should else ""
        if not _is_name(name):
            return (
                f"a metric is named {brief(name)}, expected at most {LONGEST_NAME} ASCII letters, digits, '_' and "
                "'-', with single ' ', '.', '/' or ':' between them"
            )
        if not isinstance(value, (int, float)) or not isfinite(value):
            return f"metric '{name}' is {brief(value)}, expected a finite number"
        if name in FRACTIONS and not 0 <= value <= 1:
            return f"metric '{name}' is {value!r}, expected a fraction from 0 to 1"
        return ""


def expectation(strategy: "KnowledgeStrategy", kind: str, member: Member) -> Expected:
    """Return what a client's reply to a message of some type is checked against."""
    if kind == MessageType.TRAIN:
        return Expected(member, interned(strategy.upload_spec(member)), strategy.sample_limits(member))
    if kind == MessageType.EVALUATE:
        return Expected(member, None, SampleLimits(member.test), evaluated=True)
    return Expected(member)


def _wrong_count(name: str, number: object, most: int, why: str) -> str:
    """Return what is wrong with a number of samples, or an empty text."""
    if not isinstance(number, int) or not 0 <= number <= MAX_SAMPLES:
        return f"metric '{name}' is {brief(number)}, expected a number of samples"
    return "" if number <= most else f"metric '{name}' is {number}, expected at most {most}, {why}"


_PLAUSIBLE = f"{ROWS_FACTOR:g} times the median client's: see outlier-factor"


def _plausible_samples(counts: Iterable[int]) -> int:
    """Return the largest plausible number of samples of a client, given the numbers of all clients."""
    known = [count for count in counts if count]
    return int(ROWS_FACTOR * median(known)) if len(known) >= MIN_KNOWN else MAX_SAMPLES


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and METRIC_NAME.fullmatch(name) is not None


@dataclass
class Outcome:
    """The outcome of an exchange: valid replies, failures (invalid or missing), and outliers found by the guard."""

    replies: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    outliers: list[Failure] = field(default_factory=list)
    traffic: dict[int, Traffic] = field(default_factory=dict)
    """By client id."""
    sizes: dict[int, Sizes] = field(default_factory=dict)
    """The sizes of the uploads by client id, for the guard."""
    left_out: list[Reply] = field(default_factory=list)
    """The replies of the outliers, with only their costs."""

    def ordered(self) -> "Outcome":
        """Return the outcome sorted by client id, independent of the order in which replies arrived."""
        by = attrgetter("client_id")
        return Outcome(
            sorted(self.replies, key=by),
            sorted(self.failures, key=by),
            sorted(self.outliers, key=by),
            dict(sorted(self.traffic.items())),
            left_out=sorted(self.left_out, key=by),
        )

    def add(self, other: "Outcome") -> None:
        """Add the failures, outliers and traffic of another exchange, but not its valid replies."""
        self.failures += other.failures
        self.outliers += other.outliers
        self.left_out += other.left_out
        for client_id, traffic in other.traffic.items():
            self.traffic.setdefault(client_id, Traffic()).add(traffic)

    def fail(self, member: Member, stage: str, why: str) -> None:
        """Record that a client has sent no valid reply."""
        self.failures.append(_failure(member, stage, why))

    def leave_out(self, member: Member, stage: str, why: str) -> None:
        """Record that the guard has left out a client's upload."""
        self.outliers.append(_failure(member, stage, why))


def _failure(member: Member, stage: str, why: str) -> Failure:
    return Failure(member.client_id, stage, printable(why, LONGEST_REASON), member.node)


@dataclass(frozen=True)
class Pending:
    """The messages under way between two rounds: a part in JSON, and the arrays of downloads and uploads."""

    numbers: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


class Exchange(ABC):
    """Sends arrays to clients and receives their replies.

    ``received``, if set, is called with each checked upload: the client, its download and its reply. ``clock`` is the
    simulated time in seconds since the start of the run; None where time is not simulated.
    """

    clock: float | None = None

    def __init__(self, federation: "Federation") -> None:
        self.config, self.roster = federation.config, federation.roster
        self.strategy, self.uploads = federation.strategy, federation.uploads
        self.guard = Guard(self.config.outlier_factor)
        self.received: Callable[[Member, Arrays, Reply], object] | None = None
        self._expected: dict[tuple[str, int], Expected] = {}
        self._plausible: dict[str, int] = {}
        self._changes, self._samples = -1, self.roster.public_samples  # when _expected was computed
        self._measured: dict[int, float] = {}

    def send(self, kind: str, number: int, downloads: Downloads) -> list[Request]:
        """Send arrays to clients, none of which may be busy."""
        if kind == MessageType.TRAIN:
            self.uploads.asked([member.client_id for member, _ in downloads])
        travelling: dict[int, Arrays] = {}
        for _, download in downloads:
            if id(download) not in travelling:
                travelling[id(download)] = frozen(halved(download) if self.config.half else download)
        sent = [self._request(member, kind, number, travelling[id(download)]) for member, download in downloads]
        self._post(sent)
        return sent

    _request: type[Request] = Request

    @abstractmethod
    def _post(self, sent: Sequence[Any]) -> None:
        """Send the requests and record their traffic; clients with equal downloads share one object."""

    @abstractmethod
    def _take(self, outcome: Outcome) -> Request:
        """Wait for the next reply, add its result to the outcome, and return the request that it answers."""

    @property
    @abstractmethod
    def waiting(self) -> Collection[Request]:
        """The requests under way."""

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message, and so are sent nothing else."""
        return set()

    def drop_departed(self) -> None:
        """Stop waiting for clients that have left; by default, no client leaves."""
        return

    def hold(self) -> Pending:
        """Return the messages under way without stopping them; by default none: they are lost with the server."""
        return Pending()

    def restore(self, under_way: Pending) -> list[str]:
        """Restore the messages that `hold` returned; return messages about what is lost."""
        return []

    def take(self) -> tuple[Request, Outcome]:
        """Wait for the next reply; return the request that it answers, and the outcome of this reply."""
        self._measured, outcome = {}, Outcome()
        sent = self._take(outcome)
        self.reject_outliers(outcome, sent.kind)
        return sent, outcome

    def ask(self, kind: str, number: int, downloads: Downloads) -> Outcome:
        """Send arrays to clients, wait for all replies, and record invalid ones as failures.

        `number` is the round or, for `SHARE`, whether labels are requested. No other messages may be under way.
        """
        result = Outcome()
        free = {member.node for member in self.refuse_busy((member for member, _ in downloads), kind, result)}
        self._measured = {}
        sent = self.send(kind, number, [one for one in downloads if one[0].node in free])
        for _ in sent:
            self._take(result)
        self.reject_outliers(result, kind)
        return result.ordered()

    def refuse_busy(self, members: Iterable[Member], kind: str, result: Outcome) -> list[Member]:
        """Return the members that are not busy; record the others as failures."""
        busy, free = self.busy(), list[Member]()
        for member in members:
            if member.node in busy:
                result.fail(member, STAGES.get(kind, kind), f"{member}: {BUSY}")
            else:
                free.append(member)
        return free

    def reject_outliers(self, result: Outcome, kind: str) -> None:
        """Move replies with uploads far larger than those of the other clients to the outliers."""
        here = self.roster.client_ids()
        self.guard.keep(here)
        far = self.guard.reject_outliers(result.sizes, others_follow=len(here) >= MIN_KNOWN)
        if not far:
            return
        members = {member.client_id: member for member in self.roster}
        for reply in (reply for reply in result.replies if reply.client_id in far):
            costs = {name: reply.metrics[name] for name in COST_METRICS if name in reply.metrics}
            result.left_out.append(Reply(reply.client_id, costs))
        result.replies = [reply for reply in result.replies if reply.client_id not in far]
        for client_id, why in far.items():
            line = f"{members[client_id]}: {why}: left out (outlier-factor = {self.config.outlier_factor:g})"
            result.leave_out(members[client_id], kind, line)

    def expected(self, sent: Request) -> Expected:
        """Return what the reply to a message is checked against, cached until a client joins or leaves."""
        member = sent.member
        if sent.kind == SHARE:
            rows = min(member.public, MAX_SHARED)
            return Expected(member, public_samples(rows, member.spec, member.dtype, labelled=bool(sent.number)))
        if self._changes != self.roster.changes or self._samples is not self.roster.public_samples:
            self._changes, self._samples, self._expected = self.roster.changes, self.roster.public_samples, {}
            if self.guard.factor:
                trained, tested = (_plausible_samples(map(attrgetter(rows), self.roster)) for rows in ("train", "test"))
                self._plausible = {MessageType.TRAIN: trained, MessageType.EVALUATE: tested}
        expected = self._expected.get((sent.kind, member.client_id))
        if expected is None or expected.member is not member:  # the message was sent before its node restarted
            expected = expectation(self.strategy, sent.kind, member)
            if (most := self._plausible.get(sent.kind, MAX_SAMPLES)) < expected.most.samples:
                expected = replace(expected, most=expected.most._replace(samples=most), why=_PLAUSIBLE)
            self._expected[sent.kind, member.client_id] = expected
        return expected

    def _accept(self, sent: Request, reply: Reply, outcome: Outcome) -> None:
        """Add a checked reply to the outcome, and measure its upload for the guard."""
        if sent.kind == MessageType.TRAIN:
            expected = self.expected(sent)
            assert expected.spec is not None
            seen = min(reply.seen, expected.most.seen)
            outcome.sizes[reply.client_id] = measure(reply.arrays, expected.spec, sent.download, seen, self._measured)
            if self.received is not None:
                self.received(sent.member, sent.download, reply)
            self.roster.trained[reply.client_id] = sent.number
        outcome.replies.append(reply)


def error_line(said: str, who: Member | int, *, code: int = 0, own: bool = True) -> str:
    """Return an error reported by a client, or by a node without one, as one line.

    A client's prefix with its own name is kept only if the server knows it by that name. The text of a node is quoted
    unless the node is the user's `own`.
    """
    longest = LONGEST_REASON if isinstance(who, Member) else LONGEST_TEXT  # a refusal to register lists all reasons
    line = printable(" ".join(said.split()), longest)
    by = str(who) if isinstance(who, Member) else f"node {who}"
    of = f"{by}: "
    if isinstance(who, Member) and line.startswith(prefix := f"{called(who.client_id)}, "):
        by = called(who.client_id, who.name)
        of, line = f"{by}, ", line.removeprefix(prefix)
    if not line:
        return f"{of}error {code} without a reason"
    return of + line if own else f"{by} says: {quoted(line)}"


@contextmanager
def read_only() -> Iterator[None]:
    """Suppress torch's warning about tensors that share read-only arrays: received arrays are never written to."""
    with catch_warnings():
        filterwarnings("ignore", "The given NumPy array is not writable")
        yield
