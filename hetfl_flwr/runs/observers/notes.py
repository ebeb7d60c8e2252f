"""What clients say of their data and models that nobody has asked for: said once a run, and kept in its folder."""

from collections.abc import Iterable
from logging import WARNING

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.flower import FLOWER_LOGGER, log
from hetfl_flwr.common.notices import warn
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.observers.progress import visible
from hetfl_flwr.runs.schema import NOTES_FILE, Round
from hetfl_flwr.server.messaging.differences import listed, unlike_columns
from hetfl_flwr.server.messaging.member import MAX_NOTES, Member
from hetfl_flwr.text import quoted

MOST_SAID = 50
"""Lines that are said at a time; all of them are written."""


class Notes(RoundCallback):
    """Says each line once, however many clients have it, and writes all of them to ``notes.txt``.

    In a deployment each line begins with who has said it first, and a client that registers again and again is heard
    until it has said as many lines as one registration may have.

    Parameters
    ----------
    members : iterable of Member
        The clients as they are now; more may join.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = members
        self._said: list[str] = []
        self._heard: dict[int, set[str]] = {}
        self._written, self._told = 0, False

    def begin(self, run: RunInfo) -> None:
        """Say what the clients have said."""
        self._path, self._sliced = run.folder / NOTES_FILE, run.config.features != "all"
        self._strangers = run.engine == "deployment"
        self._say()

    def round(self, entry: Round) -> None:
        """Say what clients have said that have joined since, and write it down."""
        self._say()
        if len(self._said) > self._written:
            replace_file(self._path, "".join(f"{line}\n" for line in self._said).encode())
            self._written = len(self._said)

    def _say(self) -> None:
        lines = (
            self._lines_by_client()
            if self._strangers
            else dict.fromkeys(line for member in self._members for line in member.notes)
        )
        unlike = "" if self._sliced or self._told else unlike_columns(list(self._members))
        self._told |= bool(unlike)
        new = [line for line in [*lines, *filter(None, [unlike])] if line not in self._said]
        self._said += new
        more = [f"and {len(new) - MOST_SAID} more lines, in {NOTES_FILE}"] if len(new) > MOST_SAID else []
        for line in [*new[:MOST_SAID], *more]:
            if FLOWER_LOGGER.isEnabledFor(WARNING):
                log(WARNING, "note: %s", line)
            elif visible.get():  # else many runs at a time, which are told of together
                warn(line)

    def _lines_by_client(self) -> list[str]:
        """Return what has not been said yet, with who says it."""
        said: dict[str, list[int]] = {}
        for member in self._members:
            heard = self._heard.setdefault(member.client_id, set())
            for line in member.notes:
                if line not in heard and len(heard) < MAX_NOTES:
                    heard.add(line)
                    said.setdefault(line, []).append(member.client_id)
        return [f"client {listed(client_ids)} says: {quoted(line)}" for line, client_ids in said.items()]
