"""The model that the server builds where all clients train one and the same."""

from collections import Counter
from collections.abc import Sequence

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.models import ZOO, SplitModel, build_bounded, parse_models, trainable_count
from hetfl_flwr.server.messaging.roster import Member, Roster
from hetfl_flwr.wire.weights import fingerprint


def global_model(roster: Roster, config: RunConfig, *, bodies: bool = False) -> SplitModel:
    """Return the clients' one model with the weights that it has before round 1.

    What nodes have registered is not taken on trust. Built is what most of them have registered (of several, what the
    first client has), among models of the zoo and those that the run config lists: no node can make the server run
    other code. It is no larger than `build_bounded` allows. Where it is not the model that the nodes have, what fewer
    of them have registered is built: one that lies in a field keeps nobody from the run.

    Parameters
    ----------
    roster : Roster
        The clients, at least one. Their weights, or their bodies', are known to have one fingerprint.
    config : RunConfig
        The run.
    bodies : bool
        Whether only the body's weights are exchanged.

    Raises
    ------
    FederationError
        No client names a model that may be built; or nothing that was built is what clients have registered.
    ModelError
        The model is too large, cannot be built, or does not fit the data that the client has registered.
    """
    listed = {*ZOO, *parse_models(config.models)}
    allowed = [member for member in roster if member.model in listed]
    if not allowed:
        raise FederationError(
            f"{next(iter(roster))}: the server builds models of the zoo and those that the run config lists; "
            f"add this one to models = '{config.models}'"
        )
    refusal: FederationError | ModelError | None = None
    for first in _candidates(allowed, bodies=bodies):
        try:
            model = build_bounded(
                first.model,
                first.spec,
                seed=config.seed,
                scope=("global",),
                width=config.width,
                pretrained=config.pretrained,
                head_bias=config.head_bias,
                width_by=config.width_by,
                stem=config.stem,
            )
            _check_registered(first, model, bodies=bodies)
            return model
        except ModelError as error:
            refusal = refusal or ModelError(f"{first}: {error}")
        except FederationError as error:
            refusal = refusal or error
    raise refusal or FederationError("no client is here")


def _candidates(members: Sequence[Member], *, bodies: bool) -> list[Member]:
    """Return the first client of each kind: first of what most clients have.

    Where bodies alone are exchanged, classes and so numbers of parameters may differ among those that most have.
    """

    def kind(member: Member) -> tuple[object, ...]:
        alike = (member.model, member.shape, member.vocabulary)
        return alike if bodies else (*alike, member.classes, member.parameters)

    support = Counter(map(kind, members))
    exact = Counter((kind(member), member.classes) for member in members)
    first = {(kind(member), member.classes): member for member in reversed(members)}
    return sorted(first.values(), key=lambda one: (-support[kind(one)], -exact[kind(one), one.classes], one.client_id))


def _check_registered(member: Member, model: SplitModel, *, bodies: bool) -> None:
    """Refuse what clients have registered if it is not the model of that name that the server has built for their data.

    Of bodies nothing but the weights is looked at: the head counts among a client's parameters.
    """
    if (member.body if bodies else member.weights) != fingerprint(model.body if bodies else model):
        raise FederationError(
            f"{member}: its weights differ in names, shapes or types from those of '{member.model}' as the server "
            f"builds it for data of shape {member.shape} and {member.classes} classes; does it run other code?"
        )
    if not bodies and member.parameters != trainable_count(model):
        raise FederationError(
            f"{member}: registered with {member.parameters} trainable parameters, but '{member.model}' as the server "
            f"builds it has {trainable_count(model)}; does it run other code?"
        )
