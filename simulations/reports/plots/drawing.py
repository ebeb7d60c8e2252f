"""Colors, sizes, axes, labels and files of all pictures.

Matplotlib is imported only when something is drawn, and no display is needed. The colors are those of Okabe and Ito,
which color-blind readers can tell apart; lines also differ in markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hetfl_flwr.common.files import writing
from hetfl_flwr.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "*": "★", "<": "◀"}
"""Markers of lines, each with the character that represents it in text."""
DPI = 150
WIDTH = 8.0
"""Width of a picture that fills a page, in inches."""
NARROW = 4.5
"""Width of a picture for the screen of a phone, in inches."""
LONGEST_LABEL = 80
LINE, LETTER, BOLD = 0.17, 0.075, 0.088
"""Height of a line of small text, width of a character of small text, and of a title, in inches."""
LABEL = 26
"""Characters per line of a name next to axes."""


def page(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def headed(figure: Figure, *lines: str) -> Figure:
    """Set the title of a figure, escape dollar signs in all its texts, and return it."""
    from matplotlib.text import Text

    letters = int(figure.get_figwidth() / BOLD)
    title = "\n".join(fill(line, letters) for line in lines if line)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    for text in figure.findobj(Text):
        text.set_text(text.get_text().replace("$", r"\$"))
    return figure


def dress(axes: Axes, y: str | None, values: Iterable[float], *, share: bool = True) -> None:
    """Format axes over rounds, with the label `y` if given.

    `share` says that the drawn values are fractions in [0, 1]; the y axis then ends at the multiples of 10 % around
    them.
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
    """Write names to the right of axes where their lines end, moved apart; return False if there is no room.

    `ends` are the last values of the lines, `height` is the approximate height of the axes in inches. Of panels that
    share their y axis, pass the last one.
    """
    texts = [fill(name, LABEL) for name in names]
    low, high = axes.get_ylim()
    tall = np.array([LINE * (high - low) / height * len(text.splitlines()) for text in texts])
    order = np.argsort(ends, kind="stable")
    if tall.sum() > high - low:
        return False
    floors = low + np.cumsum(tall[order]) - tall[order]
    ceilings = high - np.cumsum(tall[order][::-1])[::-1]
    shifts = np.maximum.accumulate(np.asarray(ends)[order] - tall[order] / 2 - floors).clip(min=0)
    bottoms = np.minimum(floors + shifts, ceilings)
    for place, bottom in zip(order, bottoms, strict=True):
        middle = (1.02, bottom + tall[place] / 2)
        where = ("axes fraction", "data")
        axes.annotate(
            texts[place], middle, xycoords=where, va="center", fontsize="small", color=colours[place], linespacing=1.0
        )
    return True


def legend_below(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], title: str = "", most: int = 2
) -> float:
    """Draw a legend with a title below a figure, in at most so many columns; return its lines, without the title."""
    lines = [line for label in labels for line in label.splitlines()]
    columns = max(1, min(most, int(figure.get_figwidth() / (max(map(len, lines)) * LETTER + 0.6))))
    where: Any = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": "small"}
    legend = figure.legend(handles, labels, title=title, title_fontsize="small", **where)
    legend.get_title().set(color="dimgray", multialignment="center")
    return len(lines) / columns


def write_figure(figure: Figure, path: Path) -> None:
    """Write a picture in the format of the file extension (``.png``, ``.pdf``, ``.svg``), by default PNG.

    Missing folders are created. Raises `ConfigError` if the format is unknown or the file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ConfigError(f"{path}: unknown picture format '{kind}'; known: {', '.join(sorted(known))}")
    with writing(path, ConfigError, "name another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind)
