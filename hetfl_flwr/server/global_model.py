"""Models that the server builds: the clients' common model, or the small model that each trains alongside its own."""

from logging import WARNING

from hetfl_flwr.common.flower import log
from hetfl_flwr.config import AUTO, RunConfig, one_model
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.models import ZOO, SplitModel, build_model, network_of, parse_models, trainable_count
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.weights import fingerprint


def global_model(roster: Roster, config: RunConfig, *, bodies: bool = False) -> SplitModel:
    """Return the model that all clients share, with its weights before round 1.

    Registrations are not trusted. The server builds the model in the first client's registration only if it is in the
    zoo or listed in the run config, so no node can make the server run other code, and only up to the size that
    `build_model` allows. If the result does not match the registration, the server tries the next client's, so one
    false registration does not end the run.

    Parameters
    ----------
    roster : Roster
        The clients, at least one. The fingerprints of their weights, or of their bodies' weights, are equal.
    config : RunConfig
        The run config.
    bodies : bool
        Whether the clients exchange only the weights of their bodies.

    Raises
    ------
    FederationError
        No client has a model that the server may build, or no model matches its registration.
    ModelError
        The model is too large, cannot be built, or does not fit the data in the registration.
    """
    listed = {*parse_models(config.candidates)}
    allowed = [member for member in roster if member.model in listed or network_of(member.model) in ZOO]
    if not allowed:
        raise FederationError(
            f"{next(iter(roster))}: the server builds only models of the zoo and those that the run config lists; "
            f"add this one to models = '{config.candidates}'"
        )
    kinds: dict[tuple[object, ...], Member] = {}
    for one in allowed:
        weights = one.body if bodies else one.weights
        kinds.setdefault((one.model, one.spec, weights, one.parameters), one)
    refusals: list[FederationError | ModelError] = []
    for first in kinds.values():
        try:
            model = build_model(
                first.model,
                first.spec,
                seed=config.seed,
                scope=("global",),
                width=config.width,
                pretrained=config.pretrained,
                head_bias=config.head_bias,
                width_by=config.width_by,
                stem=config.stem,
                bounded=True,
            )
            _check_registered(first, model, bodies=bodies)
            return model
        except ModelError as error:
            refusals.append(ModelError(f"{first}: {error}"))
        except FederationError as error:
            refusals.append(error)
    raise refusals[0]


def models_by_name(roster: Roster, config: RunConfig) -> dict[str, SplitModel]:
    """Return the clients' models by name, each with its weights before round 1.

    Each is the `global_model` of the clients with that model. A model that the server cannot build, or that does not
    match its registrations, is left out with a warning, so one false registration does not end the run. A client whose
    weights differ from the built model's causes a warning.

    Parameters
    ----------
    roster : Roster
        The clients, at least one, with any models.
    config : RunConfig
        The run config.

    Raises
    ------
    FederationError, ModelError
        No model can be built; the error of `global_model` for the first one.
    """
    models, refused = dict[str, SplitModel](), list[FederationError | ModelError]()
    for name in dict.fromkeys(member.model for member in roster):
        its = [member for member in roster if member.model == name]
        try:
            models[name] = global_model(Roster(its), config)
            for member in its:
                _check_registered(member, models[name], bodies=False)
        except (FederationError, ModelError) as error:
            refused.append(error)
    if not models:
        raise refused[0]
    for refusal in refused:
        log(WARNING, "%s", refusal)
    return models


def small_global_model(name: str, roster: Roster, config: RunConfig) -> SplitModel:
    """Return the small model that each client trains in addition to its own, with its weights before round 1.

    Parameters
    ----------
    name : str
        A model, as in ``models``; "auto": the first model of ``models = "auto"``. It is taken from the run config;
        nodes determine only the shape of the data.
    roster : Roster
        The clients, at least one, with inputs of the same shape.
    config : RunConfig
        The run config.

    Raises
    ------
    ModelError
        Raised by `hetfl_flwr.models.build_model`.
    """
    return small_model_for(next(iter(roster)).spec, name, config)


def small_model_for(spec: DataSpec, name: str, config: RunConfig) -> SplitModel:
    """Return the model of `small_global_model` for a form of data, as both the server and the clients build it."""
    named = one_model(spec.kind) if name == AUTO else name
    return build_model(
        named, spec, seed=config.seed, scope=("global",), head_bias=config.head_bias, stem=config.stem, bounded=True
    )


def _check_registered(member: Member, model: SplitModel, *, bodies: bool) -> None:
    """Raise a `FederationError` if a client's registration does not match the model that the server has built for it.

    For bodies, only fingerprints of weights are compared, since a client's number of parameters includes its head.
    """
    if bodies:
        same = member.body == fingerprint(model.body)
    else:
        same = (member.weights, member.parameters) == (fingerprint(model), trainable_count(model))
    if not same:
        raise FederationError(
            f"{member}: its weights differ from those of '{member.model}' as the server builds it for data of shape "
            f"{member.shape} and {member.classes} classes, with {trainable_count(model)} parameters; does it run other "
            "code?"
        )
