import json
import platform
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from fixtures.federations.grids import Meddled, Watched
from fixtures.folders.reached import clients_of, reached, summary_of
from fixtures.tiers import exhaustive
from flwr.app import Error, Message, MetricRecord
from safetensors.numpy import load_file

from clients.fedhe import FedHeClient
from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.errors import (
    ConfigError,
    HetflError,
    Interrupted,
    RunFolderError,
    TooFewClients,
)
from hetfl_flwr.methods import resolve
from hetfl_flwr.runs import resuming
from hetfl_flwr.runs.callbacks import RoundCallback, added
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints, round_of
from hetfl_flwr.runs.folder import RunFolder
from hetfl_flwr.runs.record import Round, figures_of, round_line
from hetfl_flwr.runs.settings import new_folder
from hetfl_flwr.seeding import generator
from simulations.engine.run import run_locally
from simulations.reports.runs import load_run
from simulations.testing.contract import entries
from strategies.fedhe import FedHe

SUMMARY = (
    "algorithm dataset clients rounds seed engine accuracy acc bwt fwt global_accuracy best_validation_accuracy "
    "bytes_up bytes_down wire_up wire_down seconds failures left_out balanced_accuracy macro_f1 auc majority "
    "accuracy_per_client epsilon noise_source versions recall"
)
ROUND = (
    "round seconds accuracy global_accuracy validation_accuracy acc bwt fwt clock numbers_up numbers_down bytes_up "
    "bytes_down wire_up wire_down evaluation_wire clients failures balanced_accuracy macro_f1 auc majority classes "
    "outliers not_averaged"
)
MEASURED = ["accuracy", "auc", "balanced-accuracy", "loss", "macro-f1", "majority", "validation-accuracy"]


# --- what a run leaves ---------------------------------------------------------------------------


@pytest.fixture
def finished(make_config, run_federation):
    return run_federation(make_config(checkpoint_every=0))


def test_a_run_folder_holds_what_was_promised_and_nothing_else(finished):
    files = "checkpoint clients.json config.toml knowledge.safetensors rounds.jsonl summary.json"
    assert " ".join(sorted(path.name for path in finished.iterdir())) == files
    assert [path.name for path in (finished / "checkpoint").iterdir()] == ["round-2"]
    assert " ".join(summary_of(finished)) == SUMMARY
    assert [" ".join(entry) for entry in entries(finished)] == [ROUND] * 3


def test_the_figures_of_a_run_by_hand(finished):
    """FedHe at C = 10: 4 C^2 + 8 C = 480 bytes up and 4 C^2 + C = 410 down a client and round, C^2 + C numbers each
    way; two clients, two rounds. Round 0 is the evaluation before any training."""
    summary, rounds, clients = summary_of(finished), entries(finished), clients_of(finished)
    assert [*summary.values()][:6] == ["fedhe", "digits", 2, 2, 0, "local"]
    assert (summary["bytes_up"], summary["bytes_down"], summary["failures"]) == (4 * 480, 4 * 410, 0)
    for name in ("hetfl", "flwr", "torch", "numpy", "scikit-learn"):
        assert summary["versions"][name] == version(name)
    assert summary["versions"]["python"] == platform.python_version()
    assert (summary["versions"]["threads"], summary["versions"]["device"]) == ("1", "cpu")
    assert [(entry["bytes_up"], entry["bytes_down"]) for entry in rounds] == [(0, 0), (960, 820), (960, 820)]
    assert [(entry["numbers_up"], entry["numbers_down"]) for entry in rounds] == [(0, 0), (220, 220), (220, 220)]
    for way in ("wire_up", "wire_down"):
        assert summary[way] == sum(entry[way] for entry in rounds)
        assert rounds[1][way] > rounds[1][way.replace("wire", "bytes")]
        assert rounds[0][way] == 0
    assert rounds[0]["evaluation_wire"] > 0
    assert [sorted(values) for values in rounds[0]["clients"].values()] == [MEASURED] * 2
    assert sorted(rounds[1]["clients"]["0"]) == sorted([*MEASURED, "samples-seen", "train-loss"])
    first, last = rounds[0]["clients"], rounds[-1]["clients"]
    assert summary["accuracy_per_client"] == [last["0"]["accuracy"], last["1"]["accuracy"]]
    assert summary["accuracy"] == sum(summary["accuracy_per_client"]) / 2 == rounds[-1]["accuracy"]
    assert [summary[key] for key in ("acc", "bwt", "fwt", "global_accuracy")] == [None] * 4
    assert [(client["partition"], client["model"]) for client in clients] == [(0, "mlp"), (1, "lenet5")]
    assert [(client["bytes_up"], client["bytes_down"]) for client in clients] == [(960, 820)] * 2
    for client, own in zip(clients, "01", strict=True):
        assert (client["accuracy_before"], client["accuracy"]) == (first[own]["accuracy"], last[own]["accuracy"])
    assert sum(client[part] for client in clients for part in ("train", "validation", "test")) == 1797


def test_the_config_in_the_folder_is_enough_to_run_it_again(finished, tmp_path, run_federation):
    again = RunConfig.from_flat({**read_toml(finished / "config.toml"), "output-dir": str(tmp_path / "again")})
    assert reached(run_federation(again)) == reached(finished)


def test_a_run_without_a_folder_of_its_own_gets_a_new_one(make_config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = make_config(output_dir="", dataset="owner/name", seed=3)
    first = new_folder(config)
    assert first.parent == tmp_path / "runs"
    assert first.name.startswith("fedhe-owner-name-seed3-")
    names = set()
    for _ in range(3):
        folder = new_folder(config)
        folder.mkdir(parents=True)
        names.add(folder)
    assert len(names) == 3


# --- clients that fail ---------------------------------------------------------------------------


def broken(client_id, rounds, kind="train"):
    """Replies of one client are errors in some rounds."""
    asked = {}

    def push(grid, message):
        if message.metadata.message_type == kind:
            asked[message.metadata.dst_node_id] = round_asked(message)

    def pull(reply):
        node = reply.metadata.src_node_id
        if reply.metadata.message_type == kind and node == 2**62 + client_id and asked[node] in rounds:
            failed = Message(Error(3, f"client {client_id}, {kind}, round {asked[node]}: broke"), reply_to=reply)
            failed.metadata.__dict__.update(reply.metadata.__dict__)
            return failed
        return reply

    return {"asked": push, "answered": pull}


def test_a_client_that_cannot_be_evaluated_leaves_the_mean_of_the_others(make_config, run_federation, caplog):
    config = make_config(clients=3)
    folder = run_federation(config, Meddled(config, **broken(0, {2}, "evaluate")))
    told = f"round=2 client=0 node={2**62} stage='evaluate' reason='client 0, evaluate, round 2: broke'"
    assert told in caplog.messages
    last = entries(folder)[-1]
    assert [failure["stage"] for failure in last["failures"]] == ["evaluate"]
    others = [last["clients"][client]["accuracy"] for client in "12"]
    assert summary_of(folder)["accuracy"] == sum(others) / 2
    assert summary_of(folder)["accuracy_per_client"] == [None, *others]


def test_a_client_may_have_metrics_of_its_own_and_lack_those_of_others(make_config, run_federation):
    def pull(reply):
        if reply.metadata.src_node_id == 2**62 and reply.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord({"num-examples": 3, "f1": 0.5})
        return reply

    config = make_config()
    last = entries(run_federation(config, Meddled(config, answered=pull)))[-1]
    assert last["clients"]["0"].items() >= {"f1": 0.5}.items()
    assert last["accuracy"] == last["clients"]["1"]["accuracy"]


def test_too_few_clients_end_the_run_and_what_was_reached_is_kept(refusal, make_config, run_federation):
    config = make_config(rounds=4, min_clients=2)
    said = refusal(TooFewClients, run_federation, config, Meddled(config, **broken(1, {3})))
    assert "min-clients = 2" in said
    assert "client 1, train, round 3: broke" in said
    folder = Path(config.output_dir)
    assert [entry["round"] for entry in entries(folder)] == [0, 1, 2, 3]
    assert entries(folder)[-1]["failures"][0]["partition"] == 1
    assert summary_of(folder)["rounds"] == 3
    assert summary_of(folder)["accuracy"] == entries(folder)[2]["accuracy"]
    assert load_file(folder / "knowledge.safetensors")["uploads"].max() == 4  # of rounds 1 and 2 only


# --- folders that cannot be used -----------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_not_written_again(refusal, finished, make_config, run_federation):
    """Nor where it has no checkpoint to resume from."""
    before = reached(finished)
    said = refusal(RunFolderError, run_federation, make_config(seed=1))
    assert (str(finished) in said, "--resume" in said) == (True, True)
    assert reached(finished) == before
    shutil.rmtree(finished / "checkpoint")
    complete = refusal(RunFolderError, run_federation, make_config())
    (finished / "summary.json").unlink()
    ended = refusal(RunFolderError, run_federation, make_config())
    assert [("name another folder" in line, "resume" in line) for line in (complete, ended)] == [(True, False)] * 2
    assert ["remove" in line for line in (complete, ended)] == [False, True]


@pytest.mark.parametrize("keys", [{"algorithm": "fedavg", "models": "mlp,lenet5"}, {"dataset": "mnsit"}], ids=str)
@pytest.mark.parametrize("files", [[], ["notes.txt"]])
def test_a_run_that_is_refused_before_round_1_leaves_the_users_own_files(
    refusal, make_config, run_federation, keys, files
):
    folder = Path(make_config().output_dir)
    for name in files:
        folder.mkdir()
        (folder / name).write_text("mine")
    refusal(HetflError, run_federation, make_config(**keys))
    assert [path.name for path in folder.parent.glob("run/*")] == files
    assert folder.exists() == bool(files)
    run_federation(make_config())
    assert [(folder / name).read_text() for name in files] == ["mine"] * len(files)


def test_a_run_folder_that_cannot_be_made_is_named(refusal, tmp_path, make_config, run_federation):
    (tmp_path / "file").write_text("I am no folder")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        said = refusal(RunFolderError, run_federation, make_config(output_dir=str(place)))
        assert (str(place) in said, said.partition("; ")[2]) == (True, "name another folder")


# --- going on with a run -------------------------------------------------------------------------


def round_asked(message):
    content = message.content.config_records
    return content["config"].get("server-round") if "config" in content else None


def resumed(config, **keys):
    return config.with_values({"resume": True, **keys})


def asks(what, number):
    """Return whether clients are asked to measure after a round, by a message or a job."""
    if isinstance(what, Message):
        return (what.metadata.message_type, round_asked(what)) == ("evaluate", number)
    return (what.kind, what.round) == ("evaluate", number)


class Crash(Exception):
    """As if the process died."""


def crash_in(number):
    """Die in mid-round, when the first clients of the round have trained and changed their state."""

    def push(grid, what):
        if asks(what, number):
            raise Crash

    return push


@pytest.mark.slow
@pytest.mark.parametrize("where", ["context", "state folder"])
@pytest.mark.parametrize("algorithm", ["fedhe", "fedavg"])
def test_a_run_that_died_in_mid_round_goes_on_from_the_last_checkpoint(
    tmp_path, make_config, run_federation, algorithm, where
):
    """One client of three takes part in a round. With seed 1 it is client 0 up to the checkpoint after round 2, and
    client 1 for the first time in round 4, which then dies: what client 1 has saved there must not outlive it.
    """
    keys = {"algorithm": algorithm, "models": "mlp", "rounds": 5, "clients": 3, "seed": 1}
    keys |= {"fraction": 0.3, "checkpoint_every": 2}
    assert [generator(1, number, "draw").choice(3) for number in (1, 2, 4)] == [0, 0, 1]
    whole = run_federation(make_config(**keys, output_dir=str(tmp_path / "whole")))
    config = make_config(**keys, state_dir=str(tmp_path / "state") if where == "state folder" else "")

    with Watched(config, crash_in(4)) as grid, pytest.raises(Crash):
        run_federation(config, grid)
    folder = Path(config.output_dir)
    assert Checkpoint.read(folder).round == 2
    assert entries(folder)[-1]["round"] == 3
    assert reached(run_federation(resumed(config))) == reached(whole)


@pytest.mark.parametrize(("share", "expected"), [(1e-9, [0, 0, 0, 3]), (1e9, [0, 1, 2, 3])])
def test_a_run_chooses_its_checkpoints_by_the_part_of_the_time_that_they_may_take(
    make_config, run_federation, monkeypatch, share, expected
):
    newest = []

    class Looks(RoundCallback):
        def round(self, entry):
            newest.append(round_of(checkpoints(Path(config.output_dir))[0]))

    monkeypatch.setattr(resuming, "MAX_TIME_FRACTION", share)
    config = make_config(rounds=3, checkpoint_every="auto")
    with added([Looks()]):
        run_federation(config)
    assert newest == expected


def test_without_a_run_or_a_checkpoint_there_is_nothing_to_resume(refusal, make_config, run_federation):
    config = make_config(checkpoint_every=0)
    assert "has no checkpoint to resume from" in refusal(RunFolderError, run_federation, resumed(config))
    assert not Path(config.output_dir).exists()
    with Watched(config, crash_in(1)) as grid, pytest.raises(Crash):
        run_federation(config, grid)
    assert "checkpoint" in refusal(RunFolderError, run_federation, resumed(config))
    assert [entry["round"] for entry in entries(Path(config.output_dir))] == [0]


@contextmanager
def room_for(size):
    """Let no file of this process grow beyond a size: a write takes what fits, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LONG = Round(0, 0.5, clients={str(client): {"accuracy": 0.5} for client in range(300)})


@pytest.mark.parametrize("size", [500, 1700, 4000], ids=["config", "resume", "round"])
def test_a_disk_that_is_full_at_the_start_leaves_nothing_that_seems_to_be_a_run(refusal, make_config, size):
    """The files of 1.7 kB are written before the first line of rounds.jsonl, which here has 8 kB."""

    def begin(folder, config):
        with RunFolder(folder, config, "deployment", 5) as results:
            results.ledger.rounds.append(LONG)
            results.round(LONG)

    config = make_config()
    folder = Path(config.output_dir)
    assert len(round_line(LONG)) > 4000
    with room_for(size):
        refusal(RunFolderError, begin, folder, config)
    assert not folder.exists()


def test_a_round_that_the_disk_has_no_room_for_leaves_the_rounds_before_it_whole(make_config):
    config = make_config()
    with RunFolder(Path(config.output_dir), config, "local", 5) as results:
        results.round(Round(0, 0.5))
        with room_for(4000), pytest.raises(RunFolderError):
            results.round(replace(LONG, round=1))
        results.round(Round(1, 0.5))
    assert [entry["round"] for entry in entries(Path(config.output_dir))] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("fedhe", {"keep_best": True}),
        exhaustive("fedhe", {"fraction": 0.3, "seed": 1}),
        exhaustive("fedavg", {}),
        exhaustive("fedh2l", {}),
        exhaustive("fml", {}),
    ],
)
def test_clients_elsewhere_go_on_with_the_state_that_they_had_at_the_checkpoint(
    tmp_path, make_config, run_federation, algorithm, keys
):
    """The run dies in round 4, when clients have trained beyond the checkpoint of round 2. The one that goes on has an
    id of its own and dies in round 3, before a checkpoint of its own, so the third goes on with the first's."""
    keys = {"algorithm": algorithm, "models": "mlp", "rounds": 5, "clients": 3, "checkpoint_every": 2} | keys
    whole = run_federation(make_config(**keys, output_dir=str(tmp_path / "whole")))
    config = make_config(**keys, state_dir=str(tmp_path / "state"))
    with pytest.raises(Crash):
        run_federation(config, Meddled(config, asked=crash_in(4), run=7), run_id=7)
    with pytest.raises(Crash):
        run_federation(resumed(config), Meddled(resumed(config), asked=crash_in(3), run=8), run_id=8)
    folder = run_federation(resumed(config), Meddled(resumed(config), run=9), run_id=9)
    assert reached(folder) == reached(whole)
    assert summary_of(folder)["failures"] == 0


def test_a_run_goes_on_under_the_config_that_it_had(refusal, make_config, run_federation):
    """Its folder has it with ``resume`` and its own path, in one file for `flwr run`, if it was not a local run."""
    config = make_config(checkpoint_every=1)
    grid = Meddled(config, run=7)
    grid.engine = "deployment"
    folder = run_federation(config, grid)
    going_on = RunConfig.from_flat(read_toml(folder / "resume.toml"))
    assert going_on == resolve(resumed(config))
    other = resumed(config, seed=1)
    grid = Meddled(other, run=8)
    grid.engine = "deployment"
    assert "seed = 0" in refusal(RunFolderError, run_federation, other, grid, run_id=8)


class DiesAfter4(RoundCallback):
    def round(self, entry):
        if entry.round == 4:
            raise KeyboardInterrupt


def test_a_run_that_died_while_it_was_extended_goes_on_to_the_new_end(tmp_path):
    """Its only checkpoint is that of its first end."""
    kept = {"output-dir": str(tmp_path / "run"), "checkpoint-every": 0}
    run_locally({"algorithm": "local", "models": "mlp", "clients": 2, "rounds": 2, **kept}, progress=False)
    with pytest.raises(Interrupted):
        run_locally({**kept, "rounds": 6}, resume=True, progress=False, callbacks=[DiesAfter4()])
    assert Checkpoint.read(tmp_path / "run").round == 2
    assert [line["round"] for line in entries(run_locally(kept, resume=True, progress=False))] == list(range(7))


def test_resuming_a_run_that_is_done_changes_nothing(make_config, run_federation):
    config = make_config()
    folder = run_federation(config)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    run_federation(config.with_values({"resume": True}))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("value", "kept"),
    [(np.float32(0.5), True), (np.int64(3), True), ("s", False), ([1], False), (None, False)],
    ids=repr,
)
def test_what_a_client_keeps_besides_networks_is_numbers(make_config, run_federation, monkeypatch, value, kept):
    """Else it fails by name in the round in which it keeps something else; NumPy's are kept as Python's."""
    learn = FedHeClient.learn

    def keeping(self, download, round):
        if self.node.client_id == 1 and round == 2:
            self.numbers["x"] = value
        return learn(self, download, round)

    monkeypatch.setattr(FedHeClient, "learn", keeping)
    lines = entries(run_federation(make_config(rounds=3)))
    found = [(one["partition"], line["round"]) for line in lines for one in line["failures"]]
    assert found == ([] if kept else [(1, 2)])
    assert kept or "client 1 (lenet5): self.numbers has" in lines[2]["failures"][0]["reason"]


@pytest.mark.parametrize("name", ["best", "measured", "inputs", "optimizer"])
def test_a_network_under_a_name_that_is_taken_is_refused(make_config, run_federation, monkeypatch, refusal, name):
    monkeypatch.setattr(FedHeClient, "modules", lambda self: {"model": self.node.model, name: self.node.model.head})
    assert f"modules() has a network '{name}'" in refusal(TooFewClients, run_federation, make_config())


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None]), None], ids=repr)
def test_what_a_server_side_returns_is_numbers(make_config, run_federation, monkeypatch, tmp_path, refusal, array):
    monkeypatch.chdir(tmp_path)
    initial = FedHe.initial
    monkeypatch.setattr(FedHe, "aggregate", lambda self, state, uploads, round: {**state, "odd": array})
    line = refusal(ConfigError, run_federation, make_config())
    monkeypatch.setattr(FedHe, "initial", lambda self, roster: {**initial(self, roster), "odd": array})
    first = refusal(ConfigError, run_federation, make_config(output_dir="elsewhere"))
    assert line.startswith("fedhe: its server state has ")
    assert "odd" in line
    assert first == line


def test_older_figures_of_an_asynchronous_run_count_for_each_client_as_for_all(
    make_config, run_federation, monkeypatch
):
    assess, asked = FedHeClient.assess, []

    def failing(self, download):
        asked.append(self.node.client_id)
        if self.node.client_id == 1 and asked.count(1) > 1:
            raise ValueError("not again")
        return assess(self, download)

    monkeypatch.setattr(FedHeClient, "assess", failing)
    folder = run_federation(make_config(**{"fedhe.mode": "async"}))
    summary = summary_of(folder)
    assert None not in summary["accuracy_per_client"]
    assert summary["accuracy"] == pytest.approx(np.mean(summary["accuracy_per_client"]), abs=1e-12)


def test_a_run_that_was_killed_is_read_by_its_rounds_and_not_by_an_older_summary(make_config, run_federation):
    """As after SIGKILL: the summary and the clients are those of the last checkpoint."""
    folder = run_federation(make_config(clients=2, rounds=3))
    whole = load_run(folder)
    summary, clients = (json.loads((folder / name).read_text()) for name in ("summary.json", "clients.json"))
    old = {"rounds": 0, **figures_of(whole.rounds[:1])}
    assert old["accuracy"] != whole.summary["accuracy"]
    (folder / "summary.json").write_text(json.dumps(summary | old))
    (folder / "clients.json").write_text(json.dumps([one | {"accuracy": 0.0} for one in clients]))
    found = load_run(folder)
    assert {key: found.summary[key] for key in old} == {key: whole.summary[key] for key in old}
    assert [one["accuracy"] for one in found.clients] == [one["accuracy"] for one in whole.clients]
    assert [one["model"] for one in found.clients] == [one["model"] for one in whole.clients]


def test_a_run_that_was_killed_has_each_client_s_last_accuracy_and_no_epsilon(make_config, run_federation):
    """Asynchronous, with noise: clients finish in different rounds, and later uploads are not counted."""
    noise = {"fedhe.mode": "async", "noise_multiplier": 20.0, "clipping_norm": 1.0, "client_seconds": "1,2"}
    folder = run_federation(make_config(clients=2, rounds=4, **noise))
    whole = load_run(folder)
    summary = json.loads((folder / "summary.json").read_text())
    old = {"rounds": 1, **figures_of(whole.rounds[:2]), "epsilon": 0.1}
    (folder / "summary.json").write_text(json.dumps(summary | old))
    for remove in (False, True):
        if remove:
            (folder / "summary.json").unlink()
            (folder / "clients.json").unlink()
        found = load_run(folder)
        assert [one["accuracy"] for one in found.clients] == [one["accuracy"] for one in whole.clients]
        assert found.summary["epsilon"] == float("inf")
        assert [(one["uploads"], one["epsilon"]) for one in found.clients] == [(None, float("inf"))] * 2
