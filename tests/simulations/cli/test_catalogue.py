"""The recipes, and the tables of `hetfl list`."""

import json

import pytest
from typer.testing import CliRunner

from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.data import data_spec
from hetfl_flwr.methods import check_options, find
from hetfl_flwr.models import assign, build_model
from simulations.cli import facts
from simulations.cli.command import app
from simulations.cli.facts import Kind
from simulations.cli.listing import table
from simulations.cli.options import RECIPES

PATHS = sorted(RECIPES.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_a_valid_config_whose_models_fit_its_data(path):
    values = read_toml(path)
    config = RunConfig.from_flat(values)
    check_options(config)
    assert {"algorithm", "dataset", "clients", "models", "rounds"} <= set(values)
    assert path.stem.startswith((find(config.algorithm).name, config.dataset))  # no paper's: called by the data set
    for model in {assign(config.models, client_id) for client_id in range(config.clients)}:
        build_model(model, data_spec(config.dataset), seed=config.seed)


def test_the_record_is_what_it_was_made_of():
    """What `hetfl list` tells without importing it; `python -m simulations.cli.facts` writes it anew."""
    assert facts.RECORD.read_text(encoding="utf-8") == facts.record()


@pytest.mark.parametrize("kind", Kind)
def test_json_tells_each_row_of_the_table(kind):
    called = CliRunner().invoke(app, ["list", kind, "--json"])
    assert called.exit_code == 0, called.output
    told = json.loads(called.stdout)
    assert list(told) == [kind]
    assert table(kind, told[kind]).row_count == len(told[kind]) > 5
    assert all(next(iter(row.values())) for row in told[kind])
