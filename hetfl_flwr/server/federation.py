"""The clients as the server sees them: who is here, who takes part in a round, and what they answer.

Node ids are random in every run; the stable identity of a client is its client id. Everything here is ordered by
client id and drawn from the run's own generators, so that the same config, seed and versions give the same bits in
every engine.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.server.grids import GridView, engine_of, is_stopped
from hetfl_flwr.server.member import Failure, Member, Sharing
from hetfl_flwr.server.messenger import LOST, Messenger
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.registration import Check, Origin, Registration
from hetfl_flwr.server.replies import METRICS_ALONE, Expected, Outcome
from hetfl_flwr.server.roster import Roster, draw
from hetfl_flwr.server.sharing import SampleSharing
from hetfl_flwr.server.upload_counts import UploadCounts


class Federation:
    """A Grid with registered clients, ordered replies, checked uploads and measured bytes.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    origin : Origin, optional
        The run that this one goes on with.
    uploads : UploadCounts, optional
        Where uploads are counted.

    Attributes
    ----------
    roster : Roster
        Who is here.
    messenger : Messenger
        Sends messages, and judges the replies.
    registration : Registration
        Takes nodes in as clients.
    samples : SampleSharing
        Knows whose public samples are where.

    Raises
    ------
    ConfigError
        ``node-keys`` without a deployment, or a list that cannot be read.
    """

    def __init__(
        self, grid: Grid, config: RunConfig, origin: Origin | None = None, uploads: UploadCounts | None = None
    ) -> None:
        own = engine_of(grid) != "deployment"
        keys = NodeKeys(Path(config.node_keys).expanduser()) if config.node_keys else None
        if keys and own:
            raise ConfigError("node-keys: only nodes of a deployment have keys; leave it out")
        self.grid = grid
        self.config = config
        self.roster = Roster()
        self.roster.trained = dict(origin.trained) if origin else {}
        self.messenger = Messenger(grid, config, self.roster, UploadCounts() if uploads is None else uploads)
        self.registration = Registration(self.messenger, config, self.roster, keys, origin, own=own)
        self.samples = SampleSharing(self.messenger, self.roster)

    @property
    def stop_requested(self) -> bool:
        """Whether no further round is to begin."""
        return is_stopped(self.grid)

    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and register them; see `Registration.assemble`."""
        self.registration.assemble(check)

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Take in nodes that have come, and forget those that have left; see `Registration.welcome`."""
        return self.registration.welcome(round, check)

    def has_lost(self, failures: Iterable[Failure]) -> bool:
        """Say whether the nodes of some failures have left, or restarted, since they were sent their last messages."""
        gone = self.registration.gone()
        return any(failure.node in gone or failure.reason.endswith(LOST) for failure in failures)

    def notes(self) -> list[Failure]:
        """Return what has been noticed about clients since the last call."""
        return self.registration.notes()

    def share(self, sharing: Sharing | None) -> Outcome:
        """Share public samples where that is still to be done; see `SampleSharing.share`."""
        return self.samples.share(sharing)

    def exchange(self, messages: Iterable[Message], expected: Expected = METRICS_ALONE) -> Outcome:
        """Send messages and take in the replies; see `Messenger.exchange`."""
        return self.messenger.exchange(messages, expected)

    def draw(self, round: int) -> list[Member]:
        """Draw the clients of a round; see `draw`."""
        return draw(self.roster, self.config, self.registration.clients, round)

    def view(self, members: Sequence[Member]) -> Grid:
        """Return the Grid as it looks to a strategy that asks it for nodes: just these."""
        return GridView(self.grid, [member.node for member in members])
