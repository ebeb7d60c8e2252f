"""What FedHeNN's server saves by not forming kernels: ``python -m simulations.benchmarks.speed.kernels [--quick]``.

Ten clients have uploaded representations (R, 84) of R = 5000 samples, random ones. The server's work of a round is the
factor of their centred mean kernel, exact (rank 840, the sum of the widths) or of rank 128. It is done in three ways:

- *factored*: as `hetfl_flwr.learning.alignment.mean_kernel.mean_kernel_factor` does it.
- *dense*: the mean of the kernels K_k of the centred representations, in one float32 array, and its leading
  eigenvectors by LAPACK.
- *Cholesky*, exact only: the same mean, and its pivoted Cholesky factor by LAPACK. No eigenvectors: its columns are as
  many, but neither orthogonal nor in order, and its rank is a matter of rounding. It is the best that is known of a
  dense kernel of low rank.

The kernels of *dense* and *Cholesky* are added up in one array by BLAS, each with one product. Seconds are the
processor's. *memory* is the growth of the process from before the work to its peak: below one R x R array of float32,
100 MB, there was none. Each way runs in a process of its own, with one thread. Needs Linux's ``/proc``.

The RBF kernel has no factor narrower than R: ``exp(-||a - b||^2 / (2 sigma^2))`` of different samples has full rank. So
its mean is dense in the method itself, in float64, and only what travels is thin, by ``rank``. Its rows have no
neighbour and no target.

*client* is the CKA of a mini-batch, `linear_cka` of representations (R, 84) with the exact factor, forward and
backward, over the same with both kernels formed. The body's pass over the R samples is in neither.

With ``--quick``, one repeat, and the RBF kernel over 1000 samples.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.linalg import eigh, get_blas_funcs, get_lapack_funcs
from torch import Tensor

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.aggregation import Average
from hetfl_flwr.learning.alignment.mean_kernel import mean_kernel_factor, stack_factor, thin_factor
from hetfl_flwr.learning.alignment.similarity import kernel_cka, linear_cka
from simulations.benchmarks.measure import Row, ratios, show

SAMPLES, CLIENTS, WIDTH, RANK, SIGMA = 5000, 10, 84, 128, 10.0
STATM = Path("/proc/self/statm")

Floats = NDArray[np.float32]

add_product = get_blas_funcs("syrk", dtype=np.float32)
decompose = get_lapack_funcs("pstrf", dtype=np.float32)


def factored(uploads: list[Floats], rank: int, kernel: str = "linear") -> Floats:
    """Return what FedHeNN's server makes of a round's uploads: a factor (R, rank)."""
    factor, _ = mean_kernel_factor(uploads, Average("none"), sigma=SIGMA if kernel == "rbf" else None, rank=rank)
    return factor.astype(np.float32)


def dense(uploads: list[Floats], rank: int) -> Floats:
    """Return the same by way of the mean kernel (R, R) and its eigenvectors."""
    size, rank = len(uploads[0]), rank or CLIENTS * WIDTH
    mean = mean_kernel(uploads)
    leading = (size - rank, size - 1)
    values, vectors = eigh(mean, lower=False, subset_by_index=leading, overwrite_a=True, check_finite=False)
    factor: Floats = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    return factor


def cholesky(uploads: list[Floats], rank: int) -> Floats:
    """Return an exact factor of the mean kernel by pivoted Cholesky decomposition."""
    triangle, pivots, rank, _ = decompose(mean_kernel(uploads), lower=0, overwrite_a=1)
    factor = np.empty((len(triangle), rank), np.float32)
    factor[pivots - 1] = np.triu(triangle[:rank]).T
    return factor


def mean_kernel(uploads: list[Floats]) -> Floats:
    """Return the upper triangle of the centred mean of linear kernels (R, R), in the order of Fortran."""
    total = np.zeros((len(uploads[0]),) * 2, np.float32, order="F")
    for rows in uploads:
        total = add_product(1 / len(uploads), rows - rows.mean(0), beta=1, c=total, overwrite_c=1)
    return total


WAYS: dict[str, Callable[[list[Floats], int], Floats]] = {"factored": factored, "dense": dense, "Cholesky": cholesky}


def drawn(rows: int) -> list[Floats]:
    """Return random representations of the same samples by all clients."""
    draw = generator(0, "representations")
    return [draw.standard_normal((rows, WIDTH), np.float32) for _ in range(CLIENTS)]


def measured(way: str, rows: int, rank: int) -> tuple[float, float]:
    """Return the seconds of one way, and the bytes by which its process grows, both in a process of its own."""
    script = "import sys; from simulations.benchmarks.speed.kernels import cost; print(*cost(*sys.argv[1:]))"
    command = [sys.executable, "-c", script, way, str(rows), str(rank)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds, grown = said.split()
    return float(seconds), float(grown)


def cost(way: str, rows: str, rank: str) -> tuple[float, float]:
    """Measure one way in this process, after a small one that wakes the libraries."""
    work = WAYS[way] if way in WAYS else lambda uploads, rank: factored(uploads, rank, way)
    work(drawn(CLIENTS * WIDTH), int(rank))
    uploads = drawn(int(rows))
    before = resource.getpagesize() * int(STATM.read_text().split()[1])
    started = process_time()
    work(uploads, int(rank))
    return process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def server(rows: int, repeats: int) -> list[Row]:
    """Measure a round of the server: seconds, their ratios, and memory."""
    made = []
    for rank, ways in ((0, ("factored", "dense", "Cholesky")), (RANK, ("factored", "dense"))):
        what = f"server, R = {rows}, {f'rank {rank}' if rank else 'exact'}"
        turns = [{way: measured(way, rows, rank) for way in ways} for _ in range(repeats)]
        seconds = {way: [turn[way][0] for turn in turns] for way in ways}
        made += [Row(f"{what}: {way}", "s", seconds[way]) for way in ways]
        for way in ways[1:]:
            target = ">= 10 times" if way == "dense" else ""
            made.append(Row(f"{what}: {way} over factored", "times", ratios(seconds[way], seconds["factored"]), target))
        for way in ways:
            target = f"< {4e-6 * rows**2:.0f} MB" if way == "factored" else ""
            made.append(Row(f"{what}: {way}, memory", "MB", [turn[way][1] / 1e6 for turn in turns], target))
    return made


def rbf(rows: int) -> list[Row]:
    """Measure a round of the server with the RBF kernel."""
    seconds, grown = measured("rbf", rows, RANK)
    what = f"server, RBF, R = {rows}, rank {RANK}"
    return [Row(what, "s", [seconds]), Row(f"{what}: memory", "MB", [grown / 1e6])]


def client(rows: int, repeats: int) -> list[Row]:
    """Measure the CKA of one mini-batch by factors and by kernels."""
    uploads = drawn(rows)
    factor, _ = thin_factor(stack_factor(uploads, [1 / CLIENTS] * CLIENTS))
    target = torch.from_numpy(factor.astype(np.float32))

    def by_kernels(own: Tensor) -> Tensor:
        return kernel_cka(own @ own.mT, target @ target.mT)

    def seconds(similarity: Callable[[Tensor], Tensor]) -> float:
        own = torch.from_numpy(uploads[0]).requires_grad_()
        started = process_time()
        similarity(own).backward()  # type: ignore[no-untyped-call]
        return process_time() - started

    turns = [(seconds(by_kernels), seconds(lambda own: linear_cka(own, target))) for _ in range(repeats + 1)][1:]
    kernels, factors = zip(*turns, strict=True)
    what = f"client, R = {rows}, CKA of a mini-batch"
    return [
        Row(f"{what}: by factors", "ms", [1000 * each for each in factors]),
        Row(f"{what}: by kernels over by factors", "times", ratios(kernels, factors)),
    ]


def main(quick: Annotated[bool, typer.Option("--quick", help="Fewer samples and repeats.")] = False) -> None:
    """Measure the server's round and the client's loss and print the table."""
    torch.set_num_threads(1)
    repeats = 1 if quick else 3
    show([*server(SAMPLES, repeats), *rbf(1000 if quick else SAMPLES), *client(SAMPLES, repeats)])


if __name__ == "__main__":
    typer.run(main)
