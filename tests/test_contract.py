"""What every algorithm of the registry keeps to: two clients with unlike models where it takes them, two rounds."""

import inspect
import json
import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.grids import Reversing
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from hetfl_flwr.algorithms import build_client, build_strategy, find, names
from hetfl_flwr.config import RunConfig
from hetfl_flwr.federation import ARRAYS, CONFIG, EXAMPLES, METRICS, Exchange, Federation
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import Dim, from_record, to_record
from simulations.engine import FIRST_NODE

ALGORITHMS = names()
SHARING = [
    name for name in ALGORITHMS if getattr(build_strategy(RunConfig(algorithm=name)), "sharing", None) is not None
]
"""Algorithms whose clients show each other public rows."""

NORMED = "fixtures.models:normed"

OWN_TABLES = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.fixture
def config_for(make_config) -> Callable[..., RunConfig]:
    """Build a config for an algorithm: unlike models if it takes them, one with dropout; no client has all classes."""

    def build(name: str, **keys: Any) -> RunConfig:
        models = f"{NORMED},mlp" if find(name).strategy.unlike_models else NORMED
        return make_config(**{"algorithm": name, "models": models, "partition": "classes:6", **keys})

    return build


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def bits(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in from_record(record).items()}


def train(federation: Federation, strategy: Any, arrays: ArrayRecord, round: int = 1) -> Exchange:
    view = federation.view(list(federation.roster))
    return federation.exchange(strategy.configure_train(round, arrays, ConfigRecord(), view), strategy.upload_spec)


def prepared(federation: Federation) -> tuple[Any, ArrayRecord]:
    """Return the strategy and what it knows before round 1; public rows are shared where it needs them."""
    strategy = build_strategy(federation.config)
    arrays = strategy.prepare(federation.roster, federation.config)
    assert federation.share(getattr(strategy, "sharing", None)).failures == []
    return strategy, arrays


def give_seeds(node: Node, federation: Federation, strategy: Any) -> None:
    """Bring a node that is not the federation's own what the others have shared."""
    sharing = getattr(strategy, "sharing", None)
    if sharing is not None and sharing.to_clients:
        for partition, block in federation.roster.seeds.items():
            if partition != node.partition:
                node.keep_seeds(to_record({f"{name}.{partition}": array for name, array in block.items()}))


def first_round(federation: Federation) -> tuple[Any, ArrayRecord, Exchange]:
    strategy, arrays = prepared(federation)
    return strategy, arrays, train(federation, strategy, arrays)


def answered(client: Any, message: Message) -> Message:
    """Let a client object answer a training message, as the ClientApp does."""
    download = list(from_record(message.content.array_records[ARRAYS]).values())
    arrays, examples, metrics = client.fit(download, dict(message.content.config_records[CONFIG]))
    uploaded = {name: Array(array) for name, array in zip(client.upload_spec().names, arrays, strict=True)}
    content = {ARRAYS: ArrayRecord(uploaded), METRICS: MetricRecord({**metrics, EXAMPLES: examples})}
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("clients", [1, 3])
def test_two_rounds_run_without_a_failure_and_measure_every_client(name, clients, config_for, run_federation):
    rounds = entries(run_federation(config_for(name, clients=clients)))
    assert [entry["round"] for entry in rounds] == [0, 1, 2]
    assert all(entry["failures"] == [] for entry in rounds)
    for entry in rounds:
        assert sorted(entry["clients"]) == [str(client) for client in range(clients)]
        assert all(0 <= measured["accuracy"] <= 1 for measured in entry["clients"].values())
    assert all(entry["clients"]["0"]["train-loss"] > 0 for entry in rounds[1:])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_embedding_width_for_all_is_the_width_of_models_on_both_sides(name, config_for, run_federation):
    rounds = entries(run_federation(config_for(name, width=6, rounds=1)))
    assert all(entry["failures"] == [] for entry in rounds)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_built_anew_for_each_message_equals_one_kept_alive(name, config_for, make_federation, make_context):
    """Built anew it has nothing but its state store; after two rounds uploads, metrics and models are the same bits."""
    config = config_for(name)
    federation = make_federation(config)

    def play(rebuild: bool) -> tuple[list[Any], list[dict[str, bytes]]]:
        contexts = [make_context(config, partition) for partition in range(config.clients)]
        nodes = [Node.from_context(context) for context in contexts]
        clients = [build_client(config, node) for node in nodes]
        strategy, arrays = prepared(federation)
        for node in nodes:
            give_seeds(node, federation, strategy)
        said = []
        for round in (1, 2):
            view = federation.view(list(federation.roster))
            replies = []
            for partition, message in enumerate(strategy.configure_train(round, arrays, ConfigRecord(), view)):
                if rebuild:
                    nodes[partition] = Node.from_context(contexts[partition])
                    clients[partition] = build_client(config, nodes[partition])
                replies.append(answered(clients[partition], message))
                content = replies[-1].content
                said.append((bits(content.array_records[ARRAYS]), dict(content.metric_records[METRICS])))
            arrays, _ = strategy.aggregate_train(round, replies)
        return said, [
            {key: t.numpy().tobytes() for key, t in client.node.model.state_dict().items() if kept(client, t)}
            for client in clients
        ]

    def kept(client: Any, tensor: torch.Tensor) -> bool:
        return client.keeps_state or tensor.is_floating_point()  # without state, counters begin anew in each round

    assert play(rebuild=True) == play(rebuild=False)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_goes_in_is_not_changed(name, config_for, make_federation, make_node):
    """Neither a client's download and config, nor the server's arrays and the replies it takes in."""
    config = config_for(name)
    federation = make_federation(config)
    strategy, arrays, exchange = first_round(federation)
    before = arrays.deflate(), [reply.content.deflate() for reply in exchange.replies]
    learnt, _ = strategy.aggregate_train(1, exchange.replies)
    assert (arrays.deflate(), [reply.content.deflate() for reply in exchange.replies]) == before

    view = federation.view(list(federation.roster))
    message = next(iter(strategy.configure_train(2, learnt, ConfigRecord(), view)))
    download = list(from_record(message.content.array_records[ARRAYS]).values())
    settings = dict(message.content.config_records[CONFIG])
    kept = deepcopy((download, settings))
    node = make_node(config)
    give_seeds(node, federation, strategy)
    build_client(config, node).fit(download, settings)
    assert settings == kept[1]
    for array, copy in zip(download, kept[0], strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_that_raises_is_named_and_the_round_goes_on(name, config_for, run_federation, monkeypatch):
    client = find(name).client
    learn = client.learn

    def broken(self, download, round):
        if self.node.partition == 1:
            raise RuntimeError("the disk\nis full")
        return learn(self, download, round)

    monkeypatch.setattr(client, "learn", broken)
    rounds = entries(run_federation(config_for(name, clients=3)))
    for entry in rounds[1:]:
        assert entry["failures"] == [
            {
                "partition": 1,
                "stage": "train",
                "reason": f"client 1, train, round {entry['round']}: RuntimeError: the disk is full",
                "node": FIRST_NODE + 1,
            }
        ]
        assert [client for client in "012" if "train-loss" in entry["clients"][client]] == ["0", "2"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_replies_changes_no_bit(name, config_for, make_federation):
    config = config_for(name, clients=3)
    learnt = []
    for grid in (None, Reversing(config)):
        strategy, _, exchange = first_round(make_federation(config, grid))
        learnt.append(strategy.aggregate_train(1, exchange.replies)[0])
    assert bits(learnt[0]) == bits(learnt[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_strategy_keeps_nothing_in_itself_between_two_rounds(name, config_for, make_federation):
    """Given round 1 again after a round 2, it comes to the same as the first time: all it knows is in its arrays."""
    federation = make_federation(config_for(name))
    strategy, arrays, exchange = first_round(federation)
    once, _ = strategy.aggregate_train(1, exchange.replies)
    later = train(federation, strategy, once, round=2)
    strategy.aggregate_train(2, later.replies)

    view = federation.view(list(federation.roster))
    list(strategy.configure_train(1, arrays, ConfigRecord(), view))
    again, _ = strategy.aggregate_train(1, exchange.replies)
    assert bits(again) == bits(once)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_payload_measured_is_the_payload_declared(name, config_for, run_federation, make_federation, make_node):
    """Up to the limit, where a size is known to the sender alone."""
    config = config_for(name)
    federation = make_federation(config)
    strategy, _ = prepared(federation)
    nodes = [make_node(config, partition) for partition in range(config.clients)]
    for node in nodes:
        give_seeds(node, federation, strategy)
    clients = [build_client(config, node) for node in nodes]
    specs = {"up": [client.upload_spec() for client in clients], "down": [one.download_spec() for one in clients]}
    rounds = entries(run_federation(config))
    for way, declared in specs.items():
        most = sum(spec.nbytes for spec in declared)
        measured = [entry[f"bytes_{way}"] for entry in rounds[1:]]
        exact = not any(isinstance(size, Dim) for spec in declared for array in spec.arrays for size in array.shape)
        assert all(count == most if exact else 0 <= count <= most for count in measured)
        assert (rounds[0][f"bytes_{way}"] == 0) == (getattr(strategy, "sharing", None) is None)


@pytest.mark.parametrize("name", SHARING)
def test_public_rows_are_counted_once_also_in_a_run_that_goes_on(name, config_for, run_federation, tmp_path):
    """Round 0 has their bytes. A run stopped after round 1 and resumed ends as one that was never stopped, in its bits
    and its bytes, though the clients are told the public rows anew."""
    whole = run_federation(config_for(name, rounds=3, output_dir=str(tmp_path / "whole")))
    config = config_for(name, rounds=1, output_dir=str(tmp_path / "parts"))
    run_federation(config)
    parts = run_federation(config.with_values({"rounds": 3, "resume": True}))
    assert entries(whole)[0]["bytes_up"] > 0
    for first, second in zip(entries(whole), entries(parts), strict=True):
        kept = ("round", "accuracy", "bytes_up", "bytes_down", "failures")
        assert {key: first[key] for key in kept} == {key: second[key] for key in kept}
    assert (whole / "knowledge.safetensors").read_bytes() == (parts / "knowledge.safetensors").read_bytes()
    totals = [json.loads((folder / "clients.json").read_text()) for folder in (whole, parts)]
    assert [c["bytes_down"] for c in totals[0]] == [c["bytes_down"] for c in totals[1]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_halves_say_what_they_do_what_they_send_and_what_they_keep(name):
    algorithm = find(name)
    for half in (algorithm.strategy, algorithm.client):
        assert half.__module__.endswith(f".{name}")
        text = inspect.getdoc(half) or ""
        assert re.match(r"\S.*\.\n", text), "a summary of one line"
        assert re.search(r"^Wire   \S", text, re.MULTILINE)
        assert re.search(r"^State  \S", text, re.MULTILINE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hyper_parameters_are_keyword_only_and_their_defaults_are_those_of_pyproject(name):
    algorithm = find(name)
    assert algorithm.defaults == OWN_TABLES.get(name, {})
    for half, surroundings in ((algorithm.strategy, []), (algorithm.client, ["node"])):
        parameters = inspect.signature(half).parameters
        assert [key for key, one in parameters.items() if one.kind is not one.KEYWORD_ONLY] == surroundings


def test_pyproject_has_no_table_of_an_algorithm_that_is_not_there():
    assert {key for key, value in OWN_TABLES.items() if isinstance(value, dict)} <= set(ALGORITHMS)


def test_the_global_generators_are_left_as_they_were(config_for, run_federation):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    run_federation(config_for("fedhe"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_runs_of_one_series_do_not_mix_state(name, config_for, make_grid, run_federation, tmp_path):
    """Flower hands a node's later run what an earlier one of its series has left in the Context: the run's end is that
    of one on new nodes, bit for bit."""
    config = config_for(name)
    fresh = run_federation(config.with_values({"output-dir": str(tmp_path / "fresh")}))
    grids = [make_grid(config, run=run) for run in (8, 9)]
    left: dict[int, RecordDict] = {}
    for grid, keys in zip(grids, ({"output-dir": str(tmp_path / "first"), "seed": 1}, {}), strict=True):
        contexts, flat = grid._host._clients._contexts, config.with_values(keys).to_flat()
        for partition, node in enumerate(grid.get_node_ids()):  # as Flower keeps them, all in records
            own = {"partition-id": partition, "num-partitions": config.clients}
            contexts[node] = Context(grid.run.run_id, node, own, left.get(node, RecordDict()), flat)
        later = run_federation(config.with_values(keys), grid, run_id=grid.run.run_id)
        left = {node: context.state for node, context in contexts.items()}
    assert (later / "knowledge.safetensors").read_bytes() == (fresh / "knowledge.safetensors").read_bytes()
    assert [entry["clients"] for entry in entries(later)] == [entry["clients"] for entry in entries(fresh)]
