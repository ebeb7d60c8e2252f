"""An algorithm of somebody else, Moments in a project of its own: nothing here knows of it, and all of it works."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fixtures.tiers import exhaustive

from hetfl_flwr.config import RunConfig, parse_algorithm_options, read_toml, to_toml
from hetfl_flwr.methods import for_flower, resolve
from simulations.testing.contract import entries

OUTSIDE = Path(__file__).parents[1] / "fixtures" / "outside"
ECHO = "fixtures.echo"


@pytest.fixture
def project(tmp_path):
    """A copy of the project in a place where nothing of this one's tests is found."""
    return Path(shutil.copytree(OUTSIDE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


def say(here: Path, *command: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(OUTSIDE.parents[2])}
    return subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=900, check=False)


def hetfl(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return say(here, sys.executable, "-c", "from simulations.cli.command import main; main()", *arguments)


def rounds(folder: Path) -> list[dict]:
    kept = "round", "clients", "bytes_up", "bytes_down", "failures"
    return [{key: entry[key] for key in kept} for entry in entries(folder)]


@pytest.mark.exhaustive
def test_its_own_tests_pass_by_pytest_alone(project):
    """The contract comes with all that it needs."""
    done = say(project, str(Path(sys.executable).parent / "pytest"), "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_guide_shows_it_whole():
    """Both halves and their tests, taken in as they are, in less than 150 lines."""
    guide, lines = (OUTSIDE.parents[2] / "docs" / "extending.md").read_text(), 0
    for path in (*sorted(OUTSIDE.glob("my_pkg/moments/[a-z]*.py")), OUTSIDE / "test_moments.py"):
        assert f'--8<-- "{path.relative_to(OUTSIDE.parents[2])}"\n' in guide
        lines += len(path.read_text().splitlines())
    assert lines < 150


@pytest.mark.exhaustive
def test_it_runs_from_its_folder_with_its_own_keys(project):
    """Own keys land in config.toml under their name, with the defaults resolved."""
    small = ("my_pkg.moments", "--clients", "2", "--rounds", "2", "--set", "algorithm-options=weight=0.5")
    done = hetfl(project, "run", *small, "--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    written = read_toml(project / "out" / "config.toml")
    assert (written["my_pkg.moments.weight"], written["algorithm-options"], written["width"]) == (0.5, "", 64)
    assert rounds(project / "out")[1]["bytes_up"] == 2 * 2 * 4 * 64


def test_own_keys_are_those_of_the_algorithm_and_win_over_the_same_by_name():
    """In `flwr run`, the name always has a value: the default of pyproject.toml."""
    config = RunConfig.from_flat(
        {"algorithm": ECHO, "algorithm-options": "gain=2", f"{ECHO}.gain": 1.0, "fedhe.alpha": 3}
    )
    assert config.options == {f"{ECHO}.gain": 2, "fedhe.alpha": 3}
    assert config.algorithm_options == ""
    assert config.with_values({f"{ECHO}.gain": 5.0}).options_of(ECHO) == {"gain": 5.0}
    assert RunConfig.from_flat({"algorithm-options": "mode=async"}).options == {"fedhe.mode": "async"}
    assert parse_algorithm_options("  ", "fedhe") == {}


@pytest.mark.parametrize("text", ["two words", "it's", 'say "so"', "0.5", "true", "a=b c=d", "\t\u007fé😀", ""])
def test_flower_is_given_only_keys_that_it_knows_and_they_come_back_as_they_were(text, tmp_path):
    """Whatever an own key's value is; those of this project's algorithms stay under their names."""
    config = RunConfig.from_flat({"algorithm": "x.y", "x.y.kind": text, "x.y.gain": 1e-05, "x.y.on": True})
    flat = for_flower(config)
    assert [key for key in flat if "." in key] == []
    (tmp_path / "resume.toml").write_text(to_toml(flat))
    assert RunConfig.from_flat(read_toml(tmp_path / "resume.toml")) == config
    ours = resolve(RunConfig(algorithm="fedhe"))
    assert for_flower(ours) == ours.to_flat()


@pytest.fixture
def shadows(tmp_path):
    """A working directory with folders that are called like this project's packages."""
    for name in ("strategies", "clients", "simulations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    return tmp_path


def hetfl_installed(here: Path, path: str, *, module: bool = False) -> subprocess.CompletedProcess[str]:
    """Call the command as installed: Python begins with another folder than the working directory, or, -m, with it."""
    script = here / "bin" / "hetfl"
    script.parent.mkdir()
    entry = tomllib.loads((OUTSIDE.parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["hetfl"]
    script.write_text("from {} import {}\n{}()\n".format(*entry.split(":"), entry.rpartition(":")[2]))
    command = [sys.executable, *(["-m", "hetfl_flwr"] if module else [str(script)]), "run", "nothing"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(OUTSIDE.parents[2])]))}
    return subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "module"), [("", False), exhaustive(".", False), exhaustive("", True)])
def test_folders_of_the_working_directory_hide_nothing_of_this_project(shadows, path, module):
    """Not even where PYTHONPATH or ``python -m`` has put it first."""
    done = hetfl_installed(shadows, path, module=module)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("hetfl: unknown algorithm 'nothing'. Known: agg, chfl, ")


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("name", ["strategies", "clients", "simulations", "simulations.py"])
def test_what_hides_a_package_of_this_project_is_named_with_both_places_and_not_run(shadows, name, module):
    (shadows / "lib").mkdir()
    there = shadows / "lib" / name
    if there.suffix:
        there.write_text("raise SystemExit('run')")
    else:
        (shadows / name).rename(there)
        (there / "__init__.py").write_text("raise SystemExit('run')")
    done = hetfl_installed(shadows, str(shadows / "lib"), module=module)
    assert (done.returncode, done.stdout) == (2, "")
    package = there.stem
    assert (str(OUTSIDE.parents[2] / package) in done.stderr, str(there) in done.stderr) == (True, True)
