"""The benchmark of accuracy against bytes, on figures derived by hand, and on digits."""

from pathlib import Path

import numpy as np
import pytest
import typer
from datasets import load_dataset
from fixtures.data.hub import table as images
from fixtures.data.hub import write

from hetfl_flwr.runs.schema import Round
from simulations.benchmarks import accuracy
from simulations.reports.plots.comparison import costs_figure
from simulations.reports.runs import Run, group_runs, load_run

TINY = {"algorithm": "local", "dataset": "digits", "clients": 2, "models": "mlp", "rounds": 1}


def made(algorithm: str, seed: int, *accuracies: float, sent: int = 100) -> Run:
    """Return a run of round 0 and more, in each of which `sent` bytes went up and as many down, save in round 0."""
    rounds = [
        Round.blank(
            number,
            1.0,
            accuracy=reached,
            **dict.fromkeys(("bytes_up", "bytes_down", "wire_up", "wire_down"), sent * bool(number)),
        )
        for number, reached in enumerate(accuracies)
    ]
    config = {"algorithm": algorithm, "dataset": "digits", "seed": seed, "rounds": len(rounds) - 1}
    return Run(Path(algorithm), algorithm, config, rounds, None, [])


def test_table():
    """95 % of the bests of 0.8 and 0.78 are 0.76 and 0.741: in rounds 2 and 1, after 400 and 200 bytes. Their mean is
    300; two seeds have no deviation. One of two runs got to the best of ``local`` with the same seed, 0.7 and
    0.9, after 200 bytes.
    """
    runs = [
        *(made("fedhe", 0, 0.1, 0.72, 0.77, 0.8), made("fedhe", 1, 0.1, 0.78, 0.5, 0.6)),
        *(made("local", 0, 0.1, 0.7, 0.6, sent=0), made("local", 1, 0.1, 0.9, 0.8, sent=0)),
        made("fedavg", 0, 0.1, 0.2),
    ]
    assert accuracy.table(group_runs(runs)).splitlines()[2:] == [
        "| `local` | 80.0 | 1 | 0 bytes | 0 bytes | 0 bytes |",
        "| `fedhe` | 79.0 | 2 | 300 bytes | 200 bytes (1 of 2 seeds) | 600 bytes |",
        "| `fedavg` | 20.0 | 1 | 200 bytes | never | 200 bytes |",
    ]


def test_a_run_that_is_there_is_not_run_again(tmp_path, monkeypatch):
    first = accuracy.finished(TINY, tmp_path / "local-0")
    monkeypatch.setattr(accuracy, "run", lambda *_: pytest.fail("run again"))
    assert accuracy.finished({**TINY, "data-dir": "elsewhere"}, tmp_path / "local-0") == first
    with pytest.raises(typer.BadParameter, match="local-0 was run with rounds = 1, not 2: name another --out"):
        accuracy.finished({**TINY, "rounds": 2}, tmp_path / "local-0")


def test_a_run_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    def broken(settings, folder):
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        accuracy.finished(TINY, tmp_path / "local-0")
    assert not list(tmp_path.iterdir())


def test_every_tenth_image(tmp_path):
    """Images of grey 0, 10, 20 and so on: every tenth is of 0, 100 and 200."""
    source = write(tmp_path / "whole", accuracy.MNIST, train=images(labels=[0] * 25), test=images(labels=[1] * 11))
    accuracy.thinned(str(source), tmp_path / "data")
    splits = load_dataset(str(tmp_path / "data" / accuracy.MNIST))
    greys = {name: [int(np.max(image)) for image in rows["image"]] for name, rows in splits.items()}
    assert greys == {"train": [0, 100, 200], "test": [0, 100]}


@pytest.mark.slow
def test_quick(tmp_path, monkeypatch, capsys):
    methods = {name: accuracy.METHODS[name] for name in ("local", "chfl", "chfl-sum")}
    monkeypatch.setattr(accuracy, "METHODS", methods)
    accuracy.main(tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert printed.strip() == (tmp_path / "accuracy.md").read_text().strip()
    assert {line.split("|")[1].strip() for line in printed.splitlines()[2:5]} == {
        *("`local`", "`chfl (reduce sum)`", "`chfl (reduce mean)`")
    }
    assert load_run(tmp_path / "chfl-sum-0").config["rounds"] == accuracy.QUICK["rounds"]
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_names_at_the_lines():
    """The second of two lines that end in one point is named below the first; those further left or lower keep their
    height.
    """
    runs = [made(name, 0, 0.1, 0.8) for name in ("fedavg", "fedprox")]
    runs += [made("fedhe", 0, 0.1, 0.8, sent=1), made("fml", 0, 0.1, 0.6), made("local", 0, 0.1, 0.7, sent=0)]
    axes = costs_figure(runs).axes[0]
    low, high = axes.get_ylim()
    names = {item.get_text(): item.xy for item in axes.texts}
    assert names.keys() == {"fedavg", "fedprox", "fedhe", "fml", "local: sends nothing"}
    assert names["fml"][1] == pytest.approx((0.6 - low) / (high - low))
    assert names["fedavg"][0] == names["fedprox"][0] > names["fedhe"][0]
    assert names["fedavg"][1] == names["fedhe"][1] > names["fedprox"][1] + 0.02
    assert names["local: sends nothing"] == (1, pytest.approx((0.7 - low) / (high - low)))


def test_the_picture_shows_where_the_lines_end():
    """The lowest ends at 0.6, the highest reached 0.9 on its way; the axis does not go below nothing."""
    runs = [made("fedhe", 0, 0.1, 0.9, 0.8), made("fedavg", 0, 0.1, 0.6)]
    assert costs_figure(runs).axes[0].get_ylim() == pytest.approx((0.5, 0.92))
    assert costs_figure([made("fedhe", 0, 0.1, 0.05)]).axes[0].get_ylim() == pytest.approx((0, 0.12))
