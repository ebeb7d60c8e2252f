"""What `hetfl_flwr` offers to scripts and to other packages."""

import ast
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hetfl_flwr

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys, time; start = time.process_time(); import hetfl_flwr; took = time.process_time() - start\n"


def python(here: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_type_checkers_see_the_names_that_are_offered():
    tree = ast.parse(Path(hetfl_flwr.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: f"{node.module}" for node in block.body for alias in node.names}
    assert seen == hetfl_flwr._MODULES
    assert {*hetfl_flwr.__all__} <= {*dir(hetfl_flwr)}


def test_the_reference_shows_every_name():
    listed = re.findall(r"members: \[(.*)\]", (ROOT / "docs" / "api.md").read_text())
    assert sorted(", ".join(listed).split(", ")) == sorted(hetfl_flwr.__all__)


def test_importing_it_is_light(tmp_path):
    """In seconds of the processor, which a busy machine does not change; best of three."""
    assert min(float(python(tmp_path, SCRIPT + "print(took)").stdout) for _ in range(3)) < 0.1
    heavy = ("torch", "numpy", "flwr", "pydantic", "pandas", "pytest", "simulations", "strategies", "clients")
    assert python(tmp_path, SCRIPT + f"print([name for name in {heavy} if name in sys.modules])").stdout == "[]\n"


@pytest.mark.slow
def test_without_pytest_all_but_the_tests_kit_is_there_and_help_shows_it(tmp_path):
    hide = "import sys; sys.modules['pytest'] = None\n"
    done = python(tmp_path, hide + "import hetfl_flwr, pydoc; print(pydoc.render_doc(hetfl_flwr))")
    assert (done.returncode, done.stderr) == (0, "")
    assert "class KnowledgeStrategy(" in pydoc.plain(done.stdout)
    assert "AlgorithmContract(" not in pydoc.plain(done.stdout)
