"""From a name to the two halves of an algorithm, and from config keys to their hyper-parameters."""

import json
import sys
from functools import wraps

import pytest

from clients.fedhe import FedHeClient
from clients.fedhenn import FedHeNNClient, FedHeNNHomogeneousClient
from hetfl_flwr.algorithms import (
    build_client,
    build_strategy,
    check_options,
    chosen,
    find,
    for_heterogeneous_models,
    names,
    resolve,
    resolve_models,
)
from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig
from strategies.chfl import CHFL
from strategies.fedhe import FedHe
from strategies.fedhenn import FedHeNN, FedHeNNHomogeneous


def test_every_file_of_the_strategies_but_the_base_is_an_algorithm():
    assert {"fedavg", "fedhe", "local"} <= set(names())
    assert "base" not in names()
    assert "fedavg" not in for_heterogeneous_models()
    assert {"fedhe", "local"} <= set(for_heterogeneous_models())


def test_a_name_leads_to_its_two_classes():
    found = find("fedhe")
    assert (found.strategy, found.client) == (FedHe, FedHeClient)
    own = {"mode": "sync", "store": "all"}
    assert found.defaults == {**own, "alpha": 1.0, "logit-loss": "mse"}


@pytest.mark.parametrize(
    ("keys", "halves"),
    [
        ({}, (FedHeNN, FedHeNNClient)),
        ({"fedhenn.mode": "heterogeneous"}, (FedHeNN, FedHeNNClient)),
        ({"fedhenn.mode": "homogeneous"}, (FedHeNNHomogeneous, FedHeNNHomogeneousClient)),
    ],
)
def test_a_mode_leads_to_its_two_classes(keys, halves, make_config, make_node):
    config = make_config(algorithm="fedhenn", **keys)
    found = chosen(config)
    assert (found.strategy, found.client) == halves
    assert (type(build_strategy(config)), type(build_client(config, make_node(config)))) == halves
    assert next(iter(find("fedhenn").defaults.items())) == ("mode", "heterogeneous")


def test_a_value_out_of_range_is_refused_in_every_mode(make_config, refusal):
    """The homogeneous server side has no rank."""
    config = make_config(algorithm="fedhenn", **{"fedhenn.mode": "homogeneous", "fedhenn.rank": -1})
    assert refusal(ConfigError, check_options, config).startswith("fedhenn.rank = -1: ")


def test_sides_that_differ_in_their_modes_are_refused_by_name(monkeypatch, refusal):
    monkeypatch.delattr("clients.fedhenn.MODES")
    assert refusal(ConfigError, find.__wrapped__, "fedhenn") == (
        "algorithm modules 'strategies.fedhenn' and 'clients.fedhenn' differ in MODES: "
        "heterogeneous, homogeneous and none"
    )


def test_an_algorithm_of_another_package_runs_with_its_own_option(make_config, run_federation):
    """Two clients say 2.5 in each of two rounds: in the second they hear the first's sum, 5."""
    run = run_federation(make_config(algorithm="fixtures.echo", **{"fixtures.echo.gain": 2.5}))
    entries = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [entry["clients"]["1"].get("heard") for entry in entries] == [None, 0.0, 5.0]
    assert [entry["bytes_up"] for entry in entries] == [0, 16, 16]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedhee", "unknown algorithm 'fedhee': did you mean 'fedhe'? Known: agg, chfl, "),
        ("base", "unknown algorithm 'base': Known: "),
        ("nowhere.algo", "algorithm module 'nowhere.algo.strategy' not found: no module named 'nowhere'"),
        ("fixtures.nothing", "algorithm module 'fixtures.nothing.strategy' not found"),
        ("fixtures.empty", "algorithm module 'fixtures.empty.strategy' has no class named like 'empty' (in any case)"),
    ],
)
def test_a_name_that_leads_nowhere(name, said, refusal):
    assert said in refusal(ConfigError, find, name)


def test_a_class_of_another_name_is_named(tmp_path, monkeypatch, refusal):
    (tmp_path / "misnamed").mkdir()
    (tmp_path / "misnamed" / "strategy.py").write_text("from hetfl_flwr import Roster\nclass Ours: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = "algorithm module 'misnamed.strategy' has no class named like 'misnamed' (in any case): it has Ours"
    assert refusal(ConfigError, find, "misnamed") == said


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("strategy", "import os\ndef f(:\n    pass\n", "SyntaxError: invalid syntax ({}/strategy.py, line 2)"),
        ("client", "class C:\n    def learn(self:\n", "SyntaxError: '(' was never closed ({}/client.py, line 2)"),
        ("__init__", "x = 1\n  y = 2\n", "IndentationError: unexpected indent ({}/__init__.py, line 2)"),
        ("helper", "x = (\n", "SyntaxError: '(' was never closed ({}/helper.py, line 1)"),
        ("client", "\nimport no_such\n", "ModuleNotFoundError: No module named 'no_such' ({}/client.py, line 2)"),
        ("strategy", "x = '\0'\n", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_fault_of_an_author_s_file_is_named_with_its_line(file, text, wrong, tmp_path, monkeypatch, refusal):
    """Whichever file of the package has it, and not a line of Python's own import."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"faulty{file.strip('_')}{len(text)}"  # of no other case
    folder = tmp_path / name
    folder.mkdir()
    texts = {"__init__": "", "strategy": f"from . import helper\nclass {name}: pass\n", "client": "", "helper": ""}
    for stem, written in {**texts, file: text}.items():
        (folder / f"{stem}.py").write_text(written)
    side = "client" if file == "client" else "strategy"
    assert refusal(ConfigError, find, name) == (
        f"algorithm module '{name}.{side}' cannot be imported: {wrong.format(folder)}"
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("fedhe.alfa", 1.0, "unknown config key 'fedhe.alfa': did you mean 'fedhe.alpha'? Known: fedhe.alpha, "),
        ("local.alpha", 1.0, "unknown config key 'local.alpha': Known: (none)"),
        ("fedhee.alpha", 1.0, "unknown algorithm 'fedhee': did you mean 'fedhe'?"),
        ("fedhe.alpha", "much", "fedhe.alpha = 'much': input should be a valid number"),
        ("fedhe.alpha", True, "fedhe.alpha = True: input should be a valid number"),
        ("fedhe.alpha", -0.1, "fedhe.alpha = -0.1: input should be greater than or equal to 0"),
        ("fedhe.alpha", float("nan"), "fedhe.alpha = nan: "),
        ("fedhe.logit-loss", "l1", "fedhe.logit-loss = 'l1': input should be 'mse' or 'kl'"),
        ("fedhe.store", "newest", "fedhe.store = 'newest': input should be 'all' or 'latest'"),
        ("fedhe.store", 1, "fedhe.store = 1: input should be 'all' or 'latest'"),
    ],
)
def test_a_wrong_option_is_refused_by_its_key(key, value, said, make_config, refusal):
    assert said in refusal(ConfigError, lambda: check_options(make_config(**{key: value})))


def test_options_reach_the_side_that_has_them_and_those_of_other_algorithms_neither(make_config, make_node):
    keys = {"fedhe.store": "latest", "fedhe.alpha": 2, "fedhe.logit-loss": "kl"}
    config = make_config(**keys, **{"fixtures.echo.gain": 3.0})
    client = build_client(config, make_node(config))
    assert build_strategy(config).store == "latest"
    assert (client.alpha, client.logit_loss) == (2.0, "kl")
    build_strategy(make_config(algorithm="local", **keys))


def test_auto_means_heterogeneous_models_wherever_the_algorithm_takes_them():
    def models(**keys):
        return resolve_models(RunConfig.from_flat(keys)).models

    assert models(algorithm="fedhe") == models(algorithm="fedhenn") == "lenet5,mlp,fedhe:5"
    assert models(algorithm="fedavg") == "lenet5"
    assert models(algorithm="fedavg", models="mlp") == "mlp"
    assert models(algorithm="fedhenn", **{"fedhenn.mode": "homogeneous"}) == "lenet5"


def test_a_width_is_what_is_asked_for_or_else_what_the_algorithm_needs():
    def width(**keys):
        return resolve_models(RunConfig(**keys)).width

    assert (width(algorithm="chfl"), width(algorithm="chfl", width=8), width(algorithm="fedhe")) == (64, 8, 0)


def test_a_config_that_leaves_nothing_open_comes_back_itself():
    config = resolve_models(RunConfig(algorithm="chfl"))
    assert resolve_models(config) is config


def test_a_run_builds_the_server_side_once_and_no_client_does(make_config, run_federation, monkeypatch):
    """Models and width are left to the algorithm, so each message to a client has to find them out."""
    built, original = [], CHFL.__init__

    @wraps(original)
    def build(self, **keys):
        built.append(keys)
        original(self, **keys)

    monkeypatch.setattr(CHFL, "__init__", build)
    folder = run_federation(make_config(algorithm="chfl", models="auto", width=0))
    assert (folder / "summary.json").exists()
    assert built == [{"mode": "kd"}]


def test_auto_means_models_that_take_the_data(refusal, tmp_path):
    def auto(dataset, **keys):
        return resolve_models(RunConfig(dataset=dataset, **keys)).models

    assert auto("digits,rotated-mnist") == "lenet5,mlp,fedhe:5"
    assert auto("breast-cancer") == "mlp,tabular:0,tabular:1"
    assert auto("sentiment140") == "lstm1,bag,lstm2"
    assert auto("sentiment140", algorithm="fedavg") == "lstm1"
    (tmp_path / "train.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n")
    assert auto(str(tmp_path), label_column="kind") == "mlp,tabular:0,tabular:1"
    assert auto(str(tmp_path / "elsewhere")) == auto("owner/name") == "lenet5,mlp,fedhe:5"
    assert auto("owner/name", text_column="text") == "lstm1,bag,lstm2"
    said = refusal(ConfigError, auto, "digits,breast-cancer")
    assert "(digits are images, breast-cancer are tables): name the models" in said


@pytest.mark.parametrize("name", ["../x", ".x", "a..b", "fed he"])
def test_what_cannot_be_a_name_is_an_unknown_algorithm(name, refusal):
    assert refusal(ConfigError, find, name).startswith(f"unknown algorithm '{name}'")


@pytest.mark.parametrize("name", ["fedavg", "fedh2l", "local"])
def test_a_projection_where_there_are_no_two_terms_is_refused(name, refusal):
    said = refusal(ConfigError, resolve, RunConfig(algorithm=name, projection="qp"))
    assert said.startswith(f"projection = qp is not for {name}")
    assert "fedhe" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if find(name).client.has_distillation_term])
def test_a_projection_is_what_a_client_steps_along(name, make_config, run_federation, tmp_path):
    """FedHe and others, two rounds each: another model than without; where nothing is taught yet, the same."""
    models = "lenet5,mlp" if find(name).strategy.heterogeneous else "mlp"
    entries = {}
    for projection in ("none", "qp", "pcgrad"):
        keys = {
            "algorithm": name,
            "projection": projection,
            "models": models,
            "learning_rate": 0.05,
            "local_batches": 10,
        }
        folder = run_federation(make_config(**keys, output_dir=str(tmp_path / projection)))
        rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        assert all(entry["failures"] == [] for entry in rounds)
        entries[projection] = [[client["loss"] for client in entry["clients"].values()] for entry in rounds]
    assert entries["none"][0] == entries["qp"][0] == entries["pcgrad"][0]
    assert entries["none"][2] != entries["qp"][2] != entries["pcgrad"][2] != entries["none"][2]


def test_a_resolved_config_says_everything_and_only_the_own_keys():
    config = resolve(RunConfig(algorithm="fedhe", options={"fedhe.alpha": 0.5, "fixtures.echo.gain": 2}))
    assert config.models == "lenet5,mlp,fedhe:5"
    assert config.options == {f"fedhe.{key}": value for key, value in find("fedhe").defaults.items()} | {
        "fedhe.alpha": 0.5
    }
    assert resolve(config) == config


@pytest.mark.parametrize("modes", ["5", "{'a': 'Own'}", "{1: dict}"])
def test_modes_that_are_no_classes_by_name_are_one_line(modes, tmp_path, monkeypatch, refusal):
    folder = tmp_path / "broken_modes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    text = f"from strategies.fedhe import FedHe as BrokenModes\nMODES = {modes}\n"
    (folder / "strategy.py").write_text(text)
    (folder / "client.py").write_text("from clients.fedhe import FedHeClient as BrokenModesClient\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    find.cache_clear()
    for name in [name for name in sys.modules if name.startswith("broken_modes")]:
        del sys.modules[name]
    said = refusal(ConfigError, find, "broken_modes")
    assert said == "algorithm module 'broken_modes.strategy': MODES is not a mapping from names to classes"


def test_an_option_that_is_not_keyword_only_is_refused(tmp_path, monkeypatch, refusal):
    """It would be no key, and a value for it would be refused as unknown."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "positional"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "strategy.py").write_text(
        "from hetfl_flwr import KnowledgeStrategy\n"
        "class Positional(KnowledgeStrategy):\n"
        "    def __init__(self, momentum: float = 0.9) -> None: ...\n"
    )
    (package / "client.py").write_text(
        "from hetfl_flwr import KnowledgeClient\nclass PositionalClient(KnowledgeClient): ...\n"
    )
    assert refusal(ConfigError, find, "positional") == (
        "positional.strategy.Positional: 'momentum' of its constructor is not keyword-only, so it cannot be set: "
        "write '*, momentum'"
    )


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        (
            "*, weight: float = 0.25",
            "*, weight: float = 1.0",
            "the default of 'weight' is 0.25 in Optional and 1.0 in Opti",
        ),
        ("*, weight: float", "", "'weight' of its constructor needs a type and a default"),
        ("*, weight=0.5", "", "'weight' of its constructor needs a type and a default"),
        ("weight", "", "'weight' of its constructor is not keyword-only"),
    ],
)
def test_an_option_needs_a_type_and_one_default(tmp_path, monkeypatch, refusal, server, client, said):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"optional{abs(hash((server, client)))}"
    (package := tmp_path / name).mkdir()
    (package / "__init__.py").write_text("")
    for side, base, given in (("strategy", "KnowledgeStrategy", server), ("client", "KnowledgeClient", client)):
        own = f"Optional{name[8:]}" + "Client" * (side == "client")
        node = "self, node, " if side == "client" else "self, "
        lines = f"from hetfl_flwr import {base}\nclass {own}({base}):\n    def __init__({node}{given}): ...\n"
        (package / f"{side}.py").write_text(lines)
    assert said.replace("in Optional and", f"in Optional{name[8:]} and") in refusal(ConfigError, find, name)
