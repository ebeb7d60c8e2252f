"""Trackers: every round once, under one name, whatever happens to run or tracker.

TensorBoard is read back by its own reader, and so is MLflow, on a file, where it is installed.
"""

import json
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.tiers import exhaustive
from flwr.supercore.logger import FLOWER_LOGGER

from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs import trackers
from hetfl_flwr.runs.callbacks import Guarded, RunInfo, notifying
from hetfl_flwr.runs.record import Round
from hetfl_flwr.runs.trackers import Tracker, scalars, start_trackers
from simulations.testing.contract import entries

History = dict[str, dict[int, float]]


def started(folder: Path, track: str, members: Any = ()) -> Guarded:
    """Start trackers of a run of nine rounds."""
    folder.mkdir(exist_ok=True)
    return start_trackers(RunConfig.from_flat({"track": track, "rounds": 9}), folder, members)


def reached(folder: Path, last: int) -> RunInfo:
    """A run that goes on after `last` rounds, round r with accuracy r / 10."""
    rounds = tuple(round_(number) for number in range(last + 1))
    return RunInfo(RunConfig(rounds=9), folder, "local", "digits", last, rounds)


def summary(last: int) -> Any:
    return {"algorithm": "fedhe", "rounds": last, "accuracy": 0.5, "fwt": None, "clients": 2}


class Recorder(Tracker):
    """A tracker in memory; round `fails` of it fails."""

    fails: int | None = None

    def __init__(self, config: RunConfig, folder: Path, known: str) -> None:
        super().__init__(config, folder, known or "new")
        self.told: list[Any] = []

    def log(self, round: int, scalars: dict[str, float]) -> None:
        if round == self.fails:
            raise RuntimeError("no\nconnection")
        self.told.append(round)

    def finish(self, round: int, summary: dict[str, float], error: BaseException | None) -> None:
        self.told.append((round, summary, type(error)))


def round_(number: int) -> Round:
    clients = {
        "0": {"accuracy": number / 10, "loss": 1.0, "train-loss": 2.0},
        "1": {"accuracy": number / 10, "loss": 3.0},
    }
    return Round(number, 0.25, accuracy=number / 10, bytes_up=100, clients=clients)


def tensorboard(folder: Path) -> tuple[History, set[str]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    assert all(len({event.step for event in each}) == len(each) for each in found.values()), "a round twice"
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    keys = set(HParamsPluginData.FromString(content).session_start_info.hparams)
    return {tag: {event.step: event.value for event in each} for tag, each in found.items()}, keys


def mlflow(folder: Path) -> tuple[History, set[str]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    run = client.get_run(json.loads((folder / "trackers.json").read_text())["mlflow"])
    assert run.info.status == "FINISHED"
    found = {tag: client.get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
    assert all(len({at.step for at in each}) == len(each) for each in found.values()), "a round twice"
    return {tag: {at.step: at.value for at in each} for tag, each in found.items()}, set(run.data.params)


@pytest.mark.slow
@pytest.mark.parametrize("reader", [tensorboard, exhaustive(mlflow)])
def test_a_run_that_was_killed_and_goes_on_has_every_round_once(tmp_path, monkeypatch, reader):
    """Killed after round 3, with a checkpoint of round 2: round 3 is played, and shown, once more."""
    name = reader.__name__
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    killed = started(tmp_path / "run", name)
    for number in range(4):
        killed.round(round_(number))
    tracked = started(tmp_path / "run", name)
    tracked.begin(reached(tmp_path / "run", 2))
    for number in (3, 4):
        tracked.round(round_(number))
    tracked.end(summary(4), None)
    history, keys = reader(tmp_path / "run")
    assert sorted(history["accuracy"]) == [0, 1, 2, 3, 4]
    assert list(history["client/1/accuracy"].values()) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert list(history["summary/accuracy"].values()) == [0.5]
    assert set(scalars(round_(1))) <= set(history)
    assert {"learning-rate", "dataset"} <= keys
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # not beside it, where the server happens to run


def test_names_and_numbers():
    """Means over the clients that have such a loss: (1 + 3) / 2 and 2 / 1; None and what is no number is left out."""
    numbers = scalars(round_(4))
    shown = {name: value for name, value in numbers.items() if value}
    assert shown == {
        "accuracy": 0.4,
        "seconds": 0.25,
        "bytes_up": 100,
        "loss": 2.0,
        "train_loss": 2.0,
        "client/0/accuracy": 0.4,
        "client/0/loss": 1.0,
        "client/0/train_loss": 2.0,
        "client/1/accuracy": 0.4,
        "client/1/loss": 3.0,
    }
    assert numbers["failures"] == 0
    assert not {"round", "fwt", "clients"} & set(numbers)


def test_a_run_with_a_tracker(make_config, run_federation):
    """What the reader finds is what rounds.jsonl has, of a run that goes on as well."""
    pytest.importorskip("tensorboard")
    run_federation(make_config())
    folder = run_federation(make_config(rounds=3, resume=True, track="tensorboard"))
    history, _ = tensorboard(folder)
    lines = entries(folder)
    assert history["accuracy"] == pytest.approx({line["round"]: line["accuracy"] for line in lines})
    assert history["bytes_down"] == {line["round"]: line["bytes_down"] for line in lines}
    assert len(lines) == 4


def families(path: Path) -> list[Any]:
    """What a text file for Prometheus holds."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    return list(parser.text_string_to_metric_families(path.read_text()))


def prometheus(path: Path) -> dict[str, dict[str, float]]:
    """The samples of a text file, by name and client."""
    found: dict[str, dict[str, float]] = {}
    for sample in [sample for family in families(path) for sample in family.samples]:
        assert sample.labels["algorithm"] == "fedhe"
        found.setdefault(sample.name, {})[sample.labels.get("client", "")] = sample.value
    return found


def test_a_run_for_prometheus_says_where_it_is_and_counts_what_it_has_sent(make_config, run_federation):
    """Also of a run that goes on: what adds up is a counter over all of its rounds, and names say their units."""
    pytest.importorskip("prometheus_client")
    keys = {"track": "prometheus", "costs": "time,memory", "client_seconds": "1"}
    run_federation(make_config(**keys))
    folder = run_federation(make_config(rounds=3, resume=True, **keys))
    found, lines = prometheus(folder / "metrics.prom"), entries(folder)
    assert len(lines) == 4
    assert found["hetfl_round"] == {"": 3}
    assert found["hetfl_accuracy_ratio"] == {"": lines[-1]["accuracy"]}
    assert found["hetfl_payload_down_bytes_total"] == {"": sum(line["bytes_down"] for line in lines)}
    assert found["hetfl_client_accuracy_ratio"] == {
        client: scores["accuracy"] for client, scores in lines[-1]["clients"].items()
    }
    assert (found["hetfl_finished"], found["hetfl_failed"]) == ({"": 1}, {"": 0})
    assert abs(found["hetfl_written_timestamp_seconds"][""] - time()) < 60
    kinds = {family.name: family.type for family in families(folder / "metrics.prom")}
    sizes = [f"{what}_{way}_bytes" for what in ("payload", "wire") for way in ("up", "down")]
    counters = {f"hetfl_{name}" for name in ("failures", "left_out", "duration_seconds", *sizes)}
    assert {name for name, kind in kinds.items() if kind == "counter"} == counters
    assert {name for name in found if name.endswith("_total")} == {f"{name}_total" for name in counters}
    assert set(kinds.values()) == {"counter", "gauge"}
    assert {"hetfl_simulated_seconds", "hetfl_client_cpu_seconds", "hetfl_client_peak_memory_bytes"} <= kinds.keys()
    assert {"hetfl_evaluation_wire_bytes", "hetfl_client_accuracy_ratio"} <= kinds.keys()
    assert "_created" not in (folder / "metrics.prom").read_text()


def test_for_prometheus_a_client_has_one_name_from_its_first_round_on(tmp_path):
    pytest.importorskip("prometheus_client")
    here = [SimpleNamespace(client_id=0, name="North")]
    tracked = started(tmp_path, "prometheus", here)
    tracked.round(round_(1))
    here[:] = [SimpleNamespace(client_id=0, name="Elsewhere"), SimpleNamespace(client_id=7, name="South")]
    tracked.round(Round(2, 0.25, clients={"0": {"loss": 1.0}, "7": {"loss": 1.0}}))
    labels = [one.labels for of in families(tmp_path / "metrics.prom") for one in of.samples if "client" in one.labels]
    assert {(one["client"], one["name"]) for one in labels} == {("0", "North"), ("1", ""), ("7", "South")}


def test_for_prometheus_a_resumed_run_counts_on_and_who_has_left_keeps_a_name(tmp_path, monkeypatch):
    """Killed after round 3, with a checkpoint of round 2; whenever the file is read, counters have not decreased."""
    pytest.importorskip("prometheus_client")
    replace_file, counted = trackers.replace_file, list[float]()

    def written(path: Path, content: bytes) -> None:
        replace_file(path, content)
        counted.append(prometheus(path)["hetfl_payload_up_bytes_total"][""])

    monkeypatch.setattr(trackers, "replace_file", written)
    here = [SimpleNamespace(client_id=0, name="North"), SimpleNamespace(client_id=1, name="South")]
    killed = started(tmp_path, "prometheus", here)
    for number in range(4):
        killed.round(round_(number))
    resumed = started(tmp_path, "prometheus", here[:1])
    resumed.begin(reached(tmp_path, 2))
    resumed.round(round_(3))
    assert counted == [100, 200, 300, 400, 400, 500]
    assert 'client="1",name="South"' in (tmp_path / "metrics.prom").read_text()
    assert 'client="1",name=""' not in (tmp_path / "metrics.prom").read_text()
    begun = started(tmp_path / "new", "prometheus")
    begun.begin(reached(tmp_path / "new", 2))  # tracked from now on
    assert counted[-1] == 300


def test_what_a_client_calls_its_metrics_leaves_prometheus_a_file_that_all_can_read(tmp_path):
    """Two clients choose names that are nobody's in Prometheus, or another gauge's with other labels."""
    pytest.importorskip("prometheus_client")
    tracked, entry = started(tmp_path, "prometheus"), round_(1)
    entry.clients["0"] |= {"my.score": 7.0, "a b": 8.0, "c:d": 9.0, "foo-loss": 1.0, "client-foo-loss": 5.0}
    entry.clients["0"] |= {"bad-total": 3.0, "failures": 4.0}
    tracked.round(entry)
    found = prometheus(tmp_path / "metrics.prom")
    for name, value in (
        *(("my_score", 7), ("a_b", 8), ("c_d", 9), ("foo_loss", 1), ("client_foo_loss", 5)),
        *(("bad_total_value", 3), ("failures", 4)),
    ):
        assert found[f"hetfl_client_{name}"] == {"0": value}
    assert (found["hetfl_foo_loss"], found["hetfl_mean_client_foo_loss"]) == ({"": 1}, {"": 5})
    assert '{"' not in (tmp_path / "metrics.prom").read_text()


@pytest.fixture
def recorders(monkeypatch):
    failing = type("Failing", (Recorder,), {"fails": 1})
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": failing, "mlflow": Recorder})


@pytest.mark.usefixtures("recorders")
def test_a_tracker_that_fails_is_left_out_alone(tmp_path, capsys):
    """One line; the other tracker has all rounds, and the error that ended the run."""
    tracked = started(tmp_path, "wandb,mlflow")
    failing, other = tracked.callbacks.values()

    FLOWER_LOGGER.setLevel("CRITICAL")  # as in `hetfl run`

    def play() -> None:
        with notifying([tracked], reached(tmp_path, -1), lambda: summary(-1)) as tell:
            for number in range(3):
                tell(round_(number))
            raise TimeoutError

    with pytest.raises(TimeoutError):
        play()
    assert failing.told == [0]
    assert other.told == [0, 1, 2, (-1, {"summary/accuracy": 0.5}, TimeoutError)]
    assert capsys.readouterr().err == (
        "hetfl: track: wandb has failed and is not called again in this run: RuntimeError: no connection\n"
    )


@pytest.mark.usefixtures("recorders")
def test_trackers_know_the_run_again(tmp_path):
    started(tmp_path, "mlflow")
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"mlflow": "new"}
    (tmp_path / "trackers.json").write_text('{"mlflow": "m1", "wandb": "w1"}')
    second = started(tmp_path, "mlflow")
    [tracker] = second.callbacks.values()
    tracker.reached = 1
    second.begin(reached(tmp_path, 2))
    second.end(summary(2), None)
    assert (tracker.id, tracker.told[:-1]) == ("m1", [2])
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"mlflow": "m1", "wandb": "w1"}


@pytest.mark.usefixtures("recorders")
@pytest.mark.parametrize("content", ["[]", '{"mlflow": 3}', "{", ""])
def test_trackers_start_over_where_their_file_is_broken(tmp_path, content):
    (tmp_path / "trackers.json").write_text(content)
    [tracker] = started(tmp_path, "mlflow").callbacks.values()
    assert tracker.id == "new"
