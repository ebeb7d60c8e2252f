"""The ServerApp: run config in, strategy built, rounds run, results on disk. The same in every engine."""

from logging import ERROR, INFO
from time import perf_counter
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from hetfl_flwr.algorithms import build_strategy, find, resolve
from hetfl_flwr.checkpoint import KeepsClients
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, HetflError, Interrupted, TooFewClients
from hetfl_flwr.federation import EXAMPLES, METRICS, Exchange, Federation
from hetfl_flwr.progress import Watch
from hetfl_flwr.results import Results, new_folder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation from the run config to the run folder."""
    try:
        config = resolve(RunConfig.from_flat(context.run_config))
        strategy = build_strategy(config)
        _check_resumable(config, grid)
        results = Results(new_folder(config), config, _engine(grid))
        try:
            federation = Federation(grid, config)
            federation.assemble()
            done, arrays = 0, strategy.prepare(federation.roster, config)
            if config.resume:
                done, arrays = results.resume(grid, federation.roster)
        except BaseException:
            results.discard()
            raise
        _federate(config, strategy, federation, results, context.run_id, done, arrays)
    except HetflError as error:
        log(ERROR, "%s", error)
        raise


def _federate(
    config: RunConfig,
    strategy: Any,
    federation: Federation,
    results: Results,
    run: int,
    done: int,
    arrays: ArrayRecord,
) -> None:
    strategy.summary()
    with Watch(config.rounds, f"{config.algorithm} on {config.dataset}") as watch:
        try:
            if not results.rounds:
                watch.show(_evaluate_first(strategy, federation, results, arrays))
            while done < config.rounds:
                arrays = _round(done + 1, config, strategy, federation, results, arrays)
                done += 1
                watch.show(results.rounds[-1])
                if done == config.rounds or (config.checkpoint_every and done % config.checkpoint_every == 0):
                    results.checkpoint(done, arrays, run, federation.grid)
        except Interrupted:
            results.checkpoint(done, arrays, run, federation.grid)
            raise
        finally:
            results.finish(arrays)
    for client in results.clients():
        log(INFO, "client %s", " ".join(f"{key}={value}" for key, value in client.items()))
    summary = results.summary()
    log(
        INFO, "accuracy=%s bytes_up=%d bytes_down=%d", *(summary[key] for key in ("accuracy", "bytes_up", "bytes_down"))
    )
    log(INFO, "results in %s", results.folder)


def _evaluate_first(strategy: Any, federation: Federation, results: Results, arrays: ArrayRecord) -> Any:
    started = perf_counter()
    view = federation.view(list(federation.roster))
    evaluated = federation.exchange(strategy.configure_evaluate(0, arrays, ConfigRecord(), view))
    return results.add(0, perf_counter() - started, Exchange(), evaluated, federation.roster)


def _round(
    number: int,
    config: RunConfig,
    strategy: Any,
    federation: Federation,
    results: Results,
    arrays: ArrayRecord,
) -> ArrayRecord:
    started = perf_counter()
    left_out = federation.welcome() if number > 1 else []
    view = federation.view(federation.draw(number))
    trained = federation.exchange(strategy.configure_train(number, arrays, ConfigRecord(), view), strategy.upload_spec)
    evaluated = Exchange()
    enough = len(trained.replies) >= config.min_clients
    if enough:
        learnt, _ = strategy.aggregate_train(number, _with_samples(trained))
        arrays = arrays if learnt is None else learnt
        if number % config.evaluate_every == 0 or number == config.rounds:
            everyone = federation.view(list(federation.roster))
            evaluated = federation.exchange(strategy.configure_evaluate(number, arrays, ConfigRecord(), everyone))
            strategy.aggregate_evaluate(number, _with_samples(evaluated))
    results.add(number, perf_counter() - started, trained, evaluated, federation.roster, left_out)
    if not enough:
        reasons = "; ".join(failure.reason for failure in trained.failures[:3]) or "no client took part"
        raise TooFewClients(
            f"round {number}: {len(trained.replies)} good replies, fewer than "
            f"min-clients = {config.min_clients}: {reasons}"
        )
    return arrays


def _with_samples(exchange: Exchange) -> list[Message]:
    """Return the replies that weigh anything: no mean is taken over no samples."""
    return [reply for reply in exchange.replies if reply.content.metric_records[METRICS][EXAMPLES]]


def _check_resumable(config: RunConfig, grid: Grid) -> None:
    if config.resume and find(config.algorithm).client.keeps_state and not isinstance(grid, KeepsClients):
        raise ConfigError(
            f"resume = true: clients of {config.algorithm} keep their models, and in this engine "
            "they ended with their run; only `hetfl run --resume` goes on with them"
        )


def _engine(grid: Grid) -> str:
    known = {"InMemoryGrid": "simulation", "HttpGrid": "deployment"}
    return getattr(grid, "engine", known.get(type(grid).__name__, "deployment"))
