"""The federation on the server: the clients that take part, the exchange with them, and their public samples.

Flower's node ids are random in every run; a client is identified by its client id. Everything here is ordered by client
id and drawn from generators with the run's seed, so the same config, seed and versions give bit-identical results in
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
    """The server's objects for one run: roster, registration, exchange and sharing of public samples.

    `origin` is the run that this one resumes, if any. ``own`` says whether all nodes are the user's own, as in the
    local engine and in simulations. Raises `ConfigError` for ``node-keys`` outside a deployment, or if that file cannot
    be read.
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
            raise ConfigError("node-keys: only the nodes of a deployment have keys; leave it empty")
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
        """Return a context in which `seeded` need not restore the global generators, if clients run in this process."""
        return generators_lent() if isinstance(self.grid, KeepsClients) else nullcontext()
