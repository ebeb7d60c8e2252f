"""Accuracy of one run over its rounds: each client, their mean and band, the global model."""

from __future__ import annotations

from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING

import pandas as pd

from hetfl_flwr.runs.record import name_of
from simulations.reports.plots.comparison import Course, course_of, draw_rounds, require_points
from simulations.reports.plots.drawing import DPI, literal
from simulations.reports.runs import Group, Run, client_scores, method_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_CLIENT_LINES = 12
SHARED_LOOK = 6
"""Black is the mean's, and the grey after it the global model's; the colours before them are the clients'."""


def run_figure(run: Run) -> Figure:
    """Return the accuracy of one run over its rounds: each client, of many a band; their mean; the global model.

    Raises
    ------
    RunFolderError
        If no round of the run was evaluated.
    """
    from matplotlib.figure import Figure

    require_points(run)
    courses = _shared_courses(run)
    if len(run.clients) <= MOST_CLIENT_LINES:
        shared = [replace(course.plain, look=course.look + SHARED_LOOK) for course in courses]
        courses = [*_client_courses(run), *shared]
    figure = Figure(figsize=(8, 4.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    draw_rounds(axes, courses, "accuracy")
    shown = run.summary
    axes.set_title(f"{method_of(run)} on {shown['dataset']}, seed {shown['seed']}", loc="left")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", frameon=False)
    return literal(figure)


def _shared_courses(run: Run) -> list[Course]:
    """Return the mean over the clients, between the lowest and the highest, and the global model if any."""
    mean = course_of(Group("mean over clients", (run,)), 0)
    scores = pd.DataFrame(client_scores(run.rounds), columns=["round", "client", "accuracy"]).groupby("round").accuracy
    if mean.points["round"].tolist() == [*scores.groups]:
        points = mean.points.assign(low=scores.min().to_numpy(), high=scores.max().to_numpy())
        mean = replace(mean, points=points)
    known = {one.round: one.global_accuracy for one in run.rounds if one.global_accuracy is not None}
    return [mean, *([Course.line("global model", 1, known)] if known else [])]


def _client_courses(run: Run) -> list[Course]:
    scores = client_scores(run.rounds)
    courses = []
    for number, client in enumerate(run.clients):
        known = {at: accuracy for at, client_id, accuracy in scores if client_id == client["partition"]}
        name = name_of(client) or f"client {client['partition']}"
        label = name if client["model"] is None else f"{name}: {client['model']}"
        if known:
            courses.append(Course.line(fill(label, 40), number + 2 * (number // SHARED_LOOK), known))
    return courses
