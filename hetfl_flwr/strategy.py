"""Base of the server sides: what an algorithm writes. Flower's hooks are in `hetfl_flwr.server.hooks`."""

from abc import abstractmethod
from collections.abc import Sequence

from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.training import most_drawn
from hetfl_flwr.server.hooks import FlowerHooks
from hetfl_flwr.server.messaging.exchange import Most
from hetfl_flwr.server.messaging.exchange import Upload as Upload  # algorithms import it from here
from hetfl_flwr.server.messaging.member import Member, Sharing
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.server.strategy import Sends
from hetfl_flwr.wire.spec import Arrays, PayloadSpec


class KnowledgeStrategy(FlowerHooks):
    """A strategy whose clients exchange knowledge instead of weights.

    An algorithm writes `initial`, `download_for`, `aggregate` and `upload_spec`. All that the server knows is a set of
    named arrays that passes through these functions and lives nowhere else; that is why a run can be checkpointed and
    resumed without the algorithm's help.

    Attributes
    ----------
    heterogeneous : bool
        Class attribute: whether clients may have different architectures, with the default hyper-parameters. Default:
        True.
    width : int
        Class attribute: the embedding width that all models get where the run config's ``width`` is 0. Default: 0, each
        model keeps its own.
    sharing : Sharing or None
        Class attribute: what is needed of the clients' public samples, which are in ``roster.public_samples`` before
        round 1. Default: None, nothing.
    asynchronous : bool
        Whether each client is answered as soon as it has uploaded. Default: False.
    exchanges : bool
        Class attribute: whether clients learn from each other. Default: True.
    sends : {"weights", "parts of weights", "small models", "prototypes", "logits", "representations", \
"public samples", "nothing", "something else"}
        Class attribute: what leaves a client in a round. `hetfl list algorithms` groups by it. "parts of weights": the
        body, the head or some channels; "small models": a model that travels, beside one that stays; "prototypes" and
        "logits": a mean of each class; "representations": embeddings of samples that all know; "public samples": these
        alone, or predictions on them. Default: "something else".
    parts : bool
        Class attribute: whether clients may have parts of one network of different width, as ``NAME@0.5``; then
        ``models = "auto"`` gives every second client half of the width. Default: False.
    roster : Roster
        The clients, set before `initial` is called.
    config : RunConfig
        The run config, set before `initial` is called.

    Examples
    --------
    >>> import numpy as np
    >>> from hetfl_flwr import KnowledgeStrategy, PayloadSpec, Upload, learnt
    >>> class Mean(KnowledgeStrategy):
    ...     def initial(self, roster):
    ...         return {"logits": np.zeros((roster.classes, roster.classes), np.float32)}
    ...     def download_for(self, member, server_state, round):
    ...         return server_state
    ...     def upload_spec(self, member):
    ...         return PayloadSpec((learnt("logits", (member.classes, member.classes)),))
    ...     def aggregate(self, server_state, uploads, round):
    ...         return {"logits": np.mean([upload.arrays["logits"] for upload in uploads], axis=0)}
    >>> uploads = [Upload(client_id, {"logits": np.eye(2) * client_id}, samples=50) for client_id in (0, 1)]
    >>> Mean().aggregate({}, uploads, 1)["logits"].tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    heterogeneous = True
    width = 0
    sharing: Sharing | None = None
    asynchronous = False
    exchanges = True
    sends: Sends = "something else"
    parts = False
    roster: Roster
    config: RunConfig

    def __init__(self) -> None:
        """Take no hyper-parameters."""

    def check(self, roster: Roster) -> None:
        """Refuse a federation in which the algorithm makes no sense. By default: clients must agree on the classes.

        Called before round 1, and again with each client that joins later.

        Raises
        ------
        FederationError
            One line that names who differs.
        """
        _ = roster.classes

    @abstractmethod
    def initial(self, roster: Roster) -> Arrays:
        """Return what the server knows before round 1."""

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return what a client is sent in a round, as its own side declares it."""

    @abstractmethod
    def upload_spec(self, member: Member) -> PayloadSpec:
        """Return what a client is to send."""

    def most_samples(self, member: Member) -> Most:
        """Return the largest numbers of samples that a client may say when it has trained.

        By default those of its training samples, and of these in the batches of a round, as the run config has it.
        """
        return Most(member.train, most_drawn(self.config, member.train))

    @abstractmethod
    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return what the server knows after uploads, at least one, ordered by client id. Rounds count from 1."""

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return what a client is sent along when it is asked to measure its model: by default nothing."""
        return {}


def others_rows(roster: Roster, member: Member) -> int:
    """Return how many public samples of all others a client may have been brought."""
    shared = (block["inputs"] for client_id, block in roster.public_samples.items() if client_id != member.client_id)
    return sum(map(len, shared))
