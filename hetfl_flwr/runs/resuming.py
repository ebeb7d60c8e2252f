"""Checkpoints of a run that goes on: when they are written, and how the run takes one up again."""

from typing import Any

from flwr.serverapp import Grid

from hetfl_flwr.errors import Interrupted
from hetfl_flwr.notices import warn
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoint import Checkpoint, Choice, config_digest
from hetfl_flwr.runs.results import Results
from hetfl_flwr.runs.schema import Round, Summary
from hetfl_flwr.server.admission.attendance import Origin
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.grids import KeepsClients
from hetfl_flwr.server.rounds import Rounds
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
    """

    def __init__(self, results: Results, federation: Federation, rounds: Rounds) -> None:
        self._results = results
        self._federation = federation
        self._rounds = rounds

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
        checkpoint = Checkpoint(
            ledger.done,
            results.run,
            config_digest(results.config),
            {**ledger.counts(), **federation.messenger.guards.counts(), "lines": results.lines},
            federation.roster.trained,
            from_record(ledger.arrays),
            self._rounds.under_way(),
        )
        results.sync()
        with results.writing():
            checkpoint.write(results.folder, federation.grid)
        results.write()


def origin_of(choice: Choice | None, grid: Grid, *, newest: bool) -> Origin | None:
    """Return what clients on other machines must know to go on; a Grid that keeps the clients brings them back.

    They keep what they had at the newest checkpoint: where the server goes back to an older one, they do not.
    """
    if choice is None or isinstance(grid, KeepsClients):
        return None
    checkpoint = choice.checkpoint
    sent = checkpoint.under_way.numbers.get("sent", 0)
    return Origin(checkpoint.run, NEWEST if newest or choice.losses else checkpoint.round, checkpoint.trained, sent)


def take_up(choice: Choice, results: Results, federation: Federation) -> None:
    """Go back to a checkpoint: clients, federation, rounds and the server state are as they were."""
    checkpoint, ledger = choice.checkpoint, results.ledger
    checkpoint.load_clients(results.folder, federation.grid, choice.lost)
    counts: dict[str, dict[int, Any]] = {
        name: {int(client): value for client, value in counted.items()} for name, counted in checkpoint.counts.items()
    }
    federation.roster.trained = {k: round for k, round in checkpoint.trained.items() if k not in choice.lost}
    federation.messenger.guards.go_on(counts)
    federation.registration.note(choice.losses)
    ledger.go_on(counts, federation.roster)
    ledger.rounds = results.go_back(checkpoint.round, counts["lines"])
    ledger.done, ledger.arrays = checkpoint.round, to_record(checkpoint.arrays)
    for _, told in choice.losses:
        warn(told)
