"""How soon work begins: ``python -m simulations.benchmarks.speed.startup [--quick]``.

Every sample is a process of its own. They take turns, the first turn is left out (it warms the disk cache), and a
ratio is of neighbours of one turn:

- *import torch*: ``python -c "import torch"`` from start to end, the unit of the others;
- *hetfl run*: ``hetfl run fedhe``, bundled digits, ten clients, one worker, from its start until round 1 is written
  down: client registration, evaluation before training, ten clients' training and evaluation;
- *hetfl list* and *hetfl --help*: from start to end;
- *ClientApp*: from the start of a process that imports the ClientApp to the end of a train message of one mini-batch
  (`message`). Flower's deployment starts such a process for every message. "in Flower's process" also imports what
  ``flwr-clientapp`` itself needs, over which this repository has no say.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from simulations.benchmarks.measure import Row, hetfl_run, ratios, seconds, show

MESSAGE = "from simulations.benchmarks.speed.message import main; main()"


def main(quick: Annotated[bool, typer.Option("--quick", help="Fewer turns: under a minute.")] = False) -> None:
    """Measure all and print the table."""
    turns = 2 if quick else 10
    measured = [
        (
            _python("import torch"),
            _first_round(),
            _python("from simulations.cli.command import main; main()", "list"),
            _python("from simulations.cli.command import main; main()", "--help"),
            _python(MESSAGE),
            _python(f"import flwr.supernode.cli.flwr_clientapp; {MESSAGE}"),
        )
        for _ in range(turns + 1)
    ]
    torch, run, listed, help, message, flower = (list(samples) for samples in zip(*measured[1:], strict=True))
    show(
        [
            Row("import torch", "s", torch),
            Row("hetfl run to the end of round 1", "s", run),
            Row("hetfl run to the end of round 1, over import torch", "times", ratios(run, torch), "<= 1.6 times"),
            Row("hetfl list, over import torch", "times", ratios(listed, torch), "<= 0.6 times"),
            Row("hetfl --help", "s", help, "<= 0.5 s"),
            Row("ClientApp to the end of one batch, over import torch", "times", ratios(message, torch)),
            Row("the same in Flower's process", "times", ratios(flower, torch)),
        ]
    )


def _python(code: str, *arguments: str) -> float:
    command = [sys.executable, "-c", code, *arguments]
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def _first_round() -> float:
    """Return the seconds until a run of one round has written that round down."""
    with TemporaryDirectory() as folder:
        started = time.time()
        hetfl_run("fedhe", "--rounds", "1", "--out", folder)
        return (Path(folder) / "rounds.jsonl").stat().st_mtime - started


if __name__ == "__main__":
    typer.run(main)
