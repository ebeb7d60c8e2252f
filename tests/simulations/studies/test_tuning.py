"""``hetfl tune``: what is tried, that validation samples alone judge, and that what has ended is not repeated."""

import json
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.errors import ConfigError, HetflError, RunFolderError
from hetfl_flwr.runs.lock import FolderLock
from simulations.cli.command import app
from simulations.reports.layout import lines
from simulations.studies.backends import LocalBackend
from simulations.studies.tuning import (
    Trial,
    Tuning,
    parse_space,
    search,
    search_in_turn,
    tune,
    tuning_table,
    usual_space,
)

distributions = pytest.importorskip("optuna", reason="optuna is not installed").distributions
Among = distributions.CategoricalDistribution


def Between(low, high):
    whole = isinstance(low, int) and isinstance(high, int)
    return (distributions.IntDistribution if whole else distributions.FloatDistribution)(low, high, log=low > 0)


BASE = {
    "algorithm": "fedhe",
    "dataset": "breast-cancer",
    "clients": 2,
    "models": "tabular:3",
    "rounds": 2,
    "batch-size": 50,
    "evaluate-every": 2,
    "learning-rate": 0.01,
}


def tuned(out, space=None, **keys):
    space = space or {"learning-rate": Between(1e-5, 1.0), "fedhe.alpha": Between(0.1, 10.0)}
    return tune({**BASE, **keys.pop("base", {})}, space, out, Console(file=StringIO()), LocalBackend(), **keys)


def test_what_is_to_be_tried_is_read():
    texts = ["learning-rate=0.001:0.1", "local-epochs=1:5", "optimizer=sgd,adam", "momentum=0:0.9"]
    found = parse_space([*texts, "partition=dirichlet:0.1,dirichlet:0.5"])
    assert found == {
        "learning-rate": Between(0.001, 0.1),
        "local-epochs": Between(1, 5),
        "optimizer": Among(("sgd", "adam")),
        "momentum": Between(0, 0.9),
        "partition": Among(("dirichlet:0.1", "dirichlet:0.5")),
    }


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ("fedhe", {"fedhe.alpha": Between(1 / 30, 30.0)}),
        ("fedprox", {"fedprox.mu": Between(0.01 / 30, 0.3)}),
        ("fml", {"fml.alpha": Between(0.5 / 30, 1.0)}),
        ("local", {}),
        ("fedavg", {}),
    ],
)
def test_the_usual_space_is_the_learning_rate_and_the_first_weight(algorithm, own):
    space = usual_space(RunConfig.from_flat({"algorithm": algorithm, "learning-rate": 0.03}))
    assert list(space) == ["learning-rate", *own]
    for key, one in {"learning-rate": Between(0.001, 0.9), **own}.items():
        assert (space[key].low, space[key].high) == pytest.approx((one.low, one.high), rel=0.01)


@pytest.mark.parametrize(("aggregation", "own"), [("mean", []), ("era", ["dsfl.temperature"])])
def test_the_temperature_of_dsfl_is_tuned_where_it_sharpens(aggregation, own):
    space = usual_space(RunConfig.from_flat({"algorithm": "dsfl", "dsfl.aggregation": aggregation}))
    assert list(space) == ["learning-rate", *own]


def test_methods_with_and_without_a_weight_try_the_same_learning_rates(tmp_path):
    """So that a method is not below training alone because training alone alone was given a larger rate."""
    rates = {}
    for algorithm in ("local", "fedhe"):
        base = {"algorithm": algorithm, "validation-fraction": 0.1}
        proposed = next(search(base, usual_space(RunConfig.from_flat(base)), tmp_path / algorithm, 5))
        rates[algorithm] = [job.settings["learning-rate"] for [job] in proposed]
    assert rates["fedhe"] == rates["local"]
    assert len({*rates["local"]}) == 5


def test_a_range_with_whole_ends_has_fractions_if_its_key_takes_them(tmp_path):
    """An option of a method may be given as a whole number, too."""
    base = {"algorithm": "fedhe", "fedhe.alpha": 2, "local-epochs": 3, "weight-decay": 0.5}
    over = parse_space(["weight-decay=0:1", "fedhe.alpha=1:3", "local-epochs=1:4"])
    first, *others = [job.settings for [job] in next(search(base, over, tmp_path, 5))]
    assert {key: first[key] for key in over} == {key: base[key] for key in over}
    kinds = {"weight-decay": float, "fedhe.alpha": float, "local-epochs": int}
    assert [{key: type(settings[key]) for key in over} for settings in others] == [kinds] * 4


@pytest.mark.parametrize(
    ("algorithm", "best", "weights"),
    [
        ("local", {"learning-rate": 0.01}, []),
        ("fedhe", {"learning-rate": 0.01, "fedhe.alpha": 0.3}, [0.3, 3.34, 10.0, 30.0]),
        ("fml", {"learning-rate": 0.01, "fml.alpha": 0.15}, [0.15, 1.0]),  # 1.5 and 5 are more than it accepts
    ],
)
def test_the_rate_is_tried_at_the_given_weight_and_then_the_weight_at_the_best_rate(
    monkeypatch, tmp_path, algorithm, best, weights
):
    def judged(values, several, failed):
        distance = sum(abs(value - best[key]) for key, value in values.items())
        return Trial(values, None if values["learning-rate"] > 0.05 else 1 / (1 + distance), 0.5, 1.0, 2.0)

    monkeypatch.setattr("simulations.studies.tuning._judged", judged)
    base = {"algorithm": algorithm, "validation-fraction": 0.1, "learning-rate": 0.003}
    one = search_in_turn(base, (0.3, 1, 3.34, 10, 30), tmp_path / algorithm, [999])
    steps, sent = [], None
    try:
        while True:
            steps.append([job.settings for [job] in one.send(sent)])
            sent = {}
    except StopIteration as ended:
        found = ended.value
    rates = [settings["learning-rate"] for settings in steps[0]]
    assert rates == [0.003, 0.0009, 0.01, 0.03, 0.09]
    assert {settings.get(key) for settings in steps[0] for key in list(best)[1:]} <= {1.0, 0.5}
    assert found.best.values == pytest.approx(best)
    assert len(found.trials) == 5 + len(weights)
    for settings, weight in zip(*steps[1:], weights, strict=True) if weights else ():
        assert (settings["learning-rate"], settings[list(best)[1]], settings["seed"]) == (0.01, weight, 999)
    assert read_toml(tmp_path / algorithm / "best.toml").items() >= found.best.values.items()


@pytest.mark.slow
def test_the_best_is_by_validation_and_a_longer_search_repeats_nothing(tmp_path):
    first = tuned(tmp_path, trials=2)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    found = tuned(tmp_path, trials=4)
    assert found.trials[:2] == first.trials
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert len([*tmp_path.glob("*/summary.json")]) == len({json.dumps(one.values) for one in found.trials}) == 4
    assert all(1e-5 <= one.values["learning-rate"] <= 1.0 for one in found.trials)
    assert found.trials[0].values == {"learning-rate": 0.01, "fedhe.alpha": 1.0}
    held = json.loads((tmp_path / "tuning.json").read_text())
    assert [one["validation"] for one in held["trials"]] == [one.validation for one in found.trials]
    assert held["best"]["validation"] == max(one["validation"] for one in held["trials"])
    best = RunConfig.from_flat(read_toml(tmp_path / "best.toml"))
    known = {"learning-rate": best.learning_rate, "fedhe.alpha": best.options["fedhe.alpha"]}
    assert known == found.best.values
    lines = next(tmp_path.glob("*/rounds.jsonl"))
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunFolderError, match="does not reach round"):
        tuned(tmp_path, trials=4)


@pytest.mark.slow
def test_nothing_is_tried_twice_though_there_are_fewer_settings_than_trials_and_seeds_are_averaged(tmp_path):
    found = tuned(tmp_path, {"optimizer": Among(("sgd", "adam"))}, trials=9, seeds=(0, 1))
    assert sorted(one.values["optimizer"] for one in found.trials) == ["adam", "sgd"]
    mine = [*tmp_path.glob(f"optimizer={found.best.values['optimizer']},*/summary.json")]
    runs = [json.loads(path.read_text()) for path in mine]
    assert len(runs) == 2
    assert found.best.accuracy == pytest.approx(sum(run["accuracy"] for run in runs) / 2)
    assert found.best.payload == sum(run["bytes_up"] + run["bytes_down"] for run in runs)


def test_two_searches_do_not_share_a_folder(tmp_path):
    """Each would count the other's running trials as failed."""
    held = FolderLock(tmp_path, 0)
    try:
        with pytest.raises(RunFolderError, match="is being written by"):
            tuned(tmp_path, trials=1)
    finally:
        held.release()


OPTIMIZERS = {"optimizer": Among(("sgd", "adam"))}


def test_a_trial_that_could_not_be_run_ends_the_search(tmp_path, refusal):
    """Else the method would be tuned by the other trials alone."""
    tuned(tmp_path, OPTIMIZERS, trials=1)
    said = refusal(HetflError, tuned, tmp_path, OPTIMIZERS, base={"batch-size": 20})
    assert "was run with batch-size = 50, not 20" in said


def test_a_trial_whose_run_another_process_makes_ends_the_search(tmp_path, refusal):
    held = FolderLock(tmp_path / "optimizer=sgd,seed=0", run=1)
    try:
        assert "is executing this run" in refusal(HetflError, tuned, tmp_path, OPTIMIZERS)
    finally:
        held.release()
    assert len(tuned(tmp_path, OPTIMIZERS).trials) == 2


def test_a_trial_that_has_lost_a_client_is_not_judged_by_the_others(tmp_path):
    best = tuned(tmp_path, OPTIMIZERS).best
    path = tmp_path / f"optimizer={best.values['optimizer']},seed=0" / "rounds.jsonl"
    *earlier, last = path.read_text().splitlines()
    ended = json.loads(last)
    del ended["clients"]["1"]
    path.write_text("\n".join([*earlier, json.dumps(ended)]) + "\n")
    again = tuned(tmp_path, OPTIMIZERS)
    assert [one.validation for one in again.trials if one.values == best.values] == [None]
    assert again.best.values != best.values


def test_a_trial_that_fails_is_not_the_best():
    trials = tuple(
        Trial({"learning-rate": rate}, value, 0.5, 1.0, 2.0) for rate, value in ((1.0, None), (0.1, 0.4), (0.2, 0.4))
    )
    found = Tuning(trials)
    assert found.best is trials[1]
    shown = lines(tuning_table(found))
    assert [line.split()[0] for line in shown[3:6]] == ["0", "1*", "2"]
    assert "3 trials, 6.0 seconds, 3 bytes" in shown[-1]


@pytest.mark.parametrize(
    ("base", "space", "said"),
    [
        ({"validation-fraction": 0.0}, None, "validation-fraction"),
        ({}, {"learning-rte": Between(1.0, 2.0)}, "'learning-rte'"),
        ({}, {"seed": Among((1, 2))}, "seed"),
        ({}, {"momentum": Between(0.0, 2.0)}, "momentum"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path, refusal, base, space, said):
    assert said in refusal(ConfigError, tuned, tmp_path / "out", space, base=base, trials=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_settings_that_a_method_refuses_are_a_trial_that_failed(tmp_path, refusal):
    """The last alpha of FML's is at most 1, which its constructor says and no type."""
    space = {"fml.alpha": Among(("0.5", "0.5:2"))}
    found = tuned(tmp_path, space, trials=5, base={"algorithm": "fml", "fml.alpha": "0.5"})
    known = {one.values["fml.alpha"]: one.validation for one in found.trials}
    assert known["0.5"] == found.best.validation is not None
    assert known.get("0.5:2") is None
    alone = {"fml.alpha": Among(("0.5:2",))}
    assert "alpha" in refusal(HetflError, tuned, tmp_path / "no", alone, base={"algorithm": "fml"})


@pytest.mark.slow
def test_the_command_says_what_was_tried_and_the_best_can_be_run(tmp_path):
    small = ("--clients", "2", "--rounds", "2", "--dataset", "breast-cancer", "--set", "models=tabular:3")
    over = ["--trials", "2", "--over", "learning-rate=0.001:0.1", "--out", str(tmp_path / "tuned")]
    done = CliRunner().invoke(app, ["tune", "fedhe", *small, *over])
    assert done.exit_code == 0, done.output
    assert "In all: 2 trials" in done.output
    best = done.output.rstrip().rpartition("best: ")[2]
    run = CliRunner().invoke(app, ["run", "fedhe", "--recipe", best, "--out", f"{tmp_path}/run", "--seed", "1"])
    assert run.exit_code == 0, run.output
