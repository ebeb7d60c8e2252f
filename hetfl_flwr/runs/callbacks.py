"""Callbacks of a run: its results, the progress bar, trackers, and the user's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from inspect import isclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from hetfl_flwr.common.flower import warn_or_log
from hetfl_flwr.config import RunConfig, listed
from hetfl_flwr.errors import ConfigError, cause, ends_process, place
from hetfl_flwr.runs.record import Round, Summary


@dataclass(frozen=True)
class RunInfo:
    """A run that starts or resumes.

    Parameters
    ----------
    config : RunConfig
        The resolved run config.
    folder : Path
        The run folder.
    engine : str
        ``local``, ``simulation`` or ``deployment``.
    dataset : str
        The clients' name for their data.
    after : int or None
        The round after which a resumed run continues. None: the run is new and starts with round 0.
    rounds : tuple of Round
        The earlier rounds of a resumed run.
    """

    config: RunConfig
    folder: Path
    engine: str
    dataset: str
    after: int | None = None
    rounds: tuple[Round, ...] = ()


class RoundCallback(Protocol):
    """Called when a run begins, after each round, and when the run ends.

    Subclass it and override the methods that you need, or define all three methods in a class of your own. Name the
    class in the run config, ``callbacks = "my_pkg.module:Callback"``, and it is built without arguments; or pass an
    object to `run`, ``run("fedhe", callbacks=[Callback()])``. Callbacks are called on the server, in order, in every
    engine.

    The run folder is written first, so a callback finds its round in ``rounds.jsonl``. If a callback raises an
    exception, one line names it, and it is not called again in this run, which continues. Callbacks receive copies:
    changes to the arguments have no effect elsewhere.

    Examples
    --------
    >>> from hetfl_flwr import RoundCallback, run
    >>> class Best(RoundCallback):
    ...     def begin(self, run):
    ...         self.accuracy = 0.0
    ...     def round(self, entry):
    ...         self.accuracy = max(self.accuracy, entry.accuracy or 0.0)
    >>> best = Best()
    >>> result = run(
    ...     "fedhe", callbacks=[best], clients=2, rounds=1, out=getfixture("tmp_path") / "run", progress=False
    ... )
    >>> bool(best.accuracy == result.rounds.accuracy.max())
    True
    """

    def begin(self, run: RunInfo) -> None:
        """Handle the start of a run, or its resumption after ``run.after``.

        Parameters
        ----------
        run : RunInfo
            The run.
        """
        return

    def round(self, entry: Round) -> None:
        """Handle a finished round. Round 0 is the evaluation before any training.

        Parameters
        ----------
        entry : Round
            A line of ``rounds.jsonl``: ``entry.round``, ``entry.accuracy`` (None: not evaluated in this round),
            ``entry.clients``, ``entry.failures`` and so on.
        """
        return

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Handle the end of the run.

        Parameters
        ----------
        summary : Summary
            The contents of ``summary.json``.
        error : BaseException or None
            The error that ended the run before its last round, if any.
        """
        return


_added: ContextVar[Sequence[RoundCallback]] = ContextVar("_added", default=())


@contextmanager
def added(callbacks: Sequence[RoundCallback]) -> Iterator[None]:
    """Add callbacks to those in the run config, for all runs inside a ``with`` block."""
    token = _added.set(tuple(callbacks))
    try:
        yield
    finally:
        _added.reset(token)


class Guarded(RoundCallback):
    """Several callbacks as one; the keys of `callbacks` are their names in messages.

    If a callback raises an exception, one line names it, and it is not called again.
    """

    def __init__(self, callbacks: Mapping[str, RoundCallback]) -> None:
        self.callbacks = dict(callbacks)

    def begin(self, run: RunInfo) -> None:
        """Call ``begin`` of all callbacks."""
        self._each(lambda callback: callback.begin(deepcopy(run)))

    def round(self, entry: Round) -> None:
        """Call ``round`` of all callbacks."""
        self._each(lambda callback: callback.round(deepcopy(entry)))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Call ``end`` of all callbacks."""
        self._each(lambda callback: callback.end(deepcopy(summary), error))

    def _each(self, call: Callable[[RoundCallback], None]) -> None:
        for name, callback in list(self.callbacks.items()):
            try:
                call(callback)
            except (Exception, SystemExit) as error:  # a callback does not end the run
                if ends_process(error):
                    raise
                del self.callbacks[name]
                warn_or_log(f"{name} has failed and is not called again in this run: {cause(error)}")


@contextmanager
def notifying(
    callbacks: Sequence[RoundCallback], run: RunInfo, summary: Callable[[], Summary]
) -> Iterator[Callable[[Round], None]]:
    """Call callbacks at the start, yield a function that calls them after a round, and always call them at the end.

    They are called in order. If one raises an exception, the ones after it miss that call, but never the end.
    """

    def notify(entry: Round) -> None:
        for callback in callbacks:
            callback.round(entry)

    last = cache(summary)
    with ExitStack() as stack:
        for callback in reversed(callbacks):
            stack.push(lambda kind, error, trace, callback=callback: callback.end(last(), error))
        for callback in callbacks:
            callback.begin(run)
        yield notify


def own_callbacks(config: RunConfig) -> Guarded:
    """Return the user's callbacks: those in the run config, then those of `added`.

    Raises `ConfigError` if a name in the run config does not lead to a class with the methods of a `RoundCallback`, or
    the class cannot be built.
    """
    named = {f"callback {name}": built(name, f"callbacks = '{name}'") for name in listed(config.callbacks)}
    objects = _added.get()
    kinds = [f"callback {type(one).__name__}" for one in objects]
    labels = [kind if kinds.count(kind) == 1 else f"{kind} {number}" for number, kind in enumerate(kinds, start=1)]
    return Guarded(named | dict(zip(labels, objects, strict=True)))


def built(given: object, key: str) -> RoundCallback:
    """Return a callback, given as an object, as a class to build, or as the name of a class, ``module:Class``.

    Raises `ConfigError`, which begins with `key`, if it cannot be imported or built, or lacks a method of a callback.
    """
    try:
        found = resolve_name(given) if isinstance(given, str) else given
        callback: Any = found() if isclass(found) else found
    except (Exception, SystemExit) as error:
        where = f" ({place(error)})" if place(error) else ""
        hint = "; put its folder on PYTHONPATH" if isinstance(error, ModuleNotFoundError) else where
        raise ConfigError(f"{key}: cannot be imported or built: {cause(error)}{hint}") from error
    kind, methods = type(callback).__name__, ("begin", "round", "end")
    if lacking := [method for method in methods if not callable(getattr(callback, method, None))]:
        raise ConfigError(f"{key}: {kind} has no method {', '.join(lacking)}; a callback needs begin, round and end")
    return callback  # type: ignore[no-any-return]  # its methods are there
