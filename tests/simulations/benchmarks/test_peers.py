"""The benchmark against other frameworks: what it gives them, and what it says where there is none of them."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch import nn

from simulations.benchmarks.speed.loops import ready
from simulations.benchmarks.speed.peers.__main__ import OWN, Process, compare, main, write_data
from simulations.benchmarks.speed.peers.networks import Split, given_to_htfllib
from simulations.benchmarks.speed.peers.process import PEERS

CLONE = Path(__file__).parents[2] / "fixtures" / "clone"


def refused(capsys: pytest.CaptureFixture[str], **options) -> str:
    with pytest.raises(typer.Exit) as ended:
        main(**options)
    assert ended.value.exit_code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_there_must_be_a_peer(capsys):
    assert refused(capsys) == "no peer: name a clone by --htfllib PATH, --pfllib PATH or both\n"


@pytest.mark.parametrize(("option", "name"), [("htfllib", "HtFLlib"), ("pfllib", "PFLlib")])
def test_a_clone_has_a_folder_system(tmp_path, capsys, option, name):
    """It is refused before anything runs, and so is a good one beside it."""
    assert refused(capsys, **{"pfllib": CLONE, option: tmp_path}) == (
        f"{tmp_path} is no clone of {name}: it has no folder system\n"
    )


def test_a_method_must_be_one_of_the_peers(capsys):
    assert refused(capsys, pfllib=CLONE, only="fd") == "PFLlib is not compared by fd, but by fedavg, fedproto\n"


@pytest.mark.slow
def test_what_is_not_installed_is_named(capsys):
    said = refused(capsys, pfllib=CLONE, only="fedproto", quick=True)
    assert said == f"PFLlib at {CLONE} cannot be imported: there is no module not_installed_here\n"


@pytest.mark.slow
def test_a_peer_trains_on_our_rows_without_evaluation(capfd):
    rows = compare("pfllib", CLONE, ["fedavg"], quick=True, turns=1)
    assert [row.unit for row in rows] == ["client steps / s", "client steps / s", "times"]
    (theirs,), (ours,), (ratio,) = (row.samples for row in rows)
    assert ratio == ours / theirs > 0
    assert "11 steps each: PFLlib" in rows[0].what
    assert "best" not in capfd.readouterr().out


@pytest.mark.slow
def test_steps_and_seconds_of_a_round(tmp_path, make_config, make_node):
    config = make_config(models="mlp", clients=2)
    nodes = [make_node(config, client_id) for client_id in range(2)]
    write_data(tmp_path / "dataset" / "rows", nodes, 3 * 50)
    torch.save(nodes[0].model, tmp_path / "network.pt")
    args = {"dataset": "rows", "clients": 2, "classes": 10, "rounds": 4, "batch_size": 50}
    args |= {"learning_rate": 0.01, "weight": 0.5}
    process = Process("pfllib", CLONE, tmp_path)
    try:
        for _ in range(2):  # the second time, the same server goes on
            answer = process.ask({"method": "fedavg", "network": str(tmp_path / "network.pt"), "args": args})
            assert answer["steps"] == 2 * 3
            assert len(answer["seconds"]) == 4
    finally:
        process.end()


def test_rows_are_written_as_the_peers_read_them(tmp_path, make_config, make_node):
    config = make_config(clients=2)
    nodes = [make_node(config, client_id) for client_id in range(2)]
    write_data(tmp_path, nodes, 96)
    for client_id, node in enumerate(nodes):
        with np.load(tmp_path / "train" / f"{client_id}.npz", allow_pickle=True) as held:
            rows = held["data"].tolist()
        inputs, labels = ready(node.data.train)
        assert (rows["x"].dtype, rows["y"].dtype) == (np.float32, np.int64)
        np.testing.assert_array_equal(rows["x"], inputs[:96])
        np.testing.assert_array_equal(rows["y"], labels[:96])
        with np.load(tmp_path / "test" / f"{client_id}.npz", allow_pickle=True) as held:
            assert len(held["data"].tolist()["y"]) == 1


def test_peers_compute_what_our_network_computes(make_config, make_node):
    """HtFLlib evaluates its strings, and puts an average pooling in the place of `fc`."""
    node = make_node(make_config(models="lenet5"), 0)
    inputs, args = ready(node.data.test)[0], Namespace()
    given_to_htfllib(args, node.model)
    base, head = eval(args.models[0], {"args": args}), eval(args.heads[0], {"args": args})
    base.fc = nn.AdaptiveAvgPool1d(args.feature_dim)
    expected = node.model(inputs)
    torch.testing.assert_close(head(base(inputs)), expected)
    torch.testing.assert_close(Split(node.model)(inputs), expected)
    assert {id(part) for part in base.parameters()}.isdisjoint(id(part) for part in node.model.parameters())


def test_each_method_of_a_peer_has_its_settings():
    assert {method for peer in PEERS.values() for method in peer.methods} == OWN.keys()
