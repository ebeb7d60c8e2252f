"""Accuracy of one run over its rounds: each client, their mean and band, the global model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from hetfl_flwr.runs.record import name_of
from simulations.reports.plots.comparison import Course, course_of, draw_rounds, name_lines, require_points
from simulations.reports.plots.drawing import headed, page
from simulations.reports.runs import Group, Run, client_scores, method_of
from simulations.reports.terminal import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_CLIENT_LINES = 12
SHARED_LOOK = 6
"""Black is the mean's, and the grey after it the global model's; the colours before them are the clients'."""


def run_figure(run: Run) -> Figure:
    """Return the accuracy of one run over its rounds: each client, of many a band; their mean; the global model.

    Raises
    ------
    RunFolderError
        If no round of the run was evaluated.
    """
    require_points(run)
    mean = replace(course_of(Group("mean over clients", (run,)), 0), look=SHARED_LOOK)
    scores = pd.DataFrame(client_scores(run.rounds), columns=["round", "client", "accuracy"])
    courses = []
    if len(run.clients) <= MAX_CLIENT_LINES:
        for number, client in enumerate(run.clients):
            own = scores[scores.client == client["partition"]]
            name = name_of(client) or f"client {client['partition']}"
            label = name if client["model"] is None else f"{name}: {client['model']}"
            if len(own):
                look = number + 2 * (number // SHARED_LOOK)
                courses.append(Course.line(label, look, dict(zip(own["round"], own.accuracy, strict=True))))
    else:
        among = scores.groupby("round").accuracy.agg(low="min", high="max")
        mean = replace(mean, label="mean and range of clients", points=mean.points.join(among, on="round"))
    known = {one.round: one.global_accuracy for one in run.rounds if one.global_accuracy is not None}
    shared = [mean, *([Course.line("global model", SHARED_LOOK + 1, known)] if known else [])]
    figure = page(4.2)
    axes = figure.add_subplot()
    draw_rounds(axes, [*courses, *shared], "accuracy")
    name_lines(figure, [axes], [*courses, *shared])
    first, last = mean.points.iloc[0], mean.points.iloc[-1]
    went = f"from {percent(first.value)} to {percent(last.value)} % in {last['round'] - first['round']:,.0f} rounds"
    of = f"{method_of(run)} on {run.summary['dataset']}, seed {run.summary['seed']}"
    return headed(figure, f"{of}: the clients' mean accuracy goes {went}")
