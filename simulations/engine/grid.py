"""The local engine: a Flower Grid that calls the ClientApp in this process, or in a few worker processes.

It runs the same ServerApp and ClientApp as Flower's own engines. Recently used clients are awake: their state is in the
memory of their process. The others rest: their state is in files of a folder that is removed after the run, and any
worker can load it. Which worker runs a client, and whether it has rested, does not change the result.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import UUID

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hetfl_flwr.common.flower import Run, act_as_server, name_message
from hetfl_flwr.common.notices import accepting, warn
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data.client_data import unlike
from hetfl_flwr.errors import StateError
from hetfl_flwr.node.state import FileStore, run_store
from hetfl_flwr.server.member import Member
from hetfl_flwr.text import some
from simulations.engine.clients import CLIENT_APP, EVERY, FIRST_NODE, MEMORY, Answer, Clients, Hosted
from simulations.engine.exchange import LocalExchange
from simulations.engine.workers import Host, InProcess, Task, Workers

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation

SCRATCH = ".clients-"
"""Prefix of the folder, in the run folder, for the state of resting clients."""


class LocalEngine(Grid):
    """Runs clients on this machine, without Ray or a network.

    Use it in a ``with`` statement, which ends the worker processes; with one worker everything runs in this process.
    `app` is the ClientApp as ``module:attribute``, `memory` the limit of client state in memory, in bytes, over all
    processes.
    """

    engine = "local"
    pull_interval = 0.0

    def __init__(
        self,
        config: RunConfig,
        run: int,
        workers: int = 1,
        app: str = CLIENT_APP,
        memory: int = MEMORY,
    ) -> None:
        self.stop_requested = False
        self._nodes = [FIRST_NODE + client_id for client_id in range(config.clients)]
        self._run = run
        self._names, self._tickets = count(1), count()
        self._asked: dict[str, int] = {}
        self._answers: dict[int, Answer | Message] = {}
        self._used = set(range(config.clients)) if config.state_dir else set[int]()  # clients that may have state
        self.config = config
        self._scratch = Path(config.output_dir or gettempdir()) / f"{SCRATCH}{run}-{token_hex(4)}"
        act_as_server(run)
        workers = min(workers, config.clients)
        hosted = Hosted(app, run, config.to_flat(), config.clients, self._scratch, memory // workers)
        self._host: Host = InProcess(Clients(*hosted)) if workers == 1 else Workers(workers, hosted)

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes, and remove the state of resting clients."""
        self._host.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run.run_id

    @property
    def run(self) -> Run:
        """The run."""
        return Run.create_empty(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all clients' nodes."""
        return list(self._nodes)

    def members(self) -> list[Member | str]:
        """Return the registrations of all clients, or why one cannot take part."""
        shares = self._shared(range(len(self._nodes)))
        found = dict[int, Member | str]()
        for client_ids, members in zip(shares, self._host.call("members", *shares), strict=True):
            found |= zip(client_ids, members, strict=False)
        return [found[client_id] for client_id in sorted(found)]

    def _shared(self, client_ids: Sequence[int]) -> list[Sequence[int]]:
        """Return the clients of each process, as they are assigned at first."""
        return [client_ids[one :: self._host.count] for one in range(self._host.count)]

    def exchange(self, federation: "Federation") -> LocalExchange:
        """Return the exchange, which passes arrays without messages."""
        return LocalExchange(self, federation)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages for their clients."""
        pushed = [self.named(message) for message in messages]
        names = [message.metadata.message_id for message in pushed]
        tasks = [Task("answer", message.metadata.dst_node_id, message) for message in pushed]
        self._asked |= zip(names, self.submit(tasks), strict=True)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Wait for the reply to the earliest of these messages, and return it."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        for name in self._asked:
            if name in wanted:
                answer = self.answer(self._asked.pop(name))
                return [answer] if isinstance(answer, Message) else []
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return all replies; there is no timeout, as local clients answer or raise."""
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            replies += self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def named(self, message: Message) -> Message:
        """Give a message an id, of the same length as in Flower's simulation."""
        name_message(message, str(UUID(int=next(self._names))))
        return message

    def submit(self, tasks: Sequence[Task]) -> list[int]:
        """Submit tasks; return a ticket for each answer."""
        tickets = [next(self._tickets) for _ in tasks]
        self._used.update(task.node - FIRST_NODE for task in tasks)
        self._host.submit(list(zip(tickets, tasks, strict=True)))
        return tickets

    def answer(self, ticket: int) -> Answer | Message:
        """Wait for the answer to a task."""
        while ticket not in self._answers:
            came, answer = self._host.receive()
            self._answers[came] = answer
        return self._answers.pop(ticket)

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write the state of every client into a folder, as hard links where possible; return their checksums."""
        self._settle()
        self._host.call("flush")
        digests = {k: self._store(k).give(folder / f"client-{k}") for k in sorted(self._used)}
        return {client_id: digest for client_id, digest in digests.items() if digest is not None}

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Restore the states of these clients from a folder; drop the states of the others."""
        self._used |= client_ids
        for client_id in self._used:
            store = self._store(client_id)
            if client_id in client_ids:
                store.write((folder / f"client-{client_id}").read_bytes())
            else:
                store.forget()
        self._host.call("drop")
        for remains in self._scratch.parent.glob(f"{SCRATCH}{self._run}-*"):  # of a process that was killed
            if remains != self._scratch:
                shutil.rmtree(remains, ignore_errors=True)

    def rows(self, client_ids: Sequence[int] = ()) -> dict[str, str]:
        """Return digests of the data of these clients and all used so far, by client id, and of the whole data set."""
        self._settle()
        found: dict[str, str] = {}
        for digests in self._host.call("digests", *self._shared(client_ids)):
            found |= digests
        return found

    def data(self) -> list[str]:
        """Return a digest of the run's local data if it has any, see `data_of`."""
        self._settle()
        found: list[str] = self._host.call("data")[0]
        return found

    def check_rows(self, before: Mapping[str, str]) -> list[str]:
        """Raise StateError if data have changed since `before`; with ``accept-loss`` warn and return the changes."""
        if before.get(EVERY) == self.rows()[EVERY]:
            return []
        rows = self.rows(sorted(int(client_id) for client_id in before if client_id != EVERY))
        found = {
            client_id: unlike(digest, rows[client_id]) for client_id, digest in before.items() if client_id != EVERY
        }
        changed = [client_id for client_id, what in found.items() if what]
        if changed:
            what = f"client {some(changed, 1)}: the {found[changed[0]]} have changed"
        elif len(found) < len(self._nodes):
            what = "the data of clients that have not taken part yet have changed"
        else:
            return []
        if not self.config.accept_loss:
            otherwise = f"restore the data, start anew in another folder, or continue with {accepting()}"
            raise StateError(f"{what}, so results would differ: {otherwise}")
        warn(what)
        return [what]

    def _settle(self) -> None:
        """Wait for all tasks under way."""
        while self._host.is_busy():
            came, answer = self._host.receive()
            self._answers[came] = answer

    def _store(self, client_id: int) -> FileStore:
        if self.config.state_dir:
            return run_store(self.config, str(self._run), client_id)
        return FileStore(self._scratch, client_id, lasting=False)
