"""What a client has learnt is read back from its run folder."""

import json
from shutil import copytree, rmtree

import pytest
from fixtures.federations.grids import Meddled
from fixtures.folders.reached import summary_of

from hetfl_flwr import load, measure
from hetfl_flwr.data import reread
from hetfl_flwr.errors import DataError, RunFolderError
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.methods import names
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


def accuracies_of(folder):
    return summary_of(folder)["accuracy_per_client"]


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
    accuracies = accuracies_of(folder)
    for client_id, accuracy in enumerate(accuracies):
        node = load_client(folder, client_id)
        assert evaluate(node.predictor, node.data.test).accuracy == accuracy
        test = node.data.test
        guesses = program_of(node)(test.arrays.inputs[test.rows]).argmax(1)
        assert float((guesses == test.labels).sum()) / len(test) == accuracy
    assert len(set(accuracies)) > 1


@pytest.mark.parametrize("place", ["", "run-7", "a copy"])
def test_a_client_is_read_from_the_state_folder_of_its_node(make_config, run_federation, tmp_path, place):
    """Of the runs in it the last one counts, or the one named; it knows the data of its node without the run folder."""
    state, accuracies = tmp_path / "state", []
    for run, rounds in ((7, 1), (8, 3)):
        config = make_config(rounds=rounds, state_dir=str(state), output_dir=str(tmp_path / str(run)), seed=run)
        folder = run_federation(config, run_id=run)
        accuracies.append(accuracies_of(folder))
        rmtree(folder)
    if place == "a copy":
        (state / "run-7").rename(state / place)
    for client_id in (0, 1):
        node = load_client(state / place, client_id)
        assert evaluate(node.model, node.data.test).accuracy == accuracies[0 if place else 1][client_id]
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


@pytest.mark.parametrize("keep_best", [False, True])
def test_a_method_of_others_is_read_back_as_it_predicts(make_config, run_federation, tmp_path, keep_best):
    keys = {"algorithm": "fixtures.pairs", "models": "mlp", "learning_rate": 0.02, "validation_fraction": 0.2}
    folder = run_federation(make_config(**keys, keep_best=keep_best, rounds=3, state_dir=str(tmp_path / "state")))
    for client_id, accuracy in enumerate(accuracies_of(folder)):
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
    assert None not in accuracies_of(folder)


def test_the_best_model_is_not_the_last_one_where_its_node_keeps_it(make_config, run_federation, tmp_path, refusal):
    config = make_config(algorithm="fedavg", models="mlp", keep_best=True, state_dir=str(tmp_path / "state"))
    folder = run_federation(config, Meddled(config))
    assert "name that node's state-dir" in refusal(RunFolderError, load_client, folder, 0)
    for client_id, accuracy in enumerate(accuracies_of(folder)):
        node = load_client(tmp_path / "state", client_id)
        assert evaluate(node.predictor, node.data.test).accuracy == accuracy


@pytest.mark.parametrize("method", ["fedrep", "fedproto"])
def test_a_download_in_half_precision_is_read_back_as_it_was_received(make_config, run_federation, tmp_path, method):
    own = {"algorithm": method, "models": "mlp", "fedproto.predict": "prototype", "payload_precision": "half"}
    folder = run_federation(make_config(**own, state_dir=str(tmp_path / "state")))
    for client_id in (0, 1):
        node, received = (load_client(place, client_id) for place in (folder, tmp_path / "state"))
        assert digest_of(node.predictor) == digest_of(received.predictor)


def test_a_run_folder_without_digests_of_data_says_that_they_are_not_compared(
    make_config, run_federation, tmp_path, capfd
):
    path = tmp_path / "table.csv"
    path.write_text("age,ill\n" + "".join(f"{row % 13},{row // 20}\n" for row in range(40)))
    for own, said in ({"dataset": str(path), "label_column": "ill"}, True), ({}, False):
        config = make_config(algorithm="fedavg", models="mlp", rounds=1, output_dir=str(tmp_path / str(said)), **own)
        folder = run_federation(config, Meddled(config))
        capfd.readouterr()
        load_client(folder, 0)
        assert ("the run did not record its data" in capfd.readouterr().err) == said


def unread(*_):
    """Stand for the data where they may not be read."""
    raise DataError("gone")


def test_the_best_model_in_a_state_folder_needs_no_data(make_config, run_federation, tmp_path, monkeypatch):
    own = {"algorithm": "lgfedavg", "models": "mlp", "clients": 3, "rounds": 6, "learning_rate": 0.3}
    config = make_config(**own, keep_best=True, state_dir=str(tmp_path / "state"))
    accuracies = accuracies_of(run_federation(config))
    tests = [load_client(tmp_path / "state", client_id).data.test for client_id in range(3)]
    monkeypatch.setattr("hetfl_flwr.node.node.load_client_data", unread)
    for client_id, test in enumerate(tests):
        node = load_client(tmp_path / "state", client_id, data=False)
        assert evaluate(node.predictor, test).accuracy == accuracies[client_id]


def test_a_state_folder_refuses_data_that_have_changed(make_config, run_federation, tmp_path, refusal):
    path, state = tmp_path / "table.csv", tmp_path / "state"
    path.write_text("age,ill\n" + "".join(f"{row % 13},{row // 20}\n" for row in range(40)))
    own = {"dataset": str(path), "label_column": "ill", "models": "mlp", "rounds": 1}
    run_federation(make_config(**own, state_dir=str(state)))
    path.write_text(path.read_text().replace("\n3,", "\n30,"))
    reread(str(path))
    said = refusal(RunFolderError, load_client, state, 0)
    assert "have changed since the run: restore them, or run again" in said


def test_a_model_that_was_trained_after_it_was_measured_is_not_read_without_data(
    make_config, run_federation, tmp_path, monkeypatch, capfd
):
    state, early, asked = tmp_path / "state", tmp_path / "early", []

    def copied(grid, message):
        if message.metadata.message_type == "evaluate":
            asked.append(message)
            if len(asked) == 5:  # of two clients: after round 3 was trained, and before it is measured
                copytree(state, early)

    config = make_config(algorithm="fedrep", models="mlp", rounds=3, evaluate_every=2, state_dir=str(state))
    run_federation(config, Meddled(config, asked=copied))
    capfd.readouterr()
    load_client(early, 0)
    assert "client 0 was trained in round 3, after its last evaluation in round 2" in capfd.readouterr().err
    monkeypatch.setattr("hetfl_flwr.node.node.load_client_data", unread)
    with pytest.raises(DataError, match="gone"):
        load_client(early, 0, data=False)
    capfd.readouterr()
    load_client(state, 0, data=False)
    assert not capfd.readouterr().err
