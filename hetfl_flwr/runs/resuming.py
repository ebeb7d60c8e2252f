"""Writing checkpoints during a run, and resuming a run from one."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from flwr.serverapp import Grid

from hetfl_flwr.common.notices import accepting, warn
from hetfl_flwr.common.versions import changed
from hetfl_flwr.config import Value
from hetfl_flwr.errors import HetflError, Interrupted, RunFolderError
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints, choose, newest, remove, round_of, write_checkpoint
from hetfl_flwr.runs.folder import RunFolder
from hetfl_flwr.runs.record import Round, Summary, resume_command
from hetfl_flwr.runs.settings import check_unchanged, config_of, stored_config
from hetfl_flwr.seeding import seeded
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.server.registration import Origin
from hetfl_flwr.server.rounds import Rounds
from hetfl_flwr.strategy import KnowledgeStrategy
from hetfl_flwr.wire.messages import NEWEST
from hetfl_flwr.wire.spec import frozen

MAX_TIME_FRACTION = 0.01
"""Largest fraction of the run's time spent on checkpoints, with ``checkpoint-every = auto``."""


UNKNOWN = "unknown"
"""The digest of the data of a run whose checkpoint is older than digests."""


class Checkpoints(RoundCallback):
    """Writes checkpoints: as ``checkpoint-every`` sets, after the last round, and when the user stops the run.

    The run folder is written before this callback is called, so no checkpoint is ahead of ``rounds.jsonl``.
    """

    def __init__(self, results: RunFolder, federation: Federation, rounds: Rounds, strategy: KnowledgeStrategy) -> None:
        self._results, self._federation, self._rounds, self._strategy = results, federation, rounds, strategy
        self._next = 0.0

    def round(self, entry: Round) -> None:
        """Write a checkpoint if one is due."""
        config = self._results.config
        if config.checkpoint_every == "auto" and isinstance(self._federation.grid, KeepsClients):
            due = perf_counter() >= self._next
        else:
            due = bool(config.checkpoint_rounds) and entry.round % config.checkpoint_rounds == 0
        if due or entry.round == config.rounds:
            began = perf_counter()
            self._write()
            self._next = perf_counter() + (perf_counter() - began) / MAX_TIME_FRACTION

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write a checkpoint if the user has stopped the run between two rounds."""
        if isinstance(error, Interrupted):
            self._write()

    def _write(self) -> None:
        results, federation, ledger = self._results, self._federation, self._results.ledger
        arrays, sent = ledger.arrays, self._strategy.assess_download_for
        with results.writing(), seeded(results.config.seed, ledger.done, "assess"):  # as in the round's evaluation
            at = {
                "round": ledger.done,
                "run": results.run,
                "begun": results.begun,
                "config": stored_config(results.config),
                "rounds": results.synced(),
                "counts": {**ledger.counts(), "sizes": federation.exchange.guard.counts()},
                "trained": federation.roster.trained,
                "versions": ledger.versions,
                "data": ledger.data,
                "engine": results.engine,
            }
            downloads = ((member.client_id, sent(member, arrays)) for member in federation.roster)
            write_checkpoint(results.folder, at, arrays, downloads, self._rounds.under_way(), federation.grid)
        results.write()


class Resumption(NamedTuple):
    """The checkpoint from which a run resumes, and messages about what is lost."""

    checkpoint: Checkpoint
    losses: list[str]

    def origin(self, grid: Grid, *, asynchronous: bool) -> Origin | None:
        """Return what clients on other machines need to resume; None for a Grid that restores its clients itself.

        Clients restore the round of the newest checkpoint, or their newest state if the server goes back to an older
        one.
        """
        if isinstance(grid, KeepsClients):
            return None
        at, folder = self.checkpoint.at, self.checkpoint.folder
        is_newest = not asynchronous and folder == newest(folder.parents[1])
        return Origin(at["run"], at["round"] if is_newest else NEWEST, at["trained"])

    def restore(self, results: RunFolder, federation: Federation) -> None:
        """Restore clients, federation and server state in memory.

        Raises `RunFolderError` if the checkpoint is of another engine.
        """
        at, ledger, grid = self.checkpoint.at, results.ledger, federation.grid
        if isinstance(grid, KeepsClients):
            if "engine" not in at["under_way"]:
                raise RunFolderError(f"{results.folder} holds a run of another engine: continue it in that engine")
            grid.load_clients(self.checkpoint.folder, at["clients"].keys())
        federation.roster.trained = dict(at["trained"])
        federation.exchange.guard.restore(at["counts"]["sizes"])
        federation.registration.note(self.losses)
        ledger.restore(at["counts"], federation.roster)
        ledger.done, ledger.arrays = at["round"], frozen(self.checkpoint.server_state)

    def begin(self, results: RunFolder, lost: list[str]) -> None:
        """Restore the files of the run folder; called once the run can no longer be refused.

        `lost` says in which clients' data have changed, if this was accepted.
        """
        at = self.checkpoint.at
        with results.writing():
            for folder in checkpoints(results.folder):
                if round_of(folder) > at["round"]:
                    remove(folder)
        results.resume(at["begun"])
        before, [now] = at["versions"], results.ledger.versions
        if before and (said := changed(before[-1], now)):
            warn(f"versions differ from those of the original run, so results may not be bit-identical: {said}")
        results.ledger.versions = [*(one for one in before if one != now), now]
        data = at.get("data", [UNKNOWN])
        results.ledger.data = [*(data if lost else data[:-1]), *results.ledger.data]
        results.write()  # a summary of rounds that were removed would be wrong
        for loss in self.losses:
            warn(loss)


def _other_run(folder: Path, config: Mapping[str, Value]) -> str:
    """Return how a run folder's config differs from a checkpoint's; empty if it does not, is missing or damaged."""
    try:
        written = config_of(folder)
    except HetflError:
        return ""
    try:
        check_unchanged(folder, config, written)
    except RunFolderError as error:
        return str(error).partition(":")[0]
    return ""


def resumption_of(results: RunFolder) -> Resumption | None:
    """Return the resumption of a run, after reading the records in its folder; None for a new run.

    Raises `RunFolderError` if something is damaged or lost without ``accept-loss``, if the run is of another engine, or
    if the config differs from the checkpoint's in a key that must not change.
    """
    config = results.config
    if not config.resume:
        return None
    checkpoint, losses = choose(results.folder, accept_loss=config.accept_loss)
    at, lost = checkpoint.at, list[str]()
    if (made := at.get("engine", results.engine)) != results.engine:
        named = " (NAME is its SuperLink)" * (made == "deployment")
        command = resume_command(results.folder, made, config.algorithm)
        raise RunFolderError(f"{results.folder} is a run of another engine, {made}: continue it with {command}{named}")
    check_unchanged(results.folder, at["config"], config)
    if wrong := results.keep(at["rounds"]):
        if differs := _other_run(results.folder, at["config"]):
            raise RunFolderError(f"{wrong}, and the checkpoint is of another run: {differs}; restore this run's files")
        lost.append(f"{wrong}: the figures of all rounds up to {at['round']} are lost")
    if wrong := results.ledger.uploads.resume(at["counts"]["uploads"]):
        lost.append(wrong)
    if lost and not config.accept_loss:
        raise RunFolderError(f"{lost[0]}; {accepting()} continues without them")
    return Resumption(checkpoint, [*losses, *lost])
