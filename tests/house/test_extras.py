"""What a node needs is little: packages of an extra are imported where they are used, and named where they lack."""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hetfl_flwr.common.packages import EXTRAS

ROOT = Path(__file__).parents[2]
OURS = {"hetfl_flwr", "strategies", "clients", "simulations"}
CORE = [path for name in ("hetfl_flwr", "strategies", "clients") for path in sorted((ROOT / name).rglob("*.py"))]
EVERYWHERE = {"IPython": "shows a run in a notebook, which has it", "pynvml": "asks a GPU, if it is there"}
"""What may be imported though nothing requires it, and why."""

WITHOUT = """
import contextlib, io, json, sys
sys.modules |= dict.fromkeys(("ray", "matplotlib", "seaborn", "sklearn", "optuna"))
from hetfl_flwr.__main__ import main
told = []
for sys.argv in json.loads(sys.argv[1]):
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    told.append((status, err.getvalue()))
print(json.dumps(told))
"""
"""The command as on a node, called several times: importing one of these fails as if it were not installed."""


packages_distributions = cache(metadata.packages_distributions)


def required(extra: str = "") -> set[str]:
    """The names of the packages that this project, or one of its extras, needs."""
    whole = [Requirement(each) for each in requires("hetfl") or []]
    return {
        canonicalize_name(each.name)
        for each in whole
        if (each.marker is None and not extra) or (each.marker and extra and each.marker.evaluate({"extra": extra}))
    }


def imported(path: Path) -> set[str]:
    """The top-level packages of others that a file imports, wherever in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names - set(sys.stdlib_module_names) - OURS


def commands(folder: Path, *each: Sequence[str]) -> list[tuple[int, str]]:
    """Call the command with each of these arguments; what status it ends with, and what it prints of errors."""
    arguments = json.dumps([["hetfl", *one] for one in each])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return [(status, err) for status, err in json.loads(done.stdout)]


def test_what_a_node_imports_is_required_or_named_with_its_extra():
    here = packages_distributions()
    core = required()
    unknown = {
        (str(path.relative_to(ROOT)), name)
        for path in CORE
        for name in imported(path) - EXTRAS.keys() - EVERYWHERE.keys()
        if not {canonicalize_name(each) for each in here.get(name, [name])} & core
    }
    assert unknown == set()


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_an_extra_has_the_packages_that_are_said_to_come_with_it(package, extra):
    found = {canonicalize_name(each) for each in packages_distributions().get(package, [package])}
    assert found & (required(extra) | {"ray"})  # which flwr[simulation] brings
    assert found & (required() | {"jinja2"}) <= {"jinja2"}  # which torch brings


@pytest.mark.parametrize("package", ["tomli_w", "typer", "cryptography"])
def test_a_command_that_lacks_a_required_package_ends_with_one_line(package, tmp_path):
    without = f"import sys; sys.modules[{package!r}] = None; from hetfl_flwr.__main__ import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", without, "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (f"pip install '{package.replace('_', '-')}>=" in ended.stderr, ended.stderr.count("\n")) == (True, 1)


@pytest.mark.slow
def test_a_node_of_own_data_needs_no_extra_and_the_rest_is_one_line(tmp_path):
    """Runs are compared without the extra that draws them, too."""
    rows = "".join(f"{number % 7},{number % 5},{'ab'[number % 2]}\n" for number in range(60))
    (tmp_path / "own.csv").write_text("x,y,kind\n" + rows)
    own = ("--dataset", "./own.csv", "--set", "label-column=kind", "--clients", "2", "--rounds", "1")
    refused = (
        (("run", "fedhe", "--rounds", "1"), "sklearn", "simulation"),
        (("report", "fedproto"), "matplotlib", "reports"),
        (("compare", "fedproto", "--out", "mine.png"), "matplotlib", "reports"),
    )
    *ran, compared, one, two, three = commands(
        tmp_path,
        *(("run", method, *own, "--set", "partition=all", "--out", method) for method in ("fedproto", "local")),
        ("compare", "fedproto", "local", "--csv", "gains.csv"),
        *(arguments for arguments, _, _ in refused),
    )
    assert [status for status, _ in ran] == [0, 0]
    assert all("60 rows" in err for _, err in ran)
    assert compared == (0, "")
    assert (tmp_path / "gains.csv").is_file()
    for (status, err), (_, package, extra) in zip((one, two, three), refused, strict=True):
        assert (status, err.count("\n")) == (2, 1), err
        assert err.endswith(f"{package} is not installed: pip install 'hetfl[{extra}]'\n")
