"""`hetfl new`: the new package works without changes, and existing files are not touched."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import find
from simulations.authoring.new import write_algorithm


def say(here: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder outside the repository."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words, variables = shlex.split(command), {**os.environ, "PATH": path}
    return subprocess.run(words, cwd=here, env=variables, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.exhaustive
def test_the_three_lines_that_it_says_hold(tmp_path):
    """One printed command runs the algorithm, the other its tests, which include the contract."""
    done = say(tmp_path, "hetfl new my_method")
    assert (done.returncode, done.stderr) == (0, "")
    written, run, test = (line.partition(":")[2].strip() for line in done.stdout.splitlines())
    assert written.startswith("strategy.py (server")
    files = {"__init__.py", "strategy.py", "client.py", "test_my_method.py"}
    assert {path.name for path in (tmp_path / "my_method").iterdir()} == files
    ran = say(tmp_path, f"{run} --set algorithm-options=weight=0.5 --out out")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "[my_method]\nweight = 0.5" in (tmp_path / "out" / "config.toml").read_text()
    passed = say(tmp_path, test)
    assert passed.returncode == 0, passed.stdout
    assert "passed" in passed.stdout


def test_a_package_that_is_there_gets_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "__init__.py").write_text("here = True\n")
    assert write_algorithm("ward.new.fed_x2", tmp_path) == tmp_path / "ward" / "new" / "fed_x2"
    assert (tmp_path / "ward" / "__init__.py").read_text() == "here = True\n"
    found = find("ward.new.fed_x2")
    assert (found.strategy.__name__, found.client.__name__) == ("FedX2", "FedX2Client")
    assert found.defaults == {"weight": 1.0}
    texts = [path.read_text().lower() for path in (tmp_path / "ward" / "new" / "fed_x2").glob("*.py")]
    assert [text for text in texts if "skeleton" in text] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, f"'{name}'") for name in ("My-Method", "3d", "class", "my_pkg..x", "../x", "méthode")),
        ("fedhe", "my_fedhe"),
        ("strategies.mine", "my_mine"),
        ("torch", "'torch'"),
        ("json.mine", "'json'"),
        ("there", "there"),
    ],
)
def test_a_name_that_will_not_do_is_one_line_and_nothing_is_written(name, said, refusal, tmp_path):
    (tmp_path / "there").mkdir()
    assert said in refusal(ConfigError, write_algorithm, name, tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_file_in_the_way_is_named(refusal, tmp_path):
    (tmp_path / "mine").write_text("notes")
    said = refusal(ConfigError, write_algorithm, "mine.algo", tmp_path)
    assert str(tmp_path / "mine") in said
    assert (tmp_path / "mine").read_text() == "notes"
