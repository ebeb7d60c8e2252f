"""What is run for a recipe: its cells, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.studies import jobs as many
from simulations.studies.reproduce.recipe import Cell


@dataclass(frozen=True)
class Job(many.Job):
    """One cell with one seed."""

    cell: Cell
    seed: int


def jobs(cells: Sequence[Cell], seeds: int, folder: Path) -> list[Job]:
    """Return what is to be run, all cells of a seed before the next seed."""
    return [
        Job(
            name=f"{cell.name}, seed {seed}",
            folder=folder / cell.folder / f"seed-{seed}",
            settings={**cell.settings, "seed": seed},
            cell=cell,
            seed=seed,
        )
        for seed in range(seeds)
        for cell in cells
    ]
