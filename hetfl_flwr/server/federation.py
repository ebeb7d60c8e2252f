"""The clients as the server sees them: who takes part, how they are reached, and what they have shared.

Node ids are random in every run; the stable identity of a client is its client id. Everything here is ordered by
client id and drawn from the run's own generators, so that the same config, seed and versions give the same bits in
every engine.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generators_lent
from hetfl_flwr.server.exchange import Exchange
from hetfl_flwr.server.grids import KeepsClients, engine_of
from hetfl_flwr.server.messenger import FlowerExchange
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.registration import Admission, Origin, Registration
from hetfl_flwr.server.residents import Residents
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.server.sharing import SampleSharing
from hetfl_flwr.server.upload_counts import UploadCounts

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy


class Federation:
    """A Grid whose clients register, receive arrays and answer.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    strategy : KnowledgeStrategy
        Says what clients upload and share.
    origin : Origin, optional
        The run that this one resumes.
    uploads : UploadCounts, optional
        Where uploads are counted.

    Attributes
    ----------
    own : bool
        Whether all nodes are the user's own, as in the local engine and the simulation.
    keys : NodeKeys or None
        Which key belongs to which client.
    roster : Roster
        The clients that take part.
    registration : Admission
        Admits nodes as clients.
    exchange : Exchange
        Sends clients arrays, and checks their answers.
    samples : SampleSharing
        Knows which client has whose public samples.

    Raises
    ------
    ConfigError
        ``node-keys`` without a deployment, or a list that cannot be read.
    """

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        strategy: "KnowledgeStrategy",
        origin: Origin | None = None,
        uploads: UploadCounts | None = None,
    ) -> None:
        self.grid, self.config, self.strategy, self.origin = grid, config, strategy, origin
        self.uploads = UploadCounts() if uploads is None else uploads
        self.own = engine_of(grid) != "deployment"
        self.keys = NodeKeys(Path(config.node_keys).expanduser()) if config.node_keys else None
        if self.keys and self.own:
            raise ConfigError("node-keys: only nodes of a deployment have keys; leave it out")
        self.roster = Roster()
        self.roster.trained = dict(origin.trained) if origin else {}
        self.exchange: Exchange
        self.registration: Admission
        if isinstance(grid, KeepsClients):
            self.exchange, self.registration = grid.exchange(self), Residents(self)
        else:
            self.exchange = messages = FlowerExchange(self)
            self.registration = Residents(self) if self.own else Registration(self, messages)
        self.samples = SampleSharing(self.exchange, strategy.sharing)

    def generators_lent(self) -> AbstractContextManager[None]:
        """Lend the global generators where clients may run in this process: both sides' draws are seeded."""
        return generators_lent() if isinstance(self.grid, KeepsClients) else nullcontext()
