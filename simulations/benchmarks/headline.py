"""The picture on the first page: ``python -m simulations.benchmarks.headline``, from the records of ``har-table``.

Each dot is a person: the accuracy on the person's own test windows, mean over the seeds.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from simulations.reports.plots.drawing import COLOURS, write_figure

HERE = Path(__file__).resolve().parents[1]
ROWS = {
    "fedmd": ("FedMD\nanswers to shared windows, with labels", 0),
    "ds-fl": ("DS-FL\nanswers to shared windows, without labels", 2),
    "fedavg-small-for-all": ("FedAvg\none small model for all phones", 1),
    "local": ("Local\neach phone alone", 7),
}
"""By folder of the records: what a row is called, and the number of its colour."""


def main() -> None:
    """Draw it into the documents."""
    by_person: dict[str, dict[str, list[float]]] = {row: defaultdict(list) for row in ROWS}
    for line in (HERE / "results" / "har-table.jsonl").read_text().splitlines():
        record = json.loads(line)
        for person, accuracy in record["clients"].items():
            if record["cell"] in ROWS:
                by_person[record["cell"]][person].append(100 * accuracy)
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    axes = figure.subplots()
    for place, (row, (_, colour)) in enumerate(ROWS.items()):
        means = sorted(fmean(values) for values in by_person[row].values())
        spread = [place + 0.22 * ((number % 5) - 2) / 2 for number in range(len(means))]
        axes.scatter(means, spread, s=26, color=COLOURS[colour], alpha=0.6, linewidths=0, clip_on=False)
        axes.plot([fmean(means)] * 2, [place - 0.38, place + 0.38], color=COLOURS[colour], linewidth=3)
        axes.text(100.8, place, f"{fmean(means):.1f} %", va="center", color=COLOURS[colour], weight="bold", fontsize=12)
    axes.set_yticks(range(len(ROWS)), [name for name, _ in ROWS.values()])
    axes.tick_params("y", length=0)
    axes.set_ylim(len(ROWS) - 0.5, -0.5)
    axes.set_xlim(55, 100)
    axes.set_xlabel("accuracy on each person's own test windows, % (a dot is a person, a bar the mean)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = "Thirty phones: teaching each other beats one small model for all"
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    write_figure(figure, HERE.parent / "docs" / "headline.png")


if __name__ == "__main__":
    main()
