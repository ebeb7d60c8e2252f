"""What all pictures are drawn with: colours, sizes, axes, names of lines, and how a figure becomes a file.

Matplotlib is imported only when something is drawn, and no display is needed. Colours are Okabe and Ito's,
which colour-blind readers can tell apart; lines differ in markers as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hetfl_flwr.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "*": "★", "<": "◀"}
"""Markers of lines, each with the letter that stands for it in a text."""
DPI = 150
WIDTH = 8.0
"""Of a picture that fills a page, in inches."""
LONGEST_LABEL = 80
LINE, LETTER, BOLD = 0.17, 0.075, 0.088
"""Height of a line of small text, and width of a letter of it and of a title, in inches."""
LABEL = 26
"""Letters of a line of a name beside axes."""


def page(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def headed(figure: Figure, *lines: str) -> Figure:
    """Give a figure its title, a sentence, and return it with each dollar sign as it is: names hold no formulas."""
    from matplotlib.text import Text

    letters = int(figure.get_figwidth() / BOLD)
    title = "\n".join(fill(line, letters) for line in lines if line)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    for text in figure.findobj(Text):
        text.set_text(text.get_text().replace("$", r"\$"))
    return figure


def dress(axes: Axes, y: str | None, values: Iterable[float], *, share: bool = True) -> None:
    """Dress axes of a figure over rounds.

    Parameters
    ----------
    axes : Axes
        Of one panel.
    y : str or None
        What is drawn; None: the axes beside say it.
    values : iterable of float
        All that is drawn; a share's axis ends at the tens of per cent around them.
    share : bool
        Whether they are fractions in [0, 1], such as accuracies.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_xlabel("round")
    axes.set_ylabel(y or "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if share and (drawn := [value for value in values if value == value]):
        axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        low, high = floor(10 * min(drawn)) / 10, ceil(10 * max(drawn)) / 10
        edge = 0.015 * (high - low or 1)
        axes.set_ylim(max(low, 0.0) - edge, min(high, 1.0) + edge)


def name_ends(axes: Axes, names: Sequence[str], ends: Sequence[float], colours: Sequence[str], height: float) -> bool:
    """Write names beside axes where their lines end, moved apart; return whether they have found room.

    Parameters
    ----------
    axes : Axes
        The panel, or of panels that share their y axis the last one.
    names, ends, colours : sequence
        What the lines are called, their last values and their colours.
    height : float
        Of the axes, about, in inches.
    """
    texts = [fill(name, LABEL) for name in names]
    low, high = axes.get_ylim()
    tall = np.array([LINE * (high - low) / height * len(text.splitlines()) for text in texts])
    order = np.argsort(ends, kind="stable")
    if tall.sum() > high - low:
        return False
    floors = low + np.cumsum(tall[order]) - tall[order]
    bottoms = np.maximum(np.asarray(ends)[order] - tall[order] / 2, floors)
    for place in range(1, len(bottoms)):
        bottoms[place] = max(bottoms[place], bottoms[place - 1] + tall[order[place - 1]])
    ceilings = high - np.cumsum(tall[order][::-1])[::-1]
    bottoms = np.minimum(bottoms, ceilings)
    for place, bottom in zip(order, bottoms, strict=True):
        middle = (1.02, bottom + tall[place] / 2)
        where = ("axes fraction", "data")
        axes.annotate(
            texts[place], middle, xycoords=where, va="center", fontsize="small", color=colours[place], linespacing=1.0
        )
    return True


def legend_below(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], title: str = "", columns: int = 2
) -> None:
    """Explain marks below a figure, under a title."""
    where: Any = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": "small"}
    legend = figure.legend(handles, labels, title=title, title_fontsize="small", **where)
    legend.get_title().set(color="dimgray", multialignment="center")


def write_figure(figure: Figure, path: Path) -> None:
    """Write a picture in the format that its file's name ends with (``.png``, ``.pdf``, ``.svg``); without one, PNG.

    Missing folders are made.

    Raises
    ------
    ConfigError
        If the picture cannot be written there.
    """
    kind = path.suffix.removeprefix(".") or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ConfigError(f"{path}: no such kind of picture as '{kind}'; known: {', '.join(sorted(known))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; name another file") from None
