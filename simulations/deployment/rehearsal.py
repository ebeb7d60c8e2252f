"""A complete deployment on one machine: TLS and registered nodes, each with its own model, data and state folder.

It runs the same programs with the same options as a deployment on many machines.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from hetfl_flwr.common.files import writing
from hetfl_flwr.config import FIT, RunConfig, Value
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.methods import for_flower, resolve
from hetfl_flwr.runs.record import ROUNDS_FILE
from hetfl_flwr.runs.settings import new_folder
from simulations.deployment.keys import Keys, make_keys
from simulations.deployment.loopback import NAME, ROOT, Flower, flower

SETTLED = ("clients", "data-dir", "dataset", "node-keys", "output-dir", "partition", "resume", "state-dir")
"""Run-config keys that a rehearsal sets itself."""

OURS = ("clients", "start-clients", "start-timeout", "node-keys", "algorithm-options")
"""Run-config keys that are passed to the run in addition to the user's."""

PATIENCE = 120.0
"""Default ``start-timeout`` of the run in seconds; all nodes must be connected by then."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def rehearsal(
    settings: Mapping[str, Value], nodes: int, out: Path | None, say: Callable[[str], object], *, plain: bool = False
) -> Iterator[tuple[Flower, Path]]:
    """Start a federation on loopback, run the app, and yield the federation and the folder of the finished run.

    All processes are ended on exit; the first SIGINT, SIGTERM or SIGHUP ends them in order. Everything is written below
    one folder, `out` or a new one in ``runs/``: ``keys``, ``flower`` (FLWR_HOME and the logs), ``node-K/data``,
    ``node-K/state``, ``cache`` and ``run``. Each node has a part of the bundled digits as images. `settings` are
    run-config keys, none of `SETTLED`. `say` receives each progress message. With `plain` the nodes are Flower's own,
    which start a Python process for each message.
    """
    for key in SETTLED:
        if key in settings:
            raise ConfigError(f"{key} is set by the rehearsal itself: leave it out")
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
    say(f"keys        in keys/: a private CA, a server certificate, {nodes} node keys")
    with _interruptible(), flower(folder / "flower", keys) as federation:
        federation.keep = "" if plain else "fork"
        federation.variables["HF_DATASETS_CACHE"] = str(folder / "cache")
        found = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
        federation.variables["PYTHONPATH"] = os.pathsep.join(found)  # for the user's models and algorithms
        try:
            _start(federation, config, folder, say)
            asked = {key: value for key, value in for_flower(config).items() if key in (*settings, *OURS)}
            _run(federation, asked, folder / "run", say)
            yield federation, folder / "run"
        finally:
            say("ending      " + ", ".join(f"{name} {each.pid}" for name, each in federation.processes.items()))


def hold(federation: Flower, nodes: int, say: Callable[[str], object]) -> None:
    """Print commands to try, and keep the federation running until Ctrl-C or the end of one of its processes."""
    say("The federation stays up until Ctrl-C. In another terminal, try")
    say(f"  export FLWR_HOME={quote(str(federation.home))}")
    say(f"  flwr supernode list {NAME}")
    say(f"  flwr run {quote(str(ROOT))} {NAME} --stream -c {quote(f'clients={nodes} rounds=2')}")
    with suppress(KeyboardInterrupt):
        while True:
            federation.check()
            time.sleep(0.5)


def write_digits(folders: Sequence[Path]) -> None:
    """Write the bundled digits as 8 x 8 images, one folder per class, and divide every class among the folders."""
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
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunFolderError(f"{folder} is not empty: give a new folder")
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
    """Run the app to its end and report each round; raise FederationError if it fails."""
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
    """Report newly finished rounds and return their number."""
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
