"""The same from Python: what `run` is given and gives, notebooks, Ctrl-C, and what a client has learnt, read back."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.supercore.logger import FLOWER_LOGGER

from clients.fedhe import FedHeClient
from hetfl_flwr import compare, export, gains, load, load_client, run
from hetfl_flwr.errors import ConfigError, HetflError, Interrupted
from hetfl_flwr.learning.training import evaluate
from simulations.engine.run import run_locally

SMALL = {"clients": 2, "rounds": 2, "models": ["mlp", "lenet5"], "batch_size": 20, "progress": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run("fedhe", **SMALL, out=tmp_path_factory.mktemp("done") / "run", evaluate_every=2)


def test_a_run_from_python_is_the_run_of_the_command(done, tmp_path):
    settings = {"clients": 2, "rounds": 2, "models": "mlp,lenet5", "batch-size": 20, "evaluate-every": 2}
    folder = run_locally({**settings, "algorithm": "fedhe", "output-dir": str(tmp_path / "same")}, verbose=False)
    assert load(folder).rounds.drop(columns="seconds").equals(done.rounds.drop(columns="seconds"))
    assert done.summary == json.loads((done.folder / "summary.json").read_text())
    assert (done.folder.name, done.config["batch-size"]) == ("run", 20)


def test_rounds_and_clients_are_frames(done):
    """Every second round is evaluated, before the first nobody has trained, and columns without meaning are NaN."""
    rounds, clients = done.rounds, done.clients
    assert rounds["round"].tolist() == [0, 1, 2]
    assert rounds.accuracy.isna().tolist() == [False, True, False]
    assert rounds.accuracy.iloc[-1] == done.summary["accuracy"]
    assert (rounds.fwt.dtype, rounds.fwt.isna().all(), rounds.failures.tolist()) == (float, True, [0, 0, 0])
    assert (rounds.bytes_up + rounds.bytes_down).sum() == done.summary["bytes_up"] + done.summary["bytes_down"]
    assert clients[["round", "client"]].drop_duplicates().shape[0] == len(clients) == 6
    assert clients[clients["round"] == 2].set_index("client").model.to_dict() == {0: "mlp", 1: "lenet5"}
    assert clients.groupby("round").accuracy.mean()[2] == pytest.approx(done.summary["accuracy"])
    assert clients.train_loss.isna().tolist() == [True, True, False, False, False, False]


def test_the_model_of_a_client_is_the_one_that_was_measured(done):
    threads = torch.get_num_threads()
    node = done.node(1)
    assert evaluate(done.model(1), node.data.test).accuracy == done.summary["accuracy_per_client"][1]
    assert torch.get_num_threads() == threads


def test_keys_are_those_of_the_command(tmp_path):
    """In settings as they stand, as keywords with underscores, an algorithm's own as a mapping, values of NumPy too."""
    keys = {**SMALL, "rounds": np.int64(1), "models": np.array(["mlp", "lenet5"]), "fedhe": {"mode": "async"}}
    config = run("fedhe", **keys, settings={"learning-rate": 0.01, "fedhe.alpha": 0.5}, out=tmp_path / "run").config
    named = ("learning-rate", "fedhe.alpha", "fedhe.mode", "rounds", "models")
    assert [config[key] for key in named] == [0.01, 0.5, "async", 1, "mlp,lenet5"]


def test_data_in_memory_are_read_by_keys_of_either_kind(tmp_path):
    """Several data sets are one a client, also where `settings` say so."""
    settings = {"label-column": "sick", "partition": "files"}
    frame = pd.DataFrame({"age": range(40), "sick": [0, 1] * 20})
    result = run("local", dataset=[frame, frame], rounds=1, settings=settings, out=tmp_path / "run", progress=False)
    assert result.summary["clients"] == 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"round": 2}, "'rounds'"),
        ({"fedhe": {"alfa": 1.0}}, "'fedhe.alpha'"),
        ({"seed": {"a"}}, "seed"),
        ({"rounds": np.array([1, 2])}, "rounds"),
        ({"batch_size": 9, "settings": {"batch-size": 9}}, "batch-size"),
    ],
)
def test_a_wrong_key_is_refused(keys, said, tmp_path, refusal):
    assert said in refusal(ConfigError, run, "fedhe", out=tmp_path / "run", **keys)
    assert not (tmp_path / "run").exists()


def test_the_process_is_left_as_it_was(tmp_path):
    """Log level, threads and types belong to whoever calls; also after a run that fails."""
    torch.set_num_threads(2)
    level, handler = FLOWER_LOGGER.level, signal.getsignal(signal.SIGINT)
    with pytest.raises(HetflError):
        run("fedavg", **SMALL, out=tmp_path / "run")
    assert (torch.get_num_threads(), FLOWER_LOGGER.level) == (2, level)
    assert signal.getsignal(signal.SIGINT) is handler


def test_types_of_the_process_change_no_result(tmp_path):
    usual = run("fedhe", **SMALL, out=tmp_path / "usual")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            other = run("fedhe", **SMALL, out=tmp_path / "other")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert other.rounds.accuracy.tolist() == usual.rounds.accuracy.tolist()


def test_a_file_that_was_written_anew_is_read_again(tmp_path):
    for rows in (40, 80):
        lines = [f"{row % 7},{row % 5},{'ab'[row % 2]}" for row in range(rows)]
        (tmp_path / "own.csv").write_text("\n".join(["x,y,kind", *lines]))
        keys = {"dataset": str(tmp_path / "own.csv"), "label_column": "kind", "partition": "all", "models": "mlp"}
        made = run("local", out=tmp_path / f"of-{rows}", rounds=1, clients=1, progress=False, **keys)
        assert made.config["dataset"] == str(tmp_path / "own.csv")
        node = made.node(0)
        parts = (node.data.train, node.data.validation, node.data.test)
        assert sum(map(len, parts)) == rows


def test_an_interrupt_keeps_the_round_and_says_how_to_go_on(tmp_path, monkeypatch, capfd):
    """It comes while a client trains for round 2; the run that goes on ends as one that was never stopped."""
    learn = FedHeClient.learn

    def pressing(client, download, round):
        if round == 2:
            signal.raise_signal(signal.SIGINT)
        return learn(client, download, round)

    long, handler = {**SMALL, "rounds": 4, "clients": 1}, signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(FedHeClient, "learn", pressing)
    folder = str(tmp_path / "run")
    with pytest.raises(Interrupted, match=re.escape(f"to continue: run('fedhe', out={folder!r}, resume=True)")):
        run("fedhe", **long, out=folder)
    assert "Finishing this round" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handler
    assert "2 of 4 rounds" in repr(load(folder))
    monkeypatch.undo()
    whole = run("fedhe", **long, out=tmp_path / "whole")
    went_on = run("fedhe", out=folder, resume=True, progress=False)
    assert went_on.rounds.drop(columns="seconds").equals(whole.rounds.drop(columns="seconds"))


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path):
    """They are the main thread's, where the handler stays the one that was there."""
    with ThreadPoolExecutor() as threads:
        assert threads.submit(run, "fedhe", **SMALL, out=tmp_path / "run").result().summary["rounds"] == 2


def test_runs_are_compared_in_what_differs(done, tmp_path):
    other = run("fedhe", **SMALL, out=tmp_path / "other", evaluate_every=2, seed=1, fedhe={"alpha": 0.0})
    frame = compare([done, other])
    assert frame.index.tolist() == ["run", "other"]
    assert list(frame.columns[:3]) == ["seed", "fedhe.alpha", "accuracy"]
    assert frame["fedhe.alpha"].tolist() == [1.0, 0.0]
    assert frame.accuracy.tolist() == [done.summary["accuracy"], other.summary["accuracy"]]
    folders = compare([str(done.folder), other.folder])
    assert folders.equals(frame)
    assert compare([tmp_path]).index.tolist() == ["other"]


def test_what_is_no_run_or_no_measure_is_refused(done, refusal):
    for function, runs in product((compare, gains), ([], [3], [b"runs"])):
        refusal(ConfigError, function, runs)
    refusal(ConfigError, gains, [done], ["A"])


def test_what_takes_a_run_folder_takes_a_result(done, tmp_path):
    for run_or_folder in (done, done.folder, str(done.folder)):
        assert load(run_or_folder).folder == done.folder
        assert load_client(run_or_folder, 0).client_id == 0
    assert export(done, 0, tmp_path / "model.pt2").exists()


UNGUARDED = """
from hetfl_flwr import run
run("fedavg", clients=2, rounds=1, workers=2, models="mlp", out="run", progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["file", "stdin"])
def test_a_script_that_starts_workers_without_a_guard_is_told_so(tmp_path, script):
    (tmp_path / "script.py").write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, given = ([sys.executable, "script.py"], "") if script == "file" else ([sys.executable, "-"], UNGUARDED)
    keys = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
    ended = subprocess.run(command, input=given, check=False, **keys)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()
    assert 'if __name__ == "__main__":' in said[-1]
    assert "memory" not in said[-1]
    assert sum(line.startswith("Traceback") for line in said) <= 2  # the script's own, none of the workers'
