"""What the documentation shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def written(folder: Path) -> None:
    """Write the method that the page shows, each block under the name in its first line."""
    blocks = re.findall(r"^```python\n# (mean_logits/\w+\.py)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["mean_logits/strategy.py", "mean_logits/client.py"]
    (folder / "mean_logits").mkdir()
    for name, code in blocks:
        (folder / name).write_text(code)


@pytest.mark.slow
def test_the_method_runs_and_its_clients_learn_from_each_other(tmp_path):
    """The same run with another seed of nothing but the server's logits would be local training."""
    written(tmp_path)
    command = "import sys; from hetfl_flwr.__main__ import main; main()"
    arguments = ("run", "mean_logits", "--clients", "2", "--rounds", "3", "--set", "models=mlp,lenet5", "--out", "out")
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^failures +0 *$", done.stdout, re.MULTILINE)
