"""Gains of clients: estimates checked against scipy, pairing of runs, verdicts, and output."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures.folders.pages import Page
from fixtures.folders.run_folders import make
from fixtures.folders.studies import ALONE, HELPED, ROWS, ended, study
from scipy import stats
from typer.testing import CliRunner

from hetfl_flwr import gains, load
from hetfl_flwr.errors import RunFolderError
from simulations.cli.command import app
from simulations.reports.estimates import MEASURES, compared, holm, measure_named
from simulations.reports.gains import answer, gains_table, write_csv
from simulations.reports.report import write_report
from simulations.reports.runs import load_run, run_folders


def answer_of(folders):
    return answer([load_run(folder) for folder in folders])


def test_several_seeds_give_the_paired_t_test(tmp_path):
    found = gains(study(tmp_path)).set_index("client")
    for k in range(3):
        after, alone = ([scores[s][k] for s in ALONE] for scores in (HELPED, ALONE))
        expected = stats.ttest_rel(after, alone)
        row = found.loc[k]
        assert row.difference == pytest.approx(np.mean(after) - np.mean(alone))
        if k == 2:  # equal under all seeds: no spread, so no t interval
            continue
        assert (row.low, row.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert row.p == pytest.approx(expected.pvalue)
        assert (row.seeds, row.source) == (3, "seeds")


def test_one_seed_gives_the_interval_of_two_proportions(tmp_path):
    found = gains(study(tmp_path, after={0: HELPED[0]})).set_index("client")
    error = np.sqrt((0.8 * 0.2 + 0.7 * 0.3) / ROWS)
    assert (found.low[0], found.high[0]) == pytest.approx(stats.norm.interval(0.95, 0.1, error))
    assert found.p[0] == pytest.approx(2 * stats.norm.sf(0.1 / error))
    assert set(found.source) == {"rows"}
    assert "intervals over its test rows" in " ".join(found.attrs["notes"])


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_differences_give_an_interval_with_a_width(seeds):
    """0.9 - 0.7 and 0.8 - 0.6 differ only by rounding, so their spread is not used."""
    estimate = compared([0.9, 0.8, 0.7][:seeds], [0.7, 0.6, 0.5][:seeds], 20)
    assert estimate.source == "rows"
    assert estimate.high - estimate.low > 0.3
    certain = compared([1.0] * seeds, [0.0] * seeds, 2)
    assert certain.low < 1 == certain.high


@pytest.mark.parametrize("seeds", [[0.9, 0.2], [0.9]])
def test_intervals_stay_within_100_points(seeds):
    """Student's t of two seeds, and two proportions of one row, would both exceed 100 points."""
    for after, before in ((seeds, [0.0, 0.1][: len(seeds)]), ([0.0, 0.1][: len(seeds)], seeds)):
        estimate = compared(after, before, 1)
        assert (estimate.low, estimate.high)[estimate.mean > 0] == np.sign(estimate.mean)
        assert -1 <= estimate.low < estimate.mean < estimate.high <= 1


def test_holm_by_hand():
    """0.01 x 4, then 0.02 x 3, 0.03 x 2 and 0.5 x 1, each at least as large as the one before, and at most 1."""
    assert holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_difference_must_be_significant_after_correction(tmp_path):
    """Its p value is below 0.05, but above 0.05 / 3, the limit for the smallest of three."""
    folders = study(tmp_path, after={0: [0.87, 0.81, 0.71]})
    alone = stats.norm.sf(0.17 / np.sqrt((0.87 * 0.13 + 0.7 * 0.3) / ROWS)) * 2
    assert 0.05 / 3 < alone < 0.05
    gain = answer_of(folders).gains.iloc[0]
    assert gain.low > 0
    assert gain.verdict == "unclear"
    assert "+17.0" in gain.words
    assert "3 comparisons" in gain.words
    assert "comparisons" not in answer_of(folders).gains.words.iloc[1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"partition": "dirichlet:0.3"}, "partition (dirichlet:0.3 / iid)"),
        ({"public-fraction": 0.0, "test-set": "global"}, "public-fraction (0.0 / 0.1), test-set (global / client)"),
        ({"seed": 5}, "seed (5 / 0)"),
        ({"test": 51}, "test rows of client 0 (51 / 50)"),
        ({"train": 99}, "train rows of client 0 (99 / 100)"),
        ({"test": None}, "clients.json"),
        ({"rounds": 2}, "1 of 2 rounds"),
        ({"scores": [0.1, 0.2]}, "differs in clients (2 / 3)"),
    ],
)
def test_a_run_that_cannot_be_paired_is_named_with_the_difference(tmp_path, config, said):
    alone = ended(tmp_path / "seed=0", ALONE[0], algorithm="local")
    found = answer_of([alone, ended(tmp_path / "other", **{"scores": HELPED[0]} | config)])
    assert found.gains.empty
    assert any(text.startswith("fedhe other: ") and said in text for text in found.left_out)
    assert rendered(found)


def rendered(found):
    return [str(cell) for column in gains_table(found).columns for cell in column.cells] or ["nothing"]


def test_pooled_is_a_separate_method_that_may_have_more_training_rows(tmp_path):
    folders = study(tmp_path)
    folders += [ended(tmp_path / f"p{s}", ALONE[s], algorithm="local", pooled=True, train=300, seed=s) for s in ALONE]
    found = answer_of(folders)
    assert list(found.sentences) == ["fedhe", "pooled"]
    assert found.baseline == "local"
    assert set(found.gains.difference[found.gains.method == "pooled"]) == {0.0}
    assert any("upper bound" in note for note in found.notes)


def with_quality(folders, key, values):
    """Set the final values of another measure for the clients of each run."""
    for folder, own in zip(folders, values, strict=True):
        records = json.loads((folder / "clients.json").read_text())
        for record, value in zip(records, own, strict=True):
            record[key] = value
        (folder / "clients.json").write_text(json.dumps(records))


@pytest.mark.parametrize(
    ("name", "key"), [("balanced-accuracy", "balanced_accuracy"), ("macro-f1", "macro_f1"), ("auc", "auc")]
)
def test_other_measures_have_separate_differences_intervals_and_verdicts(tmp_path, name, key):
    """The measure has the accuracies of the three clients in reverse order."""
    folders = study(tmp_path)
    with_quality(
        folders, name.replace("-", "_"), [scores[::-1] for each in (ALONE, HELPED) for scores in each.values()]
    )
    found, usual = gains(folders, measure=name), gains(folders)
    assert found.difference.tolist() == pytest.approx(usual.difference.tolist()[::-1])
    assert found.verdict.tolist() == [
        "unclear",
        "unclear",
        "helps",
    ]  # the differences of the first are equal under all seeds
    assert found.low.tolist()[1:] == pytest.approx(usual.low.tolist()[1::-1])
    assert np.isnan(found.low[0])
    assert np.isnan(found.p_corrected[0])
    assert set(found.measure) == {MEASURES[name].words}
    assert "2 comparisons" in " ".join(found.attrs["notes"])


def test_one_seed_without_an_interval_tests_nothing(tmp_path):
    """So it is not said that there is no significant difference."""
    folders = [ended(tmp_path / "a", ALONE[0], algorithm="local"), ended(tmp_path / "b", HELPED[0])]
    with_quality(folders, "balanced_accuracy", [[0.5, 0.5, 0.5], [0.6, 0.6, 0.3]])
    found = gains(folders, measure="balanced-accuracy")
    assert found.attrs["sentences"] == {
        "fedhe": "fedhe: 0.0 points in balanced accuracy on average over clients, not tested."
    }
    assert found.words.tolist()[2] == "client 2: -20.0 points, not tested"


def test_a_run_is_paired_with_the_local_run_of_the_same_settings(tmp_path):
    ended(tmp_path / "a", [0.1, 0.1, 0.1], algorithm="local", **{"learning-rate": 0.5})
    ended(tmp_path / "b", ALONE[0], algorithm="local", **{"learning-rate": 0.1})
    ended(tmp_path / "c", HELPED[0], **{"learning-rate": 0.1})
    frame = gains([tmp_path])
    assert frame.baseline.tolist() == ALONE[0]


def test_a_folder_stands_for_its_runs_in_natural_order(tmp_path):
    for name in ("seed=10", "seed=9", "deep/down/seed=2"):
        ended(tmp_path / name, ALONE[0])
    (tmp_path / "seed=9" / "state").mkdir()
    (tmp_path / "seed=9" / "state" / "config.toml").touch()
    names = [folder.name for folder in run_folders([tmp_path / "seed=9", tmp_path])]
    assert names == ["seed=9", "seed=2", "seed=10"]
    (tmp_path / "seed=10" / "config.toml").unlink()
    with pytest.raises(RunFolderError, match=r"seed=10: config.toml is missing; repeat the command of its sweep"):
        gains([tmp_path])  # the run is not silently skipped
    assert run_folders([tmp_path / "none"]) == [tmp_path / "none"]


def test_compare_prints_tables_and_sentences_and_writes_files(tmp_path, hetfl):
    study(tmp_path / "runs")
    file = tmp_path / "gains.csv"
    done = hetfl("compare", tmp_path / "runs", "--csv", file)
    assert "test (min)" in done.out
    assert (done.status, done.err) == (0, "")
    assert re.search(r"client 0 +50 +71\.0 +\+10\.0 \(9\.7 to 10\.4\) helps", done.out)
    assert done.out.index("Gains over local") > done.out.index("accuracy %")
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "gains.csv"}
    frame = pd.read_csv(file)
    assert frame.verdict.tolist() == ["helps", "unclear", "harms"]
    below = hetfl("compare", tmp_path / "runs", "--csv", file / "gains.csv")
    assert below.refused
    assert re.search(r"gains.csv/gains.csv cannot be written: .*; name another file$", below.err)
    facts = json.loads(hetfl("compare", tmp_path / "runs", "--json").out)
    gains = facts["gains"]
    assert (gains["comparisons"], gains["baseline"], len(gains["gains"])) == (3, "local", 3)
    assert [(one["method"], len(one["runs"])) for one in facts["methods"]] == [("local", 3), ("fedhe", 3)]
    assert [run["algorithm"] for run in facts["runs"]].count("fedhe") == 3


def test_files_are_named_relative_to_their_folder(tmp_path, hetfl):
    """Two pairs of files of the same names, in different folders."""
    (tmp_path / "runs").mkdir()
    for place in ("old", "new"):
        files = ",".join(str(tmp_path / place / name) for name in ("north.csv", "south.csv"))
        make(tmp_path / "runs" / place, dataset=files)
    out = hetfl("compare", tmp_path / "runs" / "old").out
    assert out.startswith("dataset ./north.csv,./south.csv, clients 2")
    out = hetfl("compare", tmp_path / "runs").out
    assert "differ in dataset (./new/north.csv,./new/south.csv: " in " ".join(out.split())
    assert str(tmp_path) not in out
    page = Page(write_report([tmp_path / "runs"], tmp_path / "report.html"))
    assert "fedhe on ./new/north.csv,./new/south.csv, ./old/north.csv,./old/south.csv" in page.words


def test_a_name_that_is_a_formula_is_escaped_in_the_csv_file(tmp_path):
    gains = pd.DataFrame([{"method": "fedhe", "name": "=1+1", "difference": -0.25}])
    write_csv(gains, tmp_path / "g.csv")
    frame = pd.read_csv(tmp_path / "g.csv")
    assert (frame.name[0], frame.method[0], frame.difference[0]) == ("'=1+1", "fedhe", -0.25)


SMALL = ("--dataset", "breast-cancer", "--clients", "2", "--rounds", "1", "--set", "models=mlp")


def config_of(folder):
    return load(folder).config


def test_baselines_run_once_with_the_settings_of_the_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*SMALL, "--set", "projection=pcgrad", "--against", "local,pooled", "--out", "out"]
    done = CliRunner().invoke(app, ["run", "fedhe", *options])
    assert (done.exit_code, done.exception) == (0, None)
    assert sorted(path.name for path in Path("out").iterdir()) == ["fedhe", "local", "pooled"]
    alone, method = config_of("out/local"), config_of("out/fedhe")
    assert (alone["algorithm"], alone["pooled"], config_of("out/pooled")["pooled"]) == ("local", False, True)
    differing = {key for key in alone if "." not in key and key != "output-dir" and alone[key] != method[key]}
    assert differing == {"algorithm", "projection"}
    written = Path("out/local/summary.json").stat().st_mtime_ns
    assert CliRunner().invoke(app, ["run", "fedhe", *options]).exit_code == 0
    assert Path("out/local/summary.json").stat().st_mtime_ns == written


def test_the_recall_of_one_class_is_a_measure(tmp_path, hetfl):
    """Three seeds; the second client has no test row of the class."""
    folders = study(tmp_path)
    gained = [(0.2 + int(folder.name[-1]) / 100) * ("fedhe" in folder.parts) for folder in folders]
    recalls = [({"ill": 0.5 + gain, "well": 1.0}, {"well": 1.0}, {"ill": 0.1}) for gain in gained]
    with_quality(folders, "recall", recalls)
    found = gains(folders, measure="recall:ill").set_index("client")
    assert found.difference.to_dict() == pytest.approx({0: 0.21, 2: 0.0})
    assert set(found.measure) == {"recall of ill"}
    said = answer([load_run(folder) for folder in folders], measure_named(" Recall: ill "))
    assert any("client 1 has no final recall of ill" in line for line in said.left_out)
    done = hetfl("compare", *folders, "--measure", "recall:ill", "--out", tmp_path / "c.png")
    assert (done.status, "helps client 0 by 21.0 points" in done.out) == (0, True)
    for named, runs in (("dead", folders), ("il", folders[:1])):
        refused = hetfl("compare", *runs, "--measure", f"recall:{named}", "--out", tmp_path / "c.png")
        assert (refused.refused, f"'{named}'" in refused.err, refused.out) == (True, True, "")
