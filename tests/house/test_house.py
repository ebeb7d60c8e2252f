"""An algorithm is two files, and nothing below them knows of it. Which way imports run is checked by `lint-imports`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetfl_flwr.config import RunConfig
from hetfl_flwr.methods import names

ROOT = Path(__file__).parents[2]
DEFAULT = RunConfig().algorithm
GROUND = [path for path in sorted(ROOT.glob("hetfl_flwr/**/*.py")) if path.parent.name != "models"]
COMMANDS = [path for path in sorted((ROOT / "simulations").glob("**/*.py")) if "benchmarks" not in path.parts]
NAME = re.compile(rf"(?<!/dev/)\b({'|'.join(name for name in names() if name != 'local')})\b(?!:\d)")
"""An algorithm; ``local`` is a word like any other, ``fedhe:5`` is a network, and ``/dev/fd`` a folder."""


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


@pytest.mark.slow
def test_no_file_lists_algorithms():
    """The one that is run where none is named may be named; what a file needs of any other, that one declares."""
    assert {str(path): more for path in GROUND + COMMANDS if (more := said(path.read_text()) - {DEFAULT})} == {}


@pytest.mark.slow
def test_the_ground_floor_names_the_default_in_one_place():
    assert [path.name for path in GROUND if DEFAULT in said(path.read_text())] == ["config.py"]
