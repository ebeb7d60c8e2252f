"""Which way knowledge flows: an algorithm is two files, and nothing below them knows of it; no room is crowded."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from hetfl_flwr.algorithms import names
from hetfl_flwr.config import RunConfig

ROOT = Path(__file__).parents[2]
DEFAULT = RunConfig().algorithm
GROUND = [path for path in sorted(ROOT.glob("hetfl_flwr/**/*.py")) if path.parent.name != "models"]
COMMANDS = [path for path in sorted((ROOT / "simulations").glob("**/*.py")) if "benchmarks" not in path.parts]
NAME = re.compile(rf"(?<!/dev/)\b({'|'.join(name for name in names() if name != 'local')})\b(?!:\d)")
"""An algorithm; ``local`` is a word like any other, ``fedhe:5`` is a network, and ``/dev/fd`` a folder."""


PACKAGES = ("hetfl_flwr", "strategies", "clients", "simulations")

FLOORS = {
    "hetfl_flwr": (
        *("common", "data", "models", "config", "wire", "learning", "server", "algorithms", "node", "runs"),
        *("client_app", "server_app", "__main__"),
    ),
    "simulations": (
        *("engine", "inference", "reports", "studies", "deployment"),
        *("testing", "authoring", "api", "benchmarks", "cli"),
    ),
}
"""What stands in a package, from the ground up: a room imports from rooms before it alone."""

"""Folders with more, and why: none of them holds a module."""


def said(source: str) -> set[str]:
    """The algorithms that code names, save in docstrings, whose examples need some."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words = {
        str(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    }
    words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(imported(tree))
    return {found for word in words for found in NAME.findall(word)}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)


def imports(path: Path, package: str) -> set[str]:
    """The modules of a package that a file imports, wherever in it."""
    return {name for name in imported(ast.parse(path.read_text())) if name.partition(".")[0] == package}


def test_no_two_algorithms_have_one_name():
    """In whichever folders they stand: one of them would be found, and nobody would know which."""
    assert [name for name, number in Counter(names()).items() if number > 1] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Of fedhe and fml."""\nx = 1  # fedavg\n"""fedrep"""', set()),
        ('KNOWN = ["fedhe", "fml"]', {"fedhe", "fml"}),
        ('f"{x}: see fedavg or {y}"', {"fedavg"}),
        ('MODELS = "mlp,fedhe:5,local"', set()),
        ("from strategies.public_samples.fedmd import FedMD", {"fedmd"}),
    ],
)
def test_what_code_says_is_told_from_what_docstrings_say(source, found):
    assert said(f"y = 0\n{source}") == found


@pytest.mark.slow
def test_no_file_lists_algorithms():
    """The one that is run where none is named may be named; what a file needs of any other, that one declares."""
    assert {str(path): more for path in GROUND + COMMANDS if (more := said(path.read_text()) - {DEFAULT})} == {}


@pytest.mark.slow
def test_the_ground_floor_names_the_default_in_one_place():
    assert [path.name for path in GROUND if DEFAULT in said(path.read_text())] == ["run_config.py"]


@pytest.mark.parametrize("path", sorted((ROOT / "clients").rglob("*.py")), ids=lambda path: path.stem)
def test_a_client_side_imports_of_strategies_its_own_server_side_alone(path):
    own = ".".join(path.relative_to(ROOT / "clients").with_suffix("").parts[:2])
    assert {".".join(name.split(".")[:3]) for name in imports(path, "strategies")} <= {f"strategies.{own}"}


@pytest.mark.slow
def test_no_other_arrow_goes_up():
    """Save that of ``hetfl_flwr`` itself, from which others import."""
    below = [path for path in GROUND if path != ROOT / "hetfl_flwr" / "__init__.py"]
    assert {path.name for path in (ROOT / "strategies").rglob("*.py") if imports(path, "clients")} == set()
    for package in ("strategies", "clients", "simulations"):
        assert {str(path) for path in below if imports(path, package)} == set()


@cache
def modules() -> dict[str, Path]:
    """The files of this project, by their modules' names."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def targets(module: str, path: Path) -> Iterator[str]:
    """What a file imports, wherever in it: modules, or names in modules."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def arrows() -> dict[str, set[str]]:
    """By module, those of this project that it imports; ``hetfl_flwr`` itself, from which others import, has none."""
    known = modules()

    def module_of(target: str) -> str:
        return target if target in known else target.rpartition(".")[0]

    return {
        name: {module_of(target) for target in targets(name, path)} & known.keys() - {name}
        for name, path in known.items()
        if name != "hetfl_flwr"
    }


def rooms(folder: str) -> dict[str, set[str]]:
    """What stands in a folder, and what of it each imports; in ``""`` stand the packages."""
    start = f"{folder}." if folder else ""

    def room(module: str) -> str:
        return module.removeprefix(start).partition(".")[0] if module.startswith(start) else ""

    found: dict[str, set[str]] = {}
    for module, others in arrows().items():
        if here := room(module):
            found.setdefault(here, set()).update({room(other) for other in others} - {here, ""})
    return found


def circle(graph: Mapping[str, Set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folders(*places: str) -> list[Path]:
    """All folders in some places that hold files of Python, and those around them."""
    holding = {path.parent for place in places for path in (ROOT / place).rglob("*.py")}
    return sorted(folder for folder in holding if "__pycache__" not in folder.parts)


def test_no_modules_import_each_other_in_a_circle():
    assert circle(arrows()) == []


@pytest.mark.parametrize("folder", ["", *(".".join(path.relative_to(ROOT).parts) for path in folders(*PACKAGES))])
def test_no_rooms_of_a_folder_need_each_other_in_a_circle(folder):
    assert circle(rooms(folder)) == []


@pytest.mark.parametrize("package", FLOORS)
def test_no_room_imports_from_one_above_it(package):
    floor = {name: number for number, name in enumerate(FLOORS[package])}
    assert rooms(package).keys() == floor.keys()
    assert [(a, b) for a, others in rooms(package).items() for b in others if floor[b] >= floor[a]] == []


@pytest.mark.parametrize("folder", folders(*PACKAGES), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_folder_says_what_belongs_there(folder):
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
