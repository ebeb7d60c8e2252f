"""From a name to the two halves of an algorithm, and from config keys to their hyper-parameters."""

import pytest

from clients.fedhenn import FedHeNNClient, FedHeNNHomogeneousClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import (
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
from simulations.testing.contract import entries
from strategies.fedhenn import FedHeNN, FedHeNNHomogeneous


def test_every_file_of_the_strategies_but_the_bases_is_an_algorithm():
    assert {"fedavg", "fedhe", "local"} <= {*names()}
    assert not [name for name in names() if name.startswith("base")]
    assert {"fedhe", "local"} <= {*for_heterogeneous_models()} <= {*names()} - {"fedavg"}


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


def test_an_algorithm_of_another_package_runs_with_its_own_option(make_config, run_federation):
    """Two clients say 2.5 in each of two rounds: in the second they hear the first's sum, 5."""
    run = run_federation(make_config(algorithm="fixtures.echo", **{"fixtures.echo.gain": 2.5}))
    rounds = entries(run)
    assert [entry["clients"]["1"].get("heard") for entry in rounds] == [None, 0.0, 5.0]
    assert [entry["bytes_up"] for entry in rounds] == [0, 16, 16]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedhee", "'fedhe'"),
        *((name, f"'{name}'") for name in ("base", "../x", ".x", "a..b", "fed he")),
        ("nowhere.algo", "'nowhere'"),
        ("fixtures.nothing", "fixtures.nothing.strategy"),
        ("fixtures.empty", "fixtures.empty.strategy"),
    ],
)
def test_a_name_that_leads_nowhere(name, said, refusal):
    assert said in refusal(ConfigError, find, name)


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("strategy", "import os\ndef f(:\n    pass\n", "strategy.py, line 2"),
        ("client", "class C:\n    def learn(self:\n", "client.py, line 2"),
        ("__init__", "x = 1\n  y = 2\n", "__init__.py, line 2"),
        ("helper", "x = (\n", "helper.py, line 1"),
        ("client", "\nimport no_such\n", "client.py, line 2"),
        ("strategy", "x = '\0'\n", "null bytes"),
    ],
)
def test_a_fault_of_an_author_s_file_is_named_with_its_line(file, text, place, tmp_path, monkeypatch, refusal):
    """Whichever file of the package has it, and not a line of Python's own import."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"faulty{file.strip('_')}{len(text)}"  # of no other case
    folder = tmp_path / name
    folder.mkdir()
    texts = {"__init__": "", "strategy": f"from . import helper\nclass {name}: pass\n", "client": "", "helper": ""}
    for stem, written in {**texts, file: text}.items():
        (folder / f"{stem}.py").write_text(written)
    assert place in refusal(ConfigError, find, name)


@pytest.mark.parametrize(
    ("key", "said"),
    [("fedhe.alfa", "'fedhe.alpha'"), ("local.alpha", "'local.alpha'"), ("fedhee.alpha", "'fedhee'")],
)
def test_an_unknown_option_is_refused_by_its_key(key, said, make_config, refusal):
    assert said in refusal(ConfigError, lambda: check_options(make_config(**{key: 1.0})))


def test_options_reach_the_side_that_has_them_and_those_of_other_algorithms_neither(make_config, make_node):
    keys = {"fedhe.mode": "async", "fedhe.alpha": 2}
    config = make_config(**keys, **{"fixtures.echo.gain": 3.0})
    client = build_client(config, make_node(config))
    assert build_strategy(config).asynchronous
    assert client.alpha == 2.0
    build_strategy(make_config(algorithm="local", **keys))


@pytest.mark.parametrize(
    ("keys", "models"),
    [
        ({"algorithm": "fedhe"}, "lenet5,mlp,fedhe:5"),
        ({"algorithm": "fedhenn"}, "lenet5,mlp,fedhe:5"),
        ({"algorithm": "fedhenn", "fedhenn.mode": "homogeneous"}, "lenet5"),
        ({"algorithm": "fedavg"}, "lenet5"),
        ({"algorithm": "fedavg", "models": "mlp"}, "mlp"),
        ({"dataset": "digits,rotated-mnist"}, "lenet5,mlp,fedhe:5"),
        ({"dataset": "breast-cancer"}, "mlp,tabular:0,tabular:1"),
        ({"dataset": "sentiment140"}, "lstm1,bag,lstm2"),
        ({"dataset": "sentiment140", "algorithm": "fedavg"}, "lstm1"),
        ({"dataset": "owner/name"}, "lenet5,mlp,fedhe:5"),
        ({"dataset": "owner/name", "text-column": "text"}, "lstm1,bag,lstm2"),
        ({"dataset": "./own", "label-column": "kind"}, "mlp,tabular:0,tabular:1"),
        ({"dataset": "./elsewhere"}, "lenet5,mlp,fedhe:5"),
    ],
    ids=str,
)
def test_auto_means_models_that_fit_the_data_and_differ_where_they_may(keys, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n")
    assert resolve_models(RunConfig.from_flat(keys)).models == models


def test_auto_for_data_of_two_kinds_is_refused(refusal):
    assert "breast-cancer" in refusal(ConfigError, resolve_models, RunConfig(dataset="digits,breast-cancer"))


@pytest.mark.parametrize(("method", "asked", "width"), [("chfl", 0, 64), ("chfl", 8, 8), ("fedhe", 0, 0)])
def test_a_width_is_what_is_asked_for_or_else_what_the_algorithm_needs(method, asked, width):
    assert resolve_models(RunConfig(algorithm=method, width=asked)).width == width


@pytest.mark.parametrize("name", ["fedavg", "fedh2l", "local"])
def test_a_projection_where_there_are_no_two_terms_is_refused(name, refusal):
    assert "projection = qp" in refusal(ConfigError, resolve, RunConfig(algorithm=name, projection="qp"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if find(name).client.has_distillation_term])
def test_a_projection_is_what_a_client_steps_along(name, make_config, run_federation, tmp_path):
    """FedHe and others, two rounds each: another model than without; where nothing is taught yet, the same."""
    models = "lenet5,mlp" if find(name).strategy.heterogeneous else "mlp"
    losses = {}
    for projection in ("none", "qp", "pcgrad"):
        keys = {"algorithm": name, "projection": projection, "models": models, "learning_rate": 0.05}
        folder = run_federation(make_config(**keys, local_batches=10, output_dir=str(tmp_path / projection)))
        rounds = entries(folder)
        assert all(entry["failures"] == [] for entry in rounds)
        losses[projection] = [[client["loss"] for client in entry["clients"].values()] for entry in rounds]
    assert losses["none"][0] == losses["qp"][0] == losses["pcgrad"][0]
    assert losses["none"][2] != losses["qp"][2] != losses["pcgrad"][2] != losses["none"][2]


def test_a_resolved_config_says_everything_and_only_the_own_keys():
    config = resolve(RunConfig(algorithm="fedhe", options={"fedhe.alpha": 0.5, "fixtures.echo.gain": 2}))
    assert config.models == "lenet5,mlp,fedhe:5"
    assert config.options == {f"fedhe.{key}": value for key, value in find("fedhe").defaults.items()} | {
        "fedhe.alpha": 0.5
    }
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        ("*, weight: float = 0.25", "*, weight: float = 1.0", "default"),
        ("*, weight: float", "", "default"),
        ("*, weight=0.5", "", "type"),
        ("weight: float = 0.9", "", "keyword-only"),
    ],
)
def test_an_option_needs_a_type_and_one_default_and_is_keyword_only(
    tmp_path, monkeypatch, refusal, server, client, said
):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"optional{abs(hash((server, client)))}"
    (package := tmp_path / name).mkdir()
    (package / "__init__.py").write_text("")
    for side, base, given in (("strategy", "KnowledgeStrategy", server), ("client", "KnowledgeClient", client)):
        own = f"Optional{name[8:]}" + "Client" * (side == "client")
        node = "self, node, " if side == "client" else "self, "
        lines = f"from hetfl_flwr import {base}\nclass {own}({base}):\n    def __init__({node}{given}): ...\n"
        (package / f"{side}.py").write_text(lines)
    line = refusal(ConfigError, find, name)
    assert "'weight'" in line
    assert said in line
