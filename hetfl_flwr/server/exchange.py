"""How arrays reach clients and come back: as Flower's messages, or by what an engine has for its own clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from warnings import catch_warnings, filterwarnings

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import Messenger
from hetfl_flwr.server.replies import METRICS_ALONE, Expected, Outcome
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, ROUND
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy

Downloads = Sequence[tuple[Member, Arrays]]
"""What each of some clients is sent."""


class Exchange(Protocol):
    """Sends arrays to clients and takes in what they answer, each checked once."""

    def train(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients learn in a round; return what they have uploaded."""

    def measure(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients measure after a round; return their metrics."""


@runtime_checkable
class Exchanges(Protocol):
    """A Grid that reaches its clients without messages."""

    def exchange(self, messenger: Messenger, strategy: "KnowledgeStrategy") -> Exchange:
        """Return what reaches them."""


class FlowerExchange:
    """Sends Flower's messages.

    Parameters
    ----------
    messenger : Messenger
        Reaches the clients.
    strategy : KnowledgeStrategy
        Says what they are to upload.
    """

    def __init__(self, messenger: Messenger, strategy: "KnowledgeStrategy") -> None:
        self._messenger = messenger
        self.expected = expected_of(strategy)
        self._record: tuple[Arrays, ArrayRecord] = {}, ArrayRecord()

    def train(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients learn in a round; return what they have uploaded."""
        return self._messenger.exchange(self._messages(MessageType.TRAIN, number, downloads), self.expected)

    def measure(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients measure after a round; return their metrics."""
        return self._messenger.exchange(self._messages(MessageType.EVALUATE, number, downloads), METRICS_ALONE)

    def message(self, kind: str, number: int, member: Member, download: Arrays) -> Message:
        """Return a message to a client; the same arrays are written once while nothing else is sent."""
        if self._record[0] is not download:
            self._record = download, to_record(download)
        content = RecordDict({ARRAYS: self._record[1], CONFIG: ConfigRecord({ROUND: number})})
        return Message(content, member.node, kind)

    def _messages(self, kind: str, number: int, downloads: Downloads) -> list[Message]:
        return [self.message(kind, number, member, download) for member, download in downloads]


def expected_of(strategy: "KnowledgeStrategy") -> Expected:
    """Return what the answers to a strategy's training messages are held against."""
    return Expected(strategy.upload_spec, strategy.most_samples)


def exchange_of(grid: object, messenger: Messenger, strategy: "KnowledgeStrategy") -> Exchange:
    """Return what reaches the clients behind a Grid."""
    return grid.exchange(messenger, strategy) if isinstance(grid, Exchanges) else FlowerExchange(messenger, strategy)


@contextmanager
def read_only() -> Iterator[None]:
    """Let torch share read-only arrays without a warning: nobody writes to what came from somebody else."""
    with catch_warnings():
        filterwarnings("ignore", "The given NumPy array is not writable")
        yield
