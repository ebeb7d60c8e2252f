"""Runs on a file that changes: a finished run is one of the data as they were, and is used for no others."""

from io import StringIO
from shutil import rmtree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from hetfl_flwr import RunConfig, run
from hetfl_flwr.data import reread
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.runs.settings import data_of
from simulations.inference.loading import load_client
from simulations.reports.pairing import paired
from simulations.reports.runs import group_runs, load_run, load_runs
from simulations.studies.backends import LocalBackend
from simulations.studies.jobs import Job, run_all
from simulations.studies.reproduce.command import Options, reproduce
from simulations.studies.reproduce.records import Records
from simulations.studies.reproduce.tuned import Findings
from simulations.studies.sweeps import check, jobs

ROWS = [f"{20 + row % 60},{8 * row % 37},{'yes' if row % 3 else 'no'}" for row in range(80)]

SETTINGS = {"algorithm": "fedavg", "label-column": "ill", "clients": 2, "rounds": 1, "models": "mlp"}

RECIPE = """
title = "Table of my own"
source = "here"
seeds = 1
{}

[settings]
dataset = "{}"
label-column = "ill"
clients = 2
rounds = 1
models = "mlp"

[measures]
accuracy = "accuracy"

[[rows]]
name = "FedAvg"
settings = {{ algorithm = "fedavg" }}
"""


class File:
    """A table of 80 rows that can change."""

    def __init__(self, path):
        self.path = path
        self.path.write_text("\n".join(["age,weight,ill", *ROWS]))

    def change(self):
        """Change some cells, and forget what has been read."""
        self.path.write_text(self.path.read_text().replace("\n5", "\n6"))
        reread(str(self.path))


@pytest.fixture
def file(tmp_path):
    return File(tmp_path / "patients.csv")


def run_on(file, folder, **more):
    keys = {key.replace("-", "_"): value for key, value in {**SETTINGS, "dataset": str(file.path), **more}.items()}
    return run(**keys, out=folder, progress=False)


def test_a_run_of_other_data_has_not_ended(file, tmp_path):
    folder = tmp_path / "run"
    job = Job("run", folder, {**SETTINGS, "dataset": str(file.path)})
    run_on(file, folder)
    assert job.finished
    file.change()
    assert not job.finished
    file.path.write_text("age,weight\n1,2\n")
    reread(str(file.path))
    assert not job.finished  # running it says what is wrong
    file.path.unlink()
    reread(str(file.path))
    assert job.finished  # what it has computed is all there is


def test_local_copies_of_a_known_data_set_may_differ(tmp_path):
    """One may have only some of its rows."""
    for name, count in (("whole", 80), ("part", 60)):
        copy = tmp_path / name / "uci" / "ilpd" / "train.csv"
        copy.parent.mkdir(parents=True)
        rows = (f"{20 + row % 60},{8 * row % 37},{1 + row % 2}" for row in range(count))
        copy.write_text("\n".join(["age,weight,label", *rows]))
    settings = {"algorithm": "local", "dataset": "ilpd", "clients": 2, "rounds": 1, "models": "mlp"}
    whole, part = (
        Job("run", tmp_path / "run", {**settings, "data-dir": str(tmp_path / name)}) for name in ("whole", "part")
    )
    run(**{key.replace("-", "_"): value for key, value in whole.settings.items()}, out=whole.folder, progress=False)
    assert whole.finished
    assert not part.finished
    rmtree(tmp_path / "whole")
    assert whole.finished  # what it has computed is all there is


def test_a_run_that_was_continued_with_other_data_is_none_of_either(file, tmp_path):
    job = Job("run", tmp_path / "run", {**SETTINGS, "dataset": str(file.path), "rounds": 2})
    run_on(file, job.folder)
    before = load_run(job.folder).summary["data"]
    file.change()
    run(algorithm="fedavg", resume=True, accept_loss=True, rounds=2, out=job.folder, progress=False)
    assert load_run(job.folder).summary["data"] == [*before, *data_of(job.config)]
    assert not job.finished
    load_client(job.folder, 0)  # it has trained on what there is now


def test_a_change_that_no_client_sees_is_none(file, tmp_path):
    """The run continues without a word, and is one of the data as they are."""
    settings = {**SETTINGS, "dataset": str(file.path), "clients": 4, "half-data-fraction": 1.0, "normalize": "none"}
    job = Job("run", tmp_path / "run", settings)
    run_on(file, job.folder, **settings)
    rows = file.path.read_text().splitlines()
    held = {row for client in range(4) for row in load_client(job.folder, client).data.train.rows.tolist()}
    held |= {row for client in range(4) for row in load_client(job.folder, client).data.test.rows.tolist()}
    held |= {row for client in range(4) for row in load_client(job.folder, client).data.validation.rows.tolist()}
    free = min(set(range(80)) - held)
    assert rows[free + 1].split(",")[0] != "21"
    rows[free + 1] = ",".join(["21", *rows[free + 1].split(",")[1:]])
    file.path.write_text("\n".join(rows))
    reread(str(file.path))
    assert not job.finished
    run(algorithm="fedavg", resume=True, rounds=1, out=job.folder, progress=False)
    assert job.finished


def test_a_domain_without_a_client_counts_where_its_images_do(tmp_path):
    """The mean image is of all domains."""
    folder = tmp_path / "photos"
    for place in range(12):
        image = np.full((8, 8), 20 * place, np.uint8)
        (folder / "ab"[place % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "ab"[place % 2] / f"{place}.png")
    rows = [f"{'ab'[place % 2]}/{place}.png,{'xyz'[place % 3]}" for place in range(12)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,camera", *rows]))
    config = RunConfig.from_flat({"dataset": str(folder), "domain-column": "camera", "clients": 2})
    before = data_of(config)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "a" / "2.png")  # the third camera's
    reread(str(folder))
    assert data_of(config) != before


def test_a_process_that_has_read_the_data_reads_them_again(file, tmp_path):
    [job] = jobs({**SETTINGS, "dataset": str(file.path)}, {}, tmp_path)
    assert not run_all([job], LocalBackend(), Console(file=StringIO()))
    file.path.write_text(file.path.read_text().replace("\n5", "\n6"))
    check([job])
    assert not job.finished


def test_a_client_whose_data_have_changed_since_its_run_is_not_loaded(file, tmp_path, refusal):
    """An audit would compare what it finds with another truth, and a model would get inputs scaled otherwise."""
    run_on(file, tmp_path / "run")
    load_client(tmp_path / "run", 0)
    file.change()
    assert "its training samples, labels or names have changed since" in refusal(
        RunFolderError, load_client, tmp_path / "run", 0
    )


def test_runs_of_unlike_data_are_not_paired(file, tmp_path):
    run_on(file, tmp_path / "runs" / "alone", algorithm="local")
    run_on(file, tmp_path / "runs" / "before")
    file.change()
    run_on(file, tmp_path / "runs" / "after")
    pairing = paired(load_runs([tmp_path / "runs"]))
    assert [own.folder.name for pairs in pairing.pairs.values() for own, _ in pairs] == ["before", "alone"]
    assert [line for line in pairing.left_out if "after" in line and "data, which have changed" in line]
    run_on(file, tmp_path / "runs" / "later", seed=1)
    both = load_runs([tmp_path / "runs" / name for name in ("before", "later")])
    assert [len(group.runs) for group in group_runs(both)] == [1, 1]  # no mean over both


@pytest.mark.parametrize("tuned", [False, True])
def test_a_record_of_other_data_is_made_again(file, tmp_path, tuned):
    recipe, said = tmp_path / "own.toml", StringIO()
    recipe.write_text(RECIPE.format("tuned = [0.1, 1]" * tuned, file.path))

    def act(out, **wanted):
        reproduce(
            [str(recipe)], Options(tmp_path / out, results=tmp_path / "kept", **wanted), Console(file=said, width=300)
        )
        kept = Records(tmp_path / "kept" / "own.jsonl"), Findings(tmp_path / "kept" / "own-tuned.jsonl")
        return [[data for line in one._lines.values() for data in line.data] for one in kept]

    before = act("out")
    assert [len(lines) for lines in before] == [1 + tuned, int(tuned)]
    assert act("again") == before
    assert not (tmp_path / "again" / "own" / "runs").exists()
    file.change()
    assert act("again", report_only=True) == before
    assert "no run of it is recorded" in said.getvalue()  # with these data
    after = act("again")
    assert set(after[0]) - set(before[0])
    assert set(after[1]).isdisjoint(before[1])
    assert f"{1 + tuned} of {1 + tuned} runs" in said.getvalue().rpartition("no run of it is recorded")[2]
