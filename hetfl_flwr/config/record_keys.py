"""Keys of what a run leaves on disk, and who is told of it."""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from hetfl_flwr.common.errors import ConfigError, unknown
from hetfl_flwr.config.keys import MOST, PER_NODE, Keys, checked_path

TRACKERS = ("tensorboard", "wandb", "mlflow", "prometheus")
"""What ``track`` may name."""

COSTS = ("time", "memory", "flops", "energy")
"""What ``costs`` may name."""


def _trackers(text: str) -> str:
    parse_trackers(text)
    return text


def parse_trackers(text: str) -> list[str]:
    """Read the value of ``track``.

    Raises
    ------
    ConfigError
        A name that is none of `TRACKERS`.

    Examples
    --------
    >>> parse_trackers("tensorboard, wandb"), parse_trackers("")
    (['tensorboard', 'wandb'], [])
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(unknown("tracker", name, TRACKERS))
    return list(dict.fromkeys(names))


def _costs(text: str) -> str:
    parse_costs(text)
    return text


def parse_costs(text: str) -> frozenset[str]:
    """Read the value of ``costs``.

    Raises
    ------
    ConfigError
        A name that is none of `COSTS`.

    Examples
    --------
    >>> sorted(parse_costs("time, flops")), sorted(parse_costs(""))
    (['flops', 'time'], [])
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in COSTS:
            raise ConfigError(unknown("cost", name, COSTS))
    return frozenset(names)


def _callbacks(text: str) -> str:
    parse_callbacks(text)
    return text


def parse_callbacks(text: str) -> list[str]:
    """Read the value of ``callbacks``.

    Raises
    ------
    ConfigError
        A name that is not ``package.module:Class``.

    Examples
    --------
    >>> parse_callbacks("my_pkg.stop:Early, my_pkg.log:Lines"), parse_callbacks("")
    (['my_pkg.stop:Early', 'my_pkg.log:Lines'], [])
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        path, colon, attribute = name.partition(":")
        if not colon or not all(part.isidentifier() for part in (*path.split("."), attribute)):
            raise ConfigError(f"callbacks = {text!r}: expected package.module:Class, or several separated by commas")
    return list(dict.fromkeys(names))


def _accept_loss(accept: bool, info: ValidationInfo) -> bool:
    if accept and not info.data.get("resume", True):
        raise ValueError("there is nothing to lose in a new run; it goes with resume = true (--resume)")
    return accept


class RecordKeys(Keys):
    """The run folder, checkpoints, clients' state, trackers and callbacks."""

    output_dir: Annotated[
        str,
        AfterValidator(checked_path),
        Field(description="Run folder. Empty: a new one under runs/ in the working directory."),
    ] = ""
    resume: Annotated[
        bool,
        Field(
            description="Continue the run in output-dir from its last checkpoint (`hetfl run --resume`; `flwr run` "
            "with the resume.toml of its folder)."
        ),
    ] = False
    accept_loss: Annotated[
        bool,
        AfterValidator(_accept_loss),
        Field(
            description="With resume: continue although the newest checkpoint or a client's state is damaged, from "
            "the newest intact checkpoint or without what is lost, or although clients' data have "
            "changed. The failures of the next round name it."
        ),
    ] = False
    keep_uploads: Annotated[
        bool,
        Field(
            description="The server keeps what each client is sent and uploads, in the run folder, a file a round, for "
            "`hetfl audit`. What clients have sent is then as private as that folder is."
        ),
    ] = False
    track: Annotated[
        str,
        AfterValidator(_trackers),
        Field(
            description="Trackers that the server writes to: tensorboard, wandb, mlflow, prometheus, or a comma list. "
            'Each needs an extra: pip install "hetfl[tensorboard]".'
        ),
    ] = ""
    costs: Annotated[
        str,
        AfterValidator(_costs),
        Field(
            description="What each client measures of a round of training, as it can: time, memory, flops, energy, or "
            "a comma-separated list. Counting flops takes time."
        ),
    ] = ""
    callbacks: Annotated[
        str,
        AfterValidator(_callbacks),
        Field(
            description="Classes of your own that the server tells of each round: package.module:Class, or a comma "
            "list. See RoundCallback."
        ),
    ] = ""
    state_dir: Annotated[
        str,
        PER_NODE,
        AfterValidator(checked_path),
        Field(
            description="Folder for the clients' state, with a subfolder for each run. Empty: kept in Flower's Context."
        ),
    ] = ""
    state_keep: Annotated[
        int,
        PER_NODE,
        Field(
            ge=0,
            description="Number of runs whose state a client keeps in state-dir: this run, the one it continues, and "
            "the newest others. Older ones are removed when a run starts. 0: all.",
        ),
    ] = 20
    checkpoint_every: Annotated[
        int,
        Field(ge=0, le=MOST, description="Write a checkpoint for --resume every N rounds. 0: only after the last."),
    ] = 10
