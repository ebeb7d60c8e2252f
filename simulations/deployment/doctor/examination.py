"""All checks of one node, in the order in which one needs the other."""

from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from simulations.deployment.doctor.finding import Finding, State
from simulations.deployment.doctor.machine import PROJECT, check_key, examine_machine, found_version
from simulations.deployment.doctor.server import Server, examine_server


def examine(server: Server | None, key: Path | None, state_dir: Path | None, *, insecure: bool) -> Iterator[Finding]:
    """Go through what all checks have found.

    Parameters
    ----------
    server : Server, optional
        Where the node will connect.
    key : Path, optional
        The node's private key.
    state_dir : Path, optional
        The node's ``state-dir``. By default the working directory.
    insecure : bool
        Whether the node is to connect without TLS.
    """
    yield from examine_machine(state_dir)
    yield check_key(key, insecure=insecure)
    if server is None:
        yield Finding("server", State.NOT_CHECKED, "no --superlink is given")
        return
    needed = map(Requirement, requires(PROJECT) or [])
    required = next(each for each in needed if each.marker is None and each.name == "flwr")
    yield from examine_server(server, found_version("flwr"), str(required.specifier))
