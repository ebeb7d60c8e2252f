"""Models that the server builds: the clients' common model, or the small one that each has in addition to its own."""

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
    """Return the clients' one model with the weights that it has before round 1.

    What nodes have registered is not trusted. The server builds the model that the first of them has registered, among
    models of the zoo and those that the run config lists: no node can make the server run other code. It is no larger
    than `build_model` allows. Where it is not the model that the node says it has, what the next one has registered is
    built: one false field does not end the run.

    Parameters
    ----------
    roster : Roster
        The clients, at least one. Their weights, or their bodies', have one fingerprint.
    config : RunConfig
        The run.
    bodies : bool
        Whether the clients exchange the bodies' weights alone.

    Raises
    ------
    FederationError
        No client names a model that may be built, or no model that was built is as registered.
    ModelError
        The model is too large, cannot be built, or does not fit the data that the client has registered.
    """
    listed = {*parse_models(config.candidates)}
    allowed = [member for member in roster if member.model in listed or network_of(member.model) in ZOO]
    if not allowed:
        raise FederationError(
            f"{next(iter(roster))}: the server builds models of the zoo and those that the run config lists; "
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
    """Return the models that clients have registered, by their names, with the weights that they have before round 1.

    Each is a `global_model` of those clients that name it. One that cannot be built, as it is neither of the zoo nor of
    the run config's list or is another one here, is left out with a warning, so that no false registration ends
    the run; an error is raised only where no model is left. Weights that differ from the built model's are a warning.

    Parameters
    ----------
    roster, config
        As in `global_model`; the clients may have any models.

    Raises
    ------
    FederationError, ModelError
        As `global_model`, of the first model, where none can be built.
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
    """Return the small model that each client has in addition to its own, with the weights that it has before round 1.

    Parameters
    ----------
    name : str
        A model, as in ``models``; "auto": the first of what ``models = "auto"`` stands for. It comes from the run
        config: nodes determine only the form of the data.
    roster : Roster
        The clients, at least one, with inputs of one shape.
    config : RunConfig
        The run.

    Raises
    ------
    ModelError
        As `hetfl_flwr.models.build_model`.
    """
    return small_model_for(next(iter(roster)).spec, name, config)


def small_model_for(spec: DataSpec, name: str, config: RunConfig) -> SplitModel:
    """Return the model of `small_global_model` for some data, as the server and each client build it."""
    named = one_model(spec.kind) if name == AUTO else name
    return build_model(
        named, spec, seed=config.seed, scope=("global",), head_bias=config.head_bias, stem=config.stem, bounded=True
    )


def _check_registered(member: Member, model: SplitModel, *, bodies: bool) -> None:
    """Refuse what a client has registered if it is not the model of that name that the server has built for its data.

    Of bodies only the weights are compared: a client's number of parameters includes its head.
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
