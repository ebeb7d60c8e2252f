import pytest

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.config.renamed import RENAMED, _warn
from simulations.api import config_keys
from simulations.cli.options import chosen_keys


@pytest.fixture(autouse=True)
def _nothing_warned_of():
    _warn.cache_clear()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_sets_the_key_and_is_warned_of_once(old, capsys):
    value = {"own-keys": "alpha=0.5", "even-tests": True}.get(old, 0.5)
    for config in (RunConfig.from_flat({old: value}), RunConfig().with_values({old: value})):
        flat = config.to_flat()
        assert old not in flat
        assert config != RunConfig()
        assert config == RunConfig.from_flat({RENAMED[old]: value})
    line = f"hetfl: {old} is now called {RENAMED[old]}; the old name will be removed in the next release\n"
    assert capsys.readouterr().err == line


def test_a_file_with_old_names_is_read(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("absent-fraction = 0.25\n")
    assert read_toml(path) == {"nonparticipating-fraction": 0.25}


def test_a_key_under_both_names_is_refused(tmp_path):
    line = "even-tests is the old name of iid-evaluation: both are set; leave even-tests out"
    both = {"even-tests": True, "iid-evaluation": False}
    with pytest.raises(ConfigError, match=f"^{line}$"):
        RunConfig.from_flat(both)
    (tmp_path / "a.toml").write_text("even-tests = true\niid-evaluation = false\n")
    with pytest.raises(ConfigError, match=line):
        read_toml(tmp_path / "a.toml")
    assert RunConfig.from_flat({"iid-evaluation": True}).with_values({"even-tests": False}).iid_evaluation is False


def test_every_new_name_is_a_key():
    assert set(RENAMED.values()) <= RunConfig().to_flat().keys()
    assert not RENAMED.keys() & RunConfig().to_flat().keys()


@pytest.mark.parametrize("first", ["even-tests", "iid-evaluation"])
def test_a_setting_overrides_a_recipe_under_either_name(tmp_path, first):
    second = {"even-tests": "iid-evaluation", "iid-evaluation": "even-tests"}[first]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"{first} = true\n")
    assert chosen_keys(recipe, [f"{second}=false"]) == {"iid-evaluation": False}
    assert chosen_keys(None, [f"{first}=true", f"{second}=false"]) == {"iid-evaluation": False}
    assert config_keys(None, {"even_tests": True}) == {"iid-evaluation": True}
