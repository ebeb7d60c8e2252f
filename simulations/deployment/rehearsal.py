"""A whole deployment on one machine: TLS, registered nodes, and for each a model, a data and a state folder of its own.

What a real one needs on many machines is started here on loopback: the same programs with the same options.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from hetfl_flwr.config import FIT, RunConfig, Value
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.methods import for_flower, resolve
from hetfl_flwr.runs.record import ROUNDS_FILE
from hetfl_flwr.runs.settings import new_folder
from simulations.deployment.flower import NAME, ROOT, Flower, flower
from simulations.deployment.keys import Keys, make_keys

SETTLED = ("clients", "data-dir", "dataset", "node-keys", "output-dir", "partition", "resume", "state-dir")
"""Run-config keys that a rehearsal sets itself."""

OURS = ("clients", "start-clients", "start-timeout", "node-keys", "algorithm-options")
"""Run-config keys that it gives to the run besides the user's."""

PATIENCE = 120.0
"""Seconds that its run waits for nodes, unless ``start-timeout`` says otherwise; all of them must be there then."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def rehearsal(
    settings: Mapping[str, Value], nodes: int, out: Path | None, say: Callable[[str], object], *, plain: bool = False
) -> Iterator[tuple[Flower, Path]]:
    """Start a federation on loopback, run the app in it, and end every process by its id.

    Everything is written below one folder: ``keys``, ``flower`` (FLWR_HOME and the logs), ``node-K/data``,
    ``node-K/state``, ``cache`` and ``run``. The first SIGINT, SIGTERM or SIGHUP ends it in order.

    Parameters
    ----------
    settings : mapping
        Run-config keys, none of `SETTLED`. ``models`` is assigned over the nodes.
    nodes : int
        K, how many SuperNodes, 1 or more; each has a part of the bundled digits as images.
    out : Path, optional
        A folder that is empty or not there. By default a new one under ``runs/`` in the working directory.
    say : callable
        Takes each line about what happens.
    plain : bool
        Whether the nodes are Flower's own, which start a Python for each message.

    Yields
    ------
    tuple of Flower and Path
        The federation, which runs on until the context is left, and the folder of the finished run.

    Raises
    ------
    ConfigError
        A key that is wrong or none of the user's, or no checkout around this module.
    RunFolderError
        ``out`` cannot be written, or is not empty.
    FederationError
        A process ended early, or the run failed: the reason in one line, and where the logs lie.
    """
    for key in SETTLED:
        if key in settings:
            raise ConfigError(f"{key} is set by the rehearsal itself, which gives each node its own: leave it out")
    if not (ROOT / "pyproject.toml").is_file():
        raise ConfigError(f"no app in {ROOT}: `flwr run` needs a checkout of the repository, and so does a rehearsal")
    whole: dict[str, Value] = {"start-clients": nodes, "start-timeout": PATIENCE, **settings, "clients": nodes}
    config = resolve(RunConfig.from_flat(whole))
    folder = _new_folder(config, out)
    keys = Keys(folder / "keys")
    make_keys(keys.folder, [], nodes)
    config = config.with_values({"node-keys": str(keys.list)})
    write_digits([folder / f"node-{number}" / "data" for number in range(nodes)])
    say(f"folder      {folder}")
    say(f"keys        keys: a private CA, a server certificate, {nodes} node keys")
    with _interruptible(), flower(folder / "flower", keys) as federation:
        federation.keep = "" if plain else "fork"
        federation.variables["HF_DATASETS_CACHE"] = str(folder / "cache")
        found = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
        federation.variables["PYTHONPATH"] = os.pathsep.join(found)  # the user's own models and algorithms
        try:
            _start(federation, config, folder, say)
            asked = {key: value for key, value in for_flower(config).items() if key in (*settings, *OURS)}
            _run(federation, asked, folder / "run", say)
            yield federation, folder / "run"
        finally:
            say("ending      " + ", ".join(f"{name} {each.pid}" for name, each in federation.processes.items()))


def hold(federation: Flower, nodes: int, say: Callable[[str], object]) -> None:
    """Keep a federation up until one of its processes ends, or Ctrl-C ends all; print commands to try meanwhile."""
    say("The federation stays up until Ctrl-C. In another terminal, try")
    say(f"  export FLWR_HOME={quote(str(federation.home))}")
    say(f"  flwr supernode list {NAME}")
    say(f"  flwr run {quote(str(ROOT))} {NAME} --stream -c {quote(f'clients={nodes} rounds=2')}")
    with suppress(KeyboardInterrupt):
        while True:
            federation.check()
            time.sleep(0.5)


def write_digits(folders: Sequence[Path]) -> None:
    """Write the bundled digits as 8x8 images, one folder a class; each part has its share of every class."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    by_class = np.argsort(digits.target, kind="stable")
    for part, folder in enumerate(folders):
        for row in by_class[part :: len(folders)]:
            path = folder / str(digits.target[row]) / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(path)


def _new_folder(config: RunConfig, out: Path | None) -> Path:
    named = new_folder(config)
    folder = out.expanduser().resolve() if out else named.with_name(f"rehearsal-{named.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunFolderError(f"{folder} is not empty: give a new folder")
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from None
    return folder


def _start(federation: Flower, config: RunConfig, folder: Path, say: Callable[[str], object]) -> None:
    """Start the SuperLink, register the nodes' keys, start the SuperNodes."""
    from hetfl_flwr.models import assign, drawn_order

    federation.superlink("--database", str(federation.home / "superlink.db"))
    for number in range(config.clients):
        federation.register(number)
    say(f"superlink   process {federation.processes['superlink'].pid}, {federation.address}, TLS, known nodes only")
    order = drawn_order(config.seed, config.clients) if config.assignment == "random" else ()
    for number in range(config.clients):
        own = folder / f"node-{number}"
        model = FIT if config.models == FIT else assign(config.models, number, order)
        folders: dict[str, Value] = {"dataset": str(own / "data"), "state-dir": str(own / "state")}
        federation.supernode(number, config.clients, model=model, partition="all", **folders)
        images, process = len(list(own.glob("data/*/*.png"))), federation.processes[f"supernode-{number}"]
        say(f"node {number:<6} process {process.pid}, {model}, {images} images in {own.name}/data")


def _run(federation: Flower, settings: Mapping[str, Value], folder: Path, say: Callable[[str], object]) -> None:
    """Run the app to its end, and report each round."""
    federation.start_run({**settings, "output-dir": str(folder)})
    running = federation.processes["run"]
    say(f"run         process {running.pid}, flwr run {ROOT} {NAME}")
    shown = 0
    while running.poll() is None:
        federation.check()
        shown += _show(folder / ROUNDS_FILE, shown, say)
        time.sleep(0.5)
    _show(folder / ROUNDS_FILE, shown, say)
    federation.check()
    if federation.statuses()[:1] != ["finished:completed"]:
        raise federation.failure(f"the run failed: {federation.errors('run')[0]}")


def _show(path: Path, shown: int, say: Callable[[str], object]) -> int:
    """Report newly finished rounds, and return the number of all finished ones."""
    lines = path.read_text().rpartition("\n")[0].splitlines()[shown:] if path.exists() else []
    for entry in map(json.loads, lines):
        accuracy = "" if entry["accuracy"] is None else f"accuracy {entry['accuracy']:.1%}, "
        say(f"round {entry['round']:<6}{accuracy}{entry['seconds']:.0f} s, {len(entry['failures'])} failures")
    return len(lines)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of these signals, and ignore later ones."""

    def stop(number: int, frame: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
