"""``robust``: what each algorithm averages with it, and one poisoned client of ten."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fixtures.federations.grids import Tampering
from fixtures.federations.members import member, robustly, roster
from fixtures.tiers import exhaustive
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import build_strategy, check_options, find, names
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.exchange import Reply
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, EXAMPLES, METRICS
from simulations.testing.contract import entries
from strategies.chfl import CHFL
from strategies.fedhe import FedHe
from strategies.fedhenn import FedHeNN

ROBUST = [name for name in names() if find(name).strategy.averages]
"""Algorithms whose server side averages what it can compare."""

LINEAR = "fixtures.models:linear"

POISONED = 3
"""The client that lies."""

SCALED_IN_VAIN = ("fedgh",)
"""Algorithms to whose server a longer prototype says the same: against these the liar sends the opposite."""

SLOWER: dict[str, Any] = {"models": "mlp", "learning_rate": 0.001, "rounds": 10}
"""For what goes wrong in a body, which a linear model has not."""


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "agg", "robust": "median"},
        {"algorithm": "fedh2l", "robust": "median"},
        {"algorithm": "fedavg", "robust": "krum"},
        {"algorithm": "fedhe", "robust": "median", "fedhe.mode": "async"},
        {"algorithm": "fedgh", "robust": "median", "fedgh.mode": "async"},
    ],
    ids=str,
)
def test_refused_where_nothing_is_averaged_and_where_it_is_no_average(keys, refusal):
    """Of uploads that come one by one, none can be compared with another."""

    def build():
        config = RunConfig.from_flat(keys)
        check_options(config)
        build_strategy(config)

    assert f"robust = {keys['robust']}" in refusal(ConfigError, build).replace("'", "")


# --- what each algorithm averages ----------------------------------------------------------------


def test_fedhe_takes_the_median_of_a_class_over_those_that_saw_it():
    """Class 0 is on all three: the medians of (1, 3, 900) and (2, 1, -900) are 3 and 1. Class 1 is on clients 0 and 1
    alone, so it is their mean, ((5, 7) + (7, 9)) / 2 = (6, 8), whatever client 2's row without samples says.
    """
    said = ([[1, 2], [5, 7]], [1, 1]), ([[3, 1], [7, 9]], [9, 9]), ([[900, -900], [900, 900]], [1, 0])
    uploads = [
        Upload(k, {"logits": np.float32(rows), "counts": np.int64(counts)}, samples=sum(counts))
        for k, (rows, counts) in enumerate(said)
    ]
    strategy = robustly(FedHe(), "median")
    server_state = strategy.aggregate(strategy.initial(roster(3, classes=2)), uploads, 1)
    sent = strategy.download_for(member(0, classes=2), server_state, 1)
    assert (sent["logits"].tolist(), sent["known"].tolist()) == ([[3, 1], [6, 8]], [True, True])


def test_chfl_sends_as_many_robust_means_as_there_are_heads():
    """Medians of (1, 2, 900) and (5, 4, -900) are 2 and 4, times three heads 6 and 12."""
    uploads = [
        Upload(k, {"weight": np.full((3, 2), weight, np.float32), "bias": np.full(3, bias, np.float32)}, samples=1)
        for k, (weight, bias) in enumerate([(1, 5), (2, 4), (900, -900)])
    ]
    strategy = robustly(CHFL(), "median")
    sent = strategy.aggregate(strategy.initial(roster(3)), uploads, 1)
    assert (sent["weight"].tolist(), sent["bias"].tolist(), int(sent["heads"])) == ([[6, 6]] * 3, [12] * 3, 3)


def unit(kernel: np.ndarray) -> np.ndarray:
    return kernel / np.linalg.norm(kernel)


def kernel_of(uploaded: list[np.ndarray], robust: str) -> np.ndarray:
    """The kernel that FedHeNN's clients are sent as a factor, scaled to a norm of 1."""
    strategy, members, rows = FedHeNN(), roster(1, public=len(uploaded[0]), shape=(1,)), len(uploaded[0])
    strategy.prepare(members, RunConfig(robust=robust))
    members.public_samples = {0: {"inputs": np.zeros((rows, 1), np.float32)}}
    uploads = [Upload(k, {"representations": np.float32(one)}, samples=1) for k, one in enumerate(uploaded)]
    factor = strategy.aggregate(strategy.initial(roster(1)), uploads, 1)["factor"].astype(float)
    return unit(factor @ factor.T)


def dense(rows: np.ndarray) -> np.ndarray:
    """A centred kernel of norm 1, without a factor."""
    rows = np.float32(rows).astype(float)
    centring = np.eye(len(rows)) - 1 / len(rows)
    return unit(centring @ rows @ rows.T @ centring)


def test_fedhenn_cuts_the_client_whose_kernel_is_farthest():
    """Four bodies of unlike widths and lengths that see the same two features, and one that sees noise, a hundred times
    as long. int(0.2 * 5) = 1: what is left is the mean of the four dense kernels of norm 1.
    """
    draw = generator(0, "kernels")
    seen = draw.normal(size=(12, 2))
    maps = [np.eye(2, width) + 0.2 * draw.normal(size=(2, width)) for width in (2, 3, 4, 2)]
    honest = [scale * seen @ to for scale, to in zip((1.0, 0.5, 2.0, 1.5), maps, strict=True)]
    noise = draw.normal(size=(12, 3)) * 100
    found = kernel_of([*honest[:2], noise, *honest[2:]], robust="trimmed:0.2")
    np.testing.assert_allclose(found, unit(sum(dense(rows) for rows in honest)), atol=1e-6)


def test_fedhenn_s_median_of_kernels_knows_no_length_and_stays_with_the_majority():
    """Three clients have kernel K, two have L of other samples: summed distance to K is less, so the median is K."""
    draw = generator(0, "median")
    ours, theirs = draw.normal(size=(9, 2)), draw.normal(size=(9, 2))
    found = kernel_of([ours, 100 * theirs, ours * 2, ours + 5, 1e-3 * theirs], robust="median")
    np.testing.assert_allclose(found, dense(ours), atol=1e-4)


# --- weights -------------------------------------------------------------------------------------


def averaged(robust: str, values: Sequence[Any], samples: Sequence[int]) -> Any:
    """What FedAvg's server makes of an entry ``w`` that clients have sent as these values, having trained on these
    samples."""
    clients = roster(len(values), public=5)
    strategy = robustly(build_strategy(config := RunConfig(algorithm="fedavg")), robust)
    strategy.config, strategy.roster = config, clients  # what `prepare` would set
    replies = [
        Reply(one.client_id, {EXAMPLES: count}, {"w": np.asarray(value, np.float32)})
        for one, value, count in zip(clients, values, samples, strict=True)
    ]
    found = np.asarray(strategy.learn({}, replies, 1)["w"])
    assert found.dtype == np.float32
    return found.tolist()


@pytest.mark.parametrize(
    ("robust", "values", "samples", "expected"),
    [
        # (1 + 2 + 3 + 4 + 96 x 90) / 100
        ("none", [1, 2, 3, 4, 90], [1, 1, 1, 1, 96], 86.5),
        # the samples do not count
        ("median", [90, 1, 4, 3, 2], [96, 1, 1, 1, 1], 3),
        ("trimmed:0.2", [1, 2, 3, 4, 90], [1, 1, 1, 1, 96], (2 + 3 + 4) / 3),
        # Multi-Krum leaves out 90, and the samples of the others count: (1 x 2 + 1 x 2 + 2 x 4) / 4
        ("multikrum:1", [2, 2, 4, 90], [1, 1, 2, 96], 3),
        # each coordinate has its own
        ("median", [[1, 8], [2, -900], [6, 9]], [1, 1, 1], [2, 8]),
    ],
)
def test_weights_by_hand(robust, values, samples, expected):
    assert averaged(robust, values, samples) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("robust", "theirs", "near"),
    [("none", FedAvg(), 0.0), ("median", FedMedian(), 1e-7), ("trimmed:0.2", FedTrimmedAvg(beta=0.2), 1e-7)],
    ids=["none", "median", "trimmed"],
)
def test_weights_are_averaged_as_by_flower_s_own_strategies(robust, theirs, near):
    """The mean to the bit."""
    values, samples = generator(0, "weights").normal(size=(7, 50)).astype(np.float32), [3, 1, 4, 1, 5, 9, 2]
    replies = [
        Message(
            RecordDict({ARRAYS: to_record({"w": value}), METRICS: MetricRecord({EXAMPLES: count, "train-loss": 0.0})}),
            reply_to=Message(RecordDict(), node, MessageType.TRAIN),
        )
        for node, (value, count) in enumerate(zip(values, samples, strict=True), 100)
    ]
    expected, _ = theirs.aggregate_train(1, replies)
    found = averaged(robust, values, samples)
    np.testing.assert_allclose(found, from_record(expected)["w"], rtol=0, atol=near)


def test_multi_krum_tells_small_changes_of_large_weights_apart():
    """10,000 weights of 1 that change by 1e-5, as in a round of fine-tuning: the squares of these changes add up to
    1e-6, a tenth of a billionth of the weights' own. One client changes its weights against the others."""
    changes = generator(0, "fine-tuning").normal(1, 0.5, size=(5, 10_000)) * 1e-5
    changes[3] *= -1
    values = np.float32(1 + changes)
    found = averaged("multikrum:1", values, [1] * 5)
    np.testing.assert_allclose(found, np.delete(values, 3, 0).mean(0), atol=2e-7)


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        *((name, {}) for name in ROBUST),
        ("fd", {"fd.mode": "async"}),
        ("fedproto", {"fedproto.mode": "async"}),
        ("fedmd", {"fedmd.consensus": "softmax"}),
        ("fedhenn", {"fedhenn.mode": "homogeneous"}),
    ],
)
def test_whom_multi_krum_leaves_out_is_told(algorithm, keys, make_config, run_federation, tmp_path, caplog):
    """Of five clients it leaves out one in each round, or one of each class: the log and the run's rounds say whom, and
    no failure is made of it. In some algorithms what it averages in round 2 has come in round 1."""
    config = make_config(
        algorithm=algorithm,
        clients=5,
        rounds=2,
        public_fraction=0.1,
        output_dir=str(tmp_path / "run"),
        **{"models": "mlp", "robust": "multikrum:1", **keys},
    )
    caplog.set_level("INFO", logger="flwr")
    lines = entries(run_federation(config))
    assert [line["failures"] for line in lines] == [[], [], []]
    told = " ".join(text for text in caplog.messages if "leaves out" in text)
    recorded = {client for line in lines for client in line["not_averaged"]}
    assert recorded == {client for client in range(5) if f"client {client}" in told}
    assert lines[0]["not_averaged"] == []
    assert lines[2]["not_averaged"]


# --- one poisoned client of ten ------------------------------------------------------------------


def scaled(factor: float) -> Callable[[Message], Message]:
    """Multiply the knowledge in a reply; numbers of samples stay."""

    def tamper(reply: Message) -> Message:
        arrays = from_record(reply.content.array_records[ARRAYS])
        longer = {name: array * np.float32(factor) for name, array in arrays.items() if array.dtype == np.float32}
        reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in (arrays | longer).items()})
        return reply

    return tamper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("fedhe", {}),
        exhaustive("fedmd", {"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1}),
        exhaustive("chfl", {**SLOWER, "rounds": 15, "chfl.reduce": "mean"}),
        exhaustive("fml", {"fml.meme": LINEAR}),
        ("fedavg", {}),
        exhaustive("fedprox", {}),
        exhaustive("heterofl", {}),
        exhaustive("feddf", {"feddf.server-steps": 20, "public_fraction": 0.1}),
        exhaustive("fedrep", {"models": "mlp", "local_batches": 0, "rounds": 12}),
        exhaustive("lgfedavg", {}),
        exhaustive("lgfedavg", {"lgfedavg.mode": "body", "models": "mlp", "local_batches": 0, "rounds": 12}),
        exhaustive("fedproto", {**SLOWER, "rounds": 15}),
        exhaustive("fedgh", {**SLOWER, "rounds": 15}),
        exhaustive("fedtgp", {**SLOWER, "rounds": 15, "fedtgp.server-epochs": 100, "fedtgp.predict": "head"}),
        exhaustive("fedhenn", {"fedhenn.mode": "homogeneous"}),
        ("fedhenn", {**SLOWER, "partition": "classes:3", "fedhenn.eta0": 3.0, "fedhenn.rad-size": 32}),
    ],
)
def test_one_poisoned_client_of_ten(algorithm, keys, make_config, run_federation, tmp_path):
    """One sends a hundred times what it knows. With the median, the other nine are as good as if it did not, to a point
    of accuracy; with the mean they lose more than five. (FedHeNN's mean kernel is then that of one client, who has only
    three classes.)
    """

    def accuracy(name: str, factor: float, robust: str) -> float:
        config = make_config(
            algorithm=algorithm,
            clients=10,
            evaluate_every=100,
            outlier_factor=0.0,
            test_fraction=0.5,
            output_dir=str(tmp_path / name),
            **{"models": LINEAR, "learning_rate": 0.01, "rounds": 8, "robust": robust, **keys},
        )
        run = run_federation(config, Tampering(config, POISONED, scaled(factor)))
        clients = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])["clients"]
        return float(np.mean([client["accuracy"] for key, client in clients.items() if key != str(POISONED)]))

    factor = -100 if algorithm in SCALED_IN_VAIN else 100
    clean, poisoned = accuracy("clean", 1, "median"), accuracy("poisoned", factor, "median")
    assert poisoned > clean - 0.01
    assert accuracy("mean", factor, "none") < poisoned - 0.05
