"""Checkpoints of a run that goes on: when they are written, and how the run takes one up again."""

from hashlib import blake2b
from typing import Any

from flwr.serverapp import Grid

from hetfl_flwr.common.errors import Interrupted, RunFolderError
from hetfl_flwr.common.notices import warn
from hetfl_flwr.common.versions import changed
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoints.checkpoint import Checkpoint, Choice, choose
from hetfl_flwr.runs.results import Results
from hetfl_flwr.runs.schema import Round, Summary
from hetfl_flwr.runs.settings import lasting
from hetfl_flwr.server.admission.attendance import Origin
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.grids import KeepsClients
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.server.rounds import Rounds
from hetfl_flwr.strategy import KnowledgeStrategy
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import NEWEST
from hetfl_flwr.wire.naming import called


class Checkpoints(RoundCallback):
    """Writes checkpoints: every ``checkpoint-every`` rounds, after the last, and where the user stops the run.

    Parameters
    ----------
    results : Results
        The run folder, which is told of each round first: no checkpoint is ahead of the rounds that led to it.
    federation : Federation
        The clients.
    rounds : Rounds
        How rounds are run, which knows what is under way between two of them.
    strategy : KnowledgeStrategy
        Says what clients are measured with.
    """

    def __init__(self, results: Results, federation: Federation, rounds: Rounds, strategy: KnowledgeStrategy) -> None:
        self._results = results
        self._federation = federation
        self._rounds = rounds
        self._strategy = strategy

    def round(self, entry: Round) -> None:
        """Write a checkpoint if one is due."""
        config = self._results.config
        is_last = entry.round == config.rounds
        if is_last or (config.checkpoint_every and entry.round % config.checkpoint_every == 0):
            self._write()

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write a checkpoint if the user has stopped the run, with no round half done."""
        if isinstance(error, Interrupted):
            self._write()

    def _write(self) -> None:
        results, federation, ledger = self._results, self._federation, self._results.ledger
        arrays, sent = from_record(ledger.arrays), self._strategy.assess_download_for
        checkpoint = Checkpoint(
            ledger.done,
            results.run,
            results.begun,
            lasting(results.config),
            {**ledger.counts(), **federation.messenger.guards.counts(), "lines": results.lines},
            federation.roster.trained,
            arrays,
            self._rounds.under_way(),
            members={member.client_id: data_of(member) for member in federation.roster},
            downloads=((member.client_id, sent(member, arrays)) for member in federation.roster),
            versions=ledger.versions,
        )
        results.sync()
        with results.writing():
            checkpoint.write(results.folder, federation.grid)
        results.write()


def choice_of(results: Results) -> Choice | None:
    """Return the checkpoint that a run goes on from, its folder's records read; None where it is a new run.

    Raises
    ------
    RunFolderError
        What is damaged or lost, and without ``accept-loss``: names it, what it means, and what can be done.
    """
    if not results.config.resume:
        return None
    choice = choose(results.folder, results.config)
    checkpoint, uploads = choice.checkpoint, results.ledger.uploads
    lost = [loss for loss in (results.read_log(checkpoint), uploads.resume(checkpoint.counts["uploads"])) if loss]
    if lost and not results.config.accept_loss:
        raise RunFolderError(f"{lost[0]}; {GO_ON}")
    return choice._replace(losses=[*choice.losses, *((-1, loss) for loss in lost)])


GO_ON = "--accept-loss (accept-loss = true) goes on like that"


def origin_of(choice: Choice | None, grid: Grid, *, newest: bool) -> Origin | None:
    """Return what clients on other machines must know to go on; a Grid that keeps the clients brings them back.

    They keep what they had at the newest checkpoint: where the server goes back to an older one, they do not.
    """
    if choice is None or isinstance(grid, KeepsClients):
        return None
    checkpoint = choice.checkpoint
    sent = checkpoint.under_way.numbers.get("sent", 0)
    return Origin(checkpoint.run, NEWEST if newest or choice.losses else checkpoint.round, checkpoint.trained, sent)


def restore(choice: Choice, results: Results, federation: Federation) -> None:
    """Go back to a checkpoint in memory: clients, federation and the server state are as they were.

    Raises
    ------
    RunFolderError
        It is of another engine; or, but for a deployment and ``accept-loss``, a client has other data than it had.
    """
    checkpoint, ledger = choice.checkpoint, results.ledger
    if isinstance(federation.grid, KeepsClients) and "engine" not in checkpoint.under_way.numbers:
        raise RunFolderError(f"{results.folder} is of a run in another engine: go on with it in that one")
    stops = not results.config.accept_loss and results.engine != "deployment"
    choice.losses.extend(other_data(checkpoint, federation.roster, stops=stops))
    checkpoint.load_clients(results.folder, federation.grid)
    federation.roster.trained = dict(checkpoint.trained)
    federation.messenger.guards.restore(checkpoint.counts)
    federation.registration.note(choice.losses)
    ledger.restore(checkpoint.counts, federation.roster)
    ledger.done, ledger.arrays = checkpoint.round, to_record(checkpoint.arrays)


def resume(choice: Choice, results: Results) -> None:
    """Begin to write the run folder, once nothing can refuse the run any more."""
    results.resume(choice.checkpoint)
    before, [now] = choice.checkpoint.versions, results.ledger.versions
    if before and (said := changed(before[-1], now)):
        warn(f"versions differ from those that the run was made with, and bits may: {said}")
    results.ledger.versions = [*(dict(one) for one in before if one != now), now]
    for _, loss in choice.losses:
        warn(loss)


def data_of(member: Member) -> dict[str, Any]:
    """Return what a client has said of its data, as JSON can hold it."""
    names = {"class_names": member.class_digests, "input_names": member.input_digests}
    digests = {name: blake2b(" ".join(each).encode(), digest_size=32).hexdigest() for name, each in names.items()}
    return {**{name: getattr(member, name) for name in COUNTED}, "shape": list(member.shape), **digests}


def _other(name: str, now: object, before: object) -> str:
    if name in ("class_names", "input_names"):
        return f"other names of its {'classes' if name == 'class_names' else 'columns or words'}, or another order"
    return f"{name} = {now}, and {before} before"


COUNTED = ("train", "public", "validation", "test", "classes")
"""What a client says of its data beside the shape of an input."""


def other_data(checkpoint: Checkpoint, roster: Roster, *, stops: bool) -> list[tuple[int, str]]:
    """Return the clients that say something else of their data than they did, and what.

    In a deployment data grow, and what one node says stops nobody: it is noted.

    Raises
    ------
    RunFolderError
        There are such clients, and this `stops` the resume.
    """
    found = []
    for member in roster:
        before, now = checkpoint.members.get(member.client_id, {}), data_of(member)
        if odd := [_other(name, now[name], value) for name, value in before.items() if now[name] != value]:
            found.append(
                (
                    member.client_id,
                    f"{called(member.client_id, member.name)} has other data than before: {', '.join(odd)}",
                )
            )
    if found and stops:
        more = f" ({len(found) - 1} more clients have, too)" * (len(found) > 1)
        raise RunFolderError(f"{found[0][1]}{more}: the run would go on with other results; {GO_ON}")
    return found
