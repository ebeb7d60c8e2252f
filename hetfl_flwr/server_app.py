"""The ServerApp: run config in, strategy built, rounds run, results on disk. The same in every engine."""

from collections.abc import Callable
from functools import partial
from logging import ERROR, INFO, LogRecord
from time import perf_counter
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from hetfl_flwr.algorithms import build_strategy, resolve
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import HetflError, Interrupted, TooFewClients
from hetfl_flwr.flower import FLOWER_LOGGER, log
from hetfl_flwr.runs.checkpoint import Choice, choose
from hetfl_flwr.runs.progress import Watch
from hetfl_flwr.runs.results import Results, new_folder
from hetfl_flwr.runs.schema import Round
from hetfl_flwr.runs.tracking import Tracking, check_trackers
from hetfl_flwr.server.federation import Federation, Origin, engine_of
from hetfl_flwr.server.rounds import AsyncRounds, Played, Rounds, SyncRounds
from hetfl_flwr.server.under_way import KeepsClients
from hetfl_flwr.wire.messages import NEWEST
from hetfl_flwr.wire.privacy import caveats, guarantee

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation from the run config to the run folder."""
    try:
        engine = engine_of(grid)
        config = RunConfig.from_flat(context.run_config)
        config = resolve(config if engine == "deployment" else config.with_data())
        strategy = build_strategy(config)
        check_trackers(config)
        results = Results(new_folder(config), config, engine, context.run_id)
        try:
            _run(grid, config, strategy, results, context.run_id)
        finally:
            results.release()
    except HetflError as error:
        log(ERROR, "%s", error)
        FLOWER_LOGGER.addFilter(_without_traceback)
        raise


def _run(grid: Grid, config: RunConfig, strategy: Any, results: Results, run: int) -> None:
    asynchronous = getattr(strategy, "asynchronous", False)
    try:
        choice = choose(results.folder, config) if config.resume else None
        federation = Federation(grid, config, _origin(choice, grid, newest=asynchronous), results.uploads)
        federation.assemble(getattr(strategy, "check", None))
        done, arrays = 0, strategy.prepare(federation.roster, config)
        if choice:
            done, arrays = results.resume(choice, federation)
        rounds = (AsyncRounds if asynchronous else SyncRounds)(config, strategy, federation)
        tracking = Tracking(results)
        if choice:
            rounds.resume(arrays, choice.checkpoint.under_way)
    except BaseException:
        results.discard()
        raise
    strategy.summary()
    if results.noise:
        told = guarantee(config.noise_multiplier, config.rounds), caveats(results.noise)
        log(INFO, "\t├── privacy: %s, one a round; %s", *told)
    _federate(config, rounds, federation, results, tracking, run, done, arrays)


def _federate(
    config: RunConfig,
    rounds: Rounds,
    federation: Federation,
    results: Results,
    tracking: Tracking,
    run: int,
    done: int,
    arrays: ArrayRecord,
) -> None:
    def checkpoint() -> None:
        results.checkpoint(done, arrays, run, federation, rounds.under_way())

    with Watch(config.rounds, f"{config.algorithm} on {results.dataset}") as watch, tracking:
        try:
            if not results.rounds and not config.resume:
                entry, _ = _timed(0, lambda: rounds.start(arrays), federation, results)
                watch.show(entry)
                tracking.show(entry)
                if config.checkpoint_every:
                    checkpoint()
            while done < config.rounds:
                entry, arrays = _timed(done + 1, partial(rounds.play, done + 1, arrays), federation, results)
                done += 1
                watch.show(entry)
                tracking.show(entry)
                if done == config.rounds or (config.checkpoint_every and done % config.checkpoint_every == 0):
                    checkpoint()
        except Interrupted:
            checkpoint()
            raise
        finally:
            results.finish(arrays)
    for client in results.clients():
        log(INFO, "client %s", " ".join(f"{key}={value}" for key, value in client.items() if key != "versions"))
    summary = results.summary()
    if results.noise:
        most = max(results.uploads.counts.values(), default=0)
        log(INFO, "privacy: %s; %s", guarantee(config.noise_multiplier, most), caveats(results.noise))
    log(
        INFO, "accuracy=%s bytes_up=%d bytes_down=%d", *(summary[key] for key in ("accuracy", "bytes_up", "bytes_down"))
    )
    log(INFO, "results in %s", results.folder)


def _timed(
    number: int, play: Callable[[], Played], federation: Federation, results: Results
) -> tuple[Round, ArrayRecord]:
    """Run a round and write it down.

    Raises
    ------
    TooFewClients
        Fewer valid replies than ``min-clients``.
    """
    started = perf_counter()
    played = play()
    entry = results.add(number, perf_counter() - started, played, federation)
    wanted = results.config.min_clients
    if number and len(played.trained.replies) < wanted:
        reasons = "; ".join(failure.reason for failure in played.trained.failures[:3]) or "no client took part"
        raise TooFewClients(
            f"round {number}: {len(played.trained.replies)} valid replies, fewer than min-clients = {wanted}: {reasons}"
        )
    return entry, played.arrays


def _origin(choice: Choice | None, grid: Grid, *, newest: bool) -> Origin | None:
    """Return what clients on other machines must know to go on; a Grid that keeps the clients brings them back.

    They keep what they had at the newest checkpoint: where the server goes back to an older one, they do not.
    """
    if choice is None or isinstance(grid, KeepsClients):
        return None
    checkpoint = choice.checkpoint
    sent = checkpoint.under_way.numbers.get("sent", 0)
    return Origin(checkpoint.run, NEWEST if newest or choice.losses else checkpoint.round, checkpoint.trained, sent)


def _without_traceback(record: LogRecord) -> bool:
    """Take the traceback from what Flower logs of an error of ours, whose one line says it all."""
    if record.exc_info and isinstance(record.exc_info[1], HetflError):
        record.exc_info = None
    return True
