"""The benchmark of what payloads give away: its settings, its table, and records that are not made again."""

import json
from inspect import signature
from math import inf

import pytest
import typer

from hetfl_flwr import audit
from hetfl_flwr.common.errors import Interrupted
from hetfl_flwr.config import RunConfig
from hetfl_flwr.wire.privacy import epsilon
from simulations.benchmarks import leaks
from simulations.studies.audit.findings import Finding
from simulations.studies.audit.report import audited


@pytest.mark.parametrize("target", [10.0, 100.0, 1000.0])
def test_noise_has_the_epsilon_that_the_column_says(target):
    keys = leaks.settings(f"epsilon {target:.0f}", 4.0)
    assert epsilon(keys["noise-multiplier"], leaks.ROUNDS) == pytest.approx(target)
    assert keys["clipping-norm"] == 4.0


def test_without_noise_nothing_is_guaranteed():
    assert leaks.settings("clipped", 4.0) == {"clipping-norm": 4.0, "noise-multiplier": 0.0}
    assert epsilon(0.0, leaks.ROUNDS) == inf
    assert leaks.settings("half precision", 4.0) == {"payload-precision": "half"}


@pytest.mark.parametrize("row", leaks.ALGORITHMS)
def test_rows_are_configs(row):
    keys = {"algorithm": row, **leaks.ALGORITHMS[row], **leaks.WHOLE.get(row, {})}
    assert RunConfig.from_flat({**keys, **leaks.settings("epsilon 100", 1.0)}).algorithm == row


def test_a_record_has_the_strongest_attack():
    findings = [
        Finding("labels: as sent", "", "", "histogram error (TV)", 0.1, None, 0.5, 0.0),
        Finding("labels: as sent", "", "", "class present (AUC)", 0.7, None, 0.5, 1.0),
        Finding("labels: imitated clients", "", "", "class present (AUC)", 0.9, None, 0.5, 1.0),
        Finding("membership: LiRA, offline (x)", "", "", "AUC", None, None, 0.5, None),
    ]
    assert leaks.figures(findings) == {"labels: sent": 0.1, "class present": 0.9}
    assert leaks.figures(findings, chance=True) == {"labels: sent": 0.5}


def record(row, column, seed, accuracy, figure):
    return {
        **{"row": row, "column": column, "seed": seed, "accuracy": accuracy, "epsilon": None, "norm": 2.0},
        **{"figures": {"imitated": figure}, "chance": {"imitated": 0.5}},
    }


def test_the_table_has_means_and_deviations_by_hand():
    """And no deviation of fewer than three seeds."""
    found = [record("chfl", "plain", seed, 0.5 + 0.1 * seed, 0.1 + 0.1 * seed) for seed in range(3)]
    fewer = [record("chfl", "clipped", seed, 0.4 + 0.2 * seed, 0.2) for seed in range(2)]
    lines = list(leaks.table([*found, *fewer]))
    assert lines[2] == "| `chfl` | plain | 3 | 60.0 ± 10.0 |  |  | 0.20 ± 0.10 |  |  |  |  |  |  |  |"
    assert lines[3] == "| `chfl` | clipped | 2 | 50.0 |  |  | 0.20 |  |  |  |  |  |  |  |"
    assert lines[-1] == "Who reads nothing: imitated 0.50 ± 0.00"


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
    assert capsys.readouterr().out.endswith((tmp_path / "leaks.md").read_text())
    with pytest.raises(typer.BadParameter, match="'gone', expected one of: fedhe; fd; "):
        leaks.main(tmp_path, ["gone"], None, 1)


def test_at_length_the_attackers_are_those_of_the_command_and_fedkd_has_its_own_energies(monkeypatch):
    seen = {}

    def made(row, *, settings, **_):
        seen["keys"] = settings
        raise Interrupted

    monkeypatch.setattr(leaks, "run", made)
    for column, rounds, energies in (("at length", 20, 0), ("plain", 10, 2)):
        with pytest.raises(Interrupted):
            leaks.measured("fedkd", column, 0, 0.0)
        assert (seen["keys"]["rounds"], sum("energy" in key for key in seen["keys"])) == (rounds, energies)
    defaults = signature(audit).parameters
    assert defaults["shadows"].default == leaks.LONG_SHADOWS
    assert signature(audited).parameters["mimics"].default == leaks.LONG_MIMICS


def test_a_run_is_attacked(monkeypatch):
    monkeypatch.setattr(leaks, "SHADOWS", 2)
    monkeypatch.setattr(leaks, "MIMICS", 2)
    found = leaks.measured("chfl", "plain", 0, 0.0, rounds=1, models="mlp", **{"local-epochs": 1})
    assert found["norm"] > 0
    assert {"imitated", "class present", "LiRA", "pictures: SSIM"} <= found["figures"].keys()
    assert json.loads(json.dumps(found)) == found
