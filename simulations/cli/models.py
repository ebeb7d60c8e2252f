"""``hetfl export`` and ``hetfl predict``: using the models that clients have trained."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hetfl_flwr.common.notices import warn
from hetfl_flwr.text import printable
from simulations.cli.options import path, target


def export(
    folder: Annotated[Path, typer.Argument(parser=path, metavar="DIR", help="Run folder, or the state-dir of a node.")],
    client: Annotated[str, typer.Option(metavar="NAME|NUMBER", help="Name or number of the client.")],
    out: Annotated[Path, typer.Option(parser=target, metavar="FILE", help="model.pt2 (torch.export) or model.onnx.")],
) -> None:
    """Export a client's trained model as a program that takes raw inputs and does not need this project.

    The file also holds a description of the inputs and classes (hetfl.json); docs/runs.md lists its fields. The program
    itself scales the inputs.

    Example: hetfl export runs/fedhe --client "St. Mary" --out model.onnx
    """
    from simulations.api import export as write

    typer.echo(f"model: {write(folder, client, out)}")


def predict(
    model: Annotated[
        Path, typer.Argument(parser=path, metavar="MODEL", help="model.pt2 from `hetfl export`, or a run folder.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            parser=path,
            metavar="FILE",
            help="Table (csv, parquet, json), texts (a table, or .txt with one per line), time series (parquet, json, "
            "npz), an image or a folder of images.",
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME|NUMBER", help="Name or number of the client, if MODEL is a run folder."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=target, metavar="FILE.csv", help="File to write (default: standard output).")
    ] = None,
) -> None:
    """Predict the class of each row, image or text, with a client's trained model.

    A .pt2 file is a program: open only files from people you trust.

    Columns are found by name; others are ignored. Images that cannot be read are skipped and named, and the exit status
    is 2.

    Example: hetfl predict model.pt2 patients.csv --out predictions.csv
    """
    from simulations.inference.predict import predict as predict_all

    done = predict_all(model, file, client)
    if out is None:
        done.write(sys.stdout)
    else:
        with out.open("w", newline="", encoding="utf-8") as written:
            done.write(written)
        typer.echo(f"predictions: {out}")
    for line in done.unreadable:
        warn(printable(line))
    if done.unreadable:
        raise typer.Exit(2)
