"""Pictures in the form of the paper's own: bars beside the paper's figures, lines, curves, gains, features."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hetfl_flwr.node.node import Node
from simulations.inference.loading import load_client
from simulations.reports.impact import Impact
from simulations.reports.plots.drawing import COLOURS, DASHES, DPI, write_figure
from simulations.reports.plots.impact import ROW_HEIGHT, draw_impact, explain
from simulations.studies.jobs import Job
from simulations.studies.reproduce.outcome import Gains, Outcome, gains_of
from simulations.studies.reproduce.recipe import Cell, Recipe
from simulations.studies.reproduce.records import Record, course_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABREAST = 4
"""Most panels of curves beside each other."""


def draw(recipe: Recipe, found: Sequence[Outcome], runs: Sequence[Job], records: Sequence[Record], path: Path) -> None:
    """Draw what is there into a PNG.

    Nothing is drawn of gains where there are none, and of features where a row is known whose folders, its models, are
    gone.
    """
    cells = list({one.cell.folder: one.cell for one in found}.values())
    measures = recipe.figure.measures or list(recipe.measures)
    figure: Figure | None
    match recipe.figure.kind:
        case "bars":
            figure = _bars(recipe, found, measures)
        case "lines":
            figure = _lines(recipe, found, measures)
        case "curves":
            figure = _curves(recipe, cells, records)
        case "gains":
            figure = _gains(recipe, found, gains_of(cells, records))
        case "features":
            models = {job.folder.parent.name: job.folder for job in reversed(runs) if job.finished}  # the first seed's
            figure = _features(recipe, cells, models) if {one.cell for one in records} <= models.keys() else None
    if figure is not None:
        figure.suptitle(recipe.title, wrap=True)
        write_figure(figure, path)


def _panels(
    count: int, width: float, height: float, *, abreast: int = ABREAST, margin: float = 0.0, sharey: bool = False
) -> "tuple[Figure, list[Any]]":
    """Return a figure of panels of this size in inches, so many of them beside each other."""
    from matplotlib.figure import Figure

    across, down = min(count, abreast), ceil(count / abreast)
    figure = Figure(figsize=(width * across + margin, height * down), dpi=DPI, layout="constrained")
    places = figure.subplots(down, across, squeeze=False, sharey=sharey).ravel()
    for axes in places[count:]:
        axes.remove()
    return figure, list(places[:count])


def _bars(recipe: Recipe, found: Sequence[Outcome], measures: Sequence[str]) -> "Figure":
    """Draw a panel a measure: for each row the paper's figure, and the mean and standard deviation of ours."""
    rows = list(dict.fromkeys(outcome.cell.name for outcome in found))
    places, count = np.arange(len(rows)), len(measures)
    figure, panels = _panels(count, 4, 0.4 * len(rows) + 1.6, abreast=count, margin=2, sharey=True)
    for axes, measure in zip(panels, measures, strict=True):
        those = [one for one in found if one.measure == measure]
        paper, ours = [one.paper for one in those], [one.mean for one in those]
        error = [one.deviation or 0 for one in those]
        axes.barh(places - 0.2, [value or 0 for value in paper], 0.38, color=COLOURS[7], label="paper")
        axes.barh(places + 0.2, [value or 0 for value in ours], 0.38, xerr=error, color=COLOURS[0], label="ours")
        low = min([value for value in (*paper, *ours) if value is not None], default=0)
        if recipe.measures[measure].unit == "%" and low > 50:
            axes.set_xlim(low - 5, 100)
        axes.set_xlabel(_named(recipe, measure))
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(places, rows)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    panels[-1].legend(loc="lower right")
    return figure


def _curves(recipe: Recipe, cells: Sequence[Cell], records: Sequence[Record]) -> "Figure":
    """Draw a panel a column and figure of a round: for each row the mean over the seeds, and their deviation.

    Of a single row all figures of a round share a panel.
    """
    folders = {(cell.row, cell.column): cell.folder for cell in cells}
    rows, columns = (dict.fromkeys(names) for names in zip(*folders, strict=True))
    alone = len(rows) == 1
    shown = [recipe.figure.y] if alone else [[y] for y in recipe.figure.y]
    panels = list(product(columns, shown))
    figure, places = _panels(len(panels), 5.2, 4)
    for axes, (column, ys) in zip(places, panels, strict=True):
        for number, (row, y) in enumerate(product(rows, ys)):
            courses = [one.courses[course_name(y)] for one in records if one.cell == folders.get((row, column))]
            shortest = min((len(values) for _, values in courses), default=0)
            if shortest == 0:
                continue
            x = courses[0][0][:shortest]
            values = np.stack([values[:shortest] for _, values in courses])
            mean, deviation, colour = values.mean(0), values.std(0), COLOURS[number % len(COLOURS)]
            dash = DASHES[number // len(COLOURS) % len(DASHES)]
            axes.plot(x, mean, dash, color=colour, label=_called(recipe, y) if alone else row)
            axes.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.2)
            axes.legend()
        axes.set_xlabel("round")
        axes.set_ylabel("" if len(ys) > 1 else _called(recipe, ys[0]))
        axes.set_title(column)
        axes.grid(alpha=0.3)
    return figure


def _lines(recipe: Recipe, found: Sequence[Outcome], measures: Sequence[str]) -> "Figure":
    """Draw a panel a measure: for each row the mean and standard deviation over the columns."""
    figure, panels = _panels(len(measures), 5.2, 4, abreast=len(measures))
    for axes, measure in zip(panels, measures, strict=True):
        for number, row in enumerate(dict.fromkeys(outcome.cell.row for outcome in found)):
            those = [one for one in found if (one.cell.row, one.measure) == (row, measure) and one.mean is not None]
            names, values = [one.cell.column for one in those], [one.mean for one in those]
            error = [one.deviation or 0 for one in those]
            axes.errorbar(names, values, error, color=COLOURS[number % len(COLOURS)], marker="o", capsize=3, label=row)
        axes.set_ylabel(_named(recipe, measure))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _gains(recipe: Recipe, found: Sequence[Outcome], gains: Gains) -> "Figure | None":
    """Draw a panel a column: for each row its clients' gains, the largest mean on top, and a measure beside it.

    None where no row has a gain: that which it is compared with has not been run.
    """
    columns: dict[str, dict[str, Impact]] = {}
    for (row, column), seeds in gains.items():
        columns.setdefault(column, {})[row] = Impact.of(list(seeds.values()))
    if not columns:
        return None
    texts = {
        (one.cell.row, one.cell.column): f"{one.mean:,.1f} {one.unit}".rstrip()
        for one in found
        if one.measure in recipe.figure.measures and one.mean is not None
    }
    figure, places = _panels(len(columns), 7, 1.4 + ROW_HEIGHT * max(map(len, columns.values())), abreast=2)
    for axes, (column, rows) in zip(places, columns.items(), strict=True):
        ordered = dict(sorted(rows.items(), key=lambda one: -one[1].gain.mean))
        draw_impact(axes, ordered, {row: texts.get((row, column), "") for row in ordered})
        axes.set_title(column)
        axes.set_xlabel("points over the row that a row is compared with")
    explain(figure)
    return figure


def _features(recipe: Recipe, cells: Sequence[Cell], models: Mapping[str, Path]) -> "Figure":
    """Draw a panel a row: the first two principal components of all domains' test features, coloured by class."""
    from sklearn.decomposition import PCA

    shown = [cell for cell in cells if cell.folder in models]
    figure, panels = _panels(len(shown), 4.5, 4.5, abreast=len(shown))
    for axes, cell in zip(panels, shown, strict=True):
        features, labels = _embedded(load_client(models[cell.folder], recipe.figure.client))
        x, y = PCA(2).fit_transform(features).T  # type: ignore[no-untyped-call]
        dots = axes.scatter(x, y, c=labels, s=6, cmap="tab10" if labels.max() < 10 else "viridis")
        axes.set_title(cell.name)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(dots, label="class")
    return figure


@torch.no_grad()
def _embedded(node: Node) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features (N, D) that a client's model gives the test samples of all domains, and their labels (N,)."""
    batches = [samples.batch(torch.arange(len(samples))) for samples in (node.data.test, *node.data.others)]
    features = torch.cat([node.model.body(inputs) for inputs, _ in batches])
    return features.cpu().numpy(), torch.cat([labels for _, labels in batches]).cpu().numpy()


def _named(recipe: Recipe, measure: str) -> str:
    return f"{measure} ({recipe.measures[measure].unit})" if recipe.measures[measure].unit else measure


def _called(recipe: Recipe, key: str) -> str:
    """Return the name of the measure with this key, or the key where none has it."""
    return next((name for name, measure in recipe.measures.items() if measure.key == key), key)
