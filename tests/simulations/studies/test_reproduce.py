"""``hetfl reproduce``: recipes are right, runs are made once, figures are counted right, nothing is lost."""

import json
import os
import shlex
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from rich.console import Console
from scipy.stats import ttest_rel

from hetfl_flwr.errors import ConfigError, HetflError, RunFolderError
from hetfl_flwr.runs.record import Round
from simulations.reports.runs import Run, load_run
from simulations.studies.jobs import Job
from simulations.studies.reproduce import command, pictures
from simulations.studies.reproduce.command import Options, prepare, reproduce
from simulations.studies.reproduce.entries import Entry, entries, last_rises, ranking
from simulations.studies.reproduce.page import (
    as_markdown,
    counted,
    differences_as_markdown,
    lost_as_markdown,
    markdown,
    merged,
    several_data_as_markdown,
)
from simulations.studies.reproduce.pictures import draw
from simulations.studies.reproduce.recipe import Cell, load, names
from simulations.studies.reproduce.records import (
    Record,
    Records,
    check_reported,
    course_name,
    jobs,
    measured,
    read_lines,
)
from simulations.studies.reproduce.tuned import Findings, TunedCell

RESULTS = Path(__file__).parents[3] / "simulations" / "results"

RECIPE = """
title = "Small table"
paper = "A. Author, A Paper, 2021"
source = "Table 1"
against = "FedHe"
seeds = 2

[measures]
accuracy = "accuracy"
sent = { key = "bytes_up", unit = "MB" }

[settings]
clients = 2
models = "tabular:3"
rounds = 3
batch-size = 20
evaluate-every = 3
checkpoint-every = 1
fedhe = { alpha = 0.5 }  # a key that the runs of other rows do not have

[quick]
rounds = 1

[[rows]]
name = "FedHe"
settings = { algorithm = "fedhe" }
paper = { accuracy = 50.0 }

[[rows]]
name = "Private"
settings = { algorithm = "local" }
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def run_recipe(recipe, tmp_path):
    """Reproduce the small table and return whether all of it is there, its folder, and what was said."""

    def act(**wanted):
        options = Options(tmp_path / "out", **wanted)
        said = StringIO()
        whole = reproduce([str(recipe)], options, Console(file=said, width=160))
        name = "small" if options.variant == "full" else f"small-{options.variant}"
        return whole, tmp_path / "out" / name, said.getvalue()

    return act


@pytest.fixture
def known(monkeypatch):
    """All runs of the recipe's seeds are recorded, with an accuracy of 45 %."""

    def get(self, job, recipe):
        return recorded(job.folder.parent.name, [45])[0] if job.settings["seed"] < recipe.seeds else None

    monkeypatch.setattr(Records, "get", get)


@pytest.mark.parametrize("name", names())
def test_every_recipe_of_the_papers_is_right(name):
    recipe = load(name)
    assert all(cell.settings["algorithm"] for cell in recipe.cells())
    quick = list(recipe.cells("quick"))
    assert max(int(cell.settings.get("rounds", 50)) for cell in quick) <= 200


WITHOUT_RECORDS = {"chfl-readings", "chfl-table1-short", "fml-figure6-short"}
WITHOUT_RECORDS |= {"fedh2l-readings"}  # of some rows
"""Reports from before records were kept."""


@pytest.mark.parametrize(
    "name",
    sorted(
        {path.stem for path in RESULTS.glob("*.md")} & {*names(), *map("{}-short".format, names())} - WITHOUT_RECORDS
    ),
)
def test_records_that_are_kept_give_the_report_that_is_kept(tmp_path, monkeypatch, name):
    monkeypatch.setattr(command, "draw", lambda *given: given[-1].touch())
    copytree(RESULTS, tmp_path / "results")
    page = tmp_path / "results" / f"{name}.md"
    page.unlink()
    options = Options(
        tmp_path / "out", "short" if "-short" in name else "full", results=tmp_path / "results", report_only=True
    )
    reproduce([name.removesuffix("-short")], options, Console(file=StringIO()))
    assert page.read_text() == (RESULTS / page.name).read_text()


@pytest.mark.slow
def test_a_table_is_run_once_and_written_with_its_command_and_picture(run_recipe, tmp_path):
    whole, folder, _ = run_recipe(results=tmp_path / "results")
    assert whole
    made = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("runs/**/summary.json"))
    assert made == [f"runs/{row}/seed-{seed}" for row in ("fedhe", "private") for seed in (0, 1)]
    assert load_run(folder / "runs" / "fedhe" / "seed-1").config["fedhe.alpha"] == 0.5
    figures = json.loads((folder / "table.json").read_text())["figures"]
    assert [(one["row"], one["measure"]) for one in figures] == [
        (row, measure) for row in ("FedHe", "Private") for measure in ("accuracy", "sent")
    ]
    assert figures[1]["ours"] == {"0": pytest.approx(3 * 2 * 480e-6), "1": pytest.approx(3 * 2 * 480e-6)}
    assert figures[3]["mean"] == 0  # nobody sends anything
    text = (folder / "table.md").read_text()
    assert f"; 4 of 4 runs; hetfl {version('hetfl')}, " in text
    assert "|  | accuracy, % | sent, MB | seeds |" in text
    assert (tmp_path / "results" / "small.md").read_text() == f"{text}\n![Small table](small.png)\n"
    assert (folder / "figure.png").stat().st_size > 10_000

    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/**/rounds.jsonl")}
    assert run_recipe()[0]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/**/rounds.jsonl")} == before
    run_recipe(seeds=3)
    assert len(list(folder.glob("runs/**/summary.json"))) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before
    kept = tmp_path / "results" / "small.jsonl"
    kept.write_text(others := kept.read_text().replace(version("hetfl"), "9.9"))  # as made with a newer version
    assert run_recipe(results=tmp_path / "results")[0]
    assert kept.read_text() == others


GAINS = RECIPE.replace('against = "FedHe"', 'against = "Private"').replace(
    'sent = { key = "bytes_up", unit = "MB" }',
    """sent = { key = "bytes_up", unit = "MB" }
gain = { key = "gain", unit = "points" }
harmed = "harmed"
"worst tenth" = { key = "worst-tenth", unit = "points" }""",
)


def of_clients(cell, seed, *accuracies):
    figures = {"accuracy": sum(accuracies) / len(accuracies), "bytes_up": 1e6}
    clients = dict(enumerate(accuracies))
    return Record(cell=cell.folder, seed=seed, settings={}, versions=[], figures=figures, clients=clients)


def test_gains_are_those_of_the_same_client_and_seed(recipe):
    """Of two clients one loses 2 and 0 points, the other gains 10 and 20; a seed without the other row has no gain."""
    recipe.write_text(GAINS)
    small = load(str(recipe))
    fedhe, private = small.cells()
    records = [
        of_clients(fedhe, 0, 0.48, 0.60),
        of_clients(private, 0, 0.50, 0.50),
        of_clients(fedhe, 1, 0.50, 0.70),
        of_clients(private, 1, 0.50, 0.50),
        of_clients(fedhe, 2, 0.0, 0.0),
    ]
    found = entries(small, [fedhe, private], records)
    assert "| 2 to 3 |\n" in markdown(small, found, "hand", "")  # seeds of FedHe
    ours = {(one.cell.row, one.measure): one.ours for one in found}
    assert ours["FedHe", "gain"] == pytest.approx({0: 4.0, 1: 10.0})
    assert ours["FedHe", "harmed"] == pytest.approx({0: 50.0, 1: 0.0})
    assert ours["FedHe", "worst tenth"] == pytest.approx({0: -2.0, 1: 0.0}, abs=1e-9)
    assert ours["Private", "gain"] == {0: 0.0, 1: 0.0}
    assert set(ours["FedHe", "accuracy"]) == {0, 1, 2}


@pytest.mark.parametrize(("baseline", "alone"), [("local", True), ("fd", False)])
def test_a_picture_of_gains_says_over_training_alone_only_of_these(recipe, tmp_path, monkeypatch, baseline, alone):
    recipe.write_text(GAINS.replace('"local"', f'"{baseline}"').replace("seeds = 2", 'figure = { kind = "gains" }'))
    small, labels = load(str(recipe)), []
    cells = [*small.cells()]
    records = [of_clients(cell, seed, 0.5, 0.1 * seed) for cell in cells for seed in range(3)]
    monkeypatch.setattr(pictures, "explain", lambda figure, what: labels.append(what))
    draw(small, entries(small, cells, records), [], records, tmp_path / "gains.png")
    assert [("training alone" in label) for label in labels] == [alone]


@pytest.mark.slow
def test_what_has_ended_is_kept_though_the_command_is_killed_and_no_gain_is_no_picture(
    recipe, run_recipe, tmp_path, monkeypatch
):
    """The command dies when its second run has ended. Its row is compared with one that was not asked for."""
    recipe.write_text(GAINS.replace("seeds = 2", 'seeds = 3\nfigure = { kind = "gains", measures = ["sent"] }'))
    taken, was = [], Records.take

    def dying(self, job, recipe):
        was(self, job, recipe)
        taken.append(job)
        if len(taken) == 2:
            raise SystemExit

    monkeypatch.setattr(Records, "take", dying)
    with pytest.raises(SystemExit):
        run_recipe(seeds=3, only=["FedHe"], results=tmp_path / "results")
    (kept,) = (tmp_path / "results").glob("*.jsonl")
    assert len(kept.read_text().splitlines()) == 2
    monkeypatch.undo()
    (tmp_path / "results" / "small.png").touch()  # of an earlier report
    whole, folder, said = run_recipe(seeds=3, only=["FedHe"], results=tmp_path / "results")
    assert whole
    assert "small.png" not in (tmp_path / "results" / "small.md").read_text()
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(lines) == 3
    assert all({"torch", "python"} <= one.keys() and "scipy" not in one for line in lines for one in line["versions"])
    assert not (folder / "figure.png").exists()
    assert "figure.png" not in said


@pytest.mark.slow
def test_a_row_that_fails_is_named_and_takes_nothing_with_it(run_recipe, recipe):
    text = RECIPE.replace('algorithm = "local"', 'algorithm = "fedh2l", public-fraction = 0.0')
    recipe.write_text(text)  # nobody has public samples
    whole, folder, said = run_recipe(seeds=1)
    assert not whole
    assert "Private, seed 0: fedh2l needs public samples" in " ".join(said.split())
    figures = json.loads((folder / "table.json").read_text())["figures"]
    assert [len(one["ours"]) for one in figures] == [1, 1, 0, 0]


def test_the_quick_variant_says_in_each_line_that_it_is_not_the_papers_and_compares_nothing(
    recipe, run_recipe, monkeypatch
):
    """In each of what it makes: on the screen, in Markdown and in JSON."""
    recipe.write_text(f'found = "FedHe has 50.00 as in the paper."\n{RECIPE}')
    known = {"fedhe": recorded("fedhe", [40])[0], "private": recorded("private", [60])[0]}
    monkeypatch.setattr(Records, "get", lambda self, job, recipe: known[job.folder.parent.name])
    _, folder, said = run_recipe(variant="quick", report_only=True, results=recipe.parent / "kept")
    told = json.loads((folder / "table.json").read_text())
    assert [(one["paper"], one["difference"]) for one in told["figures"]] == [(None, None)] * 4
    pages = (said, (folder / "table.md").read_text(), (recipe.parent / "kept" / "small-quick.md").read_text())
    for text in (*pages, told["title"] + told["less"]):
        words = " ".join(text.split())
        assert ("quick variant" in words, "rounds = 1 instead of 3" in words, "50.00" in words) == (True, True, False)
    for text in pages:
        lines = [line for line in text.splitlines() if "40.00" in line or "60.00" in line]
        assert len(lines) == 2
        assert all("not the paper's setting" in line for line in lines)


@pytest.mark.exhaustive
def test_records_outlive_the_folders_of_their_runs(run_recipe, recipe, tmp_path):
    """Their folders can go: on another machine the table goes on with the seeds that are left."""
    results = tmp_path / "results"
    _, folder, _ = run_recipe(seeds=1, results=results)
    text = (results / "small.md").read_text()
    rmtree(folder)
    (results / "small.png").unlink()
    assert run_recipe(seeds=1, results=results)[0]
    assert not (folder / "runs").exists()
    assert (results / "small.md").read_text() == text
    assert (results / "small.png").stat().st_size > 10_000
    run_recipe(seeds=2, results=results)
    assert {path.parent.name for path in folder.glob("runs/**/summary.json")} == {"seed-1"}
    assert "; 4 of 4 runs; " in (results / "small.md").read_text()
    rmtree(folder)
    recipe.write_text(RECIPE.replace("alpha = 0.5", "alpha = 0.25"))  # of FedHe's runs, not of Private's
    _, _, said = run_recipe(seeds=1, results=results)
    assert [path.parent.parent.name for path in folder.glob("runs/**/summary.json")] == ["fedhe"], said
    rmtree(folder)
    recipe.write_text(RECIPE)  # and what was run before with 0.5 is still known
    assert run_recipe(seeds=2, results=results)[0]
    assert not (folder / "runs").exists()


def test_two_processes_that_record_into_one_file_keep_each_others_runs(recipe, run_recipe, tmp_path, monkeypatch):
    """The second one has read the file before the first has written it."""
    small, path = load(str(recipe)), tmp_path / "kept" / "small.jsonl"
    first, second = Records(path), Records(path)
    made = {"a": recorded("fedhe", [40])[0], "b": recorded("private", [60])[0]}
    monkeypatch.setattr(f"{Records.__module__}.record", lambda job, recipe: made[job])
    first.take("a", small)
    second.take("b", small)
    assert [json.loads(line)["cell"] for line in path.read_text().splitlines()] == ["fedhe", "private"]


RECORD = (
    '{"cell": "fedhe", "seed": 0, "settings": {"clients": 2}, "versions": [{"torch": "2.14.1"}], '
    '"figures": {"accuracy": 0.5, "bytes_up": 3, "last:train-loss": -7.5, "acc": null}, '
    '"courses": {"accuracy over round": [[1, 3], [0.25, 0.5]]}, "clients": {"0": 0.5, "1": 0.5}}\n'
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"accuracy": 0.5', '"accuracy": NaN', "figures.accuracy"),
        ('"accuracy": 0.5', '"accuracy": 97.0', "accuracy = 97: expected a fraction from 0 to 1"),
        ('"accuracy": 0.5', '"accuracy": true', "figures.accuracy"),
        ('"bytes_up": 3', '"bytes_up": -3', "bytes_up = -3"),
        ('"seed": 0', '"seed": -1', "seed"),
        ('"clients": 2', '"clients": Infinity', "clients = inf"),
        ('"clients": 2', f'"clients": {"9" * 400}', "clients"),
        ('"2.14.1"', '"\\u001b[31m"', "versions.0.torch"),
        ("[1, 3]", "[1]", "accuracy over round: 1 rounds and 2 values"),
        ("0.25", "25.0", "accuracy = 25"),
        ('{"0": 0.5', '{"0": 50.0', "clients.0"),
        ('{"0": 0.5', '{"-1": 0.5', "clients.-1"),
        (', "1": 0.5}}\n', "", "EOF"),  # cut short
        ("cell", "\udcff", "invalid unicode"),
    ],
)
def test_a_record_that_cannot_be_is_named_with_its_line_and_what_to_do(tmp_path, refusal, old, new, said):
    path = tmp_path / "small.jsonl"
    path.write_text(RECORD)
    assert len(read_lines(path, Record)) == 1
    path.write_bytes((RECORD + RECORD.replace(old, new)).encode(errors="surrogateescape"))
    line = refusal(RunFolderError, Records, path)
    assert (f"{path}, line 2: " in line, said in line, "delete the line" in line) == (True, True, True)


def test_two_records_of_one_run_are_refused(tmp_path, refusal):
    """As after two files have been joined: which of them is right, only the user can say."""
    path = tmp_path / "small.jsonl"
    path.write_text(RECORD + RECORD.replace('"1": 0.5', '"1": 0.75'))
    assert "line 2: the same cell and settings as in line 1" in refusal(RunFolderError, Records, path)


def test_a_key_in_which_rows_differ_cannot_be_set_for_all(recipe, run_recipe, refusal):
    """The rows would be equal, and their names would still say that they are not."""
    recipe.write_text(RECIPE.replace('"local" }', '"local", rounds = 6 }'))
    assert "--set rounds: rows or columns differ in it (3, 6)" in refusal(ConfigError, run_recipe, extra={"rounds": 1})
    assert "algorithm" in refusal(ConfigError, run_recipe, extra={"algorithm": "fedhe"})
    options = Options(Path("out"), only=["Private"], extra={"rounds": 1, "fedhe.alpha": 1.0})
    assert [cell.settings["rounds"] for cell in options.cells(load(str(recipe)))] == [1]


def test_what_was_found_is_not_said_of_other_settings(recipe):
    recipe.write_text(RECIPE.replace("seeds = 2", 'seeds = 2\nfound = "FedHe is best."'))
    found = [
        Options(Path("out"), extra=extra).recipe(str(recipe)).found for extra in ({}, {"device": "cpu"}, {"rounds": 1})
    ]
    assert found == ["FedHe is best.", "FedHe is best.", ""]


def test_runs_without_some_clients_are_named():
    """A client that diverged has no result; the means are over the others."""
    cells = [Cell(row=row, column="IID", settings={"clients": 2}, paper={}) for row in ("A", "B")]
    whole = Record(
        cell=cells[0].folder, seed=0, settings={"clients": 2}, versions=[], figures={}, clients={0: 1.0, 1: 1.0}
    )
    less = whole.model_copy(update={"cell": cells[1].folder, "seed": 1, "clients": {0: 1.0}})
    assert lost_as_markdown(cells, [whole, whole.model_copy(update={"seed": 1})]) == ""
    assert lost_as_markdown(cells, [whole, less]).endswith(": B, IID, seed 1 (1 of 2 have a result in the last round).")
    refused = whole.model_copy(update={"failures": 5})  # in rounds before the last
    assert lost_as_markdown(cells, [whole, refused]).endswith("refused): A, IID, seed 0 (5 failures).")


def test_runs_of_several_versions_of_a_data_set_are_named():
    cells = [Cell(row="A", column=column, settings={}, paper={}) for column in ("x", "y")]
    records = [
        Record(cell=cell.folder, seed=seed, settings={"dataset": "mnist"}, versions=[], figures={}, data=data)
        for cell, digests in zip(cells, ([["a" * 64], ["b" * 64], []], [["a" * 64]] * 3), strict=True)
        for seed, data in enumerate(digests)
    ]
    told = "mnist, x (aaaaaaaaaaaa: 1 run, bbbbbbbbbbbb: 1 run, not recorded: 1 run)."
    assert several_data_as_markdown(cells, records).endswith(f"by digest: {told}")
    assert several_data_as_markdown(cells, records[3:]) == ""


def test_runs_of_another_folders_data_are_other_runs(tmp_path, monkeypatch):
    """Else a record of ./x.csv would stand for any file of this name."""
    asked = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        asked.append(Job("", Path(), {"dataset": "./x.csv,digits", "threads": 2}).asked)
    assert asked == [{"dataset": f"{tmp_path}/{place}/x.csv,digits"} for place in ("a", "b")]


@pytest.mark.parametrize(
    ("name", "named"), [("small.jsonl", "small.jsonl"), ("small.md", "small.md"), (".small.lock", "small.jsonl")]
)
def test_results_that_cannot_be_written_are_named_with_the_way_out(run_recipe, tmp_path, refusal, name, named):
    (tmp_path / "results" / name).mkdir(parents=True)
    line = refusal(RunFolderError, run_recipe, results=tmp_path / "results")
    assert (str(tmp_path / "results" / named) in line, "or name another --results" in line) == (True, True)


def test_a_pipe_in_place_of_records_is_not_waited_for(tmp_path, refusal):
    os.mkfifo(tmp_path / "small.jsonl")
    assert "it is not a regular file; move it away" in refusal(RunFolderError, Records, tmp_path / "small.jsonl")


@pytest.mark.parametrize(
    ("values", "said"), [({"callbacks": "os:path"}, "callbacks"), ({"learning-rat": 0.1}, "'learning-rat'")]
)
def test_values_of_tuning_that_no_run_may_have_are_refused(tmp_path, refusal, values, said):
    (line, *_) = (RESULTS / "which-method-tuned.jsonl").read_text().splitlines()
    path = tmp_path / "small-tuned.jsonl"
    path.write_text(json.dumps(json.loads(line) | {"values": values}))
    assert said in refusal(RunFolderError, read_lines, path, TunedCell)


def test_a_line_in_a_name_stays_within_its_cell():
    assert as_markdown(["row", "a|b"], [["x | y", "1"]]) == "| row | a\\|b |\n| --- | --: |\n| x \\| y | 1 |"


def test_two_processes_that_tune_keep_each_others_findings(tmp_path):
    (line, other, *_) = read_lines(RESULTS / "which-method-tuned.jsonl", TunedCell)
    path = tmp_path / "small-tuned.jsonl"
    first, second = Findings(path), Findings(path)
    first.add(line)
    [lock] = tmp_path.glob(".*")
    second.add(other)
    assert lock.exists()  # a third process may wait for it
    assert read_lines(path, TunedCell) == [line, other]
    second.add(newer := line.model_copy(update={"trials": 1, "values": {"learning-rate": 0.1}}))
    assert read_lines(path, TunedCell) == [newer, other]


def test_a_report_names_its_command_as_a_shell_reads_it(recipe):
    said = Options(Path("out"), only=["FedHe's"]).command("small", load(str(recipe)))
    assert shlex.split(said) == ["hetfl", "reproduce", "small", "--only", "FedHe's"]


def test_without_a_record_a_report_writes_nothing(run_recipe):
    whole, folder, said = run_recipe(report_only=True)
    assert (whole, "no run of it is recorded" in said, folder.exists()) == (False, True, False)


@pytest.mark.slow
def test_without_its_data_a_recipe_says_where_they_are_from_and_writes_no_page(recipe, run_recipe):
    text = RECIPE.replace("seeds = 2", "seeds = 1")
    recipe.write_text(text.replace("clients = 2", 'clients = 2\ndataset = "har"'))
    whole, folder, said = run_recipe(only=["FedHe"])
    assert (whole, (folder / "table.md").exists(), "Reduced from" in said) == (False, False, False)
    assert "archive.ics.uci.edu/dataset/240" in said


def test_a_list_of_figures_is_in_the_order_of_the_measures(recipe):
    recipe.write_text(RECIPE.replace("{ accuracy = 50.0 }", "[50.0, 0.25]"))
    assert next(load(str(recipe)).cells()).paper == {"accuracy": 50.0, "sent": 0.25}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"bytes_up"', '"bytes_ip"', "'bytes_ip'"),
        ("accuracy = 50.0", "acuracy = 50.0", "'acuracy'"),
        ('against = "FedHe"', 'against = "FedMD"', "'FedMD'"),
        ('name = "Private"', 'name = "Private"\nagainst = "Prvate"', "'Prvate'"),
        ("seeds = 2", 'figure = { kind = "gains", measures = ["sent", "accuracy"] }', "gains"),
        ('against = "FedHe"', 'figure = { kind = "gains" }', "gains"),
        ("{ accuracy = 50.0 }", "[50.0]", "FedHe"),
        ('against = "FedHe"', 'figure = { measures = ["acuracy"] }', "'acuracy'"),
        ("batch-size = 20", "batch-sise = 20", "'batch-sise'"),
        ('name = "Private"', 'name = "FedHe"', "FedHe, FedHe"),
        ('name = "Private"', 'name = "fedhe"', "share the folder 'fedhe'"),
        ("seeds = 2", 'seeds = 2\nshown = ["FedHa"]', "'FedHa'"),
        ("seeds = 2", "seeds = 0", "seeds"),
        ("title", "tittle", "title"),
        ("seeds = 2", "seeds =", "TOML"),
        ("seeds = 2", "seeds = 1000000000", "seeds"),
        ('against = "FedHe"', "rows = []", "rows"),
        ("clients = 2", 'clients = 2\noutput-dir = "there"', "output-dir"),
        ("clients = 2", "clients = 2\nseed = 1", "seeds is their number"),
        ("[settings]", "[[settings]]", "settings"),
        ("clients = 2", 'clients = 2\ndataset = "\\u001b[31m"', "dataset"),
        ('name = "Private"', f'name = "{"x" * 300}"', "rows.1.name"),
        ('name = "Private"', f'name = "{"中" * 99}"', "255 bytes"),
        ('name = "Private"', 'name = "Pri\\u001bvate"', "rows.1.name"),
        ('"Small table"', '"Small\\ntable"', "title"),
        ("accuracy = 50.0", "accuracy = nan", "finite number"),
        ("accuracy = 50.0", "accuracy = true", "valid number"),
        ('"bytes_up"', '"lst:accuracy"', "'lst:accuracy'"),
        ('"accuracy"', '"clients-2-3:accuracy"', "no run has a client 2"),
        ("seeds = 2", 'figure = { kind = "features", client = 2 }', "no run has a client 2"),
        ('"bytes_up"', '"client-0:numbers_up"', "before:numbers_up"),
        ("seeds = 2", 'figure = { kind = "curves", y = ["clients"] }', "'clients'"),
        ("seeds = 2", 'figure = { kind = "curves", y = ["best:accuracy"] }', "'best:accuracy'"),
        ('{ algorithm = "local" }', "{ rounds = 3 }", "Private: algorithm is missing"),
        ("seeds = 2", 'ranked = "sent"', "ranked: bytes_up"),
    ],
)
def test_a_recipe_that_is_not_right_says_where(recipe, refusal, old, new, said):
    text = RECIPE.replace(old, new)
    recipe.write_text(text.partition("[[rows]]")[0] if new == "rows = []" else text)
    line = refusal(ConfigError, load, str(recipe))
    assert (said in line, str(recipe) in line) == (True, True)
    assert "'fedh2l-table2'" in refusal(ConfigError, load, "fedh2l-tabel2")


@pytest.mark.parametrize(
    ("key", "value"), [("partition", '"dirichlet:0.1"'), ("clients", "3"), ("test-fraction", "0.5")]
)
def test_clients_with_other_rows_are_not_compared(recipe, refusal, key, value):
    """`hetfl compare` does not pair such runs either."""
    text = RECIPE.replace('"local" }', f'"local", {key} = {value} }}')
    recipe.write_text(text)
    load(str(recipe))  # means can be compared
    recipe.write_text(text.replace('accuracy = "accuracy"', 'accuracy = "accuracy"\ngain = "gain"'))
    assert f"Private: {key} differs in FedHe" in refusal(ConfigError, load, str(recipe))


def test_measures_have_the_units_of_their_keys(recipe):
    keys = {"accuracy": "%", "best:recall": "%", "gain": "points", "harmed": "%", "payload": "MB", "seconds": ""}
    keys |= {"numbers_up": "numbers", "before:numbers_down": "numbers", "clients-0-1:accuracy": "%"}
    measures = "".join(f'"{key}" = "{key}"\n' for key in keys)
    recipe.write_text(RECIPE.replace('accuracy = "accuracy"', measures).replace("paper = { accuracy = 50.0 }", ""))
    assert {name: one.unit for name, one in load(str(recipe)).measures.items()} == {**keys, "sent": "MB"}


def test_a_recipe_without_a_cell_is_refused(recipe, refusal):
    text = RECIPE.replace("paper = { accuracy = 50.0 }\n", "").replace("[[rows]]", '[[rows]]\nwithout = ["x"]')
    recipe.write_text(f'{text}[[columns]]\nname = "x"\n')
    assert "no cell is left" in refusal(ConfigError, load, str(recipe))


CELL = Cell(row="A", column="", settings={}, paper={})


@pytest.mark.filterwarnings("error")
def test_statistics_over_seeds():
    """Of 1, 2, 3 the mean is 2 and the deviation 1; Student's t for 2 degrees of freedom and 95 % is 4.3027."""
    one = Entry(CELL, "m", "accuracy", "", 4.0, {0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 2.0, 2: 4.0, 7: 9.0})
    assert (one.mean, one.deviation, one.difference, one.away) == (2, 1, -2, 2)
    assert one.interval == pytest.approx((2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), rel=1e-5)
    assert (one.within, Entry(CELL, "m", "accuracy", "", 5.0, one.ours, {}).within) == (True, False)
    half = 4.30265 / 3**0.5
    assert one.against == (0, 1, pytest.approx((-half, half), rel=1e-5), None, 3)  # of 1, 0, -1: no difference at all
    once = Entry(CELL, "m", "accuracy", "%", 4.0, {0: 1.0}, {0: 2.0})
    unknown = (once.deviation, once.interval, once.within, once.away)
    assert (once.mean, unknown, once.against) == (1, (None,) * 4, (-1, None, None, None, 1))
    ours, theirs = {0: 3.0, 1: 5.0, 2: 4.0, 3: 9.0}, {0: 2.0, 1: 5.5, 2: 1.0, 3: 4.0}
    p = ttest_rel(list(ours.values()), list(theirs.values())).pvalue
    assert Entry(CELL, "m", "accuracy", "%", None, ours, theirs).against[:2] == pytest.approx((2.125, p))
    nearly = dict.fromkeys(range(3), 93.1) | {3: 93.10000000000001}
    same = Entry(CELL, "m", "accuracy", "%", 93.1, nearly, dict.fromkeys(range(4), 93.0))
    assert same.interval == pytest.approx((93.1, 93.1))  # but for rounding, no deviation
    assert same.against == (pytest.approx(0.1), None, None, None, 4)


@pytest.mark.parametrize(
    ("unit", "ours", "known"),
    [
        ("", [50.0, 60.0], False),  # two seeds: 55 +- 12.7 * 5
        ("%", [50.0, 60.0, 70.0], True),  # 60 +- 24.8
        ("%", [1.0, 2.0, 3.0], False),  # 2 +- 2.5 goes below 0
        ("", [1.0, 2.0, 3.0], True),
        ("%", [97.0, 98.0, 99.0], False),  # 98 +- 2.5 goes above 100
        ("%", [100.0, 100.0, 100.0], True),  # no deviation
    ],
)
def test_an_interval_needs_three_seeds_and_stays_among_the_shares(unit, ours, known):
    one = Entry(CELL, "m", "accuracy", unit, ours[0], dict(enumerate(ours)), {})
    assert (one.interval is not None, one.within is not None) == (known, known)


@pytest.mark.parametrize("chosen", ["", "text", "authors", "result", "none"])
def test_where_a_reading_was_chosen_by_its_result_no_figure_counts_as_within(recipe, chosen):
    recipe.write_text(RECIPE.replace("seeds = 2", f'seeds = 3\nchosen = "{chosen}"'))
    small = load(str(recipe))
    found = entries(small, list(small.cells()), recorded("fedhe", (40, 50, 60)))
    text, counts = markdown(small, found, "hand", ""), chosen not in ("result", "none")
    held = "**50.00**" if counts else "50.00"
    assert f"| FedHe | 50.00 ± 10.00 ({held}) | 1.00 ± 0.00 | 3 |" in text
    assert ("**Reading" in text, "bold" in text) == (bool(chosen), counts)
    assert ("within our interval: 1 of 1" in counted(found)) is counts


def test_of_one_measure_a_page_has_one_table(recipe):
    """Of two columns and two rows; there is one seed in y, and no run of Private there."""
    text = RECIPE.replace('sent = { key = "bytes_up", unit = "MB" }\n', "").replace(
        "{ accuracy = 50.0 }", "{ x = { accuracy = 50.0 } }"
    )
    columns = '[[columns]]\nname = "x"\n[[columns]]\nname = "y"\nsettings = { width = 8 }\n'
    recipe.write_text(text.replace("[[rows]]", f"{columns}[[rows]]", 1))
    small = load(str(recipe))
    records = [*recorded("fedhe-x", (40, 60)), *recorded("fedhe-y", (70,)), *recorded("private-x", (30,))]
    found = entries(small, list(small.cells()), records)
    page = "| accuracy, % | x | y |\n| --- | --: | --: |\n| FedHe | 50.00 ± 14.14 (50.00) | 70.00 |\n"
    assert f"{page}| Private | 30.00 | - |\n" in markdown(small, found, "hand", "")


def test_a_row_can_be_compared_with_another_one_than_the_others(recipe):
    """59, 60 and 61 are 10 above FedHe's 50 and 10 below Private's 70; t is 10 sqrt 3, of 2 degrees of freedom."""
    third = '[[rows]]\nname = "Third"\nagainst = "Private"\nsettings = { algorithm = "local" }\n'
    fourth = third.replace("Third", "Fourth").replace('against = "Private"\n', "")
    recipe.write_text(RECIPE + third + fourth)
    small = load(str(recipe))
    ours = {"fedhe": (50, 50, 50), "private": (70, 70, 70), "third": (59, 60, 61), "fourth": (59, 60, 61)}
    found = entries(small, list(small.cells()), [record for name in ours for record in recorded(name, ours[name])])
    told = [one.against and one.against[:2] for one in found if one.measure == "accuracy"]
    assert told == [None, (20, None), pytest.approx((-10, 0.0033), rel=0.02), pytest.approx((10, 0.0033), rel=0.02)]


def test_a_claim_is_a_paired_difference_beside_the_papers_and_says_how_far_curves_rise(recipe, tmp_path, monkeypatch):
    """39, 40 and 44 are 11, 10 and 6 below FedHe: -9, deviation sqrt 7; Student's t of 2 degrees is 4.3027.

    FedHe's fourth seed, which rises by 0.06 in place of 0.02, has no partner.
    """
    text = RECIPE.replace('name = "Private"', 'name = "Private"\npaper = { accuracy = 58.0 }')
    recipe.write_text(text.replace("seeds = 2", 'seeds = 3\nfigure = { kind = "differences" }'))
    small = load(str(recipe))
    curves = {"fedhe": [0.0, 0.2, 0.4, 0.48, 0.5], "private": [0.0, 0.1, 0.2, 0.3, 0.4]}
    records = [
        one.model_copy(update={"courses": {course_name("accuracy"): (list(range(5)), curves[name])}})
        for name, values in (("fedhe", (50, 50, 50, 50)), ("private", (39, 40, 44)))
        for one in recorded(name, values)
    ]
    records[3].courses[course_name("accuracy")] = (list(range(5)), [0.0, 0.2, 0.4, 0.44, 0.5])
    cells = list(small.cells())
    found, rises = entries(small, cells, records), last_rises(small, cells, records)
    assert rises["FedHe", ""] == pytest.approx({0: 0.02, 1: 0.02, 2: 0.02, 3: 0.06})
    text, _, names, _, *lines = differences_as_markdown(small, found, rises).split("\n")
    assert text.endswith("The curve of Private rises most there, by 10.00 points.")
    assert names.endswith(" measure | points | 95 % interval | p | paper | in the last quarter | seeds |")
    assert lines == ["| Private | FedHe | accuracy | -9.00 | -15.57 to -2.43 | 0.028 | +8.00 | +8.00 | 3 |"]
    draw(small, found, [], records, tmp_path / "claim.png")
    assert (tmp_path / "claim.png").stat().st_size > 10_000
    sides = []
    monkeypatch.setattr(pictures, "headed", lambda figure, _, said: sides.append(said) or figure)
    for figure in (58.0, 42.0):  # above FedHe's 50, and below it, as ours
        recipe.write_text(recipe.read_text().replace("accuracy = 58.0", f"accuracy = {figure}"))
        small = load(str(recipe))
        draw(small, entries(small, list(small.cells()), records), [], records, tmp_path / "claim.png")
    assert [side[:6] for side in sides] == ["0 of 1", "1 of 1"]


def test_a_row_without_a_curve_takes_nothing_from_the_others(recipe, tmp_path):
    recipe.write_text(RECIPE.replace("seeds = 2", 'figure = { kind = "curves", y = ["eta"] }'))
    small = load(str(recipe))
    curves = {"fedhe": ([0, 1], [0.25, 0.5]), "private": ([], [])}
    records = [
        recorded(cell, [50])[0].model_copy(update={"courses": {course_name("eta"): curves[cell]}}) for cell in curves
    ]
    cells = list(small.cells())
    assert last_rises(small, cells, records) == {}  # two evaluations have no last quarter
    draw(small, entries(small, cells, records), [], records, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()


@pytest.mark.slow
def test_a_run_with_a_damaged_line_is_not_recorded(recipe, run_recipe, tmp_path, refusal):
    recipe.write_text(RECIPE.replace('"accuracy"', '"last:accuracy"', 1))
    run_recipe(only=["Private"], seeds=1)
    rounds = tmp_path / "out" / "small" / "runs" / "private" / "seed-0" / "rounds.jsonl"
    *lines, last = rounds.read_text().splitlines()
    rounds.write_text("\n".join([*lines, last.replace('"round"', '"rnd"'), ""]))
    line = refusal(RunFolderError, run_recipe, only=["Private"], seeds=1, results=tmp_path / "results")
    assert (f"{rounds}, line 4" in line, "run it again" in line) == (True, True)
    assert not (tmp_path / "results" / "small.jsonl").exists()


@pytest.mark.slow
def test_what_no_client_reports_is_refused_once_each_row_has_a_run(recipe, run_recipe, tmp_path, refusal):
    recipe.write_text(RECIPE.replace('"accuracy"', '"last:acuracy"', 1))
    assert "no run has last:acuracy: clients 0 to 1 report accuracy," in refusal(ConfigError, run_recipe)
    made = sorted(path.parent.name for path in (tmp_path / "out").glob("small/runs/*/*/summary.json"))
    assert made == ["seed-0", "seed-0"]


@pytest.mark.parametrize(
    ("key", "y", "refused"),
    [
        ("accuracy", "accuracy", ""),
        ("accuracy", "acuracy", "acuracy"),
        ("client-0:acuracy", "accuracy", "client-0:acuracy"),
        ("best:eta", "eta", ""),  # one of the rows has it
        ("acc", "acc", ""),  # measured where data have domains
    ],
)
def test_what_one_row_reports_or_runs_need_not_measure_is_no_error(recipe, refusal, key, y, refused):
    text = RECIPE.replace("seeds = 2", f'figure = {{ kind = "curves", y = ["{y}"] }}')
    recipe.write_text(text.replace('accuracy = "accuracy"', f'accuracy = "{key}"'))
    small, has = load(str(recipe)), {"fedhe": key == "best:eta", "private": False}
    records = [
        recorded(cell, [50])[0].model_copy(
            update={
                "figures": {key: 0.5 if has[cell] else None, "bytes_up": 1e6},
                "courses": {course_name(y): ([1], [0.5]) if has[cell] else ([], [])},
            }
        )
        for cell in has
    ]
    if refused:
        said = refusal(ConfigError, check_reported, "small", small, records, MEASURED)
        assert said == f"small: no run has {refused}: clients 0 to 2 report a, b, samples-seen"
    else:
        check_reported("small", small, records, MEASURED)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1), ("output-dir", "there"), ("resume", True), ("models", "nope"), ("learning-rat", 1.0)],
)
def test_settings_of_the_command_that_no_run_can_have_are_refused_before_the_first(
    run_recipe, tmp_path, refusal, key, value
):
    assert str(value if key == "models" else key) in refusal(HetflError, run_recipe, extra={key: value})
    assert not (tmp_path / "out").exists()


def test_an_unknown_data_set_is_refused_before_the_first_run(recipe, run_recipe, refusal):
    assert "unknown dataset 'nope'" in refusal(ConfigError, run_recipe, extra={"dataset": "nope"})
    recipe.write_text(RECIPE.replace("clients = 2", 'clients = 2\ndataset = "nope"'))
    assert "unknown dataset 'nope'" in refusal(ConfigError, run_recipe, report_only=True)


def test_records_of_all_recipes_are_read_before_the_first_run(recipe, tmp_path, refusal):
    second = tmp_path / "second.toml"
    second.write_text(RECIPE)
    (tmp_path / "second.jsonl").write_text("{")
    request = Options(tmp_path / "out", results=tmp_path)
    line = refusal(RunFolderError, reproduce, [str(recipe), str(second)], request, Console(file=StringIO()))
    assert ("second.jsonl, line 1" in line, (tmp_path / "out").exists()) == (True, False)


@pytest.mark.usefixtures("known")
def test_a_recipe_of_which_no_cell_was_asked_for_is_left_out(recipe, run_recipe, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("FedHe", "Third"))
    request, said = Options(tmp_path / "out", only=["Third"], report_only=True), StringIO()
    assert reproduce([str(recipe), str(other)], request, Console(file=said))
    assert not (tmp_path / "out" / "small").exists()


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (["FedHe"], ["FedHe, IID", "FedHe, skewed"]),
        (["skewed"], ["FedHe, skewed", "FedHe without means, skewed"]),
        (["FedHe, IID", "skewed"], ["FedHe, IID", "FedHe, skewed", "FedHe without means, skewed"]),
        (["FedHe*, IID"], ["FedHe, IID", "FedHe without means, IID"]),
    ],
)
def test_only_takes_whole_names_of_rows_columns_and_cells(recipe, only, found):
    columns = "".join(f"[[columns]]\nname = '{name}'\n\n" for name in ("IID", "skewed"))
    text = RECIPE.replace("Private", "FedHe without means").replace("paper = { accuracy = 50.0 }", "")
    recipe.write_text(text.replace("[[rows]]", f"{columns}[[rows]]", 1))
    assert sorted(cell.name for cell in Options(Path("out"), only=only).cells(load(str(recipe)))) == sorted(found)


@pytest.mark.parametrize("name", ["Fed", "FedHe, Private", "private", "[FP]*"])
def test_a_name_of_only_that_nothing_has_is_refused_beside_one_that_a_row_has(run_recipe, refusal, name):
    line = refusal(ConfigError, run_recipe, only=["Private", name])
    assert f"--only: unknown row or column '{name}'" in line
    assert "FedHe, Private (* is any text)" in line


@pytest.mark.usefixtures("known")
def test_rows_and_columns_can_have_fewer_seeds(recipe, run_recipe):
    text = RECIPE.replace("seeds = 2", "seeds = 3").replace('name = "Private"', 'name = "Private"\nseeds = 2')
    recipe.write_text(text)
    asked = [Options(Path("out"), seeds=seeds).cells(load(str(recipe))) for seeds in (0, 1)]
    assert [[cell.seeds for cell in cells] for cells in asked] == [[3, 2], [1, 1]]
    assert [cell.seeds for cell in load(str(recipe)).cells("quick")] == [1, 1]
    runs = [job.folder.as_posix() for job in jobs(asked[0], Path())]
    assert runs == ["fedhe/seed-0", "private/seed-0", "fedhe/seed-1", "private/seed-1", "fedhe/seed-2"]
    _, folder, _ = run_recipe(report_only=True)
    text = (folder / "table.md").read_text()
    assert ("5 of 5 runs" in text, "Reduced" in text) == (True, False)
    _, folder, _ = run_recipe(report_only=True, seeds=2)
    assert "**Reduced from the paper:** 2 of 3 seeds." in (folder / "table.md").read_text()


@pytest.mark.parametrize("asked", [{"only": ["Private"]}, {"seeds": 1}, {"extra": {"rounds": 2}}])
@pytest.mark.usefixtures("known")
def test_a_kept_report_has_all_recorded_runs_whatever_was_asked_for(recipe, run_recipe, tmp_path, asked):
    recipe.write_text(RECIPE.replace("seeds = 2", 'seeds = 2\nfound = "FedHe is best."'))
    _, folder, _ = run_recipe(report_only=True, results=tmp_path / "results", **asked)
    kept = (tmp_path / "results" / "small.md").read_text()
    assert [words in kept for words in ("4 of 4 runs", "| FedHe | ", "FedHe is best")] == [True] * 3
    assert "Reduced" not in kept
    assert "Reduced" in (folder / "table.md").read_text()


def test_a_kept_report_has_all_recorded_seeds_whatever_was_asked_for(recipe, run_recipe, tmp_path):
    """FedHe has four, and Private the recipe's two."""
    kept, (fedhe, private) = Records(tmp_path / "results" / "small.jsonl"), load(str(recipe)).cells()
    for cell, seeds in ((fedhe, 4), (private, 2)):
        runs = jobs([cell.model_copy(update={"seeds": seeds})], Path())
        for job, one in zip(runs, recorded(cell.folder, [45, 50, 55, 60]), strict=False):
            kept.add(one.model_copy(update={"settings": job.asked}))
    run_recipe(report_only=True, results=tmp_path / "results")
    text = (tmp_path / "results" / "small.md").read_text()
    assert "small.toml`, commit none; 6 of 6 runs" in text
    assert "| FedHe | 52.50 ± 6.45 (**50.00**) |" in text


def test_what_another_process_has_recorded_is_not_run_again(recipe, tmp_path):
    path = tmp_path / "results" / "small.jsonl"
    request = Options(tmp_path / "out", results=path.parent, report_only=True)
    (task,), (cell, _) = prepare([str(recipe)], request), load(str(recipe)).cells()
    (first, _) = runs = jobs([cell], Path())
    Records(path).add(recorded(cell.folder, [45])[0].model_copy(update={"settings": first.asked}))
    command._run(task, runs, request, Console(file=StringIO()))
    assert [job.settings["seed"] for job in task.left(runs)] == [1]


def test_a_kept_report_has_what_another_process_has_recorded_meanwhile(recipe, run_recipe, tmp_path, monkeypatch):
    path, (cell, _), report = tmp_path / "results" / "small.jsonl", load(str(recipe)).cells(), command._report
    lines = [
        one.model_copy(update={"settings": job.asked})
        for job, one in zip(jobs([cell], Path()), recorded(cell.folder, [45, 55]), strict=True)
    ]
    Records(path).add(lines[0])

    def late(*given):
        Records(path).add(lines[1])
        return report(*given)

    monkeypatch.setattr(command, "_report", late)
    run_recipe(report_only=True, results=path.parent)
    assert "2 of 4 runs" in path.with_suffix(".md").read_text()


@pytest.mark.usefixtures("known")
def test_a_comparison_of_our_own_is_not_less_than_a_paper(recipe, run_recipe):
    recipe.write_text(RECIPE.replace('paper = "A. Author, A Paper, 2021"\n', ""))
    _, folder, _ = run_recipe(only=["Private"], variant="quick", report_only=True)
    text = (folder / "table.md").read_text()
    assert "# Small table: quick variant, not the full table's setting\n\nNo paper's; Table 1. Made by" in text
    less = "rounds = 1 instead of 3; 1 of 2 cells; without FedHe, so there is no difference from it; 1 of 2 seeds."
    assert f"**Reduced from the full table:** {less}" in text
    assert "| Private (quick, not the full table's setting) |" in text


def recorded(cell, accuracies):
    """Records of a row of the small table, a seed each, of these accuracies in %."""
    return [
        Record(cell=cell, seed=seed, settings={}, versions=[], figures={"accuracy": accuracy / 100, "bytes_up": 1e6})
        for seed, accuracy in enumerate(accuracies)
    ]


def run_of(rounds, **summary):
    whole = {"clients": 2, "rounds": len(rounds), "bytes_up": 0, "bytes_down": 0, "acc": None, **summary}
    records = [Round(**{"round": number, "seconds": 1.0, **record}) for number, record in enumerate(rounds)]
    return Run(Path("r"), "r", {}, records, whole, [])


def scored(*clients):
    return {"clients": {str(client_id): scores for client_id, scores in enumerate(clients)}}


MEASURED = run_of(
    [
        scored({"a": 0.9, "b": 0.5}, {"a": 0.9, "b": 0.9}, {"a": 0.9}),
        scored({"a": 0.1, "samples-seen": 8}, {"a": 0.2}, {"a": 0.6}) | {"numbers_up": 4, "numbers_down": 0},
        scored({"a": 0.4, "b": 0.6}, {"a": 0.5, "b": 0.7}, {"a": 0.6}) | {"numbers_up": 6, "numbers_down": 0},
        scored({}, {"samples-seen": 8}, {}) | {"numbers_up": 3, "numbers_down": 0},
    ],
    clients=3,
    acc=0.25,
    bytes_up=3,
    bytes_down=4,
)
"""Three clients, of whom client 1 trains after the last evaluation, and client 2 never."""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("acc", 0.25),
        ("payload", 7),
        ("best:b", 0.7),  # the mean of round 0; then 0.65
        ("last:a", 0.5),
        ("late:a", 0.4),  # of the means 0.9, 0.3 and 0.5
        ("late:c", None),
        ("client-1:b", 0.7),
        ("client-2:b", None),
        ("clients-1-2:a", 0.55),
        ("trained:a", 0.4),
        ("best:accuracy", None),
        ("numbers_up", 1),
        ("before:numbers_up", 0),
    ],
)
def test_what_is_measured(key, value):
    assert measured(MEASURED, key) == (value if value is None else pytest.approx(value))


def test_a_round_s_own_figure_goes_before_the_mean_of_the_clients_that_reported():
    first = scored({"accuracy": 0.9, "global-accuracy": 0.9}) | {"accuracy": 0.1, "global_accuracy": 0.2}
    later = scored({"accuracy": 0.5, "global-accuracy": 0.5}) | {"accuracy": 0.4, "global_accuracy": 0.6}
    run = run_of([first, later])
    keys = ("best:accuracy", "late:accuracy", "best:global-accuracy", "client-0:accuracy")
    assert [measured(run, key) for key in keys] == pytest.approx([0.4, 0.25, 0.6, 0.5])


def test_a_figure_that_was_not_measured_is_none():
    before = run_of([scored({"a": 0.9}) | {"numbers_up": 10}])
    assert (measured(before, "before:numbers_up"), measured(before, "numbers_up")) == (5, None)
    assert measured(before, "trained:a") is None
    later = run_of([*map(vars, MEASURED.rounds), scored({"a": 0.4}, {"a": 0.6}, {"a": 0.0})])
    assert measured(later, "trained:a") == pytest.approx(0.5)  # client 1 has trained by now


# --- tuned rows, and ranks -----------------------------------------------------------------------


@pytest.mark.slow
def test_tuned_rows_stand_beside_the_others_and_are_tuned_once(run_recipe, recipe, tmp_path):
    """Each row is tuned alike, on a seed that no row is measured on; what was found outlives the folders."""
    recipe.write_text(RECIPE.replace("seeds = 2\n", "seeds = 3\ntuned = [0.3, 1]\n"))
    results = tmp_path / "results"
    whole, folder, _ = run_recipe(results=results)
    assert whole
    figures = json.loads((folder / "table.json").read_text())["figures"]
    assert [one["row"] for one in figures[::2]] == ["FedHe", "FedHe, tuned", "Private", "Private, tuned"]
    assert [one["paper"] for one in figures[::2]] == [50.0, None, None, None]
    found = [json.loads(line) for line in (tmp_path / "results" / "small-tuned.jsonl").read_text().splitlines()]
    assert {one["cell"]: list(one["values"]) for one in found} == {
        "fedhe-tuned": ["learning-rate", "fedhe.alpha"],
        "private-tuned": ["learning-rate"],
    }
    for one in found:
        trials = json.loads((folder / "tuning" / one["cell"] / "tuning.json").read_text())
        assert (len(trials["trials"]), trials["seeds"]) == (one["trials"], [999])
        assert one["trials"] == (3 if "fedhe" in one["cell"] else 2)
        assert one["values"] == trials["best"]["values"]
        made = (folder / "runs" / one["cell"] / "seed-2" / "config.toml").read_text()
        assert f"learning-rate = {one['values']['learning-rate']}" in made
    rmtree(folder)
    again, _, said = run_recipe(results=results)
    assert again
    assert "tuning" not in said
    assert not (folder / "runs").exists()


def test_a_page_has_one_row_a_tuned_method_and_its_gain_without():
    """B was not tuned, so its own figures stay."""
    plain = Cell(row="A", column="", settings={}, paper={})
    cells = [plain, plain.tuned([0.3, 1]), Cell(row="B", column="", settings={}, paper={})]
    found = [
        Entry(cell, measure, measure, "", None, {0: value + 10 * (measure == "gain")}, {})
        for value, cell in enumerate(cells)
        for measure in ("accuracy", "gain")
    ]
    shown = [(one.cell.row, one.measure, one.mean) for one in merged(found)]
    of_a = [("A", "accuracy", 1), ("A", "gain, not tuned", 10), ("A", "gain", 11)]
    assert shown == [*of_a, ("B", "accuracy", 2), ("B", "gain", 12)]
    lacking = merged([replace(one, ours={}) if one.cell.factors else one for one in found if one.cell.row != "B"])
    assert [(one.cell.row, one.mean) for one in lacking] == [("A, not tuned", 0), ("A, not tuned", 10)]
    alone = merged([one for one in found if one.cell.factors])  # as with --only 'A, tuned'
    assert [(one.cell.row, one.measure) for one in alone] == [("A", "accuracy"), ("A", "gain")]


def test_one_table_for_all_columns_shows_tuned_figures_too(recipe):
    text = RECIPE.replace('sent = { key = "bytes_up", unit = "MB" }', "").replace("paper = { accuracy = 50.0 }", "")
    text = text.replace("seeds = 2", "seeds = 2\ntuned = [0.3, 1]")
    recipe.write_text(text.replace("[[rows]]", '[[columns]]\nname = "IID"\n\n[[rows]]', 1))
    small = load(str(recipe))
    found = [
        Entry(cell, "accuracy", "accuracy", "%", None, {0: float(at)}, {}) for at, cell in enumerate(small.cells())
    ]
    assert "| FedHe | 1.00 |\n| Private | 3.00 |\n" in markdown(small, found, "hand", "")


def ranked(values):
    found = [
        Entry(
            Cell(row=row, column=column, settings={}, paper={}),
            "accuracy",
            "accuracy",
            "%",
            None,
            dict(enumerate(ours)),
            {},
        )
        for (row, column), ours in values.items()
    ]
    return ranking(found, "accuracy")


def test_ranks_by_hand():
    """A is always best by its mean, B and C share the second place in one of three columns."""
    figures = {"A": ([9, 1], [9, 9], [9, 9]), "C": ([1, 2], [2, 2], [4, 6]), "B": ([4, 0], [8, 0], [5, 5])}
    found = ranked({(row, "xyz"[at]): ours for row, columns in figures.items() for at, ours in enumerate(columns)})
    assert list(found.ranks.items()) == [("A", 1.0), ("B", pytest.approx(6.5 / 3)), ("C", pytest.approx(8.5 / 3))]
    assert (found.columns, found.left_out) == (["x", "y", "z"], [])


def test_the_critical_difference_is_demsars():
    """Four methods on 14 data sets: 2.569 sqrt(4 x 5 / (6 x 14)), JMLR 2006, Section 3.2.2's example."""
    found = ranked({(row, f"{at}"): [float((at * (7 + n)) % 11)] for n, row in enumerate("ABCD") for at in range(14)})
    assert found.critical == pytest.approx(2.569 * (20 / 84) ** 0.5, rel=1e-3)


def test_rows_without_a_column_are_left_out_of_the_ranks_and_columns_and_seeds_that_few_have_too():
    """Of A in x, 9 and 8 are of seeds that no other row has: with them A would be above B."""
    values = {(row, column): [1.0 + number, 2.0, 3.0] for number, row in enumerate("ABCD") for column in "xyz"}
    del values["D", "y"]
    values["A", "rare"] = [5.0, 6.0, 7.0]
    values["A", "x"] = [*values["A", "x"], 9.0, 8.0]
    found = ranked(values)
    assert (found.columns, found.left_out, list(found.ranks)) == (["x", "y", "z"], ["D"], ["C", "B", "A"])
    assert ranked({key: ours for key, ours in values.items() if key[0] in "AB"}) is None
    assert ranked({key: [1.0, 2.0] for key in values}) is None
