"""What a client has learnt is read back from its run folder."""

import json
import sys
from importlib import invalidate_caches
from shutil import copyfile, rmtree

import pytest

from hetfl_flwr import load, measure
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.methods import find, names
from hetfl_flwr.node.holder import digest_of
from simulations.inference.export import program_of
from simulations.inference.loading import SHOWN, load_client

OPTIONS = {
    "fedavg": [{"fine-tune-epochs": 1}],
    "fedproto": [{"fedproto.predict": "prototype"}, {"fedproto.predict": "own-prototype"}],
    "fedtgp": [{"fedtgp.predict": "prototype"}],
    "chfl": [{"chfl.mode": "avg"}],
    "heterofl": [{"models": "lenet5,lenet5@0.5"}],
    "lgfedavg": [{"lgfedavg.mode": "body"}],
    "fedhenn": [{"fedhenn.mode": "homogeneous"}],
}
"""Options of methods with which something else predicts, or another part is sent."""


@pytest.mark.parametrize("keep_best", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in names() for options in ({}, *OPTIONS.get(name, []))]
)
def test_what_is_read_back_of_a_client_measures_what_the_table_says(
    make_config, run_federation, name, options, keep_best
):
    """Of every method: the module that was measured, and the program that is exported of it, to the digit."""
    own = {"algorithm": name, "models": "lenet5", "clients": 3, "rounds": 3, "learning_rate": 0.02, **options}
    config = make_config(**own, keep_best=keep_best, validation_fraction=0.2, partition="classes:6")
    folder = run_federation(config)
    accuracies = json.loads((folder / "summary.json").read_text())["accuracy_per_client"]
    for client_id, accuracy in enumerate(accuracies):
        node = load_client(folder, client_id)
        assert evaluate(node.predictor, node.data.test).accuracy == accuracy
        test = node.data.test
        guesses = program_of(node)(test.arrays.inputs[test.rows]).argmax(1)
        assert float((guesses == test.labels).sum()) / len(test) == accuracy
    assert len(set(accuracies)) > 1


@pytest.mark.parametrize("run_named", [False, True])
def test_a_client_is_read_from_the_state_folder_of_its_node(make_config, run_federation, tmp_path, run_named):
    """Of the runs in it the last one counts, or the one named; it knows the data of its node without the run folder."""
    state = tmp_path / "state"
    accuracies = []
    for run, rounds in ((7, 1), (8, 3)):
        config = make_config(rounds=rounds, state_dir=str(state), output_dir=str(tmp_path / str(run)), seed=run)
        folder = run_federation(config, run_id=run)
        accuracies.append(json.loads((folder / "summary.json").read_text())["accuracy_per_client"])
        rmtree(folder)
    for client_id in (0, 1):
        node = load_client(state / "run-7" if run_named else state, client_id)
        assert evaluate(node.model, node.data.test).accuracy == accuracies[0 if run_named else 1][client_id]
    assert accuracies[0] != accuracies[1]


def test_where_there_is_no_model(make_config, run_federation, tmp_path, refusal):
    folder = run_federation(make_config(clients=2, rounds=1, fraction=0.5))
    clients = json.loads((folder / "rounds.jsonl").read_text().splitlines()[1])["clients"]
    [idle] = [int(client) for client, told in clients.items() if "train-loss" not in told]
    assert str(folder) in refusal(RunFolderError, load_client, str(folder), idle)
    assert "no client 2" in refusal(RunFolderError, load_client, folder, 2)
    sweep = tmp_path / "sweep"
    for number in range(SHOWN + 2):
        (sweep / f"{number:02}").mkdir(parents=True)
        (sweep / f"{number:02}" / "config.toml").touch()
    shown = ", ".join(f"{number:02}" for number in range(SHOWN))
    for client in (0, "North"):
        assert f"{shown} and 2 more" in refusal(RunFolderError, load_client, sweep, client)
    assert "nowhere" in refusal(RunFolderError, load_client, folder.parent / "nowhere", 0)


def test_a_client_file_of_another_round_is_not_given_out_as_the_last_one(make_config, run_federation, refusal):
    folder = run_federation(make_config(rounds=2, checkpoint_every=1))
    newest = folder / "checkpoint" / "round-2" / "client-1"
    newest.unlink()
    copyfile(folder / "checkpoint" / "round-1" / "client-1", newest)
    assert f"{newest}: damaged" in refusal(RunFolderError, load_client, folder, 1)
    newest.unlink()
    assert f"{newest}: cannot be read" in refusal(RunFolderError, load_client, folder, 1)
    assert load_client(folder, 0).model_name == "mlp"


def test_a_state_folder_of_any_name_is_read_by_what_its_files_say(make_config, run_federation, tmp_path):
    config = make_config(rounds=1, state_dir=str(tmp_path / "state"))
    accuracies = json.loads((run_federation(config) / "summary.json").read_text())["accuracy_per_client"]
    node = load_client((tmp_path / "state" / "run-7").rename(tmp_path / "copy"), 1)
    assert evaluate(node.model, node.data.test).accuracy == accuracies[1]


STRATEGY = """
from hetfl_flwr import FederationError, KnowledgeStrategy, PayloadSpec

class Pairs(KnowledgeStrategy):
    width = {width}

    def check(self, roster):
        super().check(roster)
        if any(member.width < 8 for member in roster):
            raise FederationError("pairs needs a width of 8 at least")

    def initial(self, roster):
        return {{}}

    def download_for(self, member, server_state, round):
        return {{}}

    def upload_spec(self, member):
        return PayloadSpec(())

    def aggregate(self, server_state, uploads, round):
        return {{}}
"""

CLIENT = """
from torch import nn
from hetfl_flwr import SEEN, KnowledgeClient, PayloadSpec

class Pair(nn.Module):
    def __init__(self, model, other):
        super().__init__()
        self.model, self.other = model, other

    def forward(self, x):
        return self.model(x) + self.other(x)

class PairsClient(KnowledgeClient):
    def __init__(self, node):
        super().__init__(node)
        self.other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def modules(self):
        return {"model": self.node.model, "other": self.other}

    def predictor(self):
        return Pair(self.node.model, self.other)

    def download_spec(self):
        return PayloadSpec(())

    upload_spec = download_spec

    def learn(self, download, round):
        pair = self.predictor()
        optimizer = self.optimizer(parameters=pair.parameters())
        loss = lambda inputs, labels: self.node.data_loss(pair(inputs), labels)
        samples, mean_loss = self.train(self.batches(round), loss, optimizer)
        return {}, {SEEN: samples, "train-loss": mean_loss}
"""


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """A method of somebody else, which predicts with two networks; a function writes it with another width."""

    def write(width):
        for name, text in (("__init__", ""), ("strategy", STRATEGY.format(width=width)), ("client", CLIENT)):
            (tmp_path / "outer" / "pairs" / f"{name}.py").write_text(text)
        forget()

    def forget():
        invalidate_caches()
        find.cache_clear()
        for each in [each for each in sys.modules if each.partition(".")[0] == "outer"]:
            del sys.modules[each]

    (tmp_path / "outer" / "pairs").mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    forget()


@pytest.mark.parametrize("keep_best", [False, True])
def test_a_method_of_others_is_read_back_as_it_predicts(make_config, run_federation, tmp_path, pairs, keep_best):
    pairs(8)
    keys = {"algorithm": "outer.pairs", "models": "mlp", "learning_rate": 0.02, "validation_fraction": 0.2}
    folder = run_federation(make_config(**keys, keep_best=keep_best, rounds=3, state_dir=str(tmp_path / "state")))
    accuracies = json.loads((folder / "summary.json").read_text())["accuracy_per_client"]
    for client_id, accuracy in enumerate(accuracies):
        for place in (folder, tmp_path / "state"):
            node = load_client(place, client_id)
            assert measure(load(folder).model(client_id), node.data.test)["accuracy"] == accuracy
            assert evaluate(node.predictor, node.data.test).accuracy == accuracy
            assert digest_of(load_client(place, client_id, data=False).predictor) == digest_of(node.predictor)


def test_the_best_of_a_node_with_a_state_folder_is_saved_beside_what_was_measured(
    make_config, run_federation, tmp_path
):
    own = {"algorithm": "lgfedavg", "clients": 3, "rounds": 2, "keep_best": True}
    folder = run_federation(make_config(**own, state_dir=str(tmp_path / "state")))
    assert all(
        accuracy is not None for accuracy in json.loads((folder / "summary.json").read_text())["accuracy_per_client"]
    )
