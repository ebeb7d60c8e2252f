"""Pictures in the style of the paper's: our figures and the paper's, curves, gains and features."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil, floor, inf
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hetfl_flwr.node.node import Node
from simulations.inference.loading import load_client
from simulations.reports.impact import Impact
from simulations.reports.pairing import LOCAL
from simulations.reports.plots.comparison import Course, draw_rounds, name_lines
from simulations.reports.plots.drawing import COLOURS, headed, legend_below, page, write_figure
from simulations.reports.plots.impact import ROW_HEIGHT, draw_impact, explain
from simulations.studies.jobs import Job
from simulations.studies.reproduce.entries import Entry, Gains, gains_of
from simulations.studies.reproduce.recipe import Cell, Recipe
from simulations.studies.reproduce.records import Record, course_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABREAST = {"bars": 6, "curves": 2, "gains": 5, "differences": 4}
"""Maximum number of panels in a row."""

NAMED = 3
"""Maximum number of columns whose largest gains a title names."""

ROW, MANY = (0.24, 0.19), 20
"""Height of a row of figures, in inches; the second one applies to more than `MANY` rows."""

TALLEST = 7.0
"""Maximum height of all panels of figures, in inches."""

DECADES = 100
"""Positive numbers that differ by more than this factor get a logarithmic axis."""


def draw(recipe: Recipe, found: Sequence[Entry], runs: Sequence[Job], records: Sequence[Record], path: Path) -> None:
    """Draw the figures of a recipe into a PNG file.

    Nothing is drawn for gains if there are none, and for features if the run folder of a recorded row is missing, since
    it holds the models. An earlier picture of features is kept then, any other is removed.
    """
    if recipe.figure.kind != "features":
        path.unlink(missing_ok=True)
    cells = list({one.cell.folder: one.cell for one in found}.values())
    measures = recipe.figure.measures or list(recipe.measures)
    known = [one for one in found if one.measure in measures and one.mean is not None]
    drawn: tuple[Figure, str] | None = None
    match recipe.figure.kind:
        case "bars" if known:
            drawn = _figures(recipe, known)
        case "curves":
            drawn = _curves(recipe, cells, records)
        case "gains":
            drawn = _gains(recipe, found, gains_of(cells, records))
        case "differences":
            drawn = _differences(recipe, found)
        case "features":
            models = {job.folder.parent.name: job.folder for job in reversed(runs) if job.finished}  # of the first seed
            whole = {one.cell for one in records} <= models.keys()
            drawn = (_features(recipe, cells, models), "") if whole else None
    if drawn is not None:
        figure, sentence = drawn
        write_figure(headed(figure, recipe.title, sentence), path)


def _panels(count: int, kind: str, height: float, *, sharey: bool = True) -> "tuple[Figure, list[Any]]":
    """Return a page of panels, each with a height in inches."""
    across = min(count, ABREAST[kind])
    down = ceil(count / across)
    figure = page(height * down + 1.2)
    places = figure.subplots(down, across, squeeze=False, sharey=sharey).ravel()
    for axes in places[count:]:
        axes.remove()
    return figure, list(places[:count])


def _figures(recipe: Recipe, known: Sequence[Entry]) -> "tuple[Figure, str]":
    """Draw a panel for each column and measure: for each row the paper's figure, and our mean and deviation.

    Only the first measures are drawn if a page has no room for all.
    """
    columns, rows, measures = (
        list(dict.fromkeys(values))
        for values in zip(*((one.cell.column, one.cell.row, one.measure) for one in known), strict=True)
    )
    high = ROW[len(rows) > MANY] * len(rows) + 0.7
    measures = measures[: max(1, int(TALLEST / high) * ABREAST["bars"] // len(columns))]
    panels = list(product(measures, columns))
    figure, places = _panels(len(panels), "bars", high)
    for axes, (measure, column) in zip(places, panels, strict=True):
        those = [one for one in known if (one.measure, one.cell.column) == (measure, column)]
        heights = np.array([rows.index(one.cell.row) for one in those])
        means, error = [one.mean for one in those], [one.deviation or 0 for one in those]
        paper = [inf if one.paper is None else one.paper for one in those]
        axes.plot(paper, heights - 0.17, "d", color=COLOURS[7], markersize=5, label="the paper's figure")
        label = "ours: mean and standard deviation over seeds"
        axes.errorbar(means, heights + 0.17, xerr=error, fmt="o", color=COLOURS[0], markersize=4, label=label)
        _scale(axes, recipe.measures[measure].unit, [one for one in known if one.measure == measure])
        _dress_rows(axes, fill(column, 16), _named(recipe, measure), [fill(row, 40) for row in rows])
    handles, labels = places[0].get_legend_handles_labels()
    first = int(all(one.paper is None for one in known))
    legend_below(figure, handles[first:], labels[first:])
    return figure, _distance(known)


def _scale(axes: Any, unit: str, found: Sequence[Entry]) -> None:
    """Let an axis of shares end at multiples of 10 %; other axes are logarithmic if the figures are far apart."""
    from matplotlib.ticker import EngFormatter

    values = np.asarray([value for one in found for value in (one.paper, one.mean) if value is not None])
    if unit == "%":
        most = max(one.deviation or 0 for one in found)
        ends = np.clip([10 * floor((values.min() - most) / 10), 10 * ceil((values.max() + most) / 10)], 0, 100)
        edge = max(ends[1] - ends[0], 1) / 50
        axes.set_xlim(ends[0] - edge, ends[1] + edge)
    elif values.min() > 0 and values.max() > DECADES * values.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())


def _dress_rows(axes: Any, title: str, x: str, rows: Sequence[str], grid: str = "both") -> None:
    """Format a panel with a row for each name, the first on top."""
    axes.set_title(title, fontsize="small")
    axes.set_xlabel(x, fontsize="small")
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3, axis=grid)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _distance(found: Sequence[Entry]) -> str:
    """Describe how far our figures are from the paper's, in points or as a share of the paper's figure."""
    pairs = [(one, one.paper) for one in found if one.difference is not None and one.paper]
    if not pairs:
        best = max(found, key=lambda one: one.mean or -inf)
        digits = 1 if best.unit in ("%", "points") else 0
        return f"{best.cell.name} has the highest {best.measure}: {best.mean:,.{digits}f} {best.unit}".rstrip()
    shares = all(one.unit in ("%", "points") for one, _ in pairs)
    away = [abs(one.difference or 0) / (1 if shares else abs(paper) / 100) for one, paper in pairs]
    middle, most, unit = f"{median(away):.1f}", f"{max(away):.1f}", "points" if shares else "%"
    if len(pairs) == 1:
        return f"Our figure differs from the paper's by {most} {unit}"
    return f"Our {len(pairs)} figures differ from the paper's by {middle} {unit} in the median, by {most} at most"


def _curves(recipe: Recipe, cells: Sequence[Cell], records: Sequence[Record]) -> "tuple[Figure, str] | None":
    """Draw a panel for each column and reported value: for each row the mean and deviation over seeds.

    With a single row, all values share a panel, except losses.
    """
    folders = {(cell.row, cell.column): cell.folder for cell in cells}
    rows, columns = (dict.fromkeys(names) for names in zip(*folders, strict=True))
    alone = len(rows) == 1
    panels, ends = dict[tuple[str, str], list[Course]](), dict[tuple[str, str], dict[str, float]]()
    for column, y, (look, row) in product(columns, recipe.figure.y, enumerate(rows)):
        known = [one.courses[course_name(y)] for one in records if one.cell == folders.get((row, column))]
        shortest = min((len(values) for _, values in known), default=0)
        if shortest:
            values = np.stack([values[:shortest] for _, values in known])
            points = pd.DataFrame({"round": known[0][0][:shortest], "value": values.mean(0)})
            if len(known) > 1:
                spread = values.std(0, ddof=1)
                points = points.assign(low=points.value - spread, high=points.value + spread)
            name, end = (_called(recipe, y), points.value.iloc[-1])
            loss = "loss" in y
            key, label = ((column, "loss" if loss else "accuracy"), name) if alone else ((column, name), row)
            said = f"{end:.2f}" if loss else f"{100 * end:.1f} %"
            own = panels.setdefault(key, [])
            own.append(Course(f"{label} {said}", len(own) if alone else look, points))
            ends.setdefault(key, {})[label] = end
    if not panels:
        return None
    figure, places = _panels(len(panels), "curves", 2.6, sharey=False)
    for axes, ((column, name), courses) in zip(places, panels.items(), strict=True):
        draw_rounds(axes, courses, name, share="loss" not in name)
        axes.set_title(column, fontsize="medium")
        name_lines(figure, [axes], courses)
    shares = [own for (_, name), own in ends.items() if "loss" not in name]
    if not shares:
        return figure, ""
    (first, count), *_ = Counter(max(own, key=lambda label: own[label]) for own in shares).most_common(1)
    return figure, f"{first} ends highest" + f" in {count} of {len(shares)} panels" * (len(shares) > 1)


def _gains(recipe: Recipe, found: Sequence[Entry], gains: Gains) -> "tuple[Figure, str] | None":
    """Draw a panel for each column: for each row its clients' gains, the largest mean first.

    A single panel has a measure next to each row. With several panels, the recipe can select rows. None if no row has
    gains, since the baseline was not run.
    """
    columns: dict[str, dict[str, Impact]] = {}
    against = {one.cell.row: one.cell.against for one in found}
    for (row, column), seeds in gains.items():
        if row != against[row]:
            columns.setdefault(column, {})[row] = Impact.of(list(seeds.values()))
    if not columns:
        return None
    several = len(columns) > 1
    rows = list(dict.fromkeys(row for impacts in columns.values() for row in impacts))
    if several and recipe.shown:
        rows = [row for row in rows if row in recipe.shown] or rows
        columns = {name: {row: own[row] for row in rows if row in own} for name, own in columns.items()}
    means = {row: fmean(own[row].gain.mean for own in columns.values() if row in own) for row in rows}
    rows.sort(key=lambda row: -means[row])
    texts = {
        one.cell.row: f"{one.mean:,.1f} {one.unit}".rstrip()
        for one in found
        if not several and one.measure in recipe.figure.measures and one.mean is not None
    }
    figure, places = _panels(len(columns), "gains", 0.9 + ROW_HEIGHT * len(rows))
    for axes, (column, own) in zip(places, columns.items(), strict=True):
        draw_impact(axes, {row: own.get(row) for row in rows}, texts)
        axes.set_title(fill(column, 18), fontsize="small")
    compared = {against[row] for row in rows}
    alone = {one.cell.settings["algorithm"] for one in found if one.cell.row in compared} == {LOCAL}
    alike = " with the same models" if len(compared) > 1 else ""
    over = f"training alone{alike}" if alone else "the row that each is compared with"
    explain(figure, f"Points over {over}{'; right: ' * bool(texts)}{', '.join(recipe.figure.measures * bool(texts))}")
    return figure, _gaining(columns) if len(columns) <= NAMED else ""


def _differences(recipe: Recipe, found: Sequence[Entry]) -> "tuple[Figure, str] | None":
    """Draw a panel per column: for each row its paired difference with its interval, and the paper's difference."""
    first = next(iter(recipe.measures))
    known = [(one.cell, one.against) for one in found if one.measure == first and one.against is not None]
    if not known:
        return None
    columns, rows = (
        list(dict.fromkeys(each)) for each in zip(*((cell.column, cell.row) for cell, _ in known), strict=True)
    )
    figure, places = _panels(len(columns), "differences", 0.9 + 0.34 * len(rows))
    for axes, column in zip(places, columns, strict=True):
        gaps = {rows.index(cell.row): gap for cell, gap in known if cell.column == column}
        ends = [[abs(end - gap.mean) for end in gap.interval or (gap.mean, gap.mean)] for gap in gaps.values()]
        paper = [inf if gap.paper is None else gap.paper for gap in gaps.values()]
        axes.axvline(0, color="0.5", linewidth=1)
        axes.plot(paper, list(gaps), "d", color=COLOURS[1], markersize=6, label="the paper's difference")
        look = {"fmt": "o", "color": COLOURS[0], "markersize": 4, "label": "ours: mean and 95 % interval over seeds"}
        axes.errorbar([gap.mean for gap in gaps.values()], list(gaps), xerr=np.transpose(ends), **look)
        _dress_rows(axes, fill(column, 24), "points", [fill(row, 30) for row in rows], grid="x")
    handles, labels = places[0].get_legend_handles_labels()
    without = int(all(gap.paper is None for _, gap in known))
    others = " or ".join(dict.fromkeys(cell.against for cell, _ in known))
    legend_below(figure, handles[without:], labels[without:], f"{first} less that of {others}")
    intervals = [(gap.interval, gap.paper) for _, gap in known if gap.interval]
    stated = [min(end * paper for end in interval) > 0 for interval, paper in intervals if paper]
    if stated:
        return figure, f"{sum(stated)} of {len(stated)} intervals (95 %) are on the paper's side of 0"
    above = sum(interval[0] > 0 for interval, _ in intervals)
    if not intervals:
        return figure, ""
    return figure, f"{above} of {len(intervals)} intervals (95 %) are above 0"


def _gaining(columns: Mapping[str, Mapping[str, Impact]]) -> str:
    """Name the row that clearly gains most in each column, and the columns where none does."""
    gaining, unclear = [], []
    for column, rows in columns.items():
        known = {row: impact.gain.mean for row, impact in rows.items() if impact.shown and impact.gain.mean > 0}
        where = f" ({column})" if column else ""
        if known:
            best = max(known, key=lambda row: known[row])
            gaining.append(f"{best} {100 * known[best]:+.1f} points{where}")
        else:
            unclear.append(column or "any row")
    said = [f"Largest clear gain: {', '.join(gaining)}"] * bool(gaining)
    return "; ".join([*said, *[f"no clear gain: {', '.join(unclear)}"] * bool(unclear)])


def _features(recipe: Recipe, cells: Sequence[Cell], models: Mapping[str, Path]) -> "Figure":
    """Draw a panel for each row: the first two principal components of all test features, colored by class."""
    from sklearn.decomposition import PCA

    shown = [cell for cell in cells if cell.folder in models]
    figure, panels = _panels(len(shown), "bars", 2.4)
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
    """Return the features (N, D) of the test samples of all domains by a client's model, and their labels (N,)."""
    batches = [samples.batch(torch.arange(len(samples))) for samples in (node.data.test, *node.data.others)]
    features = torch.cat([node.model.body(inputs) for inputs, _ in batches])
    return features.cpu().numpy(), torch.cat([labels for _, labels in batches]).cpu().numpy()


def _named(recipe: Recipe, measure: str) -> str:
    return f"{measure} ({recipe.measures[measure].unit})" if recipe.measures[measure].unit else measure


def _called(recipe: Recipe, key: str) -> str:
    """Return the name of the measure with this key, or the key if there is none."""
    return next((name for name, measure in recipe.measures.items() if measure.key == key), key)
