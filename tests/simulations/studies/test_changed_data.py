"""Runs on a file that changes: a finished run is one of the data as they were, and is used for no others."""

from io import StringIO

import pytest
from rich.console import Console

from hetfl_flwr import run
from hetfl_flwr.data import reread
from hetfl_flwr.errors import RunFolderError
from simulations.inference.loading import load_client
from simulations.reports.pairing import paired
from simulations.reports.runs import load_runs
from simulations.studies.backends import LocalBackend
from simulations.studies.jobs import Job, run_all
from simulations.studies.reproduce.command import Options, reproduce
from simulations.studies.reproduce.records import Records
from simulations.studies.reproduce.tuned import Findings
from simulations.studies.sweeps import check, jobs

ROWS = [f"{age},{8 * age % 37},{'yes' if age % 3 else 'no'}" for age in range(20, 100)]

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
        """Change one cell, and forget what has been read."""
        self.path.write_text(self.path.read_text().replace("\n50,", "\n51,"))
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
    file.path.unlink()
    reread(str(file.path))
    assert job.finished  # what it has computed is all there is


def test_a_process_that_has_read_the_data_reads_them_again(file, tmp_path):
    [job] = jobs({**SETTINGS, "dataset": str(file.path)}, {}, tmp_path)
    assert not run_all([job], LocalBackend(), Console(file=StringIO()))
    file.path.write_text(file.path.read_text().replace("\n50,", "\n51,"))
    check([job])
    assert not job.finished


def test_a_client_whose_data_have_changed_since_its_run_is_not_loaded(file, tmp_path, refusal):
    """An audit would compare what it finds with another truth, and a model would get inputs scaled otherwise."""
    run_on(file, tmp_path / "run")
    load_client(tmp_path / "run", 0)
    file.change()
    assert "its data have changed since the run" in refusal(RunFolderError, load_client, tmp_path / "run", 0)


def test_runs_of_unlike_data_are_not_paired(file, tmp_path):
    run_on(file, tmp_path / "runs" / "alone", algorithm="local")
    run_on(file, tmp_path / "runs" / "before")
    file.change()
    run_on(file, tmp_path / "runs" / "after")
    pairing = paired(load_runs([tmp_path / "runs"]))
    assert [own.folder.name for pairs in pairing.pairs.values() for own, _ in pairs] == ["before", "alone"]
    assert [line for line in pairing.left_out if "after" in line and "data, which have changed" in line]


@pytest.mark.parametrize("tuned", [False, True])
def test_a_record_of_other_data_is_made_again(file, tmp_path, tuned):
    recipe = tmp_path / "own.toml"
    recipe.write_text(RECIPE.format("tuned = [0.1, 1]" * tuned, file.path))

    def act(out, **wanted):
        reproduce([str(recipe)], Options(tmp_path / out, results=tmp_path / "kept", **wanted), Console(file=StringIO()))
        kept = Records(tmp_path / "kept" / "own.jsonl"), Findings(tmp_path / "kept" / "own-tuned.jsonl")
        return [[line.data for line in one._lines.values()] for one in kept]

    before = act("out")
    assert [len(lines) for lines in before] == [1 + tuned, int(tuned)]
    assert act("again") == before
    assert not (tmp_path / "again" / "own" / "runs").exists()
    file.change()
    assert act("again", report_only=True) == before  # a report needs no data
    after = act("again")
    assert all(set(now).isdisjoint(earlier) for now, earlier in zip(after, before, strict=True))
