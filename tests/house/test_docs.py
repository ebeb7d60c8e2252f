"""What the documentation shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def written(folder: Path) -> None:
    """Write the method that the page shows, each block under the name in its first line."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["mean_logits/strategy.py", "mean_logits/client.py", "mine.toml"]
    (folder / "mean_logits").mkdir()
    for name, code in blocks:
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
def test_the_table_has_the_kept_runs_of_the_leaderboard_beside_the_method(tmp_path):
    written(tmp_path)
    copytree(Path(__file__).parents[2] / "simulations" / "results", tmp_path / "results")
    done = hetfl(tmp_path, "reproduce", "mine.toml", "--report-only", "--results", "results")
    assert (done.returncode, done.stderr) == (0, "")
    assert "20 of 30 runs" in (tmp_path / "results" / "mine.md").read_text()
