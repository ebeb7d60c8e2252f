"""Exported programs give the same logits from raw inputs, for batches of any size."""

import json
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from typer.testing import CliRunner

import simulations
from hetfl_flwr import export
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, DataError, ModelError
from hetfl_flwr.models import SplitModel
from simulations.cli.command import app
from simulations.inference.export import EXTRA, export_node
from simulations.inference.loading import load_client

TABLE_WITH_GAPS = "age,colour,label\n" + "".join(
    f"{'' if row % 2 == 0 else row},{('red', 'blue', 'green')[row % 3]},{'no' if row < 20 else 'yes'}\n"
    for row in range(40)
)


def picky(spec: DataSpec) -> nn.Module:
    """Return a model whose control flow depends on its inputs, which no exporter supports."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, spec.classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1) * float(x.sum().item() > 0))

    return Picky()


@pytest.fixture
def trained(make_config, run_federation):
    """Run a small federation and return its folder."""
    return lambda **keys: run_federation(make_config(rounds=1, checkpoint_every=1, **keys))


def raw_and_logits(folder, client_id=0):
    """Return test samples as they are stored, with NaN for missing values, and the model's logits for them."""
    node = load_client(folder, client_id)
    with torch.no_grad():
        logits = node.model(node.data.test.batch(torch.arange(len(node.data.test)))[0])
    return node.data.test.arrays.inputs[node.data.test.rows], logits


def read(path):
    extra = {EXTRA: ""}
    program = torch.export.load(path, extra_files=extra).module()
    return program, json.loads(extra[EXTRA])


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"models": "lenet5"},  # its first convolution lays images out anew
        {"models": "simulations.testing.lab:normed", "normalize": "imagenet"},  # running statistics, one peak a colour
        {"models": "mlp", "mixed_precision": "bfloat16"},  # the program computes in float32
    ],
    ids=["lenet5", "normed", "bfloat16"],
)
def test_the_program_gives_the_model_s_logits_for_raw_inputs(trained, tmp_path, keys):
    folder = trained(**keys)
    raw, logits = raw_and_logits(folder)
    program, _ = read(export(folder, 0, tmp_path / "new" / "model.pt2"))
    assert raw.dtype == torch.uint8
    near = {"rtol": 0.02, "atol": 0.02} if "mixed_precision" in keys else {}
    for rows in (slice(1), slice(7)):
        torch.testing.assert_close(program(raw[rows]), logits[rows], **near)


def test_a_table_comes_with_the_names_of_its_columns_and_classes(trained, tmp_path):
    """The program fills in missing numbers; a category of three values is three columns."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text(TABLE_WITH_GAPS)
    folder = trained(dataset=str(tmp_path / "data"), label_column="label", models="tabular:0", test_fraction=0.5)
    raw, logits = raw_and_logits(folder)
    assert raw.isnan().any()
    program, told = read(export(folder, 0, tmp_path / "model.pt2"))
    torch.testing.assert_close(program(raw), logits)
    assert told["inputs"]["names"] == ["age", "colour=blue", "colour=green", "colour=red"]
    assert told["outputs"]["classes"] == ["no", "yes"]
    assert [told["inputs"][key] for key in ("kind", "dtype", "shape")] == ["table", "float64", ["batch", 4]]


@pytest.mark.slow
def test_onnx_gives_the_model_s_logits_for_raw_inputs(trained, tmp_path):
    folder = trained(models="lenet5")
    raw, logits = raw_and_logits(folder)
    model = onnx.load(str(export(folder, 0, tmp_path / "model.onnx")))
    for rows in (slice(1), slice(7)):
        [given] = ReferenceEvaluator(model).run(["logits"], {"inputs": raw[rows].numpy()})
        np.testing.assert_allclose(given, logits[rows], atol=1e-5)
    [told] = [json.loads(entry.value) for entry in model.metadata_props if entry.key == "hetfl"]
    assert told["inputs"]["meaning"].startswith("pixels as they are stored, 0 to 16")
    assert told["outputs"]["classes"] == [str(digit) for digit in range(10)]


def test_the_command_says_where_the_model_is(trained, tmp_path):
    path = tmp_path / "model.pt2"
    ended = CliRunner().invoke(app, ["export", str(trained(models="mlp")), "--client", "1", "--out", str(path)])
    assert ended.output.split() == ["model:", str(path)]
    assert read(path)[1]["made of"]["partition"] == 1


def test_the_client_s_own_model_stays_as_it_is(trained, tmp_path):
    node = load_client(trained(models="lenet5"), 0)
    hooks = [len(layer._forward_pre_hooks) for layer in node.model.modules()]
    export_node(node, tmp_path / "model.pt2")
    assert [len(layer._forward_pre_hooks) for layer in node.model.modules()] == hooks
    assert sum(hooks) == 1


def test_what_cannot_be_written_is_one_line(trained, tmp_path, refusal, monkeypatch):
    node = load_client(trained(models="mlp"), 0)
    (tmp_path / "file").touch()
    for path in (tmp_path / "model.pth", tmp_path / "file" / "model.pt2"):
        assert str(path) in refusal(ConfigError, export_node, node, path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "pip install 'hetfl[onnx]'" in refusal(ConfigError, export_node, node, tmp_path / "model.onnx")
    object.__setattr__(node, "predictor", SplitModel(picky(node.data.spec), nn.Linear(10, 10)))
    assert "'mlp'" in refusal(ModelError, export_node, node, tmp_path / "model.pt2")


def test_a_node_s_state_is_exported_without_its_data(make_config, run_federation, tmp_path, monkeypatch):
    """The table with gaps is removed after the run: names, classes and scaling are in the state folder."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.csv").write_text(TABLE_WITH_GAPS)
    keys = {"dataset": str(data), "label_column": "label", "models": "mlp", "rounds": 1, "checkpoint_every": 1}
    run_federation(make_config(**keys, state_dir=str(tmp_path / "state")))
    whole = read(export_node(load_client(tmp_path / "state", 0), tmp_path / "whole.pt2"))
    rows = load_client(tmp_path / "state", 0).data.test
    inputs = rows.arrays.inputs[rows.rows]

    def gone(*_):
        raise DataError("gone")

    monkeypatch.setattr("hetfl_flwr.node.node.load_client_data", gone)
    alone = read(export(tmp_path / "state", 0, tmp_path / "alone.pt2"))
    assert alone[1] == whole[1]
    assert torch.equal(alone[0](inputs), whole[0](inputs))
    with pytest.raises(DataError, match="gone"):
        load_client(tmp_path / "state", 0)


@pytest.mark.parametrize("kind", [".pt2", ".onnx"])
def test_a_file_says_nothing_of_where_it_was_made(kind, tmp_path, trained):
    """Neither of the data nor of the code."""
    place = tmp_path / "patients-of-ward-7"
    place.mkdir()
    (place / "table.csv").write_text(TABLE_WITH_GAPS)
    folder = trained(dataset=str(place), label_column="label", models="mlp", clients=2)
    path = export(folder, 0, tmp_path / f"model{kind}")
    content = path.read_bytes()
    if kind == ".pt2":
        with ZipFile(path) as archive:
            content = b"".join(map(archive.read, archive.namelist()))
    assert b"patients-of-ward-7" in content
    for part in (str(tmp_path), str(Path(simulations.__file__).parents[1]), torch.__path__[0]):
        assert part.encode() not in content
