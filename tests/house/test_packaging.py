"""What is handed out, a wheel and a Flower app bundle: complete, small, and at work where nothing else of it is."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import torch
from flwr.cli.app_cmd import publish  # noqa: F401  # the module is hidden by its function of the same name
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

ROOT = Path(__file__).resolve().parents[2]
OURS = ("hetfl_flwr", "strategies", "clients", "simulations")
PUBLISH = sys.modules["flwr.cli.app_cmd.publish"]
MAX_BYTES = 1_300_000
"""Bytes of a bundle: it is sent to each node, and unpacked there for each message."""


RUN = ("run", "fedhe", "--clients", "2", "--rounds", "1", "--set", "local-batches=1", "--out")


def say(here: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=here, env=known | variables, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The files of this project alone, as a clone has them."""
    folder = tmp_path_factory.mktemp("clone") / "hetfl"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no git checkout: its files cannot be told from others")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def bundle(checkout):
    return build_fab_from_disk(checkout)


@pytest.fixture(scope="module")
def unpacked(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked") / "hetfl"
    with zipfile.ZipFile(BytesIO(bundle)) as archive:
        archive.extractall(folder)
    return folder


def test_the_flower_hub_takes_what_is_published(checkout, capsys):
    """By the checks of `flwr app publish`: names, kinds, number and size of files, UTF-8, description and license."""
    config, warnings = load_and_validate(checkout / "pyproject.toml", check_module=False)
    assert warnings == []
    PUBLISH._validate_app_name(config["project"]["name"], "name")
    PUBLISH._validate_description(config["project"]["description"])
    assert len(config["project"]["description"]) <= 200
    paths = PUBLISH._collect_file_paths(checkout)
    PUBLISH._validate_files(paths)
    assert "Validation passed" in capsys.readouterr().out
    assert {checkout / "LICENSE", checkout / "README.md", checkout / "pyproject.toml"} <= {*paths}


def test_a_bundle_has_what_runs_and_little_else(bundle, checkout):
    files = zipfile.ZipFile(BytesIO(bundle)).infolist()
    names = {file.filename for file in files}
    sources = {path.relative_to(checkout).as_posix() for top in OURS[:3] for path in (checkout / top).rglob("*.py")}
    assert sources <= names
    assert {name for name in names if name.partition("/")[0] not in OURS[:3]} == {
        *("pyproject.toml", "LICENSE", ".info/CONTENT")
    }
    assert len(bundle) < MAX_BYTES


def test_all_that_the_code_reads_beside_itself_is_of_a_kind_that_is_published(checkout):
    """Data files of the packages; documents, units of systemd and pictures are read by people."""
    read_by_people = {".md", ".png", ".conf", ".service", ".env", ".jsonl"}
    published = {*PUBLISH._collect_file_paths(checkout)}
    files = {path for top in OURS for path in (checkout / top).rglob("*") if path.is_file()}
    assert {path for path in files - published if path.suffix not in read_by_people} == set()


@pytest.mark.slow
def test_a_bundle_runs_alone_and_has_all_algorithms(unpacked, checkout, tmp_path):
    """Server and clients come from it, and only the engine from elsewhere; a command that it lacks ends in one line."""
    shutil.copytree(checkout / "simulations", tmp_path / "engine" / "simulations")
    code = (
        "import hetfl_flwr.server_app, hetfl_flwr.client_app, sys\n"
        "from hetfl_flwr.methods import find, names\n"
        "[find(name) for name in names()]\n"
        "from simulations.api import run\n"
        "done = run('fedhe', clients=2, rounds=1, local_batches=1, out='run', progress=False)\n"
        "assert done.summary['failures'] == 0\n"
        f"parts = [sys.modules[name].__file__ for name in sys.modules if name.partition('.')[0] in {OURS[:3]}]\n"
        "print(*{*parts}, sep='\\n')"
    )
    paths = os.pathsep.join([str(unpacked), str(tmp_path / "engine")])
    done = say(tmp_path, sys.executable, "-c", code, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) > 100
    assert [file for file in files if not file.is_relative_to(unpacked)] == []
    refused = say(tmp_path, sys.executable, "-m", "hetfl_flwr", "list", PYTHONPATH=str(unpacked))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert f"simulations is missing: {unpacked} is an app bundle" in refused.stderr


@pytest.mark.exhaustive
def test_a_wheel_is_small_and_runs_wherever_it_is_called(checkout, tmp_path):
    """In an environment with the dependencies alone, from an empty folder, and from one with folders of its names."""
    wheels = tmp_path / "wheels"
    built = say(tmp_path, sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", wheels, checkout)
    if built.returncode:
        pytest.skip(f"pip cannot build a wheel here: {built.stderr.strip().splitlines()[-1]}")
    [wheel] = wheels.iterdir()
    methods = [
        file.compress_size
        for file in zipfile.ZipFile(wheel).infolist()
        if file.filename.startswith(("strategies/", "clients/"))
    ]
    assert wheel.stat().st_size - sum(methods) < 800_000
    assert {Path(name).suffix for name in zipfile.ZipFile(wheel).namelist()} & {".png", ".jsonl"} == set()
    home = tmp_path / "venv"
    venv.create(home)
    programs = home / Path(sys.executable).parent.name
    [packages] = home.glob("[Ll]ib/**/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")  # whose own .pth do not count
    installed = say(
        tmp_path, *(sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-deps", wheel)
    )
    assert installed.returncode == 0, installed.stderr
    empty, crowded = tmp_path / "empty", tmp_path / "crowded"
    empty.mkdir()
    for name in ("strategies", "clients", "simulations", "tests"):
        (crowded / name).mkdir(parents=True)
        (crowded / name / "__init__.py").write_text("raise SystemExit('of somebody else')")
    for here in (empty, crowded):
        ran = say(here, programs / "hetfl", *RUN, "run")
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
        assert json.loads((here / "run" / "summary.json").read_text())["failures"] == 0
        reported = say(here, programs / "hetfl", "report", "run", "--out", "report.html")
        assert (reported.returncode, reported.stderr) == (0, ""), reported.stdout
        assert "</html>" in (here / "report.html").read_text()
