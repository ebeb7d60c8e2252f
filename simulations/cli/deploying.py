"""A federation of several machines: ``hetfl keys``, ``doctor``, ``rehearse`` and ``supernode``."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.errors import ConfigError, FederationError
from simulations.cli.options import AlgorithmArgument, JsonOption, SettingsOption, chosen_keys, path, target
from simulations.cli.printing import print_json, print_tables, show_run


def keys(
    host: Annotated[
        list[str],
        typer.Option("--host", help="Host name or IP address at which clients reach the server; repeatable."),
    ],
    out: Annotated[
        Path, typer.Option(parser=target, metavar="DIR", help="Folder to write to; existing files are kept.")
    ],
    nodes: Annotated[int, typer.Option(min=0, max=10_000, help="Number of key pairs: node-0, node-1 and so on.")] = 0,
) -> None:
    """Create a private CA, a server certificate and a key pair for each node, for a deployment with TLS.

    Example: hetfl keys --host server.example.org --nodes 3 --out keys
    """
    from simulations.deployment.keys import make_keys

    made = make_keys(out, host, nodes)
    typer.echo(f"created in {out}: {', '.join(path.name for path in made) or 'nothing, all files existed'}")


def doctor(
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the server, as the node reaches it.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="Certificate of the authority to trust: ca.crt.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Connect without TLS.")] = False,
    key: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="The node's private key, such as node-0.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="DIR", help="The node's state-dir (default: the working directory)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Examine a node before it joins: this machine, its key, and the server. Exit status 1 if a check fails.

    It changes nothing and joins no federation.

    Example: hetfl doctor --superlink server.example.org:8443 --root-certificates ca.crt --key node-0
    """
    from simulations.deployment.doctor import JoiningNode, State, examine, finding_table, parse_address

    if insecure and root_certificates is not None:
        raise ConfigError("--insecure and --root-certificates: give only one")
    host, port = parse_address(superlink) if superlink is not None else ("", 0)
    findings = list(examine(JoiningNode(host, port, root_certificates, insecure, key, state_dir)))
    print_json({"checks": findings}) if json else print_tables(finding_table(findings))
    if any(finding.state is State.FAILURE for finding in findings):
        raise typer.Exit(1)


def rehearse(
    algorithm: AlgorithmArgument = "fedhe",
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Number of SuperNodes to start.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Number of training rounds.")] = 3,
    settings: SettingsOption = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="New folder for all output (default: under runs/).")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the federation running after the run, until Ctrl-C.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Use Flower's own SuperNodes.")] = False,
) -> None:
    """Rehearse a deployment on this machine: TLS, node authentication, and a model and folders for each node.

    Example: hetfl rehearse fedhe --nodes 3 --rounds 3
    """
    from simulations.deployment.rehearsal import hold, rehearsal

    chosen = chosen_keys(None, settings, algorithm=algorithm, rounds=rounds)
    try:
        with rehearsal(chosen, nodes, out, typer.echo, plain=plain) as (federation, folder):
            show_run(folder)
            if keep:
                hold(federation, nodes, typer.echo)
    except FederationError as error:
        typer.echo(f"hetfl: {error}", err=True)
        raise typer.Exit(1) from None


def supernode(
    arguments: typer.Context,
    keep: Annotated[
        str,
        typer.Option(
            help="fork: one process for each message; resident: one process that keeps models, data and CUDA."
        ),
    ] = "fork",
    poll: Annotated[float, typer.Option(help="Poll interval for messages, in seconds.")] = 0.5,
) -> None:
    """Run a SuperNode whose ClientApps start at once. It takes all flags of `flower-supernode`.

    Among these are --superlink, --root-certificates, --auth-supernode-private-key, --node-config and --insecure.

    Example: hetfl supernode --insecure --superlink 127.0.0.1:9092 --node-config 'partition-id=0 num-partitions=3'
    """
    from simulations.deployment.supernode import run_supernode

    run_supernode(arguments.args, keep, poll)
