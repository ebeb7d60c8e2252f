"""What all pictures are drawn with: colours, sizes, axes, and how a figure becomes a file.

Matplotlib is imported only when something is drawn, and no display is needed. Colours are Okabe and Ito's,
which colour-blind readers can tell apart; lines differ in dashes or markers as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hetfl_flwr.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES = ("-", "--", "-.", ":")
DPI = 150
LONGEST_LABEL = 200


def literal(figure: Figure) -> Figure:
    """Return the figure with each dollar sign as it is: names hold no formulas."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(text.get_text().replace("$", r"\$"))
    return figure


def dress(axes: Axes, what: str | None) -> None:
    """Dress axes of accuracy over rounds; None: accuracy is said by the axes beside."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_xlabel("round")
    if what is not None:
        axes.set_ylabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


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
