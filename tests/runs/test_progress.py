"""How far a run is, where its output goes to a file."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hetfl_flwr.runs import progress
from hetfl_flwr.runs.progress import Bar
from simulations.cli.command import app


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set, in seconds."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_says_round_accuracy_and_seconds_left(clock, capsys):
    """30 s a round: round 2 after 60 s leaves 8 rounds of 30 s, round 4 after 120 s leaves 6."""
    with Bar(console=Console(stderr=True), label="fedhe on digits", total=10) as bar:
        for number in range(11):
            clock[0] = number * 30.0
            bar.update(number, figures=f"accuracy {number * 10 / 100:.1%}, 3 kB")
    assert capsys.readouterr().err.splitlines() == [
        "fedhe on digits: round 2 of 10, accuracy 20.0%, 3 kB, 240 s left",
        "fedhe on digits: round 4 of 10, accuracy 40.0%, 3 kB, 180 s left",
        "fedhe on digits: round 6 of 10, accuracy 60.0%, 3 kB, 120 s left",
        "fedhe on digits: round 8 of 10, accuracy 80.0%, 3 kB, 60 s left",
    ]


def test_the_command_says_how_far_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    keys = ["--clients", "2", "--rounds", "2", "--set", "models=mlp", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["run", "local", *keys])
    lines = [line for line in done.stderr.splitlines() if line.startswith("local on digits: round ")]
    assert [line.split(",")[0] for line in lines] == ["local on digits: round 0 of 2", "local on digits: round 1 of 2"]
    assert "accuracy" in lines[1]
    assert lines[1].endswith("s left")
