"""Run folders of two or three rounds, whose figures are derived by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.folders.run_folders import LINES, SILENT, client, finish, line, make
from matplotlib.image import imread
from rich.table import Table

from hetfl_flwr.errors import ConfigError, RunFolderError
from simulations.reports.plots.comparison import compare_figure
from simulations.reports.plots.drawing import write_figure
from simulations.reports.plots.run import run_figure
from simulations.reports.runs import best_accuracy, bytes_to, group_runs, load_run
from simulations.reports.tables import compare_table, summary_table, unequal_terms
from simulations.reports.terminal import client_table


def rows(table: Table) -> list[dict[str, str]]:
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    names = [str(column.header) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def facts(table: Table) -> dict[str, str]:
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_unfinished_run_is_derived_from_its_rounds(tmp_path: Path) -> None:
    """Three rounds of 100 bytes each way, 4 x 1.5 s; round 3 is the last that was evaluated."""
    failure = {"partition": 1, "stage": "train", "reason": "out of\nmemory", "node": 1}
    run = load_run(make(tmp_path / "run", [*LINES[:2], line(2, [], failures=[failure]), LINES[3]], rounds=9))
    shown = run.summary
    assert shown["accuracy"] == pytest.approx(0.8)
    assert shown["accuracy_per_client"] == [0.7, 0.9]
    assert (shown["clients"], shown["rounds"], shown["seconds"], shown["failures"]) == (2, 3, 6.0, 1)
    assert [shown[key] for key in ("bytes_up", "bytes_down", "wire_up", "wire_down")] == [300, 300, 3000, 3000]
    told = facts(summary_table(run))
    assert told["rounds"] == "3 of 9"
    assert told["accuracy %"] == "80.0 ± 10.0"
    assert told["wire up"] == "3.0 kB"
    assert told[""] == "round 2: out of memory"


def test_summary_comes_before_what_the_rounds_say(tmp_path: Path) -> None:
    run = load_run(finish(make(tmp_path / "run"), accuracy=0.5, accuracy_per_client=[0.2, 0.8], acc=0.25, fwt=0.125))
    told = facts(summary_table(run))
    assert told["accuracy %"] == "50.0 ± 30.0"
    assert told["ACC / BWT / FWT %"] == "25.0 / - / 12.5"
    assert "global accuracy %" not in told


def test_client_table(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    seen = rows(client_table("run", load_run(folder).clients))
    assert [(row["client"], row["before"], row["after"]) for row in seen] == [
        ("0", "0.0", "70.0"),
        ("1", "20.0", "90.0"),
    ]
    assert seen[0]["model"] == seen[0]["params"] == seen[0]["up"] == "-"
    known = {"parameters": 55210, "train": 126, "validation": 18, "test": 36}
    known |= {"accuracy": 0.93, "bytes_up": 96000, "bytes_down": 82}
    told = [client(client_id, model="a[b]", **known) for client_id in (1, 0)]
    (folder / "clients.json").write_text(json.dumps(told))
    first, second = rows(client_table("run", load_run(folder).clients))
    assert list(first.values()) == ["0", "a[b]", "55,210", "126", "36", "-", "93.0", "96.0 kB", "82 bytes"]
    assert second["client"] == "1"


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("accuracy", "1e400"),
        ("bytes_up", "9" * 5000),
        ("clock", "[" * 10**5),
    ],
    ids=lambda value: value[:8],
)
def test_numbers_that_no_run_reaches_lose_their_line_alone_in_every_command(
    tmp_path: Path, hetfl: Any, command: str, key: str, number: str
) -> None:
    folder = make(tmp_path / "run")
    first, second, *rest = (folder / "rounds.jsonl").read_text().splitlines()
    damaged = second.replace(f'"{key}": {json.dumps({"loss": 1.0, **LINES[1]}[key])}', f'"{key}": {number}')
    assert damaged != second
    (folder / "rounds.jsonl").write_text("\n".join([first, damaged, *rest]) + "\n")
    out = tmp_path / ("r.html" if command == "report" else "r.png")
    done = hetfl(command, folder, "--out", out)
    assert (done.status, f"{folder / 'rounds.jsonl'}, line 2" in done.err) == (0, True)
    assert len(set(done.err.splitlines())) == 1
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", '{\n"algorithm": ?', r"summary\.json: .*line 2 column 14"),
        ("clients.json", '[{"partition": "x"}]', r"clients\.json: 0\.partition"),
        ("config.toml", "seed = 0\nrounds = ?\n", r"config\.toml: .*line 2"),
        ("config.toml", 'algorithm = "fedhe"\nrounds = 3\nseed = 0\n', r"config\.toml: dataset"),
    ],
)
def test_broken_file_is_named_with_its_place(tmp_path: Path, file: str, content: str, message: str) -> None:
    folder = make(tmp_path / "run")
    (folder / file).write_text(content)
    with pytest.raises(RunFolderError, match=message) as raised:
        load_run(folder)
    assert "\n" not in str(raised.value)


def test_bytes_to_target(tmp_path: Path) -> None:
    """Mean accuracy 0.1, 0.5, -, 0.8 after 0, 200, 400, 600 bytes."""
    run = load_run(make(tmp_path / "run"))
    assert best_accuracy(run) == pytest.approx(0.8)
    assert [bytes_to(run, target) for target in (0.1, 0.11, 0.5, 0.6, 0.81)] == [0, 200, 200, 600, None]


def test_compare_unequal_runs(tmp_path: Path) -> None:
    """Best 0.8 and 0.4, so the target is 0.95 * 0.4 = 0.38, reached after 200 and 0 bytes."""
    one = load_run(finish(make(tmp_path / "one"), global_accuracy=0.75))
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
        "best test %": "80.0",
        "payload": "600 bytes",
        "wire": "6.0 kB",
        "payload to 38.0 %": "200 bytes",
        "seconds": "6.0",
        "failed": "0",
    }
    assert (second["algorithm"], second["rounds"], second["global %"]) == ("local", "1 of 3", "-")
    assert (second["payload"], second["payload to 38.0 %"]) == ("0 bytes", "0 bytes")
    assert str(table.title) == "clients 2"
    assert "dataset (digits / mnist), seed (0 / 4)" in str(table.caption)
    assert [row["payload to 70.0 %"] for row in rows(compare_table([one, other], 0.7))] == ["600 bytes", "never"]


def test_seeds_are_grouped(tmp_path: Path) -> None:
    """Last accuracies 0.8 and 0.6: mean 0.7, sample deviation sqrt(2 * 0.1^2) = 0.1414; bests likewise."""
    weaker = [*LINES[:3], line(3, [0.5, 0.7], sent=300)]
    runs = [
        load_run(make(tmp_path / "a")),
        load_run(make(tmp_path / "b", weaker, seed=1, **{"data-dir": "/x"})),
    ]
    table = compare_table(runs, target=0.75)
    (row,) = rows(table)
    assert str(table.title) == "dataset digits, clients 2, rounds 3, seed 0, 1"
    assert (row["accuracy %"], row["± seeds %"], row["best test %"]) == ("70.0 ± 10.0", "14.1", "70.0")
    assert (row["payload"], row["payload to 75.0 %"]) == ("800 bytes", "600 bytes (1 of 2 seeds)")
    assert "Not on equal terms" not in str(table.caption)


def test_settings_and_repeated_seeds_are_told_apart(tmp_path: Path) -> None:
    weak = load_run(make(tmp_path / "weak", fedhe={"alpha": 0.5}))
    strong = load_run(make(tmp_path / "strong", fedhe={"alpha": 1.0}))
    assert [group.label for group in group_runs([weak, strong])] == ["fedhe (alpha 0.5)", "fedhe (alpha 1.0)"]
    again = load_run(make(tmp_path / "again", fedhe={"alpha": 0.5}))
    assert [group.label for group in group_runs([weak, again])] == ["fedhe [weak]", "fedhe [again]"]
    assert unequal_terms(group_runs([weak, again])) is None


def test_runs_of_two_sweeps_are_two_groups_that_are_called_by_what_tells_their_folders_apart(tmp_path: Path) -> None:
    runs = []
    for study in ("first", "second"):
        (tmp_path / study / "fedhe").mkdir(parents=True)
        runs += [load_run(make(tmp_path / study / "fedhe" / f"seed={seed}", seed=seed)) for seed in (0, 1)]
    alone = load_run(make(tmp_path / "alone"))
    groups = group_runs(runs)
    assert [(group.label, [run.folder.parts[-3] for run in group.runs]) for group in groups] == [
        ("fedhe [first/fedhe]", ["first", "first"]),
        ("fedhe [second/fedhe]", ["second", "second"]),
    ]
    assert [group.label for group in group_runs(runs[:2])] == ["fedhe"]
    assert [group.label for group in group_runs([alone, *runs[:2]])] == ["fedhe [alone]", "fedhe [first/fedhe]"]


def test_compare_shows_domains_and_simulated_time_where_runs_have_them(tmp_path: Path) -> None:
    """The target of 0.5 is reached by the first run's round 1, at 9 seconds, and never by the others; the mean of the
    two seeds' ACC of 0.5 and 0.7 is 0.6, and so on. A run without a summary has the figures of its last round."""
    lines = [{**entry, "clock": 9.0 * entry["round"]} for entry in LINES]
    first = load_run(finish(make(tmp_path / "0", lines), acc=0.5, bwt=0.8, fwt=0.4))
    lines[-1] |= {"acc": 0.7, "bwt": 0.8, "fwt": 0.6}
    second = load_run(make(tmp_path / "1", lines, seed=1))
    silent = load_run(make(tmp_path / "2", SILENT, algorithm="local"))
    one, other = rows(compare_table([first, second, silent], target=0.5))
    assert one["ACC / BWT / FWT %"] == "60.0 / 80.0 / 50.0"
    assert one["clock to 50.0 %"] == "9.0"
    assert (other["ACC / BWT / FWT %"], other["clock to 50.0 %"]) == ("-", "never")
    assert not {"ACC / BWT / FWT %", "clock to 50.0 %"} & rows(compare_table([silent], target=0.5))[0].keys()


def test_run_figure_has_a_line_a_client_and_the_mean(tmp_path: Path) -> None:
    with_global = [line(0, [0.2, 0.4], global_accuracy=0.25), line(1, [0.4, 0.6], global_accuracy=0.35)]
    axes = run_figure(load_run(make(tmp_path / "run", with_global))).axes[0]
    drawn = {str(item.get_label()): list(item.get_ydata()) for item in axes.get_lines()}
    assert drawn == {
        "client 0": [0.2, 0.4],
        "client 1": [0.4, 0.6],
        "mean over clients": [pytest.approx(0.3), 0.5],
        "global model": [0.25, 0.35],
    }
    assert axes.get_ylim() == (0, 1)


def test_compare_figure_over_rounds_and_bytes(tmp_path: Path) -> None:
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
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(0.7 + 0.1414, abs=1e-4)
    flat, course = over_bytes.get_lines()
    assert list(flat.get_ydata()) == [0.4, 0.4]
    assert list(course.get_xdata())[1:] == [200, 600]
    assert over_bytes.get_xscale() == "log"


def test_pictures_are_written(tmp_path: Path) -> None:
    run = load_run(make(tmp_path / "run"))
    write_figure(run_figure(run), tmp_path / "new" / "run.png")
    write_figure(compare_figure([run]), tmp_path / "compare")
    for name, width in (("new/run.png", 1200), ("compare", 1500)):
        pixels = imread(tmp_path / name, format="png")
        assert pixels.shape[1] == width
        assert pixels.std() > 0.05
    for path in (tmp_path / "run.txt", tmp_path / "run" / "config.toml" / "run.png"):
        with pytest.raises(ConfigError, match=str(path)):
            write_figure(run_figure(run), path)
