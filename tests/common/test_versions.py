"""What made a result: packages, and the commit of a clone of this project."""

import subprocess

import pytest

from hetfl_flwr.common.versions import commit, environment


def git(folder, *words):
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def clone(tmp_path):
    """A clone with one commit of a Python file and of a file of results."""
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / "results.jsonl").write_text("{}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    return tmp_path


def test_a_commit_is_that_of_the_clone_and_says_where_its_code_was_changed(clone):
    """Results that a study writes there are no change of code."""
    made = commit(clone)
    assert len(made) == 12
    assert git(clone, "rev-parse", "HEAD").startswith(made)
    (clone / "results.jsonl").write_text("{}\n{}\n")
    assert commit(clone) == made
    (clone / "code.py").write_text("x = 2\n")
    assert commit(clone) == f"{made}-dirty"


def test_a_folder_inside_of_another_clone_has_no_commit_nor_has_one_without_git(clone, monkeypatch):
    """As an environment inside of another project, into which this one was installed."""
    (clone / "site-packages").mkdir()
    assert commit(clone / "site-packages") == ""
    monkeypatch.setenv("PATH", "")
    assert commit(clone) == ""


def test_an_environment_names_what_moves_bits():
    assert {"hetfl", "flwr", "torch", "numpy", "scipy", "python", "processor"} <= environment().keys()
    assert all(environment().values())
