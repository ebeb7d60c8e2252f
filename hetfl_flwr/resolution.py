"""The config of a run with nothing left to guess: the one place where what a user leaves open is settled."""

from pathlib import Path

from hetfl_flwr.algorithms import resolve
from hetfl_flwr.config import BUNDLED, DEFAULT_CLIENTS, RunConfig, Value
from hetfl_flwr.data import absolute
from hetfl_flwr.runs.results import new_folder


def resolved(config: RunConfig, engine: str) -> RunConfig:
    """Return a config as it holds; one that leaves nothing open comes back itself.

    Settled are the data set of simulated clients, the run folder, the algorithm's own keys, ``models`` and ``width``;
    in the local engine also the number of clients, and all paths, which are absolute.

    Parameters
    ----------
    config : RunConfig
        What the user has said.
    engine : str
        ``local``, ``simulation`` or ``deployment``.

    Raises
    ------
    ConfigError
        As `hetfl_flwr.algorithms.resolve`.
    """
    named = config.dataset if engine == "deployment" else config.dataset or BUNDLED
    settled: dict[str, Value] = {"dataset": absolute(named) if engine == "local" else named}
    if engine == "local":
        settled["clients"] = config.clients or DEFAULT_CLIENTS
        for key, value in (("data-dir", config.data_dir), ("state-dir", config.state_dir)):
            settled[key] = str(Path(value).expanduser().resolve()) if value else ""
    config = _with(config, settled)
    return resolve(_with(config, {"output-dir": str(new_folder(config))}))


def _with(config: RunConfig, values: dict[str, Value]) -> RunConfig:
    flat = config.to_flat()
    changed = {key: value for key, value in values.items() if flat[key] != value}
    return config.with_values(changed) if changed else config
