"""Registration of many clients: only one is built of those that differ only in their numbers of rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hetfl_flwr.config import FIT, RunConfig
from hetfl_flwr.data import Holding, holdings
from hetfl_flwr.errors import HetflError
from hetfl_flwr.methods import names
from hetfl_flwr.models import ZOO, assign, drawn_order, network_of
from hetfl_flwr.server.member import Member

MAX_REFUSED = 2
"""Number of failed clients of a process after which no others are built: enough to tell whether they fail alike."""


def members_of(
    client_ids: Sequence[int], build: Callable[[int], tuple[Member, RunConfig | None] | str]
) -> list[Member | str]:
    """Return the registrations of clients, in order, or why one cannot take part.

    Clients with the same model and data of the same domain are copies of the first of them, except for the numbers of
    their rows. All others are built one by one: clients with a state folder, that choose their models, that have their
    own columns or pooled rows, or that run the user's code. `build` returns a client's registration, and its config
    if it is cached, or why it cannot take part.
    """
    found, refused = list[Member | str](), 0
    held: Sequence[Holding] = ()
    first: dict[tuple[object, ...], Member] = {}
    config: RunConfig | None = None
    for client_id in client_ids:
        kind = _kind(config, held, client_id) if config else None
        if kind in first:
            found.append(_like(first[kind], client_id, held[client_id]))
            continue
        built = build(client_id)
        if isinstance(built, str):
            found.append(built)
            refused += 1
            if refused == MAX_REFUSED:
                break
            continue
        member = built[0]
        found.append(member)
        if config is None and built[1] is not None:
            config = built[1]
            held = _held(config, member.clients)
        if config and (kind := _kind(config, held, client_id)):
            first[kind] = member
    return found


def _held(config: RunConfig, clients: int) -> Sequence[Holding]:
    """Return each client's sample counts; empty if clients also differ in other ways."""
    if config.state_dir or config.models == FIT or config.features != "all" or config.pooled:
        return ()
    if config.algorithm not in names():
        return ()
    try:
        return holdings(config.split(clients))
    except HetflError:  # the clients concerned raise it, too
        return ()


def _kind(config: RunConfig, held: Sequence[Holding], client_id: int) -> tuple[object, ...] | None:
    """Return a key that is equal for clients of which only one is built; None if each is built."""
    if not held:
        return None
    order = drawn_order(config.seed, len(held)) if config.assignment == "random" else ()
    model = assign(config.models, client_id, order)
    if network_of(model) not in ZOO:
        return None
    own = held[client_id]
    none = not own.public, own.public == own.train, not own.validation, not own.test
    return model, own.domain, min(own.train, 2), *none


def _like(member: Member, client_id: int, held: Holding) -> Member:
    """Return a copy of a client with another client id, and that client's numbers of samples."""
    own = {name: value for name, value in held._asdict().items() if name != "domain"}
    return replace(member, node=member.node - member.client_id + client_id, client_id=client_id, **own)
