"""Checkpoints of a run that goes on: when they are written, and how the run takes one up again."""

from flwr.serverapp import Grid

from hetfl_flwr.common.notices import accepting, warn
from hetfl_flwr.common.versions import changed
from hetfl_flwr.errors import Interrupted, RunFolderError
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoint import Checkpoint, Choice, choose
from hetfl_flwr.runs.results import Results
from hetfl_flwr.runs.schema import Round, Summary
from hetfl_flwr.runs.settings import check_unchanged, lasting
from hetfl_flwr.server.admission.attendance import Origin
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.grids import KeepsClients
from hetfl_flwr.server.rounds import Rounds
from hetfl_flwr.strategy import KnowledgeStrategy
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import NEWEST


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
            results.log.known,
            {**ledger.counts(), **federation.messenger.guards.counts()},
            federation.roster.trained,
            arrays,
            self._rounds.under_way(),
            downloads=((member.client_id, sent(member, arrays)) for member in federation.roster),
            versions=ledger.versions,
        )
        with results.writing():
            results.log.sync()
            checkpoint.write(results.folder, federation.grid)
        results.write()


def choice_of(results: Results) -> Choice | None:
    """Return the checkpoint that a run goes on from, its folder's records read; None where it is a new run.

    Raises
    ------
    RunFolderError
        What is damaged or lost, and without ``accept-loss``: names it, what it means, and what can be done.
    ConfigError
        The config differs from the checkpoint's in a key that may not.
    """
    config = results.config
    if not config.resume:
        return None
    choice = choose(results.folder, accept_loss=config.accept_loss)
    checkpoint, lost = choice.checkpoint, list[str]()
    check_unchanged(results.folder, checkpoint.config, config)
    if wrong := results.log.read(checkpoint.rounds):
        lost.append(f"{wrong}: the figures of all rounds until {checkpoint.round} are lost")
    if wrong := results.ledger.uploads.resume(checkpoint.counts["uploads"]):
        lost.append(wrong)
    if lost and not config.accept_loss:
        raise RunFolderError(f"{lost[0]}; {accepting()} goes on like that")
    return choice._replace(losses=[*choice.losses, *lost])


def origin_of(choice: Choice | None, grid: Grid, *, newest: bool) -> Origin | None:
    """Return what clients on other machines must know to go on; a Grid that keeps the clients brings them back.

    They keep what they had at the newest checkpoint: where the server goes back to an older one, they do not.
    """
    if choice is None or isinstance(grid, KeepsClients):
        return None
    checkpoint = choice.checkpoint
    sent = checkpoint.under_way.numbers.get("sent", 0)
    return Origin(checkpoint.run, NEWEST if newest or choice.gone_back else checkpoint.round, checkpoint.trained, sent)


def restore(choice: Choice, results: Results, federation: Federation) -> None:
    """Go back to a checkpoint in memory: clients, federation and the server state are as they were.

    Raises
    ------
    RunFolderError
        It is of another engine.
    """
    checkpoint, ledger = choice.checkpoint, results.ledger
    if isinstance(federation.grid, KeepsClients) and "engine" not in checkpoint.under_way.numbers:
        raise RunFolderError(f"{results.folder} is of a run in another engine: go on with it in that one")
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
    for loss in choice.losses:
        warn(loss)
