"""The figure of the README: ``python -m simulations.benchmarks.headline`` draws it from the records of ``har-table``.

Each dot is the accuracy on one person's test windows, averaged over the seeds.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from simulations.reports.plots.drawing import COLOURS, write_figure

HERE = Path(__file__).resolve().parents[1]
ROWS = {
    "fedmd": ("FedMD", "logits on shared windows, with labels", 0),
    "ds-fl": ("DS-FL", "scores on shared windows, without labels", 2),
    "agg": ("AGG", "the same windows with labels, nothing else", 4),
    "fedavg-small-for-all": ("FedAvg", "one small model for all phones", 1),
    "local": ("Local", "each phone trains alone", 7),
}
"""By cell of the records: the method, what clients exchange, and the index of its color."""


def main() -> None:
    """Write docs/headline.png."""
    by_person: dict[str, dict[str, list[float]]] = {row: defaultdict(list) for row in ROWS}
    for line in (HERE / "results" / "har-table.jsonl").read_text().splitlines():
        record = json.loads(line)
        for person, accuracy in record["clients"].items():
            if record["cell"] in ROWS:
                by_person[record["cell"]][person].append(100 * accuracy)
    figure = Figure(figsize=(7, 5.3), dpi=160, layout="constrained")
    axes = figure.subplots()
    for place, (row, (method, exchanged, colour)) in enumerate(ROWS.items()):
        means = sorted(fmean(values) for values in by_person[row].values())
        spread = [place + 0.18 * ((number % 5) - 2) / 2 for number in range(len(means))]
        axes.scatter(means, spread, s=26, color=COLOURS[colour], alpha=0.6, linewidths=0, clip_on=False)
        axes.plot([fmean(means)] * 2, [place - 0.25, place + 0.25], color=COLOURS[colour], linewidth=3)
        axes.text(50, place - 0.34, method, va="center", weight="bold", fontsize=11)
        axes.text(57, place - 0.34, exchanged, va="center", fontsize=11)
        axes.text(101, place, f"{fmean(means):.1f} %", va="center", color=COLOURS[colour], weight="bold", fontsize=13)
    axes.set_yticks([])
    axes.set_ylim(len(ROWS) - 0.6, -0.6)
    axes.set_xlim(50, 100)
    axes.set_xlabel("Accuracy on a person's own test data, %.  Dot: a person.  Bar: the mean of thirty.", fontsize=11)
    axes.tick_params(labelsize=11)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    best, alone = (fmean(map(fmean, by_person[row].values())) for row in ("fedmd", "local"))
    title = (
        f"Thirty phones with different models share some windows and their\nlogits: from {alone:.0f} to {best:.0f} %, "
        "beyond one small model for all"
    )
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=13)
    write_figure(figure, HERE.parent / "docs" / "headline.png")


if __name__ == "__main__":
    main()
