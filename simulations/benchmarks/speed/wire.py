"""What a message costs besides its knowledge: ``python -m simulations.benchmarks.speed.wire [--quick] [--accuracy]``.

Every algorithm runs two rounds on the bundled digits in the local engine, three clients, with the models and options
that it has by default. Looked at are the messages of the second round's training, down to the clients and up again.
*payload* is the bytes of the numbers themselves, *envelope* what the message takes beyond them as Flower serialises it:

- *.npy*: the header of each array, padded to 128 bytes, and 16 to 19 of the chunk that holds it. Below 0 where arrays
  are equal: Flower sends them once, but they count twice in the payload (FedMD's rows where all are asked for).
- *array*: Flower's record of each array: shape, dtype, serialisation, SHA-256 of the chunk.
- *record*: names of records and arrays, and the SHA-256 of each, once in a head and once in a body.
- *metrics*: names and values; downwards, the config of the round.
- *ids*: the message's own: run, nodes, message replied to, type, times.

The target, 250 bytes a message, is below what Flower 1.41 takes for a message without arrays: 482 bytes down and 547 up
(``local``), of which 318 are names and hashes. *an array* is what each array adds to it.

*half* is the payload with ``payload-precision=half``, of the same run. Counts, row numbers and pixels stay as they are.

With ``--accuracy``, what half precision does to the accuracy: five clients, 50 rounds, five seeds each way, and the
mean difference of runs with equal seeds, its standard deviation and its 95 % interval (Student's t). It takes ten
minutes.
``--quick`` measures three algorithms, and the accuracy of two seeds and five rounds.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from secrets import randbits
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from flwr.app import Context, Message, MessageType, RecordDict
from rich.console import Console
from rich.table import Table
from scipy.stats import ttest_1samp

from hetfl_flwr.algorithms import names, resolve
from hetfl_flwr.common.flower import FLOWER_LOGGER, get_all_nested_objects, no_object_id_recompute
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.server_app import app as server_app
from hetfl_flwr.wire.codec import payload_bytes, wire_bytes
from simulations.benchmarks.measure import Row, run, show
from simulations.engine.grid import LocalGrid

CLIENTS = 3
LIMIT = 250
BARE = 318
"""Bytes of names and hashes in a message without arrays."""

METHODS = ("fedhe", "fedh2l", "chfl", "fml", "fedhenn", "fedavg")
PARTS = {
    "ArrayChunk": ".npy",
    "Array": "array",
    "ArrayRecord": "record",
    "RecordDict": "record",
    "MetricRecord": "metrics",
    "ConfigRecord": "metrics",
    "Message": "ids",
}
"""Which part of the envelope each of Flower's objects is counted to; a chunk's own bytes less the payload."""


class RecordingGrid(LocalGrid):
    """The local engine, which keeps the training messages of the round that it is in."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.down: list[Message] = []
        self.up: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages; a round's take the place of the last one's."""
        pushed = list(messages)
        if any(message.metadata.message_type == MessageType.TRAIN for message in pushed):
            self.down, self.up = pushed, []
        return super().push_messages(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies, and keep them."""
        pulled = super().pull_messages(message_ids)
        self.up += [reply for reply in pulled if reply.metadata.message_type == MessageType.TRAIN]
        return pulled


def exchanged(algorithm: str, precision: str = "full") -> dict[str, list[Message]]:
    """Run two rounds and return the second one's training messages, ``"down"`` and ``"up"``."""
    with TemporaryDirectory() as folder:
        settings: dict[str, Value] = {"algorithm": algorithm, "clients": CLIENTS, "rounds": 2, "evaluate-every": 2}
        settings |= {"payload-precision": precision, "output-dir": str(Path(folder) / "run")}
        number = randbits(62) | 1 << 62  # as long as any
        flat = resolve(RunConfig.from_flat(settings)).to_flat()
        with RecordingGrid(flat, CLIENTS, number) as grid:
            server_app(grid, Context(number, 1, {}, RecordDict(), flat))
            return {"down": grid.down, "up": grid.up}


def envelope(message: Message) -> Counter[str]:
    """Return the bytes of each part of a message's envelope."""
    parts = Counter({".npy": -payload_bytes(message)})
    with no_object_id_recompute():
        for part in get_all_nested_objects(message).values():
            parts[PARTS[type(part).__name__]] += len(part.deflate())
    return parts


def envelopes(algorithms: Iterable[str]) -> tuple[list[Row], Table]:
    """Measure the messages of some algorithms; return rows, and what the median client's envelopes are made of."""
    rows, parts = [], tuple(dict.fromkeys(PARTS.values()))
    shown = Table("message", "arrays", "payload", "half", "envelope", "an array", *parts)
    for name in algorithms:
        full, half = exchanged(name), exchanged(name, "half")
        for way in ("down", "up"):
            messages, payload = full[way], [payload_bytes(message) for message in full[way]]
            halves = [payload_bytes(message) for message in half[way]]
            over = [wire_bytes(message) - size for message, size in zip(messages, payload, strict=True)]
            count = _arrays(messages[0])
            what = f"{name} {way}, {count} array{'s' * (count != 1)}"
            rows.append(Row(f"{what}: envelope", "bytes", [float(size) for size in over], f"<= {LIMIT} bytes"))
            middle = envelope(sorted(messages, key=wire_bytes)[len(messages) // 2])
            each = (middle[".npy"] + middle["array"] + middle["record"] - BARE) // count if count else 0
            figures = (count, median(payload), median(halves), median(over), each, *(middle[part] for part in parts))
            shown.add_row(f"{name} {way}", *(f"{figure:,}" for figure in figures))
    return rows, shown


def accuracies(rounds: int, seeds: int) -> Table:
    """Return accuracy in percent with full and with half precision, and the difference between equal seeds."""
    shown = Table("accuracy, %", "full", "half", "half less full", "95 % interval")
    for name in METHODS:
        full, half = (
            [_accuracy(name, precision, rounds, seed) for seed in range(seeds)] for precision in ("full", "half")
        )
        differences = [after - before for before, after in zip(full, half, strict=True)]
        low, high = ttest_1samp(differences, 0).confidence_interval(0.95)
        spreads = (f"{fmean(figures):.1f} ± {stdev(figures):.1f}" for figures in (full, half, differences))
        shown.add_row(name, *spreads, f"{low:.1f} to {high:.1f}")
    return shown


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Three algorithms; few seeds and rounds.")] = False,
    accuracy: Annotated[bool, typer.Option("--accuracy", help="Also what half precision does to accuracy.")] = False,
) -> None:
    """Measure messages and print the tables."""
    torch.set_num_threads(1)
    FLOWER_LOGGER.setLevel("CRITICAL")
    rows, parts = envelopes(METHODS[:3] if quick else names())
    show(rows)
    tables = [parts, accuracies(*((5, 2) if quick else (50, 5)))] if accuracy else [parts]
    console = Console(width=140)
    for table in tables:
        console.print(table)


def _arrays(message: Message) -> int:
    return sum(len(record) for record in message.content.array_records.values())


def _accuracy(name: str, precision: str, rounds: int, seed: int) -> float:
    settings: dict[str, Value] = {"algorithm": name, "payload-precision": precision, "rounds": rounds, "seed": seed}
    with TemporaryDirectory() as folder:
        run({**settings, "clients": 5, "evaluate-every": rounds, "checkpoint-every": 0}, Path(folder) / "run")
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return 100 * float(summary["accuracy"])


if __name__ == "__main__":
    typer.run(main)
