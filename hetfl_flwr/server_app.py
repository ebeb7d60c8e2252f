"""The ServerApp: builds the strategy from the run config, runs the rounds and writes the results, in every engine."""

from logging import ERROR, INFO, LogRecord
from pathlib import Path
from time import perf_counter

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

from hetfl_flwr.common.flower import FLOWER_LOGGER, ask_again, log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, HetflError, TooFewClients
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo, notifying, own_callbacks
from hetfl_flwr.runs.folder import RunFolder
from hetfl_flwr.runs.progress import Notes, Watch
from hetfl_flwr.runs.record import resume_command
from hetfl_flwr.runs.resuming import Checkpoints, resumption_of
from hetfl_flwr.runs.settings import resolved
from hetfl_flwr.runs.trackers import check_trackers, start_trackers
from hetfl_flwr.runs.uploads import KeptUploads
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.grids import KeepsClients, engine_of
from hetfl_flwr.server.rounds import AsyncRounds, RoundResult, Rounds, SyncRounds
from hetfl_flwr.wire.privacy import UNKNOWN, caveats, guarantee

MAX_LOST = 3
"""Maximum number of consecutive rounds that a run may lose because nodes leave or restart."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of a run config, and write its run folder."""
    try:
        engine = engine_of(grid)
        config = resolved(RunConfig.from_flat(context.run_config), engine)
        if engine == "deployment":
            ask_again(after=0.1, most=config.round_timeout)
        strategy, own = build_strategy(config), own_callbacks(config)
        check_trackers(config)
        folder = RunFolder(Path(config.output_dir), config, engine, context.run_id)
        with folder as results, threadpool_limits(1, "blas"):  # NumPy's sums would depend on the number of cores
            resumed = resumption_of(results)
            origin = resumed and resumed.origin(grid, asynchronous=strategy.asynchronous)
            federation = Federation(grid, config, strategy, origin, results.ledger.uploads)
            rounds = (AsyncRounds if strategy.asynchronous else SyncRounds)(federation)
            with federation.generators_lent():
                federation.registration.assemble(strategy.check)
            known = strategy.prepare(federation.roster, config)
            data = grid.data() if isinstance(grid, KeepsClients) else []
            results.ledger.begin(known, federation.roster, data, carries=strategy.asynchronous)
            if resumed:
                resumed.restore(results, federation)
            trackers = start_trackers(config, results.folder, federation.roster)
            if resumed:
                resumed.begin(results, lost=rounds.resume(resumed.checkpoint.under_way))
            strategy.summary()
            saving: list[RoundCallback] = [Checkpoints(results, federation, rounds, strategy)]
            if config.keep_uploads:
                saving.insert(0, KeptUploads(federation, strategy.upload_spec, results.begun))
            _federate(results, federation, rounds, [*saving, Notes(federation.roster), Watch(), trackers, own])
    except HetflError as error:
        log(ERROR, "%s", error)
        FLOWER_LOGGER.addFilter(_without_traceback)
        raise


def _federate(results: RunFolder, federation: Federation, rounds: Rounds, callbacks: list[RoundCallback]) -> None:
    """Run the remaining rounds; the run folder is written before the checkpoint and all other callbacks."""
    config, ledger = results.config, results.ledger
    if ledger.noise:
        more = " (fast clients of an asynchronous run upload more often)" * isinstance(rounds, AsyncRounds)
        terms = guarantee(config.noise_multiplier, config.rounds), more, caveats(ledger.noise)
        log(INFO, "\t├── privacy: %s, one per round%s; %s", *terms)
    if results.engine != "local":
        command = resume_command(results.folder, results.engine, config.algorithm)
        log(INFO, "\t├── to run longer, raise rounds in the file; if the run stops, continue it with: %s", command)
    after = ledger.done if config.resume else None
    run = RunInfo(config, results.folder, results.engine, ledger.dataset, after, tuple(ledger.rounds))
    all_callbacks = [results, *callbacks]
    lost = 0
    with results.ending(), notifying(all_callbacks, run, ledger.summary) as notify:
        for number in range(0 if after is None else after + 1, config.rounds + 1):
            began = perf_counter()
            played = rounds.play(number, ledger.arrays) if number else rounds.start(ledger.arrays)
            _check_processes(number, played, results)
            entry = ledger.add(number, perf_counter() - began, played, federation)
            lost = lost + 1 if played.lost else 0
            too_few = number and len(played.trained.replies) < config.min_clients
            if too_few and (not played.lost or lost > MAX_LOST or number == config.rounds):
                results.round(entry)
                raise _too_few(number, played, config)
            notify(entry)
            if number == config.rounds and played.evaluated.failures and not ledger.counts()["latest"]:
                raise FederationError(f"no client has been evaluated: {played.evaluated.failures[0].reason}")
    _log_outcome(results)


def _check_processes(number: int, played: RoundResult, results: RunFolder) -> None:
    """Raise a `FederationError` if a simulation has lost a Ray process; the round is not recorded.

    Flower (1.41) keeps a dead process, which fails every message that it is given.
    """
    failures = [*played.trained.failures, *played.evaluated.failures]
    if results.engine == "simulation" and any("ray.exceptions.Actor" in failure.reason for failure in failures):
        raise FederationError(
            f"round {number}: a Ray process has died or its machine was lost, and Flower does not restart it; with a "
            "state-dir, continue from the last checkpoint: "
            + resume_command(results.folder, results.engine, results.config.algorithm)
        )


def _too_few(number: int, played: RoundResult, config: RunConfig) -> TooFewClients:
    good, wanted = len(played.trained.replies), config.min_clients
    few = f"only {played.able} clients could be asked to train"
    reasons = [one.reason for one in (*played.trained.failures, *played.trained.outliers)]
    causes = {reason.partition(": ")[2] for reason in reasons}
    why = f"{len(reasons)} clients: {causes.pop()}" if len(reasons) > 1 == len(causes) else "; ".join(reasons[:3])
    return TooFewClients(f"round {number}: {good} valid replies, fewer than min-clients = {wanted}: {why or few}")


def _log_outcome(results: RunFolder) -> None:
    ledger, config = results.ledger, results.config
    for client in ledger.clients():
        before, after = _fraction(client["accuracy_before"]), _fraction(client["accuracy"])
        log(INFO, "client=%d model=%s before=%s after=%s", client["partition"], client["model"], before, after)
    if ledger.noise:
        said = UNKNOWN if ledger.uploads.lost else guarantee(config.noise_multiplier, ledger.uploads.most())
        log(INFO, "privacy: %s; %s", said, caveats(ledger.noise))
    summary = ledger.summary()
    accuracy = _fraction(summary["accuracy"])
    log(INFO, "accuracy=%s bytes_up=%d bytes_down=%d", accuracy, summary["bytes_up"], summary["bytes_down"])
    log(INFO, "results in %s", results.folder)


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _without_traceback(record: LogRecord) -> bool:
    """Drop the traceback when Flower logs an error of this project, whose message is complete."""
    if record.exc_info and isinstance(record.exc_info[1], HetflError):
        record.exc_info = None
    return True
