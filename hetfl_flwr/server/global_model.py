"""The model that the server builds where all clients train one and the same."""

from collections import Counter

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.models import ZOO, SplitModel, build_bounded, parse_models, trainable_count
from hetfl_flwr.server.messaging.roster import Member, Roster
from hetfl_flwr.wire.weights import fingerprint


def global_model(roster: Roster, config: RunConfig, *, bodies: bool = False) -> SplitModel:
    """Return the clients' one model with the weights that it has before round 1.

    What nodes have registered is not taken on trust. Built is what most of them have registered (of several, what the
    first client has), among models of the zoo and those that the run config lists: no node can make the server run
    other code. It is no larger than `build_bounded` allows, and it must be the model that most nodes have.

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
        No client names a model that may be built; or what was built is not what a client has registered.
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
    kinds = Counter((one.model, one.spec, one.body if bodies else one.weights, one.parameters) for one in allowed)
    [((name, spec, weights, parameters), _)] = kinds.most_common(1)
    first = next(one for one in allowed if (one.model, one.spec, one.parameters) == (name, spec, parameters))
    try:
        model = build_bounded(
            name, spec, seed=config.seed, scope=("global",), width=config.width, pretrained=config.pretrained
        )
    except ModelError as error:
        raise ModelError(f"{first}: {error}") from None
    _check_registered(first, weights, model, bodies=bodies)
    return model


def _check_registered(member: Member, said: str, model: SplitModel, *, bodies: bool) -> None:
    """Refuse most clients' model if it is not the one of that name that the server has built for their data."""
    if said != fingerprint(model.body if bodies else model):
        raise FederationError(
            f"{member}: its weights differ in names, shapes or types from those of '{member.model}' as the server "
            f"builds it for data of shape {member.shape} and {member.classes} classes; does it run other code?"
        )
    if member.parameters != trainable_count(model):
        raise FederationError(
            f"{member}: registered with {member.parameters} trainable parameters, but '{member.model}' as the server "
            f"builds it has {trainable_count(model)}; does it run other code?"
        )
