"""Tables and plots of run folders with two or three rounds, checked against values computed by hand."""

import json
from shutil import copy

import pytest
from fixtures.folders.run_folders import LINES, SILENT, client, finish, line, make
from matplotlib.image import imread
from rich.table import Table

from hetfl_flwr.errors import ConfigError, RunFolderError
from simulations.reports.plots.comparison import compare_figure, run_figure
from simulations.reports.plots.drawing import write_figure
from simulations.reports.runs import best_accuracy, load_run, spent
from simulations.reports.tables import client_table, compare_table, summary_table


def rows(table: Table) -> list[dict[str, str]]:
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    names = [str(column.header) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def facts(table: Table) -> dict[str, str]:
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_summary_of_an_unfinished_run_is_computed_from_its_rounds(tmp_path):
    """Three rounds of 100 bytes each way, 4 x 1.5 s; round 3 is the last evaluated one."""
    failure = {"partition": 1, "stage": "train", "reason": "out of\nmemory", "node": 1}
    run = load_run(make(tmp_path / "run", [*LINES[:2], line(2, [], failures=[failure]), LINES[3]], rounds=9))
    shown = run.summary
    assert shown["accuracy"] == pytest.approx(0.8)
    assert shown["accuracy_per_client"] == [0.7, 0.9]
    assert (shown["clients"], shown["rounds"], shown["seconds"], shown["failures"]) == (2, 3, 6.0, 1)
    assert [shown[key] for key in ("bytes_up", "bytes_down", "wire_up", "wire_down")] == [300, 300, 3000, 3000]
    table = facts(summary_table(run))
    assert table["rounds"] == "3 of 9"
    assert table["accuracy %"] == "80.0 ± 10.0"
    assert table["wire up"] == "3.0 kB"
    assert table[""] == "round 2: out of memory"


def test_what_the_guard_or_a_robust_average_leaves_out_is_no_failure(tmp_path):
    """One upload by the guard in round 1, those of two clients by Multi-Krum in round 2."""
    outlier = {"partition": 1, "stage": "train", "reason": "far too large: left out", "node": 1}
    lines = [LINES[0], line(1, [0.4, 0.6], outliers=[outlier]), line(2, [], not_averaged=[0, 1]), LINES[3]]
    run, other = load_run(make(tmp_path / "a", lines)), load_run(make(tmp_path / "b", seed=1))
    table = facts(summary_table(run))
    assert (table["failures"], table["left out"], table[""]) == ("0", "3", "round 1: far too large: left out")
    assert "left out" not in facts(summary_table(other))
    [compared] = rows(compare_table([run, other]))
    assert (compared["failures"], compared["left out"]) == ("0", "3, 0")
    assert "not failures" in str(compare_table([run, other]).caption)
    assert "left out" not in rows(compare_table([other]))[0]


def test_figures_that_a_run_has_are_in_its_table(tmp_path):
    last = line(3, [0.7, 0.9], acc=0.25, fwt=0.125, global_accuracy=0.75)
    table = facts(summary_table(load_run(make(tmp_path / "run", [*LINES[:3], last]))))
    assert table["ACC / BWT / FWT %"] == "25.0 / - / 12.5"
    assert table["global accuracy %"] == "75.0"
    assert "global accuracy %" not in facts(summary_table(load_run(make(tmp_path / "other"))))


def lose(folder, *numbers):
    kept = [one for number, one in enumerate(LINES) if number not in numbers]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda folder, other: copy(other / "summary.json", folder), "config.toml"),
        (lambda folder, other: copy(other / "config.toml", folder), "config.toml"),
        (lambda folder, other: copy(other / "rounds.jsonl", folder), "rounds.jsonl"),
        (lambda folder, other: copy(other / "clients.json", folder), "clients.json"),
        (lambda folder, other: lose(folder, 1), "rounds.jsonl"),
        (lambda folder, other: lose(folder, 3), "rounds.jsonl"),
        (lambda folder, other: lose(folder, 0, 1, 2, 3), "rounds.jsonl"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, change, named, refusal):
    """A file of another run, or lines of the rounds that are gone, would change figures silently."""
    folder = make(tmp_path / "run")
    other = make(tmp_path / "other", [*LINES[:3], line(3, [0.1, 0.2])], algorithm="local")
    for run, accuracies in ((folder, [0.7, 0.9]), (other, [0.1, 0.2])):
        told = [client(client_id, accuracy=accuracy) for client_id, accuracy in enumerate(accuracies)]
        (finish(run) / "clients.json").write_text(json.dumps(told))
        load_run(run)
    change(folder, other)
    said = refusal(RunFolderError, load_run, folder)
    assert "summary.json" in said
    assert named in said


def test_client_table(tmp_path):
    folder = make(tmp_path / "run")
    seen = rows(client_table("run", load_run(folder).clients))
    assert [(row["client"], row["before"], row["after"]) for row in seen] == [
        ("0", "0.0", "70.0"),
        ("1", "20.0", "90.0"),
    ]
    assert seen[0]["model"] == seen[0]["params"] == seen[0]["up"] == "-"
    worst = client_table("run", load_run(folder).clients[::-1], most=1)
    assert ([row["client"] for row in rows(worst)], "1 clients of 2" in str(worst.caption)) == (["0"], True)
    known = {"parameters": 55210, "train": 126, "validation": 18, "test": 36}
    known |= {"accuracy": 0.93, "bytes_up": 96000, "bytes_down": 82}
    told = [client(client_id, model="a[b]", **known) for client_id in (1, 0)]
    (folder / "clients.json").write_text(json.dumps(told))
    first, second = rows(client_table("run", load_run(folder).clients))
    assert list(first.values()) == ["0", "a[b]", "55,210", "126", "36", "-", "93.0", "96.0 kB", "82 bytes"]
    assert second["client"] == "1"


def test_bytes_to_target(tmp_path):
    """Mean accuracy 0.1, 0.5, -, 0.8 after 0, 200, 400, 600 bytes."""
    run = load_run(make(tmp_path / "run"))
    assert best_accuracy(run) == pytest.approx(0.8)
    assert [spent(run, target, "payload") for target in (0.1, 0.11, 0.5, 0.6, 0.81)] == [0, 200, 200, 600, None]


def test_compare_unequal_runs(tmp_path):
    """Best 0.8 and 0.4, so the target is 0.95 * 0.4 = 0.38, reached after 200 and 0 bytes."""
    one = load_run(make(tmp_path / "one", [*LINES[:3], line(3, [0.7, 0.9], global_accuracy=0.75)]))
    other = load_run(make(tmp_path / "other", SILENT, algorithm="local", dataset="mnist", seed=4))
    table = compare_table([one, other])
    first, second = rows(table)
    assert first == {
        "algorithm": "fedhe",
        "dataset": "digits",
        "rounds": "3",
        "seed": "0",
        "accuracy %": "80.0 ± 10.0",
        "global %": "75.0",
        "best round by test %": "80.0",
        "payload": "600 bytes",
        "wire": "6.0 kB",
        "payload to reach 38.0 %": "200 bytes",
        "seconds": "6.0",
        "failures": "0",
    }
    assert (second["algorithm"], second["rounds"], second["global %"]) == ("local", "1 of 3", "-")
    assert (second["payload"], second["payload to reach 38.0 %"]) == ("0 bytes", "0 bytes")
    assert str(table.title) == "clients 2"
    assert "dataset (digits: fedhe; mnist: local), seed (0: fedhe; 4: local)" in str(table.caption)
    assert [row["payload to reach 70.0 %"] for row in rows(compare_table([one, other], 0.7))] == ["600 bytes", "never"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"pretrained": "imagenet"}, "pretrained (imagenet: fedhe; not set: local)"),
        ({"augment": "crop-flip"}, "augment (crop-flip: fedhe; none: local)"),
        ({"keep-best": True}, "keep-best (True: fedhe; False: local)"),
        ({"fedhe.alpha": 0.5, "threads": 2}, ""),
    ],
)
def test_any_setting_in_which_methods_differ_is_named(tmp_path, setting, said):
    runs = [load_run(make(tmp_path / "one", **setting)), load_run(make(tmp_path / "other", algorithm="local"))]
    caption = str(compare_table(runs).caption)
    assert f"differ in {said}." in caption if said else "Not directly" not in caption


def test_runs_that_differ_from_most_are_named(tmp_path):
    runs = [load_run(make(tmp_path / name, algorithm=name, models="mlp")) for name in ("fedhe", "fd", "local")]
    runs.append(load_run(make(tmp_path / "fedrep", algorithm="fedrep", models="lenet5")))
    assert "differ in models (lenet5: fedrep; mlp: the others)." in str(compare_table(runs).caption)


def test_methods_that_train_on_unlike_numbers_of_samples_are_named(tmp_path):
    """As FedH2L, whose round has one mini-batch by default."""

    def run(name, seen):
        lines = [line(0, [0.1, 0.1]), line(1, [0.4, 0.6])]
        lines[1]["clients"] = {client: one | {"samples-seen": seen} for client, one in lines[1]["clients"].items()}
        return load_run(make(tmp_path / name, lines, algorithm=name, rounds=1))

    runs = [run("fedh2l", 50), run("local", 150), run("agg", 130)]
    assert "samples per client and round (50: fedh2l; 150: local; 130: agg)." in str(compare_table(runs).caption)
    assert "Not directly comparable" not in str(compare_table(runs[1:]).caption)


def test_seeds_are_grouped(tmp_path):
    """Last accuracies 0.8 and 0.6: mean 0.7, sample deviation sqrt(2 * 0.1^2) = 0.1414; bests likewise."""
    weaker = [*LINES[:3], line(3, [0.5, 0.7], sent=300)]
    runs = [
        load_run(make(tmp_path / "a")),
        load_run(make(tmp_path / "b", weaker, seed=1, **{"data-dir": "/x"})),
    ]
    table = compare_table(runs, target=0.75)
    (row,) = rows(table)
    assert str(table.title) == "dataset digits, clients 2, rounds 3, seed 0, 1"
    assert (row["accuracy %"], row["± seeds %"], row["best round by test %"]) == ("70.0 ± 10.0", "14.1", "70.0")
    assert (row["payload"], row["payload to reach 75.0 %"]) == ("800 bytes", "600 bytes (1 of 2 seeds)")
    assert "Not directly comparable" not in str(table.caption)


def test_a_key_that_is_newer_than_a_run_has_its_default(tmp_path):
    runs = [load_run(make(tmp_path / "old")), load_run(make(tmp_path / "new", seed=1, moments="reset"))]
    assert [row["algorithm"] for row in rows(compare_table(runs))] == ["fedhe"]


def test_seeds_without_a_round_in_common_are_not_drawn(tmp_path, refusal):
    runs = [load_run(make(tmp_path / "a", LINES[:1])), load_run(make(tmp_path / "b", LINES[1:], seed=1))]
    assert "under all of its seeds" in refusal(RunFolderError, compare_figure, runs)


def test_compare_figure_over_rounds_and_bytes(tmp_path):
    """Two seeds make one line, over the rounds of both: in round 3 at 0.8 and 0.6, sample deviation 0.1414.

    Local sends nothing: a line at its last 0.4.
    """
    longer = [*LINES[:3], line(3, [0.5, 0.7]), line(4, [1.0, 1.0])]
    seeds = [make(tmp_path / "a"), make(tmp_path / "b", longer, seed=1)]
    runs = [load_run(folder) for folder in [*seeds, make(tmp_path / "local", SILENT, algorithm="local")]]
    over_rounds, over_bytes = compare_figure(runs).axes
    assert [item.get_label() for item in over_rounds.get_lines()] == ["fedhe, 2 seeds", "local"]
    assert list(over_rounds.get_lines()[0].get_xdata()) == [0, 1, 3]
    assert list(over_rounds.get_lines()[0].get_ydata()) == pytest.approx([0.1, 0.5, 0.7])
    (band,) = over_rounds.collections
    corners = band.get_paths()[0].vertices
    last = corners[corners[:, 0] == 3, 1]
    assert (last.min(), last.max()) == pytest.approx((0.7 - 0.1414, 0.7 + 0.1414), abs=1e-4)
    flat, course = over_bytes.get_lines()
    assert list(flat.get_ydata()) == [0.4, 0.4]
    assert list(course.get_xdata())[1:] == [200, 600]
    assert over_bytes.get_xscale() == "log"


def test_pictures_are_written(tmp_path):
    run = load_run(make(tmp_path / "run"))
    write_figure(run_figure(run), tmp_path / "new" / "run.png")
    write_figure(compare_figure([run]), tmp_path / "compare")
    for name, width in (("new/run.png", 1200), ("compare", 1200)):
        pixels = imread(tmp_path / name, format="png")
        assert pixels.shape[1] == width
        assert pixels.std() > 0.05
    for path in (tmp_path / "run.txt", tmp_path / "run" / "config.toml" / "run.png"):
        with pytest.raises(ConfigError, match=str(path)):
            write_figure(run_figure(run), path)
