"""``hetfl audit``: what can be read from what clients have sent."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.options import path
from simulations.cli.printing import print_tables


def audit(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="RUN", help="Run folder of a run with keep-uploads.")],
    device: Annotated[str, typer.Option(help="Where the attacks compute: cpu, cuda, cuda:1, mps or auto.")] = "cpu",
    shadows: Annotated[
        int, typer.Option(min=2, max=1024, help="Shadow models that the attacker trains for each client.")
    ] = 8,
    clients: Annotated[int, typer.Option(min=0, help="Only so many clients, the first ones. 0: all.")] = 0,
) -> None:
    """Measure what a server could read from what clients have sent it: membership, labels, pictures.

    The run must have kept its uploads, and its data must be here to measure against. Figures and pictures are written
    to RUN/audit/.

    Example: hetfl run fedproto --set keep-uploads=true --out runs/p && hetfl audit runs/p
    """
    from simulations.studies.audit.report import FOLDER, JSON_FILE, audit_table, audited, guarantee_table

    found = audited(folder, device=device, shadows=shadows, clients=clients)
    print_tables(audit_table(found, f"what is read from {folder.name}"))
    if found.guarantees:
        print_tables(guarantee_table(found, f"what the noise on {folder.name} guarantees"))
    if found.unknown:
        typer.echo(f"not known: {found.unknown}")
    for attack, why in found.skipped.items():
        typer.echo(f"not run: {attack}: {why}")
    for picture in found.pictures:
        typer.echo(f"pictures: {picture}")
    typer.echo(f"figures: {folder / FOLDER / JSON_FILE}")
