import re
import tomllib
from math import inf, nan
from pathlib import Path

import pytest

from hetfl_flwr.config import (
    AUTO_MODELS,
    KEYS,
    NODE_KEYS,
    RunConfig,
    for_node,
    meaning,
    parse_setting,
    read_toml,
    simulated,
)
from hetfl_flwr.errors import ConfigError, HetflError
from hetfl_flwr.methods import check_options, find, names
from simulations.cli.facts import keys_toml, write_keys

PATH = Path(__file__).parents[2] / "pyproject.toml"
PYPROJECT = tomllib.loads(PATH.read_text())["tool"]["flwr"]["app"]["config"]
GENERAL = {key: value for key, value in PYPROJECT.items() if not isinstance(value, dict)}


def typed(values):
    """1, 1.0 and True are equal in Python, and are not the same setting."""
    return {key: (type(value), value) for key, value in values.items()}


def test_every_key_stands_in_pyproject_with_its_default_and_says_what_it_means():
    """So do an algorithm's own keys, with the defaults of its constructors; and together they are valid."""
    assert typed(RunConfig().to_flat()) == typed(GENERAL)
    assert [key for key in KEYS if not meaning(key)] == []
    assert all(names in meaning("models") for names in AUTO_MODELS.values())
    own = {name: find(name).defaults for name in names()}
    for name, defaults in own.items():
        assert typed(PYPROJECT.get(name, {})) == typed(defaults)
    assert PYPROJECT.keys() - GENERAL.keys() <= {*own}
    flat = {f"{name}.{key}": value for name, defaults in own.items() for key, value in defaults.items()}
    check_options(RunConfig.from_flat(GENERAL | flat))


def test_the_keys_are_written_in_place_of_those_that_are_there_and_nothing_else_is_touched(tmp_path, refusal):
    path = tmp_path / "pyproject.toml"
    path.write_text(PATH.read_text())
    write_keys(path)
    assert path.read_text() == PATH.read_text()
    before, table = '[project]  # ours\nname = "x"\n\n', "[tool.flwr.app.config]\nrounds = 7\n"
    after = "# no key\n[a]\n"
    for rest in ("", "\n[tool.flwr.app.config.gone]\nalpha = 1\n\n"):
        path.write_text(f"{before}{table}{rest}{after}")
        write_keys(path)
        assert path.read_text() == f"{before}{keys_toml()}\n{after}"
    assert tomllib.loads(keys_toml()) == {"tool": {"flwr": {"app": {"config": PYPROJECT}}}}
    path.write_text(before)
    assert str(path) in refusal(ConfigError, write_keys, path)


REFUSED = {
    "algorithm": [""],
    "classes": ["cat,cat"],
    "rounds": [0, 2.0, True, "3"],
    "clients": [-1],
    "fraction": [0.0, 1.01, True, nan],
    "min-clients": [0],
    "round-timeout": [0.0, nan, inf],
    "evaluate-every": [0],
    "seed": [-1, 2**32],
    "local-epochs": [0],
    "local-batches": [-1],
    "batch-size": [0],
    "optimizer": ["adagrad"],
    "learning-rate": [0.0, "fast", nan, inf],
    "momentum": [1.0, nan],
    "weight-decay": [-0.1, inf],
    "validation-fraction": [1.0],
    "test-fraction": [-0.1],
    "test-set": ["server"],
    "normalize": ["z-score"],
    "partition": ["dirichlet:0"],
    "models": ["lenet6"],
    "device": ["gpu", "cuda:x"],
    "threads": [0],
    "resume": [1, "yes"],
    "accept-loss": [True],  # a new run has nothing to lose
    "checkpoint-every": [-1],
    "data-dir": [3],
    "client-seconds": ["a", "1,", "0", "1,-2", "nan", "inf", ",", "1:2", True],
    "client-speed": ["a", "1,", "0", "nan", "inf", "1e10"],
    "client-mbits": ["a", "1,", "0", "1:2:3", "1:", ":1", "nan", "inf", "-1", "1e10", True],
    "client-latency": ["a", "1,", "-0.1", "nan", "inf", True],
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(refusal, key):
    """A model is called 'model', wherever it was named; 1, 1.0 and True are equal, and no cache may take them so."""
    RunConfig.from_flat({"rounds": 1, "resume": True})
    for value in REFUSED[key]:
        said = refusal(HetflError, RunConfig.from_flat, {key: value})
        assert key.removesuffix("s") in said
        assert repr(value) in said or str(value) in said


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [
        *(("fraction", 1, 1.0), ("round-timeout", 60, 60.0)),
        *(
            (key, number, str(number))
            for key in ("client-seconds", "client-mbits", "client-latency")
            for number in (2, 0.5)
        ),
    ],
)
def test_a_whole_number_will_do_for_a_fraction_and_one_number_for_all_clients(key, value, held):
    assert typed({key: RunConfig.from_flat({key: value}).to_flat()[key]}) == typed({key: held})
    assert simulated("client-seconds", "") == [(1.0,)]
    assert simulated("client-seconds", "1, 2.5,20") == [(1.0,), (2.5,), (20.0,)]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("lerning-rate", "learning-rate"), ("learning_rate", "learning-rate"), ("round", "rounds"), ("options", None)],
)
def test_an_unknown_key_names_the_nearest(refusal, key, nearest):
    said = refusal(ConfigError, RunConfig.from_flat, {key: 1})
    assert f"'{key}'" in said
    assert nearest is None or f"'{nearest}'" in said


def test_a_config_cannot_be_changed_and_its_copies_are_checked(refusal):
    config = RunConfig(rounds=9)
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 3
    assert config.with_values({"rounds": 3}).rounds == 3
    assert config.rounds == 9
    assert "rounds" in refusal(ConfigError, config.with_values, {"rounds": 0})


def test_options_are_those_of_the_very_name():
    config = RunConfig.from_flat({"fedrep.head-epochs": 2, "fedrep.head-batches": 1, "fedrep2.x": 9.0})
    assert config.options_of("fedrep") == {"head_epochs": 2, "head_batches": 1}
    assert config.options_of("my_pkg.fedrep") == {}


def test_a_node_s_own_settings_override_the_run_config_there():
    config = RunConfig.from_flat({"models": "lenet5", "fedhe.alpha": 0.5})
    node = {"partition-id": 1, "num-partitions": 4, "model": "mlp", "state-dir": "/state", "of-another-app": 99}
    own = for_node(config, node)
    assert own == config.with_values({"models": "mlp", "state-dir": "/state"})
    assert for_node(config, {"partition-id": 1}) is config


@pytest.mark.parametrize("key", ["public-fraction", "seed", "normalize"])
def test_a_node_is_told_which_keys_it_cannot_set(refusal, key):
    """Else it would share public samples that it was told to keep."""
    assert f"--node-config: {key} is set in the run config" in refusal(ConfigError, for_node, RunConfig(), {key: 0})


def test_every_node_key_sets_a_key_that_exists():
    config = RunConfig(clipping_norm=1.0, public_clipping_norm=1.0)
    others = {"threads": 2, "device": "cuda", "partition": "iid", "noise-source": "system", "state-keep": 5}
    others |= {"mixed-precision": "bfloat16", "classes": "cat,dog", "series-layout": "channels-last"}
    others |= {"header-row": 3, "pivot": "a,b,c"}
    for node_key, key in NODE_KEYS.items():
        value = 3.0 if key.endswith(("-norm", "-multiplier", "-seconds", "-memory")) else others.get(key, "mlp")
        assert for_node(config, {node_key: value}).to_flat()[key] == value


def test_a_toml_file_may_begin_with_the_mark_of_its_encoding_and_nest_or_quote_tables(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('rounds = 7\n[my_pkg.algo]\nbeta = 1\n["my_pkg.other"]\ngamma = 2\n', encoding="utf-8-sig")
    assert read_toml(path) == {"rounds": 7, "my_pkg.algo.beta": 1, "my_pkg.other.gamma": 2}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("rounds=3", "rounds", 3),
        ("fraction=1.0", "fraction", 1.0),
        ("resume=true", "resume", True),
        ("dataset=mnist", "dataset", "mnist"),
        ("dataset='mnist'", "dataset", "mnist"),
        ("partition=dirichlet:0.3", "partition", "dirichlet:0.3"),
        ("models=a.b:make,mlp", "models", "a.b:make,mlp"),
        (" data-dir = /a=b ", "data-dir", "/a=b"),
        ("data-dir=", "data-dir", ""),
        ("data-dir=[1]", "data-dir", "[1]"),
        ("dataset=2020-01-01", "dataset", "2020-01-01"),
    ],
)
def test_a_setting_of_the_command_line_is_read_as_toml_or_as_a_word(refusal, text, key, value):
    assert typed(dict([parse_setting(text)])) == typed({key: value})
    for none in ("rounds", "=3", ""):
        assert f"'{none}'" in refusal(ConfigError, parse_setting, none)


def test_every_key_that_names_a_file_or_folder_refuses_what_can_name_none(refusal):
    flat = RunConfig().to_flat()
    fields = {str(field.alias): field for field in RunConfig.model_fields.values() if field.alias in flat}
    named = [
        key
        for key, field in fields.items()
        if re.search(r"\b([Ff]ile|[Ff]older)\b", field.description or "") and isinstance(flat[key], str)
    ]
    assert {"dataset", "data-dir", "node-keys", "output-dir", "pretrained", "state-dir"} == set(named)
    for key in named:
        for text in ("~nosuchuser/x", "/" + "x" * 300):
            assert refusal(ConfigError, RunConfig.from_flat, {key: text}).startswith(f"{key} = ")
