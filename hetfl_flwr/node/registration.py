"""A client's registration, and the state from which it resumes."""

from collections.abc import Callable
from dataclasses import replace
from logging import INFO, WARNING
from math import inf

from flwr.app import Context

from hetfl_flwr.common.flower import log
from hetfl_flwr.common.versions import installed
from hetfl_flwr.data import public_data
from hetfl_flwr.data.client_data import unlike
from hetfl_flwr.errors import DamagedError, StateError
from hetfl_flwr.models import trainable_count
from hetfl_flwr.node.holder import Holder
from hetfl_flwr.node.node import Node
from hetfl_flwr.node.state import ClientState, FileStore, Stamp, StateStore, decode, prune, run_store
from hetfl_flwr.server.member import LONGEST_NOTE, MAX_NOTES, Member
from hetfl_flwr.text import printable
from hetfl_flwr.wire.naming import Naming, client_name, data_label, shares
from hetfl_flwr.wire.privacy import simulated
from hetfl_flwr.wire.weights import fingerprint

MAX_LOGGED = 100
"""Names of classes or columns that a node's log lists."""


def registered(holder: Holder, context: Context, before: str = "", round: int = 0) -> Member:
    """Return a client's registration, after restoring the state from which it resumes.

    Parameters
    ----------
    holder : Holder
        The client, as built.
    context : Context
        The node's.
    before : str
        The run that this one resumes, if any.
    round : int
        A round after which the server has written a checkpoint of that run.

    Raises
    ------
    StateError
        Its state folder cannot be written; or as `resumed_state`.
    """
    node, client, data = holder.node, holder.client, holder.node.data
    if client.keeps_state and isinstance(node.store, FileStore):
        node.store.check_writable()
    state = resumed_state(node, before, round)  # refuses another run's state before round 1
    if node.config.state_dir:
        removed = prune(node.config, node.client_id, {node.stamp.run, before} - {""})
        if removed:
            log(INFO, "state of old runs removed, as state-keep says: %s", ", ".join(removed))
    share, public = simulated() or shares(context.node_config, "share-names"), public_data(node.config.dataset)
    classes, inputs = _named(node, share=share or public)
    return Member(
        node=context.node_id,
        client_id=node.client_id,
        clients=node.clients,
        model=node.model_name,
        parameters=trainable_count(node.model),
        width=node.model.width,
        classes=data.spec.classes,
        shape=data.spec.shape,
        vocabulary=data.spec.vocabulary,
        weights=fingerprint(node.model),
        body=fingerprint(node.model.body),
        dtype=node.dtype,
        train=len(data.train),
        public=len(node.pool.shared),
        validation=len(data.validation),
        test=len(data.test),
        round=-1 if not client.keeps_state else state.round if state else 0,
        holds=tuple(node.public_samples.client_ids()),
        dataset=data_label(node.config.dataset, context.node_config, share=share),
        name=client_name(context.node_config, node.config.dataset, data.name, share=share or public),
        class_digests=classes.digests,
        class_names=classes.shown,
        input_digests=inputs.digests,
        input_names=inputs.shown,
        owners=data.owners,
        notes=_notes(node, share=simulated() or public),
        **installed(),
    )


def resumed_state(node: Node, before: str = "", round: int = 0) -> ClientState | None:
    """Return the state from which a client resumes, and make it the node's current state.

    In a state folder it is the state of this run or, where there is none, that of the run that this one resumes.
    With ``accept-loss``, the kept copy replaces a damaged state, or no state.

    Raises
    ------
    DamagedError
        The state is damaged, and without ``accept-loss``.
    StateError
        It is another run's, model's or algorithm's; or, simulated and without ``accept-loss``, the client's data have
        changed since.
    """
    if not node.config.state_dir:
        return node.read_state()
    places: list[tuple[StateStore, Stamp, float]] = [(node.store, node.stamp, inf)]
    if before:
        store = run_store(node.config, before, node.client_id)
        places.append((store, replace(node.stamp, run=before), round))
    for place, stamp, most in places:
        for read in (place.read, place.kept):
            state = _intact(node, read, stamp, place.where)
            if state is not None and state.round <= most:
                if _has_other_data(node, state) or read != node.store.read:
                    node.write_state(state)
                return state
    node.store.forget()
    return None


def _has_other_data(node: Node, state: ClientState) -> bool:
    """Return whether a client's data have changed since it saved a state, if that is allowed.

    A deployed node logs a warning and continues: its data may have grown, and its operator may not be the one who can
    accept the loss.
    """
    different = unlike(state.inputs["data"], node.data.digest) if state.inputs else ""
    if not different:
        return False
    what = f"{node}: its {different} have changed since its state was saved"
    if simulated() and not node.config.accept_loss:
        raise StateError(f"{what}, so results would differ: restore them, or set accept-loss = true")
    log(WARNING, "%s; it continues with them", what)
    return True


def _intact(node: Node, read: Callable[[], bytes | None], stamp: Stamp, where: str) -> ClientState | None:
    try:
        blob = read()
        return None if blob is None else decode(blob, stamp, f"{node}: {where}")
    except DamagedError as error:
        means = f"{error}: the client would continue from an older state or its initial weights"
        if not node.config.accept_loss:
            raise DamagedError(f"{means}; set accept-loss = true to allow that") from error
        log(WARNING, "%s, and this was accepted", means)
        return None


def _named(node: Node, *, share: bool) -> tuple[Naming, Naming]:
    """Return the names of a client's classes and inputs; names that are not shared appear in this node's log."""
    arrays = node.data.train.arrays
    names = arrays.class_names or tuple(map(str, range(node.data.spec.classes)))
    if not share:
        for what, own in (("classes", names), ("columns", arrays.input_names)):
            shown = ", ".join(f"{number} {name!r}" for number, name in enumerate(own[:MAX_LOGGED]))
            log(INFO, "%s: %s: %s%s", node, what, shown or "none", ", ..." if len(own) > MAX_LOGGED else "")
    inputs = Naming.of_words(arrays.words()) if arrays.words else Naming.of(arrays.input_names, share=share)
    return Naming.of(names, share=share), inputs


def _notes(node: Node, *, share: bool) -> tuple[str, ...]:
    """Return a client's notes for others: why it has its model, and, if shared, how its data were interpreted.

    Notes that are not shared appear in this node's log.
    """
    notes = [*node.data.train.arrays.facts, *node.data.train.arrays.notes]
    if not share:
        for note in notes:
            log(WARNING, "%s: %s", node, printable(note))
        notes = []
    lines = [*filter(None, [node.why]), *notes]
    if len(lines) > MAX_NOTES:
        lines[MAX_NOTES - 1 :] = [f"and {len(lines) - MAX_NOTES + 1} more lines on the data"]
    return tuple(printable(note, LONGEST_NOTE) for note in lines)
