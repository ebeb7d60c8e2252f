"""What methods refuse before a run begins, by what is wrong: their own keys, and clients that they cannot have."""

from typing import Any

import pytest
from fixtures.federations.members import member, roster

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, FederationError
from hetfl_flwr.methods import build_strategy, check_options
from hetfl_flwr.server.roster import Roster

KEYS: dict[str, dict[str, list[Any]]] = {
    "chfl": {"mode": ["fedavg"], "reduce": ["max"], "alpha": [-0.1], "beta": [-1.0]},
    "dsfl": {"aggregation": ["mean"], "temperature": [0.0], "public-samples": [0], "digest-epochs": [-1]},
    "fd": {"gamma": [-1.0], "mode": ["best"]},
    "fedavg": {"exchange-every": [0, -1, 1.5]},
    "feddf": {"server-steps": [-1], "server-learning-rate": [-1.0], "patience": [-1]},
    "fedgh": {"server-epochs": [-1], "server-learning-rate": [0.0], "mode": ["x"]},
    "fedh2l": {
        **{"exchange-every": [0], "teachers": [-1], "projection": ["both"], "kl": [1], "public-labels": [0]},
        **{"optimizers": ["three"], "eta": [-0.1]},
    },
    "fedhe": {"alpha": ["much", True, -0.1, float("nan")], "mode": ["newest", 1]},
    "fedhenn": {"mode": ["both"], "rad-size": [3], "eta0": [-0.1], "align-batch": [3, -1]},
    "fedkd": {"energy-start": [0.0, 1.01, -1.0], "energy-end": [0.0, 1.01, -1.0], "mentee": ["mlp,lenet5"]},
    "fedmd": {
        **{"public-samples": [0, 2.5], "pretrain-epochs": [-1], "pretrain-private-epochs": [-1]},
        **{"digest-epochs": [-1], "private": ["disjoint"], "consensus": ["scores"], "digest": ["l2"]},
    },
    "fedprox": {"mu": [-0.1, "much"], "exchange-every": [0]},
    "fedproto": {"distance-weight": [-1], "weighting": ["samples"], "predict": ["both"], "mode": ["later"]},
    "fedrep": {"head-epochs": [-1]},
    "fedtgp": {"server-epochs": [-1], "server-learning-rate": [0.0], "predict": ["both"]},
    "fedmrl": {"small": ["mlp,lenet5"], "small-loss": [-1.0]},
    "fml": {"alpha": [True], "share": ["head"], "meme": ["mlp,lenet5", "fedhe"]},
    "lgfedavg": {"mode": ["heads"]},
}
"""By method and key: values that it does not have."""


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [(method, f"{method}.{key}", value) for method in KEYS for key, values in KEYS[method].items() for value in values],
    ids=str,
)
def test_a_value_that_a_key_does_not_have_is_refused_by_its_name(method, key, value, refusal):
    def act() -> None:
        config = RunConfig.from_flat({"algorithm": method, key: value})
        check_options(config)
        build_strategy(config)

    assert refusal(ConfigError, act).startswith(f"{key} = {value!r}: ")


UNLIKE: dict[str, tuple[dict[str, Any], ...]] = {
    "agg": ({"public": 0}, {"classes": 4}),
    "chfl": ({"width": 9}, {"classes": 4}),
    "dsfl": ({"public": 0}, {"classes": 4}),
    "fd": ({"classes": 4},),
    "fedavg": ({"weights": "other"},),
    "feddf": ({"public": 0},),
    "fedgh": ({"width": 9}, {"classes": 4}),
    "fedh2l": ({"public": 0}, {"classes": 4}, {"shape": (3,)}),
    "fedhenn": ({"public": 0}, {"shape": (3,)}),
    "fedkd": ({"classes": 4}, {"shape": (3,)}),
    "fedmd": ({"public": 0}, {"classes": 4}, {"shape": (3,)}),
    "fedmrl": ({"classes": 4}, {"shape": (3,)}),
    "fedprox": ({"weights": "other"},),
    "fedproto": ({"width": 9}, {"classes": 4}),
    "fedrep": ({"body": "other"},),
    "fedtgp": ({"width": 9}, {"classes": 4}),
    "fml": ({"classes": 4}, {"shape": (3,)}),
    "heterofl": ({"classes": 4},),
    "lgfedavg": ({"width": 9}, {"classes": 4}),
}
"""By method: in what the second of two clients may not differ from the first."""


@pytest.mark.parametrize(
    ("method", "fields"), [(method, one) for method, odd in UNLIKE.items() for one in odd], ids=str
)
def test_a_client_that_a_method_cannot_have_beside_another_is_refused_by_name(method, fields, refusal):
    strategy = build_strategy(RunConfig(algorithm=method))
    strategy.check(roster(2, public=9, model="mlp"))
    unlike = Roster([member(0, public=9, model="mlp"), member(1, **{"public": 9, "model": "mlp"} | fields)])
    line = refusal(FederationError, strategy.check, unlike)
    assert "client 1" in line
    [field] = fields
    if field in ("public", "width", "classes", "shape"):
        assert field in line


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fd", {"classes": 99999}),
        ("fedtgp", {"width": 20000}),
        ("lgfedavg", {"classes": 100_000, "width": 2**20}),
        ("fedproto", {"classes": 100_000, "width": 2**20}),
    ],
)
def test_more_than_the_server_can_keep_is_refused(method, fields, refusal):
    strategy = build_strategy(RunConfig(algorithm=method))
    assert method in refusal(FederationError, strategy.check, roster(2, **fields))


@pytest.mark.parametrize(
    ("method", "keys", "fields"),
    [
        ("fedrep", {}, {"classes": 7, "weights": "other"}),
        ("lgfedavg", {}, {"shape": (5, 5), "model": "mlp", "weights": "other", "body": "other"}),
        ("fedproto", {}, {"shape": (5, 5)}),
        ("fml", {"share": "body"}, {"classes": 5}),
    ],
)
def test_clients_may_differ_in_what_does_not_travel(method, keys, fields):
    config = RunConfig.from_flat({"algorithm": method, **{f"{method}.{key}": value for key, value in keys.items()}})
    build_strategy(config).check(Roster([member(0), member(1, **fields)]))
