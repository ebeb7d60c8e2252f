"""All data in one place: which rows a client trains on, how they are scaled, and where it is refused."""

import json

import numpy as np
import pytest
import torch
from fixtures.data.columns import lay
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from sklearn.preprocessing import StandardScaler

from hetfl_flwr import run
from hetfl_flwr.client_app import app as client_app
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Reading, Split, load_client_data
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.settings import resolved

K = 4


def both(**keys):
    """Return what the clients have by themselves, and with all data in one place."""
    split = {"dataset": "breast-cancer", "clients": K, "seed": 3} | keys
    return [
        [load_client_data(Split(**split, pooled=pooled), client) for client in range(split["clients"])]
        for pooled in (False, True)
    ]


def rows(samples):
    return set(samples.rows.tolist())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"partition": "dirichlet:0.3", "validation_fraction": 0.0},
        {"half_data_fraction": 0.5},
        {"iid_evaluation": True},
        {"dataset": "digits", "partition": "classes:3", "public_fraction": 0.0},
    ],
)
def test_a_client_trains_on_its_own_rows_and_on_what_others_keep_for_training(keys):
    own, pooled = both(**keys)
    held = set().union(*(rows(data.test) | rows(data.validation) for data in own))
    for client, (before, after) in enumerate(zip(own, pooled, strict=True)):
        others = set().union(*(rows(data.train) for other, data in enumerate(own) if other != client))
        assert rows(after.train) == (rows(before.train) | others) - held
        assert len(after.train) == len(rows(after.train)) > len(before.train)
        assert after.train.rows[: len(before.train)].equal(before.train.rows)
        assert rows(after.public) == rows(before.public)
        for part in ("test", "validation"):
            assert getattr(after, part).rows.equal(getattr(before, part).rows)


def test_a_table_is_scaled_by_the_pooled_rows_as_scikit_learn_does_it():
    _, pooled = both()
    data, table = pooled[1], pooled[1].train.arrays.inputs.numpy().astype(float)
    scaler = StandardScaler().fit(table[sorted(rows(data.train))])
    for samples in (data.train, data.test):
        inputs, _ = samples.batch(torch.arange(len(samples)))
        np.testing.assert_allclose(inputs, scaler.transform(table[samples.rows.numpy()]), atol=2e-3)


def test_rows_of_all_rotations_are_one_data_set_in_which_no_image_is_tested_on():
    """Image i of each of four angles is row i there, and row 1000 d + i of all together (100 images of ten classes)."""
    own, pooled = both(dataset="rotated-digits", clients=8, shared_split=True, public_fraction=0.0)
    tested = set().union(*(rows(data.test) for data in own))
    for client in (0, 5):
        assert len(pooled[client].train) == sum(len(data.train) for data in own)
        assert not tested & {row % 1000 for row in rows(pooled[client].train)}
        alone, _ = own[client].train.batch(torch.arange(9))
        first, _ = pooled[client].train.batch(torch.arange(9))
        assert first.equal(alone)
    inputs, labels = pooled[0].train.batch(torch.arange(len(pooled[0].train)))
    others, other_labels = own[6].train.batch(torch.arange(len(own[6].train)))
    position = pooled[0].train.rows.tolist().index(2000 + int(own[6].train.rows[4]))
    assert inputs[position].equal(others[4])
    assert labels[position] == other_labels[4]


def ward(folder, name, shift, first="age", kinds=("ill", "well")):
    """Write the rows of a ward, and return its folder."""
    numbers = range(20)
    rows = {first: [shift + number + 0.5 for number in numbers], "mark": [number % 3 for number in numbers]}
    return str(lay(folder / name, {"train.csv": rows | {"label": [kinds[number % 2] for number in numbers]}}))


def test_several_tables_of_the_same_columns_are_put_together(tmp_path, refusal):
    """Those that say something else are not."""
    north, south = ward(tmp_path, "north", 0), ward(tmp_path, "south", 100)
    keys = {"clients": 2, "public_fraction": 0.0, "reading": Reading(label_column="label")}
    own, pooled = both(dataset=f"{north},{south}", **keys)
    stored = sorted(value for data in own for value in data.train.arrays.inputs[data.train.rows][:, 0].tolist())
    for data in pooled:
        assert sorted(data.train.arrays.inputs[data.train.rows][:, 0].tolist()) == stored
        scaled, _ = data.train.batch(torch.arange(len(data.train)))
        assert abs(float(scaled[:, 0].mean())) < 1e-5
    ages = [data.test.batch(torch.arange(len(data.test)))[0][:, 0] for data in pooled]
    assert float(ages[0].max()) < 0 < float(ages[1].min())
    for other, said in (
        (ward(tmp_path, "worse", 5, kinds=("well", "worse")), "classes"),
        (ward(tmp_path, "tall", 5, "height"), "columns"),
    ):
        assert said in refusal(ConfigError, both, dataset=f"{north},{other}", **keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dataset": "digits,digits-colour", "clients": 2}, "digits and digits-colour"),
        ({"dataset": "rotated-digits"}, "shared-split"),
        ({"features": "slices:0.5"}, "features"),
    ],
)
def test_what_cannot_be_put_together_is_refused(keys, said, refusal):
    assert said in refusal(ConfigError, both, **keys)


@pytest.mark.parametrize(
    ("engine", "keys", "said"),
    [
        ("local", {"algorithm": "fedhe"}, "fedhe"),
        ("simulation", {"algorithm": "fedavg"}, "fedavg"),
        ("simulation", {"algorithm": "local", "features": "slices:0.5"}, "features"),
        ("deployment", {"algorithm": "local"}, "pooled"),
    ],
)
def test_a_run_that_cannot_have_all_data_in_one_place_is_refused(engine, keys, said, refusal):
    assert said in refusal(ConfigError, resolved, RunConfig.from_flat({"pooled": True, **keys}), engine)


@pytest.mark.parametrize("deployed", [True, False])
def test_a_node_of_its_own_refuses_whatever_the_server_says(monkeypatch, caplog, deployed):
    if deployed:
        monkeypatch.setattr(TaskIdentity, "_node_id", 5)
    flat = RunConfig.from_flat({"algorithm": "local", "pooled": True, "dataset": "breast-cancer"}).to_flat()
    message = Message(RecordDict(), 5, MessageType.QUERY)
    message.metadata.__dict__["_message_id"] = "1"
    reply = client_app(message, Context(7, 5, {"partition-id": 0, "num-partitions": 2}, RecordDict(), flat))
    assert reply.has_error() is deployed
    if deployed:
        assert "a node has only its own rows" in caplog.text


KEYS = {"dataset": "breast-cancer", "clients": 3, "rounds": 2, "models": "mlp", "progress": False, "pooled": True}


def test_a_run_says_how_many_rows_its_clients_train_on_with_any_number_of_workers(tmp_path):
    runs = [run("local", **KEYS, workers=workers, out=tmp_path / str(workers)) for workers in (1, 2)]
    alone = run("local", **{**KEYS, "pooled": False}, out=tmp_path / "alone")
    told = [json.loads((one.folder / "clients.json").read_text()) for one in (*runs, alone)]
    assert [client["train"] for client in told[0]] == [len(data.train) for data in both(clients=3, seed=0)[1]]
    assert [client["test"] for client in told[0]] == [client["test"] for client in told[2]]
    assert runs[0].clients.equals(runs[1].clients)
    assert not runs[0].clients.equals(alone.clients)


def test_a_run_goes_on_with_all_data_in_one_place_and_not_without(tmp_path, refusal):
    whole = run("local", **KEYS, out=tmp_path / "whole")
    half = run("local", **{**KEYS, "rounds": 1}, out=tmp_path / "half", settings={"checkpoint-every": 1})
    refused = refusal(RunFolderError, run, "local", **{**KEYS, "pooled": False}, out=half.folder, resume=True)
    assert "pooled = True, not False" in refused
    more = run("local", progress=False, rounds=2, out=half.folder, resume=True)
    assert more.clients.equals(whole.clients)
    assert len(more.node(0).data.train) == len(both(clients=3, seed=0)[1][0].train)
