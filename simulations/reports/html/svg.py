"""Pictures of runs as SVG inside a page: matplotlib draws them, and the page gives them its colours.

Accuracies are fractions in [0, 1].
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hetfl_flwr.runs.figures.tables import NOTHING
from hetfl_flwr.runs.schema import name_of
from simulations.reports.estimates import with_interval
from simulations.reports.impact import Standing
from simulations.reports.plots.comparison import Course, course_of, draw_costs, draw_rounds, page_figure, run_courses
from simulations.reports.plots.drawing import COLOURS
from simulations.reports.plots.impact import impact_figure
from simulations.reports.plots.run import client_figure
from simulations.reports.runs import Group, Run, client_scores, curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS, MOST_SMALL_POINTS = 400, 60
"""Of a line, and of a client's line; others are left out evenly."""
MOST_SMALL_PICTURES = 60
PAGE_COLOURS = {colour.lower(): f"var(--c{number})" for number, colour in enumerate(COLOURS)}
PAGE_COLOURS["#000000"] = "currentColor"
"""What stands in the page for a colour of the figure: so they follow light and dark."""


@dataclass(frozen=True)
class Picture:
    """An SVG element with its heading, and what is to be said below it."""

    title: str
    svg: Markup
    note: str = ""


def over_rounds(groups: Sequence[Group]) -> Picture | None:
    """Return accuracy over rounds: of one run, or of each method's runs; None without an evaluation."""
    title, runs = "Accuracy over rounds", [run for group in groups for run in group.runs]
    courses = run_courses(runs[0]) if len(runs) == 1 else _courses(groups)
    courses = [_thinned(course) for course in courses if course.rounds.size]
    if not courses:
        return None
    band = "from the lowest client to the highest" if len(runs) == 1 else "one standard deviation over seeds each way"
    return Picture(
        title,
        _inline(partial(page_figure, courses, draw_rounds), title, _description(title, courses)),
        _note(courses, band),
    )


def over_payload(groups: Sequence[Group]) -> Picture | None:
    """Return accuracy over the payload of all clients, up and down, sent before; None where nothing is."""
    title = "Accuracy over payload"
    paid = [course if course.free else course.at(course.payload > 0) for course in _courses(groups)]
    courses = [_thinned(course) for course in paid if course.rounds.size]
    if all(course.free for course in courses):
        return None
    svg = _inline(partial(page_figure, courses, draw_costs), title, _description(title, courses))
    return Picture(title, svg, _note(courses, "one standard deviation over seeds each way"))


def of_gains(found: Sequence[Standing], baseline: str) -> Picture:
    """Return who gains how much by each method: a dot for each client, and the mean with its interval."""
    title = f"Points over {baseline}, a dot for each client"
    each = (f"{one.method}: {with_interval(one.impact.gain)} points" for one in found)
    return Picture(title, _inline(partial(impact_figure, found), title, f"{title}. {'; '.join(each)}."), "")


def of_clients(run: Run) -> list[Picture]:
    """Return a picture of each client's accuracy, on one scale, before that of the mean; none of very many clients."""
    points, scores = curve(run), client_scores(run.rounds)
    if not points.rounds.size or len(run.clients) > MOST_SMALL_PICTURES:
        return []
    mean = np.column_stack([points.rounds, points.accuracy])
    every = np.array([(at, accuracy) for at, _, accuracy in scores] or mean)
    corners = np.vstack([mean, every])[:, 0], every[:, 1]
    scale = np.array([[values.min() for values in corners], [values.max() for values in corners]])
    pictures = []
    for client in run.clients:
        own = np.array([(at, accuracy) for at, client_id, accuracy in scores if client_id == client["partition"]])
        if own.size:
            name = " ".join(filter(None, (name_of(client) or f"client {client['partition']}", client["model"])))
            description = f"{with_sign(own[0, 1])} to {with_sign(own[-1, 1])}"
            few, few_means = (line[_evenly(len(line), MOST_SMALL_POINTS)] for line in (own, mean))
            draw = partial(client_figure, few, few_means, scale)
            pictures.append(Picture(name, _inline(draw, name, f"{name}: {description}"), description))
    return pictures


def with_sign(value: float | None) -> str:
    """Return a fraction in %, with the sign."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _courses(groups: Sequence[Group]) -> list[Course]:
    return [course_of(group, number) for number, group in enumerate(groups)]


def _thinned(course: Course) -> Course:
    return course.at(_evenly(course.rounds.size, MOST_POINTS))


def _evenly(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the numbers 0..size-1, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def _description(title: str, courses: Sequence[Course]) -> str:
    """Say what is to be seen."""
    ends = (f"from {with_sign(course.accuracy[0])} to {with_sign(course.accuracy[-1])}" for course in courses)
    lines = (f"{' '.join(course.label.split())}: {end}" for course, end in zip(courses, ends, strict=True))
    return f"{title}. {'; '.join(lines)}."


def _note(courses: Sequence[Course], band: str) -> str:
    return f"Band: {band}." if any(course.banded for course in courses) else ""


def _inline(draw: Callable[[], Figure], name: str, description: str) -> Markup:
    """Return a figure as an SVG element of a page, whose ids no picture of another name has."""
    from matplotlib import style

    file = BytesIO()
    with style.context({"svg.fonttype": "none", "svg.hashsalt": name}, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's font is the reader's
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw().savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = ElementTree.fromstring(file.getvalue())
    svg.remove(svg[0])  # matplotlib's style, which would be that of the whole page
    for element in svg.iter():
        _fit(element)
    svg.attrib = {"viewBox": svg.attrib["viewBox"], "role": "img", "aria-label": description}
    return Markup(ElementTree.tostring(svg, encoding="unicode"))


def _fit(element: ElementTree.Element) -> None:
    """Give an element the page's colours and font; HTML knows SVG without namespaces."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: value for name, value in element.items()}
    if element.tag == "g":
        attributes.pop("id", None)  # a number of the figure, which the next one has as well
    if "style" in attributes:
        own = re.sub(r"font-family: [^;]*(; )?", "", attributes["style"])
        attributes["style"] = re.sub("#[0-9a-f]{6}", lambda found: PAGE_COLOURS.get(found[0], found[0]), own)
    element.attrib = attributes
