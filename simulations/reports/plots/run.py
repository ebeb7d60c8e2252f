"""Accuracy of one run over its rounds: each client, their mean and band, the global model."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.errors import RunFolderError
from hetfl_flwr.runs.schema import ClientRecord, name_of
from simulations.reports.plots.drawing import COLOURS, DASHES, DPI, SMALL_SIZE, dress, literal
from simulations.reports.runs import Run, client_scores, curve, figures, method_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_CLIENT_LINES = 12
CLIENT_COLOURS = 6
"""The first so many colours are the clients'; black is the mean's."""
FEW_POINTS = 30
"""Up to so many evaluated rounds each one is marked."""


def run_figure(run: Run) -> Figure:
    """Return the accuracy of one run's clients over its rounds as a figure.

    Raises
    ------
    RunFolderError
        If no round of the run was evaluated.
    """
    from matplotlib.figure import Figure

    points = curve(run)
    require_points(run)
    figure = Figure(figsize=(8, 4.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    marker = "o" if points.rounds.size <= FEW_POINTS else ""
    name = "mean"
    if len(run.clients) == 1:
        name = _client_name(run.clients[0])
    elif len(run.clients) <= MOST_CLIENT_LINES:
        _draw_clients(axes, run, marker)
    else:
        _draw_band(axes, run)
    axes.plot(points.rounds, points.accuracy, color="black", linewidth=2.6, marker=marker, label=name)
    _draw_global(axes, run, marker)
    shown = figures(run)
    axes.set_title(f"{method_of(run)} on {shown['dataset']}, seed {shown['seed']}", loc="left")
    dress(axes, "accuracy")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", frameon=False)
    return literal(figure)


def client_figure(own: NDArray[np.float64], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Figure:
    """Return a client's accuracy over the rounds before the mean of all, without axes; rows are (round, accuracy).

    Parameters
    ----------
    own, mean : array of shape (n, 2)
    scale : array of shape (2, 2)
        The lowest and the highest point of all clients.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SMALL_SIZE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.plot(*mean.T, color=COLOURS[7], linewidth=1.5, alpha=0.7, clip_on=False)
    axes.plot(*own.T, color=COLOURS[0], linewidth=1.5, clip_on=False)
    axes.dataLim.set_points(scale)
    axes.autoscale_view()
    return figure


def require_points(run: Run) -> None:
    """Refuse a run of which nothing can be drawn."""
    if not curve(run).rounds.size:
        if run.damage:
            raise RunFolderError(f"{run.damage}; no other round was evaluated: nothing to draw")
        raise RunFolderError(f"{run.folder}: no round was evaluated yet: nothing to draw; let it run on")


def _client_name(client: ClientRecord) -> str:
    name = name_of(client) or f"client {client['partition']}"
    return name if client["model"] is None else f"{name}: {client['model']}"


def _draw_clients(axes: Axes, run: Run, marker: str) -> None:
    scores = client_scores(run.rounds)
    for number, client in enumerate(run.clients):
        points = [(at, accuracy) for at, client_id, accuracy in scores if client_id == client["partition"]]
        axes.plot(
            *np.array(points, dtype=np.float64).reshape(-1, 2).T,
            color=COLOURS[number % CLIENT_COLOURS],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.1,
            marker=marker,
            markersize=3,
            label=fill(_client_name(client), 40),
        )


def _draw_band(axes: Axes, run: Run) -> None:
    label = f"lowest to highest\nof {len(run.clients)} clients"
    axes.fill_between(*extremes(run), color=COLOURS[5], alpha=0.4, linewidth=0, label=label)


def extremes(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the rounds that any client evaluated, and the lowest and highest accuracy in each; shapes (n,)."""
    scores = np.array(client_scores(run.rounds), dtype=np.float64).reshape(-1, 3)
    rounds, starts = np.unique(scores[:, 0], return_index=True)
    return rounds, np.minimum.reduceat(scores[:, 2], starts), np.maximum.reduceat(scores[:, 2], starts)


def _draw_global(axes: Axes, run: Run, marker: str) -> None:
    points = global_points(run)
    if points.size:
        axes.plot(*points.T, color="black", linewidth=1.8, linestyle="--", marker=marker, label="global model")


def global_points(run: Run) -> NDArray[np.float64]:
    """Return the global model's (round, accuracy); shape (n, 2)."""
    points = [(record.round, record.global_accuracy) for record in run.rounds]
    return np.array([point for point in points if point[1] is not None], dtype=np.float64).reshape(-1, 2)
