"""``hetfl tune``: the command, its files, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from simulations.cli.command import app

pytest.importorskip("optuna", reason="optuna is not installed")

SMALL = ("--clients", "2", "--rounds", "2", "--dataset", "breast-cancer", "--set", "models=tabular:3")


def tune(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


@pytest.mark.slow
def test_it_says_what_was_tried_and_where_the_best_lies(tmp_path):
    done = tune("fedhe", *SMALL, "--trials", 2, "--over", "learning-rate=0.001:0.1", "--out", tmp_path / "tuned")
    assert done.exit_code == 0, done.output
    assert "In all: 2 trials" in done.output
    assert done.output.rstrip().endswith("tuned/best.toml")
    assert len(json.loads((tmp_path / "tuned" / "tuning.json").read_text())["trials"]) == 2
    run = CliRunner().invoke(
        app, ["run", "fedhe", "--recipe", f"{tmp_path}/tuned/best.toml", "--out", f"{tmp_path}/run", "--seed", "1"]
    )
    assert run.exit_code == 0, run.output
