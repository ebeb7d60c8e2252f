"""What a newcomer brings along: a package with a model of their own, and data of their own in a folder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hetfl_flwr.seeding import generator

NETS = """
from torch import nn


def striped(spec):
    '''Row and column means, then a head: no layer of the zoo's models.'''
    channels, height, width = spec.shape
    return nn.Sequential(nn.AvgPool2d((1, width)), nn.Flatten(), nn.Linear(channels * height, 16), nn.Tanh(),
                         nn.Linear(16, spec.classes))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A working directory with a package, and with photos of three kinds of noise in several sizes."""
    (tmp_path / "clinic").mkdir()
    (tmp_path / "clinic" / "__init__.py").touch()
    (tmp_path / "clinic" / "nets.py").write_text(NETS)
    draw = generator(0, "photos")
    for brightness, kind in enumerate(("dark", "grey", "light")):
        folder = tmp_path / "photos" / kind
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = draw.integers(80 * brightness, 80 * brightness + 90, (12 + number % 3, 10, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def hetfl(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from simulations.cli.command import main; main()", *arguments]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_own_photos_and_an_own_model_from_the_working_directory(home):
    """Brightness alone tells the three kinds apart, so twenty epochs are enough to learn them."""
    arguments = ("fedhe", "--dataset", "./photos", "--clients", "2", "--rounds", "20", "--out", "out")
    keys = ("models=clinic.nets:striped,mlp", "image-size=8", "local-batches=0", "learning-rate=0.01")
    done = hetfl(home, "run", *arguments, *(part for key in keys for part in ("--set", key)))
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((home / "out" / "summary.json").read_text())
    assert summary["dataset"] == str(home / "photos")
    assert summary["failures"] == 0
    assert summary["accuracy"] > 0.9
    clients = json.loads((home / "out" / "clients.json").read_text())
    assert [client["model"] for client in clients] == ["clinic.nets:striped", "mlp"]
