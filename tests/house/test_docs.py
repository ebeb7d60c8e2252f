"""What the documentation shows works as it stands there."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from fixtures.federations.members import member, roster

from hetfl_flwr.strategy import Upload

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def written(folder: Path) -> None:
    """Write the methods that the page shows, each block under the name in its first line."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    for name, code in blocks:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)


def hetfl(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder."""
    command = "import sys; from hetfl_flwr.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_method_runs_and_its_clients_learn_from_each_other(tmp_path):
    """The same run with another seed of nothing but the server's logits would be local training."""
    written(tmp_path)
    shape = ("--clients", "2", "--rounds", "3", "--set", "models=mlp,lenet5")
    done = hetfl(tmp_path, "run", "mean_logits", *shape, "--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^failures +0 *$", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "runs"), [("mine", "20 of 30 runs"), ("own-averages", "16 of 20 runs")])
def test_the_tables_have_the_kept_runs_of_the_others_beside_the_method(tmp_path, table, runs):
    written(tmp_path)
    copytree(Path(__file__).parents[2] / "simulations" / "results", tmp_path / "results")
    done = hetfl(tmp_path, "reproduce", f"{table}.toml", "--report-only", "--results", "results")
    assert (done.returncode, done.stderr) == (0, "")
    assert runs in (tmp_path / "results" / f"{table}.md").read_text()


def test_the_changed_method_sends_each_client_the_averages_of_its_own_logits(tmp_path, monkeypatch):
    """By hand. Client 0 uploads twice, the first time without samples of class 1; client 1 once."""
    written(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    strategy = import_module("own_averages.strategy").OwnAverages()
    state = strategy.initial(roster(2, classes=2))
    first = [(0, [[1, 2], [3, 4]], [5, 0]), (1, [[5, 6], [7, 8]], [1, 1])]
    for round, said in (1, first), (2, [(0, [[9, 1], [2, 3]], [2, 2])]):
        uploads = [
            Upload(one, {"logits": np.float32(logits), "counts": np.int64(counts)}, samples=sum(counts))
            for one, logits, counts in said
        ]
        state = strategy.aggregate(state, uploads, round)
    sent = [strategy.download_for(member(one, classes=2), state, 3)["logits"].tolist() for one in (0, 1)]
    assert sent == [[[5, 1.5], [2, 3]], [[5, 6], [7, 8]]]


def test_the_other_changed_method_forgets_the_uploads_of_earlier_rounds(tmp_path, monkeypatch):
    """By hand. Two clients upload in the first round, one in the second, without samples of class 1."""
    written(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    strategy = import_module("recent_averages.strategy").RecentAverages()
    state = strategy.initial(roster(2, classes=2))
    first = [(0, [[1, 2], [3, 4]], [5, 1]), (1, [[5, 6], [7, 8]], [1, 1])]
    for round, said, expected in (1, first, [[3, 4], [5, 6]]), (2, [(0, [[9, 1], [2, 3]], [2, 0])], [[9, 1], [0, 0]]):
        uploads = [
            Upload(one, {"logits": np.float32(logits), "counts": np.int64(counts)}, samples=sum(counts))
            for one, logits, counts in said
        ]
        state = strategy.aggregate(state, uploads, round)
        down = strategy.download_for(member(1, classes=2), state, round + 1)
        assert down["logits"].tolist() == expected
    assert down["known"].tolist() == [True, False]
