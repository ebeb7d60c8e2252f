"""The benchmark of what payloads give away: its settings, its table, and records that are not made again."""

import json

import pytest
import typer

from hetfl_flwr.config import RunConfig
from hetfl_flwr.wire.privacy import epsilon
from simulations.benchmarks import leaks


@pytest.mark.parametrize("target", [10.0, 100.0, 1000.0])
def test_noise_has_the_epsilon_that_the_column_says(target):
    keys = leaks.settings(f"epsilon {target:.0f}", 4.0)
    assert epsilon(keys["noise-multiplier"], leaks.ROUNDS) == pytest.approx(target)
    assert keys["clipping-norm"] == 4.0


@pytest.mark.parametrize("row", leaks.ALGORITHMS)
def test_rows_are_configs(row):
    keys = {"algorithm": row, **leaks.ALGORITHMS[row], **leaks.WHOLE.get(row, {})}
    assert RunConfig.from_flat({**keys, **leaks.settings("epsilon 100", 1.0)}).algorithm == row


def record(row, column, seed, accuracy, figure):
    return {
        **{"row": row, "column": column, "seed": seed, "accuracy": accuracy, "epsilon": None, "norm": 2.0},
        **{"figures": {"imitated": figure}, "chance": {"imitated": 0.5}},
    }


def test_a_run_that_is_there_is_not_made_again_and_others_take_the_norm_of_seed_0(tmp_path, monkeypatch, capsys):
    made = []

    def measured(row, column, seed, norm):
        made.append((row, column, seed, norm))
        kept = record(row, column, seed, 0.5, 0.1)
        return {key: kept[key] for key in ("accuracy", "epsilon", "norm", "figures", "chance")}

    monkeypatch.setattr(leaks, "measured", measured)
    before = json.dumps({**record("chfl", "plain", 0, 0.5, 0.1), "attacks": leaks.ATTACKS - 1})
    (tmp_path / "leaks.jsonl").write_text(before + "\n")
    leaks.main(tmp_path, ["chfl"], ["clipped"], 2)
    assert made == [("chfl", "plain", 0, 0.0), ("chfl", "clipped", 0, 2.0), ("chfl", "clipped", 1, 2.0)]
    made.clear()
    leaks.main(tmp_path, ["chfl"], ["clipped"], 3)
    assert made == [("chfl", "clipped", 2, 2.0)]
    made.clear()
    leaks.main(tmp_path, ["fedhe"], ["at length"], 1)
    assert made == [("fedhe", "at length", 0, 0.0)]
    assert len((tmp_path / "leaks.jsonl").read_text().splitlines()) == 1 + 5
    page = tmp_path / "leaks.md"
    before, heading, text = page.read_text().partition("## All figures\n\n")
    assert capsys.readouterr().out.endswith(text)
    page.write_text(f"By hand.\n\n{heading}old\n")
    leaks.main(tmp_path, ["fedhe"], ["at length"], 1)
    assert page.read_text() == f"By hand.\n\n{heading}{text}"
    assert before == "# What payloads give away\n\n"
    with pytest.raises(typer.BadParameter, match="'gone', expected one of: fedhe; fd; "):
        leaks.main(tmp_path, ["gone"], None, 1)


def test_a_run_is_attacked(monkeypatch):
    monkeypatch.setattr(leaks, "SHADOWS", 2)
    monkeypatch.setattr(leaks, "MIMICS", 2)
    found = leaks.measured("chfl", "plain", 0, 0.0, rounds=1, models="mlp", **{"local-epochs": 1})
    assert found["norm"] > 0
    assert {"imitated", "class present", "LiRA", "pictures: SSIM"} <= found["figures"].keys()
    assert json.loads(json.dumps(found)) == found
