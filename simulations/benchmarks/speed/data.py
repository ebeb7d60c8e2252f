"""What the clients' data cost: ``python -m simulations.benchmarks.speed.data [--quick]``.

Three measurements on random data of CIFAR-10's size, each against a target. Seconds are the processor's, for the
machine may be busy:

- *split*: seconds in which the rows of a data set in memory are shared out over 500 clients.
- *batch*: a training step of LeNet-5 whose batch comes through `Samples.batch`, over the same step fed from a float
  tensor of all samples that is ready in memory. Both are measured in turn, and each ratio is of neighbours.
- *memory*: how much a process grows while 500 clients get their data, over the bytes of one decoded copy. The libraries
  are there before, and a small data set of the same kind has been read. The first process on a machine decodes, later
  ones map what it has written. Pages of the source files do not count: they are the system's cache, which it drops when
  it needs room. Needs Linux's ``/proc``.

How to read the table: as that of `simulations.benchmarks.speed.engine`.
"""

import os
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.data import Batches, DataSpec, Reading, Samples, Split, load_client_data, parse_partition
from hetfl_flwr.data.arrays.samples import Arrays
from hetfl_flwr.data.partitions import split
from hetfl_flwr.learning.training import train
from hetfl_flwr.models import build_model
from simulations.benchmarks.measure import Row, show

ROWS, CLIENTS, BATCH, OWNERS = 60_000, 500, 50, 2000
SPEC = DataSpec((3, 32, 32), 10)
SMAPS = Path("/proc/self/smaps")


class Ready:
    """Samples that are float tensors already."""

    def __init__(self, samples: Samples) -> None:
        """Prepare all samples."""
        self.inputs, self.labels = samples.batch(torch.arange(len(samples)))

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.labels)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at positions (B,)."""
        return self.inputs[rows], self.labels[rows]

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class."""
        return torch.bincount(self.labels, minlength=classes)


def splitting(text: str, repeats: int) -> Row:
    """Measure the seconds of one partition."""
    draw, seconds = generator(0, "benchmark"), []
    labels, owners = draw.integers(SPEC.classes, size=ROWS), draw.integers(OWNERS, size=ROWS)
    for seed in range(repeats):
        started = process_time()
        split(labels, parse_partition(text), CLIENTS, seed, owners=owners)
        seconds.append(process_time() - started)
    return Row(f"split, {text}, {CLIENTS} clients", "s", seconds, "< 5 s")


def stepping(repeats: int) -> Row:
    """Measure what `Samples.batch` adds to a training step."""
    draw = generator(0, "benchmark")
    arrays = Arrays(
        spec=SPEC,
        inputs=torch.from_numpy(draw.integers(256, size=(ROWS // 6, *SPEC.shape), dtype=np.uint8)),
        labels=torch.from_numpy(draw.integers(SPEC.classes, size=ROWS // 6)),
        train_rows=ROWS // 6,
        peak=255.0,
        centre=torch.full(SPEC.shape, 0.5),
    )
    samples = Samples(arrays, torch.from_numpy(draw.permutation(ROWS // 6)))
    ready = Ready(samples)
    model = build_model("lenet5", SPEC, seed=0, scope=(0,))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def seconds(source: Batches, rows: Tensor) -> float:
        started = process_time()
        train(source, [rows], optimizer, lambda inputs, labels: cross_entropy(model(inputs), labels))
        return process_time() - started

    ratios = []
    for _ in range(repeats):
        rows = torch.from_numpy(draw.integers(len(samples), size=BATCH))
        ratios.append(seconds(samples, rows) / seconds(ready, rows))
    return Row(f"batch, LeNet-5, B = {BATCH}", "times", ratios[repeats // 10 :], "<= 1.1 times")


def growth(folder: Path, rows: int) -> list[Row]:
    """Measure, in processes of their own, the memory of all clients' data: decoded for the first time, and found so."""
    small, large = _images(folder / "small", 200), _images(folder / "large", rows)
    script = "import sys; from simulations.benchmarks.speed.data import grown; print(grown(*sys.argv[1:]))"
    command = [sys.executable, "-c", script, small, large]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache")}
    first, later = (
        float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(2)
    )
    name = f"memory, {CLIENTS} clients, {rows:,} images"
    return [
        Row(f"{name}{how}", "times", [ratio], "<= 1.2 times") for how, ratio in ((", decoding", first), ("", later))
    ]


def grown(small: str, large: str) -> float:
    """Return how many times the bytes of a data set this process grows by when all clients get their data."""
    keys = Reading(label_column="label")
    load_client_data(Split(dataset=small, clients=5, seed=0, reading=keys, partition="shards:2"), 0)
    before = _resident()
    whole = Split(dataset=large, clients=CLIENTS, seed=0, reading=keys, partition="shards:2")
    clients = [load_client_data(whole, k) for k in range(CLIENTS)]
    return (_resident() - before) / clients[0].train.arrays.inputs.nbytes


def main(quick: Annotated[bool, typer.Option("--quick", help="Few repeats, and fewer images.")] = False) -> None:
    """Measure what the clients' data cost and print the table."""
    torch.set_num_threads(1)
    rows = []
    if SMAPS.exists():
        with TemporaryDirectory() as folder:
            rows += growth(Path(folder), ROWS // 2 if quick else ROWS)
    rows.append(stepping(100 if quick else 1000))
    forms = ("iid", "dirichlet:0.5", "classes:2", "shards:2", "natural:owner")
    rows += [splitting(text, 1 if quick else 5) for text in forms]
    show(rows)


def _images(folder: Path, rows: int) -> str:
    """Write a data set of random images, half as fine as they are large, as one parquet file, and return its folder."""
    from datasets.arrow_dataset import Dataset
    from datasets.features import Image
    from datasets.utils.tqdm import disable_progress_bars
    from PIL.Image import fromarray

    disable_progress_bars()
    draw, files = generator(0, "images"), []
    channels, height, width = SPEC.shape
    for pixels in draw.integers(256, size=(rows, height // 2, width // 2, channels), dtype=np.uint8):
        fromarray(pixels.repeat(2, axis=0).repeat(2, axis=1)).save(file := BytesIO(), "png")
        files.append({"bytes": file.getvalue(), "path": None})
    columns = {"image": files, "label": draw.integers(SPEC.classes, size=rows)}
    folder.mkdir()
    Dataset.from_dict(columns).cast_column("image", Image()).to_parquet(folder / "train.parquet")
    return str(folder)


def _resident() -> int:
    mapping = re.compile(r"^\w+-\w+ \S+ \S+ \S+ \d+ *(.*)$(?:\n\w+: .*)*?\nRss: *(\d+) kB$", re.MULTILINE)
    mappings = mapping.findall(SMAPS.read_text())
    return 1024 * sum(int(kilobytes) for name, kilobytes in mappings if not name.endswith(".arrow"))


if __name__ == "__main__":
    typer.run(main)
