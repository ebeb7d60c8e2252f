"""Rounds without messages equal rounds with messages: in bits, byte counts, failures and times."""

from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.grids import Meddled, Tampering
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import load_file

from hetfl_flwr.errors import PayloadError
from hetfl_flwr.methods import chosen, names
from hetfl_flwr.server.guard import measure
from hetfl_flwr.wire.codec import from_record, to_record, widened, wire_bytes
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, ROUND
from hetfl_flwr.wire.spec import (
    ArraySpec,
    Dim,
    PayloadSpec,
    fractions,
    frozen,
    interned,
    learnt,
    probabilities,
    row_numbers,
    sample_counts,
)
from simulations.engine.clients import FIRST_NODE
from simulations.engine.exchange import LocalExchange
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED

WAYS = {
    "plain": {},
    "half": {"payload-precision": "half"},
    "private": {"clipping-norm": 5.0, "noise-multiplier": 0.1, "noise-source": "seed"},
    "timed": {"client-seconds": "1,2", "client-mbits": "10:1", "client-latency": "0.1"},
    "counted": {"client-speed": "1"},
    "best": {"keep-best": True, "validation-fraction": 0.2, "keep-uploads": True},
}


def run(lab: Any, folder: Any, *, messages: bool = False, **keys: Any) -> tuple[Any, ...]:
    config = lab.config(**{"algorithm": "fedhe", "models": "mlp", "clients": 3, **keys}, output_dir=str(folder))
    lab.run(config, Meddled(config) if messages else None)
    rounds = [{**entry, "seconds": 0, "clock": 0} for entry in entries(folder)]
    return rounds, (folder / "knowledge.safetensors").read_bytes()


@pytest.fixture
def both(lab, tmp_path):
    """Run a federation with and without messages, and return both results."""
    return lambda **keys: [run(lab, tmp_path / str(one), messages=one, **keys) for one in (True, False)]


@pytest.mark.parametrize("name", names())
def test_a_round_without_messages_is_one_with_them(name, lab, both):
    """Byte counts are those of serialised messages."""
    models = f"{NORMED},mlp" if chosen(lab.config(algorithm=name)).strategy.heterogeneous else NORMED
    with_messages, without = both(algorithm=name, models=models, partition="classes:6", fraction=0.6)
    assert without == with_messages


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["fedhe", "fedavg"])
def test_so_it_is_in_whatever_form_arrays_travel(name, way, both):
    with_messages, without = both(algorithm=name, **WAYS[way])
    assert without == with_messages


SAID: Any = {
    "metric": {"mood": "good"},
    "huge": {"mood": 2**70},
    "list": {"mood": [1.0, 2.0]},
    "key": {1: 2.0},
    "cost": {"flops": [1.0, 2.0]},
}
"""Metrics that no message can hold, or that no client has."""


@pytest.fixture
def fedhe(lab):
    """Both sides of FedHe."""
    return chosen(lab.config(algorithm="fedhe"))


@pytest.mark.parametrize("wrong", ["raises", "diverges", "shape", *SAID])
def test_so_it_is_where_a_client_does_something_wrong(wrong, fedhe, both, monkeypatch):
    learn = fedhe.client.learn

    def broken(self: Any, download: Any, round: int) -> Any:
        upload, metrics = learn(self, download, round)
        if wrong == "list":
            metrics = {**metrics, "mood": 1.0}
        if self.node.client_id != 1 or round != 2:
            return upload, metrics
        if wrong == "raises":
            raise RuntimeError("broke")
        if wrong in SAID:
            return upload, {**metrics, **SAID[wrong]}
        logits = {"diverges": upload["logits"] * np.nan, "shape": upload["logits"][1:]}[wrong]
        return {**upload, "logits": logits}, metrics

    monkeypatch.setattr(fedhe.client, "learn", broken)
    with_messages, without = both(rounds=3, **WAYS["timed"])
    for found in (with_messages, without):
        for failure in found[0][2]["failures"]:
            if wrong in ("raises", "key"):
                failure["reason"] = failure["reason"].partition(" (")[0]
    assert without == with_messages
    assert [len(entry["failures"]) for entry in without[0]] == [0, 0, 1, 0]


def test_no_strategy_can_change_what_clients_have_uploaded(fedhe, both, monkeypatch):
    """Otherwise robust averages and audits would see another upload in some engines."""
    aggregate, writeable = fedhe.strategy.aggregate, []

    def looked_at(self: Any, server_state: Any, uploads: Any, round: int) -> Any:
        writeable.extend(array.flags.writeable for upload in uploads for array in upload.arrays.values())
        return aggregate(self, server_state, uploads, round)

    monkeypatch.setattr(fedhe.strategy, "aggregate", looked_at)
    both(rounds=1)
    assert set(writeable) == {False}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_a_strategy_draws_is_seeded(mode, fedhe, lab, tmp_path, monkeypatch):
    """For any number of workers, and whenever a checkpoint waits for the clients."""
    aggregate = fedhe.strategy.aggregate

    def noisy(self: Any, server_state: Any, uploads: Any, round: int) -> Any:
        learnt = aggregate(self, server_state, uploads, round)
        return {**learnt, "sums": learnt["sums"] + np.random.random() * torch.rand(()).item()}  # noqa: NPY002

    monkeypatch.setattr(fedhe.strategy, "aggregate", noisy)
    keys = {"algorithm": "fedhe", "models": "mlp", "rounds": 3, "clients": 3, "client_seconds": "1,3,2"}
    left = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        config = lab.config(**keys, checkpoint_every=number, output_dir=str(folder), **{"fedhe.mode": mode})
        left.append((lab.run(config, workers=number) / "knowledge.safetensors").read_bytes())
    assert left[0] == left[1]


def in_flower_s_own_loop(federation: Any, rounds: int, strategy: Any = None) -> Any:
    """Run rounds in Flower with a strategy, by default the federation's."""
    initial = to_record(federation.strategy.prepare(federation.roster, federation.config))
    return (strategy or federation.strategy).start(federation.grid, initial, num_rounds=rounds)


def test_a_strategy_of_flower_s_trains_the_same_clients(lab, tmp_path):
    """FedAvg over messages gives the same means, in the precision of Flower's arithmetic."""
    config = lab.config(algorithm="fedavg", models="mlp", clients=3, output_dir=str(tmp_path / "ours"))
    ours = load_file(lab.run(config) / "knowledge.safetensors")
    strategy = FedAvg(
        min_available_nodes=3, evaluate_metrics_aggr_fn=lambda replies, _: MetricRecord({"replies": len(replies)})
    )
    result = in_flower_s_own_loop(lab.federation(config), config.rounds, strategy)
    assert result.evaluate_metrics_clientapp[config.rounds]["replies"] == 3
    for name, array in from_record(result.arrays).items():
        np.testing.assert_allclose(array, ours[name], atol=1e-5)


def test_flower_s_own_loop_names_whom_a_robust_average_leaves_out(lab, caplog):
    caplog.set_level("INFO", logger="flwr")
    federation = lab.federation(lab.config(algorithm="fedhe", models="mlp", clients=4, robust="multikrum:1"))
    in_flower_s_own_loop(federation, 1)
    assert "fedhe, round 1: multikrum leaves out client" in caplog.text
    assert federation.strategy.left_out.taken() == []


@pytest.mark.parametrize("lie", [np.nan, "shape"])
def test_flower_s_own_loop_goes_on_without_a_client_that_fails_or_lies(lie, fedhe, lab, monkeypatch):
    learn = fedhe.client.learn

    def broken(self: Any, download: Any, round: int) -> Any:
        if self.node.client_id == 1 and round == 2:
            raise RuntimeError("broke")
        return learn(self, download, round)

    def lying(reply: Message) -> Message:
        upload = from_record(reply.content.array_records[ARRAYS])
        changed = upload["logits"][1:] if lie == "shape" else upload["logits"] * lie
        reply.content[ARRAYS] = to_record({**upload, "logits": changed})
        return reply

    monkeypatch.setattr(fedhe.client, "learn", broken)
    config = lab.config(algorithm="fedhe", models="mlp", clients=3)
    result = in_flower_s_own_loop(lab.federation(config, Tampering(config, 2, lying)), 2)
    assert from_record(result.arrays)["uploads"].max() == 2 + 1
    assert 0 < result.evaluate_metrics_clientapp[2]["accuracy"] < 1


def test_what_a_client_does_to_its_download_is_not_done_to_that_of_others(lab, tmp_path, monkeypatch):
    client = chosen(lab.config(algorithm="fedavg")).client
    learn = client.learn

    def wasteful(self: Any, download: Any, round: int) -> Any:
        answer = learn(self, download, round)
        for array in download.values():
            torch.from_numpy(array).zero_()
        return answer

    expected = run(lab, tmp_path / "thrifty", algorithm="fedavg", rounds=3)
    monkeypatch.setattr(client, "learn", wasteful)
    assert run(lab, tmp_path / "wasteful", algorithm="fedavg", rounds=3) == expected


@pytest.mark.parametrize(
    ("spec", "bad"),
    [
        (learnt("a", (2, 2)), [np.full((2, 2), np.nan), np.full((2, 2), 1e7), np.full((2, 2), -1e7), np.zeros(4)]),
        (probabilities("a", (2, 2)), [np.full((2, 2), 0.6), np.array([[-0.5, 1.5], [0.5, 0.5]])]),
        (fractions("a", (2,)), [np.array([0.5, 1.1]), np.array([-0.1, 0.5]), np.array([np.inf, 0])]),
        (sample_counts("a", (2,), total=5), [np.array([3, -1]), np.array([3, 3])]),
        (row_numbers("a", Dim("R", 3), of=10), [np.array([10]), np.array([1, 2, 3, 4])]),
        (ArraySpec("a", (2,), "float32", nonzero=True), [np.zeros(2)]),
        (ArraySpec("a", (2,), "uint8"), [np.zeros(2, np.int8)]),
    ],
)
def test_a_declaration_refuses_what_it_does_not_declare(spec, bad):
    shape = [2 if isinstance(size, Dim) else size for size in spec.shape]
    good = {"a": np.full(shape, 0.5 if spec.sums_to_one or spec.maximum == 1 else 1, spec.dtype)}
    payload = interned(PayloadSpec((spec,)))
    assert interned(PayloadSpec((spec,))) is payload
    for one in [*bad, [1, 2], None]:
        arrays = {"a": one.astype(spec.dtype) if isinstance(one, np.ndarray) and one.dtype != "int8" else one}
        with pytest.raises(PayloadError, match="client 3: array 'a' "):
            payload.check_named(arrays, "client 3")
    with pytest.raises(PayloadError, match="arrays b, expected a"):
        payload.check_named({"b": good["a"]}, "client 3")
    assert payload.check_named(good, "client 3") == good


def test_arrays_are_handed_on_in_memory_that_nobody_writes_to():
    tensor, whole = torch.ones(3), np.arange(6.0).reshape(2, 3)
    kept = frozen({"shared": tensor.numpy(), "own": whole, "turned": whole.copy().T, "number": np.float32(1)})
    tensor.fill_(7)
    assert kept["shared"].tolist() == [1, 1, 1]
    assert all(array.flags.c_contiguous and not array.flags.writeable for array in kept.values())
    assert frozen(kept)["shared"] is kept["shared"]


def test_whatever_is_in_it_a_message_weighs_what_is_serialised():
    """Flower sends equal pieces of a large array once, and small numbers in fewer bytes."""
    exchange = object.__new__(LocalExchange)
    exchange._sizes = {}
    noise = np.random.default_rng(0).normal(size=(2000, 2000)).astype(np.float32)
    for array in (np.zeros((2, 2), np.float32), noise, np.zeros_like(noise)):
        for number in (-65, -64, 0, 63, 64, 2**40) if array.size < 9 else (0, 2**40):
            content = RecordDict({ARRAYS: to_record({"a": array}), CONFIG: ConfigRecord({ROUND: number})})
            message = Message(content, FIRST_NODE, MessageType.TRAIN)
            assert exchange._weigh(MessageType.TRAIN, {"a": array}, {ROUND: number}, reply=False)[2] == wire_bytes(
                message
            )


def test_half_precision_is_no_way_round_the_declared_dtypes():
    spec = PayloadSpec((learnt("logits", (2,)), sample_counts("counts", (2,))))
    sent = {"logits": np.float16([1, 2]), "counts": np.array([1, 2])}
    assert [array.dtype for array in widened(spec, sent, "client 1").values()] == [np.float32, np.int64]
    for wrong in ({"counts": np.float32([1.7, 2.9])}, {"logits": np.float64([1, 2])}):
        with pytest.raises(PayloadError, match=f"client 1: array '{next(iter(wrong))}' has dtype"):
            widened(spec, sent | wrong, "client 1")


def test_sizes_are_those_in_double_precision():
    rng = np.random.default_rng(0)
    spec = PayloadSpec((ArraySpec("w", (5, 4), "float32", update=True), learnt("b", (4,)), sample_counts("n", (2,))))
    sent = {"w": rng.normal(size=(5, 4)).astype(np.float32)}
    upload = {**sent, "b": np.float32([0, 1e-30, 2, 3]), "n": np.array([1, 2])}
    for change, tiny in ((0.0, 1e-30), (1e-25, 1e30), (0.1, 1.0)):
        upload["w"] = (sent["w"] + np.float32(change) * (rng.random((5, 4)) > 0.5)).astype(np.float32)
        upload["b"] = np.float32([0, tiny, 2 * tiny, 3 * tiny])
        for name, size in measure(upload, spec, sent, 9).items():
            values = upload[name].astype(np.float64) - (sent[name] if name == "w" else 0.0)
            values = values[values != 0]
            expected = np.sqrt(np.mean(values**2)) if values.size else 0.0
            np.testing.assert_allclose(size.value, expected, rtol=1e-6)
            assert size.numbers == values.size
