"""The recipes, and the tables of `hetfl list`."""

import pytest
from rich.console import Console

from hetfl_flwr.algorithms import check_options, find
from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.data import data_spec
from hetfl_flwr.errors import DataError, HetflError
from hetfl_flwr.models import build_model, deal
from simulations import catalogue
from simulations.cli import RECIPES

PATHS = sorted(RECIPES.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_a_valid_config_whose_models_fit_its_data(path):
    values = read_toml(path)
    config = RunConfig.from_flat(values)
    check_options(config)
    assert {"algorithm", "dataset", "clients", "models", "rounds"} <= set(values)
    assert path.stem.startswith(find(config.algorithm).name)
    for model in {deal(config.models, partition) for partition in range(config.clients)}:
        build_model(model, data_spec(config.dataset), seed=config.seed)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_says_where_it_comes_from(path):
    assert path.read_text().startswith("# ")


def test_the_ten_clients_of_the_heterogeneous_recipe_have_ten_models():
    config = RunConfig.from_flat(read_toml(RECIPES / "fedhe-mnist-heterogeneous.toml"))
    assert [deal(config.models, partition) for partition in range(10)] == [f"fedhe:{number}" for number in range(10)]
    homogeneous = RunConfig.from_flat(read_toml(RECIPES / "fedhe-mnist-homogeneous.toml"))
    assert homogeneous.with_values({"models": "fedhe"}) == config


def shown(table) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_every_key_is_listed_with_its_default_and_meaning():
    rows = shown(catalogue.keys()).splitlines()
    for name, field in RunConfig.model_fields.items():
        if name != "options":
            [row] = [row for row in rows if row.startswith(f"│ {name.replace('_', '-')} ")]
            assert repr(field.default) in row
            assert field.description[:40] in row


def test_an_algorithm_is_listed_with_the_first_line_of_its_docstring():
    [row] = [row for row in shown(catalogue.algorithms()).splitlines() if " local " in row]
    assert "Local training: nothing is exchanged" in row
    assert " yes " in row


def test_models_are_sized_for_the_data_set():
    """LeNet-5 on 28 x 28, 16 maps of 5 x 5 at last: 25 x 6 + 6, 150 x 16 + 16, 400 x 120 + 120, 120 x 84 + 84, 850."""
    [row] = [row for row in shown(catalogue.models("mnist", "")).splitlines() if " lenet5 " in row]
    assert f" {156 + 2416 + 48120 + 10164 + 850} " in row
    with pytest.raises(HetflError):
        catalogue.models("mnsit", "")


def test_a_data_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError):
        catalogue.datasets(str(tmp_path / "none"))


def test_a_folder_without_recipes_gives_an_empty_table(tmp_path):
    assert catalogue.recipes(tmp_path).row_count == 0
    (tmp_path / "mine.toml").write_text('algorithm = "fedhe"\nrounds = 7\n')
    assert " mine " in shown(catalogue.recipes(tmp_path))
