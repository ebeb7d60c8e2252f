"""Which nodes are connected, and which of them have been asked to register."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from math import inf
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.serverapp import Grid

from hetfl_flwr.common.flower import log
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.grids import ListsNodes
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.replies import misaddressed
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.messages import CONFIG, REGISTRATION, ROUND, RUN

UNLISTED = "its key is not in node-keys"
"""Why a node was not asked to register."""

SILENCE = 60.0
"""Seconds after which nodes of a deployment that have not registered are named."""


@dataclass(frozen=True)
class Origin:
    """The run that this one goes on with, where the clients have its state on their disks.

    Parameters
    ----------
    run : int
        Its id.
    round : int
        The round after which the server goes on; `NEWEST` where clients are not in step with it.
    trained : mapping of int to int
        The round in which each client had trained last, by client id.
    sent : int
        The number of the last message that an asynchronous run had sent.
    """

    run: int
    round: int
    trained: Mapping[int, int]
    sent: int = 0


@dataclass(frozen=True)
class Presence:
    """A node that is here.

    Parameters
    ----------
    since : str
        Since when, where the Grid knows it.
    client_id : int
        The client that its key is listed for in ``node-keys``. -1: none, or there is no list.
    """

    since: str
    client_id: int


class Query(NamedTuple):
    """A request to register that has not been answered.

    Parameters
    ----------
    asked : Metadata
        Who was asked, and how.
    patience : float
        When it is logged as silent; infinity once it has been.
    """

    asked: Metadata
    patience: float

    @property
    def node(self) -> int:
        """Who was asked."""
        return self.asked.dst_node_id


class Attendance:
    """Asks nodes that connect, or reconnect, to register, and collects their answers without waiting for them.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    keys : NodeKeys, optional
        Nodes with other keys are not asked.
    origin : Origin, optional
        The run that this one goes on with.
    timeout : float
        Seconds that a request lives, at least.
    """

    def __init__(self, grid: Grid, keys: NodeKeys | None, origin: Origin | None, timeout: float) -> None:
        self._grid = grid
        self._keys = keys
        self._origin = origin
        self._timeout = timeout
        self._since: dict[int, str] = {}
        self._registered: dict[int, str] = {}
        self._queries: dict[str, Query] = {}

    def present(self) -> dict[int, Presence]:
        """Return the nodes that are here."""
        if not isinstance(self._grid, ListsNodes):
            return dict.fromkeys(self._grid.get_node_ids(), Presence("", -1))
        return {
            node.node_id: Presence(node.last_activated_at, self._keys.number(node.public_key) if self._keys else -1)
            for node in self._grid.get_nodes()
        }

    def gone(self, present: Mapping[int, Presence]) -> set[int]:
        """Return nodes that have left or restarted since they registered."""
        return _changed(self._registered, present)

    def left(self, present: Mapping[int, Presence]) -> set[int]:
        """Return nodes that have left or restarted since they were asked to register, and drop their requests."""
        left = _changed(self._since, present)
        for node in left:
            del self._since[node]
        self._queries = {message: query for message, query in self._queries.items() if query.node not in left}
        return left

    def ask(self, present: Mapping[int, Presence]) -> list[Failure]:
        """Ask nodes that are new, or have restarted, to register; return a failure for each that is not listed."""
        new = [node for node in sorted(present) if node not in self._since]
        self._since |= {node: present[node].since for node in new}
        messages = [self.query(node) for node in new if self._is_listed(present[node])]
        if messages:
            self._grid.push_messages(messages)
        patience = time.monotonic() + SILENCE
        self._queries |= {one.metadata.message_id: Query(one.metadata, patience) for one in messages}
        return [
            Failure(-1, REGISTRATION, f"node {node}: {UNLISTED}", node)
            for node in new
            if not self._is_listed(present[node])
        ]

    def query(self, node: int) -> Message:
        """Return a message that asks a node to register."""
        content = RecordDict()
        if self._origin is not None:
            content[CONFIG] = ConfigRecord({RUN: str(self._origin.run), ROUND: self._origin.round})
        message = Message(content, node, MessageType.QUERY)
        message.metadata.ttl = max(message.metadata.ttl, self._timeout)
        return message

    def asked(self) -> set[int]:
        """Return the nodes that have not answered yet."""
        return {query.node for query in self._queries.values()}

    def answered(self) -> dict[int, Message | str]:
        """Return the answers received so far, by node, or why they are invalid."""
        replies = list(self._grid.pull_messages(self._queries.keys())) if self._queries else []
        came = [(self._queries.pop(reply.metadata.reply_to_message_id, None), reply) for reply in replies]
        return {query.node: checked(reply, query.asked) for query, reply in came if query is not None}

    def cancel(self) -> dict[str, int]:
        """Drop the requests that have no answer; return their messages, and their nodes."""
        queries, self._queries = self._queries, {}
        return {message: query.node for message, query in queries.items()}

    def has_restarted(self, node: int, presence: Presence) -> bool:
        """Return whether a node has restarted since it was asked."""
        return self._since.get(node) != presence.since

    def remember(self, node: int, presence: Presence) -> None:
        """Record that a node has registered; it is asked again only after a restart."""
        self._since[node] = self._registered[node] = presence.since

    def dismiss(self, node: int) -> None:
        """Record that a node is no longer registered."""
        self._registered.pop(node, None)

    def forget(self, node: int) -> None:
        """Let a node be asked again."""
        self._since.pop(node, None)

    def forget_others(self, registered: Roster) -> None:
        """Let all nodes be asked again that have neither registered nor a request pending."""
        asked = self.asked()
        self._since = {node: since for node, since in self._since.items() if node in registered or node in asked}

    def name_silent(self) -> list[int]:
        """Log nodes that have not answered for `SILENCE` seconds, each once; return them."""
        now = time.monotonic()
        silent = {message: query for message, query in self._queries.items() if now > query.patience}
        self._queries |= {message: query._replace(patience=inf) for message, query in silent.items()}
        nodes = sorted(query.node for query in silent.values())
        if nodes:
            log(
                WARNING,
                "no answer to the client registration within %g s from node %s: it is loading its data, or is to be "
                "started again if its log says nothing new",
                SILENCE,
                ", ".join(map(str, nodes)),
            )
        return nodes

    def _is_listed(self, presence: Presence) -> bool:
        """Return whether a node may be asked to register: its key is in ``node-keys``, or there is no such list."""
        return self._keys is None or presence.client_id >= 0


def checked(reply: Message | str, asked: Metadata) -> Message | str:
    """Return an answer, or why it is invalid."""
    return reply if isinstance(reply, str) else misaddressed(reply, asked) or reply


def _changed(since: Mapping[int, str], present: Mapping[int, Presence]) -> set[int]:
    """Return nodes that have left or restarted."""
    return {node for node, when in since.items() if node not in present or present[node].since != when}
