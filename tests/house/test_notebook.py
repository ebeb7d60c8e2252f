"""The notebook of the documentation runs from top to bottom, and its cells show what its text says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first_federation.ipynb"


@pytest.mark.exhaustive
def test_it_runs(tmp_path):
    """In an empty folder: runs, a picture, data and a model of one's own, a program that is right, eight rounds."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {
        cell.source.splitlines()[-1]: output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    }
    text = {line: data["text/plain"] for line, data in shown.items()}
    assert "image/png" in shown["together.plot()"]
    assert "<table" in shown["together"]["text/html"]
    [table] = [said for line, said in text.items() if line.startswith("compare(")]
    assert re.search(r"^local +local +0\.\d+ +0 +0$", table, re.MULTILINE)
    assert float(text['own_data.summary["accuracy"]']) > 0.75
    assert {"mlp", "my_models:tiny"} <= set(text['own_model.clients.groupby("model").accuracy.last()'].split())
    [program] = [said for line, said in text.items() if line.startswith("program(")]
    assert program == "tensor([1, 0])"
    assert text['longer.summary["rounds"], longer.summary["accuracy"]'].startswith("(8, 0.")
