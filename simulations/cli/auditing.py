"""``hetfl audit``: what can be read from what clients have sent."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.runs.schema import read_clients
from simulations.cli.options import path
from simulations.cli.printing import print_tables


def audit(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="RUN", help="Run folder of a run with keep-uploads.")],
    device: Annotated[str, typer.Option(help="Where the attacks compute: cpu, cuda, cuda:1, mps or auto.")] = "cpu",
    shadows: Annotated[
        int, typer.Option(min=2, max=1024, help="Shadow models that the attacker trains for each client.")
    ] = 8,
    clients: Annotated[int, typer.Option(min=0, help="Only so many clients, the first ones. 0: all.")] = 0,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="K=DIR", help="Of a deployment: client K's state-dir, or its data. Once for each."),
    ] = None,
) -> None:
    """Measure what a server could read from what clients have sent it: membership, labels, pictures.

    The run must have kept its uploads, and its data must be here to measure against. Of a deployment, name at least two
    nodes' folders with --node; without, only what uploads say by themselves is read. RUN/audit/ gets figures and
    pictures.

    Example: hetfl run fedproto --set keep-uploads=true --out runs/p && hetfl audit runs/p
    """
    from simulations.studies.audit.report import (
        FOLDER,
        JSON_FILE,
        audit_table,
        audited,
        estimate_table,
        guarantee_table,
    )

    found = audited(folder, device=device, shadows=shadows, clients=clients, places=_places(node or []))
    if found.findings:
        print_tables(audit_table(found, f"what is read from {folder.name}"))
    if found.estimates:
        names = next((one["class_names"] for one in read_clients(folder) or () if one.get("class_names")), None)
        print_tables(estimate_table(found, f"what {folder.name} says by itself", names))
    if found.guarantees:
        print_tables(guarantee_table(found, f"what the noise on {folder.name} guarantees"))
    if found.unknown:
        typer.echo(f"not known: {found.unknown}")
    for why in dict.fromkeys(found.skipped.values()):
        attacks = [attack.partition(" (")[0] for attack, reason in found.skipped.items() if reason == why]
        typer.echo(f"not run: {'; '.join(attacks)}: {why}")
    for picture in found.pictures:
        typer.echo(f"pictures: {picture}")
    typer.echo(f"figures: {folder / FOLDER / JSON_FILE}")


def _places(nodes: list[str]) -> dict[int, Path]:
    found = dict[int, Path]()
    for text in nodes:
        client, _, place = text.partition("=")
        if not (client.isascii() and client.isdecimal() and place):
            raise ConfigError(f"--node {text}: expected the number of a client and a folder: 0=STATE_DIR")
        if int(client) in found:
            raise ConfigError(f"--node {text}: client {client} is named twice")
        found[int(client)] = Path(place)
    return found
