"""The guard: which uploads are far from the others, and which are not though they differ."""

import json
from collections.abc import Callable
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.grids import LITTLE, Tampering
from fixtures.federations.post import GOOD, Federation, federation_of, member, reply_with
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, Samples
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import ConfigError, Failure
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.checkpoint import Checkpoint
from hetfl_flwr.server.guard import Guard, Size, measure
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, SEEN, SHARE
from hetfl_flwr.wire.spec import ArraySpec, PayloadSpec
from simulations.reports.runs import load_run
from simulations.testing.contract import entries


def round_of(federation: Federation, answers: dict[int, Any]) -> list[Failure]:
    """Let these clients train, who answer in these ways; return the failures and the outliers."""
    federation.grid.answers = {
        one.node: answers[one.client_id] for one in federation.roster if one.client_id in answers
    }
    outcome = federation.ask([one for one in federation.roster if one.client_id in answers])
    return [*outcome.failures, *outcome.outliers]


def config(folder: Path, **keys: Any) -> RunConfig:
    small = {"algorithm": "fedavg", "models": "mlp", "clients": 4, "rounds": 2, "output_dir": str(folder)}
    return RunConfig.from_flat({name.replace("_", "-"): value for name, value in {**small, **keys}.items()})


def forged(reply: Message, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Message:
    """Return a reply whose arrays are changed."""
    arrays = from_record(reply.content.array_records[ARRAYS])
    reply.content[ARRAYS] = to_record({name: change(array) for name, array in arrays.items()})
    return reply


def uploads(*sizes: float | Size) -> dict[int, dict[str, Size]]:
    return {client: {"logits": one if isinstance(one, Size) else Size(one)} for client, one in enumerate(sizes)}


def sized(size: float) -> Callable[[Message], Message]:
    """Return what answers with an upload of a size."""
    return reply_with(GOOD | {"logits": Array(np.full(2, size, np.float32))})


def trained(value: float, work: float) -> list[Size]:
    """Five sizes of 1, and one of another value and with other work behind it."""
    return [*[Size(1.0, work=7)] * 5, Size(value, work=work)]


# --- what is far ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "far"),
    [
        ([1.0, 1.1, 0.9, 1.0, 5.4], [4]),  # 5.4 times the median 1.0
        ([1.0, 1.1, 0.9, 1.0, 4.9], []),
        ([1.0, 1.1, 0.9, 1.0, 1e-9], []),  # small sizes move no mean
        ([1.0, 1.1, 1e6, 1e6, 0.9], [2, 3]),  # two of five
        ([1.0, 1e6], []),  # of two, none is the odd one
        ([1.0, 1.0, 1e6], [2]),
        ([0.0, 0.0, 0.0, 1e6], []),  # who has sent nothing but zeros has learnt nothing
        ([1.0, 2.0, 4.0, 8.0, 16.0, 30.0], []),  # honest clients that differ this much: 3 deviations are exp(4.6)
        ([0.1, 1.0, 1.1, 10.0, 40.0], [4]),  # no spread allows more than 30 times the median
        ([0.1, 0.1, 0.1, Size(9.0, usual=10.0), Size(11.0, usual=10.0)], [4]),  # up to what is usual nothing is far
        (trained(14, 7), [5]),
        (trained(14, 21), []),  # three times the work, three times the factor
        (trained(19, 70), []),
        (trained(21, 70), [5]),  # four times at most
    ],
)
def test_a_size_is_far_from_the_median_of_all(sizes, far):
    assert list(Guard(5.0).reject_outliers(uploads(*sizes))) == far
    assert Guard(0.0).reject_outliers(uploads(*sizes)) == {}


@pytest.mark.parametrize(
    ("sizes", "far"),
    [
        ([0.0, 0.0, 0.0, 1e17], [3]),
        ([0.0, 0.0, 1e17, 2e17, 0.0], [2, 3]),
        ([0.0, 0.0, 0.0, 0.4], []),  # slight, against what was sent
        ([0.0, 0.0, 0.6], [2]),
        ([0.0, 0.6], []),
        ([0.0, 0.0, 0.6, 0.6], []),  # not most
        ([0.0, 0.0, 0.1, 1e6], [3]),  # too few to compare it with
        ([0.0, 0.1, 1e6], [2]),
        ([0.0, 0.1, 99.0], []),
        ([0.0, 0.0, 0.0, 0.0, Size(99.0)], []),  # no change, and what could be learnt
        ([0.0, 0.0, 0.0, 0.0, Size(101.0)], [4]),
    ],
)
def test_an_array_that_most_do_not_change_is_changed_slightly_at_most(sizes, far):
    arrays = [one if isinstance(one, Size) else Size(one, still=0.5) for one in sizes]
    said = Guard(5.0).reject_outliers({client: {"w": Size(1.0), "mean": one} for client, one in enumerate(arrays)})
    assert list(said) == far
    assert all(reason.endswith((", and most clients' is 0", " to compare it with")) for reason in said.values())


def test_a_client_that_has_uploaded_more_may_be_ahead():
    """In an asynchronous run one client is at its fourth upload, the others at their first: 4 * 5 * 1 is allowed."""
    guard = Guard(5.0)
    guard.reject_outliers(uploads(1.0, 1.0, 1.0, 1.0))
    for value in (2.0, 4.0):
        assert guard.reject_outliers({3: {"logits": Size(value)}}) == {}
    assert guard.reject_outliers({3: {"logits": Size(21.0)}}).keys() == {3}
    assert guard.reject_outliers({3: {"logits": Size(19.0)}}) == {}


def test_the_size_of_few_numbers_is_inexact():
    """Of n normal numbers the root mean square varies by 1 / sqrt(2 n) of itself: three of that are allowed for."""
    draw = np.random.default_rng(0)
    for numbers in (8, 128):
        deviation = np.log(np.sqrt(np.square(draw.normal(size=(20_000, numbers))).mean(1))).std()
        assert Size(1.0, numbers=numbers).error == pytest.approx(deviation, rel=0.1)
    for numbers, allowed in ((2, 5 * 4.0), (10, 5 * np.exp(3 / np.sqrt(20))), (200, 5 * np.exp(0.15)), (0, 5.0)):
        for value, far in ((0.99 * allowed, []), (1.01 * allowed, [4])):
            came = uploads(1.0, 1.0, 1.0, 1.0, Size(value, numbers=numbers))
            assert list(Guard(5.0).reject_outliers(came)) == far


def test_an_upload_that_comes_alone_is_held_against_the_newest_of_the_others():
    guard = Guard(5.0)
    for client, value in enumerate([1.0, 1.0, 1.2]):
        assert guard.reject_outliers({client: {"logits": Size(value)}}) == {}
    assert list(guard.reject_outliers({0: {"logits": Size(100.0)}})) == [0]
    assert guard.newest[0]["logits"] == Size(1.0, work=1)  # what was set aside is nobody's measure
    assert guard.reject_outliers({0: {"logits": Size(1.1)}}) == {}


def test_what_it_knows_survives_a_checkpoint():
    """Sizes go through JSON, whose keys are texts, and come back as the same bits."""
    guard, other = Guard(5.0), Guard(5.0)
    sizes = {"c": Size(1.0, 7, inf)}
    guard.reject_outliers(
        {client: {"w": Size(0.1 + client / 3, 7, 1.5, 6, most=client / 7), **sizes} for client in range(3)}
    )
    counts = json.loads(json.dumps(guard.counts(), allow_nan=False))
    other.restore({int(client): sizes for client, sizes in counts.items()})
    assert other.newest == guard.newest


def test_while_others_are_to_follow_what_is_unusual_is_set_aside_and_known():
    def comes(guard: Guard, client: int, value: float) -> dict[int, str]:
        return guard.reject_outliers({client: {"logits": Size(value, usual=1.0)}}, others_follow=True)

    guard = Guard(5.0)
    said = "array 'logits' has size 1e+05, more than 100, and too few clients are known to compare it with"
    assert comes(guard, 0, 1e5) == {0: said}
    assert comes(guard, 1, 0.1) == comes(guard, 2, 0.1) == {}
    assert comes(guard, 0, 1e5).keys() == {0}
    large = Guard(5.0)  # arrays of another scale lose the uploads before the third
    assert [len(comes(large, client, 1000.0)) for client in (0, 1, 2, 0)] == [1, 1, 0, 0]


@given(
    st.lists(st.floats(0.5, 2.0), min_size=5, max_size=15),
    st.lists(st.floats(1e4, 1e30), max_size=7),
    st.randoms(use_true_random=False),
)
def test_a_minority_of_any_sizes_is_set_aside_and_no_honest_client_is(honest, hostile, order):
    hostile = hostile[: (len(honest) - 1) // 2]
    values = [(value, False) for value in honest] + [(value, True) for value in hostile]
    order.shuffle(values)
    far = Guard(5.0).reject_outliers(uploads(*(value for value, _ in values)))
    assert list(far) == [client for client, (_, bad) in enumerate(values) if bad]


@given(
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=15),
    st.lists(st.floats(1e-6, 1e6), max_size=7),
    st.randoms(use_true_random=False),
)
def test_colluders_move_the_bound_no_further_than_it_is_said(honest, hostile, order):
    """No size above 30 times the largest honest one is taken; no honest one set aside up to 5 times the smallest."""
    hostile = hostile[: (len(honest) - 1) // 2]
    values = [*honest, *hostile]
    order.shuffle(values)
    far = Guard(5.0).reject_outliers(uploads(*values))
    assert all(client in far for client, value in enumerate(values) if value > 30 * max(honest))
    assert not [client for client in far if values[client] <= 5 * min(honest)]


# --- sizes ---------------------------------------------------------------------------------------


def test_sizes_are_root_mean_squares_over_what_is_not_zero():
    """Of (3, 4, 0): sqrt((9 + 16) / 2). Probabilities, accuracies, row numbers and yes or no have no size."""
    spec = PayloadSpec(
        (
            ArraySpec("logits", (3,), "float32", usual=10.0),
            ArraySpec("posteriors", (1, 2), "float32", sums_to_one=True),
            ArraySpec("accuracy", (), "float32", minimum=0, maximum=1),
            ArraySpec("indices", (2,), "int32", minimum=0, maximum=7),
            ArraySpec("known", (2,), "bool"),
            ArraySpec("counts", (2,), "int64", minimum=0, sensitive=True),
        )
    )
    arrays = {
        "logits": np.float32([3, 4, 0]),
        "posteriors": np.float32([[1, 0]]),
        "accuracy": np.float32(1),
        "indices": np.int32([3, 7]),
        "known": np.array([True, False]),
        "counts": np.int64([0, 6]),
    }
    sizes = measure(arrays, spec, {}, samples=50)
    assert sizes == {"logits": Size(np.sqrt(12.5), usual=10.0, numbers=2), "counts": Size(6.0, usual=1.0, numbers=1)}


def test_of_an_update_the_change_is_measured():
    spec = PayloadSpec((ArraySpec("weight", (2,), "float32", update=True), ArraySpec("logits", (2,), "float32")))
    arrays = {"weight": np.float32([101, 98]), "logits": np.float32([5, 5])}
    sent = {"weight": np.float16([100, 100]), "logits": np.float32([4, 4])}  # the average of all: another thing
    assert measure(arrays, spec, sent, 49) == {
        "weight": Size(np.sqrt(2.5), work=7, usual=inf, numbers=2, still=5.0, most=np.sqrt(2.5)),
        "logits": Size(5.0, usual=1.0, numbers=2),
    }
    zeros = measure(arrays, spec, {"weight": np.zeros(2, np.float32)}, 49)["weight"]
    assert zeros.still == 0.05


def updates(**shapes: tuple[int, ...]) -> PayloadSpec:
    """Return the declaration of arrays that are updates."""
    return PayloadSpec(tuple(ArraySpec(name, shape, "float32", update=True) for name, shape in shapes.items()))


def changing(sent: dict[str, NDArray[Any]], name: str, *rounds: dict[int, float]) -> list[int]:
    """Return whose changes of an array are far in the last of some rounds."""
    guard, spec = Guard(5.0), updates(**{one: array.shape for one, array in sent.items()})
    for changes in rounds:
        sizes = {
            client: measure({**sent, name: sent[name] + np.float32(one)}, spec, sent, 50)
            for client, one in changes.items()
        }
        far = guard.reject_outliers(sizes)
    return list(far)


WEIGHTS = {"bias": np.full(600, 0.1, np.float32)}
NEAR_0 = {"weight": np.full((2, 64), 0.1, np.float32), "bias": np.full(2, 0.01, np.float32)}


@pytest.mark.parametrize(
    ("sent", "before", "others", "change", "far"),
    [
        *((WEIGHTS, 0.02, 0.0003, change, far) for change, far in ((0.0017, []), (0.0199, []), (0.0201, [3]))),
        *((WEIGHTS, 0.002, 0.0003, change, far) for change, far in ((0.0019, []), (0.0021, [3]))),
        (WEIGHTS, 0.0003, 0.0003, 0.0017, [3]),
        *((NEAR_0, 0.01, 0.00003, change, far) for change, far in ((0.0028, []), (0.0099, []), (0.0101, [3]))),
    ],
)
def test_once_training_has_settled_no_slight_change_is_far(sent, before, others, change, far):
    """A change of 0.0017, 6 times the others', is not far where most clients have changed as much before; else it is
    what the others' changes make of it. So the bias of a head, of size 0.01, may move as its weights may: a change of
    0.0028 is 93 times the others', a quarter of the bias, and 3 % of the weights."""
    now = dict.fromkeys(range(3), others) | {3: change}
    assert changing(sent, "bias", dict.fromkeys(range(4), before), now) == far


@pytest.mark.parametrize("loud", [1, 2])
def test_who_changes_much_from_the_start_makes_no_change_usual(loud):
    """Weights of size 0.1, which the honest clients change by 0.0003 a round; others by 0.0045 in each."""
    changes = dict.fromkeys(range(5 - loud), 0.0003) | dict.fromkeys(range(5 - loud, 5), 0.0045)
    for rounds in (1, 2, 3):
        sent = {"weight": np.full(6, 0.1, np.float32)}
        assert changing(sent, "weight", *[changes] * rounds) == list(range(5 - loud, 5))


def test_who_says_that_it_has_trained_on_nothing_is_given_no_more_with_each_round():
    """It changes as much as the others for 60 rounds, and then 8 times as much: beyond the factor, as in round 1."""
    sent, guard = {"weight": np.zeros(400, np.float32)}, Guard(5.0)
    for change, far in [(1.0, set())] * 60 + [(8.0, {3})]:
        sizes = {
            client: measure({"weight": np.full(400, size, np.float32)}, updates(weight=(400,)), sent, samples)
            for client, (size, samples) in enumerate([(1.0, 150)] * 3 + [(change, 0)])
        }
        assert guard.reject_outliers(sizes).keys() == far


@pytest.mark.parametrize("said", [None, 0, 9, 2**53])
def test_no_word_of_its_training_lets_a_client_change_ten_times_as_much(said, tmp_path, run_federation):
    """One batch of 8 a round. What it says is within a round's draw, or refused; saying nothing gains nothing."""
    its = config(tmp_path, local_batches=1, batch_size=8, rounds=3)

    class Greedy(Tampering):
        def push_messages(self, messages):
            pushed = list(messages)
            asked = [one for one in pushed if one.metadata.message_type == MessageType.TRAIN]
            self.down = from_record(asked[0].content.array_records[ARRAYS]) if asked else None
            return super().push_messages(pushed)

    def greedy(reply: Message) -> Message:
        arrays = from_record(reply.content.array_records[ARRAYS])
        tenfold = {name: Array(grid.down[name] + 10 * (array - grid.down[name])) for name, array in arrays.items()}
        metrics = {name: value for name, value in reply.content["metrics"].items() if name != SEEN}
        reply.content[ARRAYS] = ArrayRecord(tenfold)
        reply.content["metrics"] = MetricRecord(metrics if said is None else {**metrics, SEEN: said})
        return reply

    grid = Greedy(its, 1, greedy)
    rounds = entries(run_federation(its, grid))
    refused = f"client 1 (mlp): metric 'samples-seen' is {said}, expected at most 9, the samples of a round"
    for entry in rounds[1:]:
        [failure] = entry["failures" if said == 2**53 else "outliers"]
        assert failure["partition"] == 1
        assert failure["reason"] == refused if said == 2**53 else "times the clients' median" in failure["reason"]


# --- whole runs ----------------------------------------------------------------------------------


def filled(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return what fills floating-point arrays with a value."""
    return lambda array: np.full_like(array, value) if array.dtype == np.float32 else array


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, {}) for name in ("fedhe", "chfl", "fedavg", "fedprox", "fedrep")),
        *((name, {}) for name in ("lgfedavg", "heterofl", "fedproto", "fedgh", "fedhenn")),
        *((name, LITTLE[name]) for name in ("fedmd", "feddf")),
        ("fedhe", {"fedhe.mode": "async"}),
        ("fml", {"fml.meme": "mlp"}),
        ("lgfedavg", {"lgfedavg.mode": "body"}),
        ("fedtgp", {"fedtgp.server-epochs": 1}),
        ("fedhenn", {"fedhenn.mode": "homogeneous"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_an_upload_at_the_limit_is_set_aside_by_name(name, keys, tmp_path, run_federation):
    """One of five clients, once, in round 2. The run goes on without that upload, and with the client after it."""
    its = config(tmp_path, algorithm=name, width=8, clients=5, rounds=3, **keys)
    once = iter([False, True, False] + [False] * 9)
    tamper = lambda reply: forged(reply, filled(1e6)) if next(once) else reply  # noqa: E731
    folder = run_federation(its, Tampering(its, 1, tamper))
    [outlier] = [one for entry in entries(folder) for one in entry["outliers"]]
    assert (outlier["partition"], outlier["stage"]) == (1, "train")
    assert "times the clients' median" in outlier["reason"]
    assert "outlier-factor" in outlier["reason"]  # the key that says how far
    shown = load_run(folder).summary
    assert (shown["failures"], shown["left_out"]) == (0, 1)


class Normalizing(torch.nn.Module):
    """The mean and deviation of pixels, frozen, before a model's own layers."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body
        self.mean, self.deviation = (torch.nn.Parameter(torch.tensor([x]), requires_grad=False) for x in (0.3, 0.4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body((inputs - self.mean) / self.deviation)


def normalizing(spec: DataSpec) -> SplitModel:
    """Build a perceptron behind weights that stay as they are."""
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(prod(spec.shape), 16), torch.nn.ReLU())
    return SplitModel(Normalizing(layers), torch.nn.Linear(16, spec.classes))


def test_what_honest_clients_do_not_change_nobody_changes_much(tmp_path, run_federation):
    """One of four, from round 2 on, in the two frozen weights alone: two uploads set aside, and the others' bits."""
    its = config(tmp_path, models="test_guard:normalizing", rounds=3)
    frozen = lambda reply: forged(reply, lambda array: np.full_like(array, 1e5) if array.size == 1 else array)  # noqa: E731
    once = iter([lambda reply: reply, frozen, frozen])
    rounds = entries(run_federation(its, Tampering(its, 2, lambda reply: next(once)(reply))))
    reasons = [[(one["partition"], one["reason"]) for one in line["outliers"]] for line in rounds[2:]]
    assert all(client == 2 and "and most clients' is 0" in reason for [(client, reason)] in reasons)
    assert rounds[-1]["accuracy"] > rounds[1]["accuracy"]


class Boasting(Tampering):
    """Client 1 registers 2^40 rows, for training or testing, and counts them in its replies."""

    def __init__(self, config: RunConfig, rows: str, metrics: dict[str, float]) -> None:
        kind = MessageType.TRAIN if rows == "train" else MessageType.EVALUATE
        super().__init__(config, 1, self._claim, kind)
        self.boasts, self.claims = rows, metrics

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            member = reply.content.config_records.get("member") if reply.has_content() else None
            if member is not None and member["client_id"] == 1:
                member[self.boasts] = 2**40
        return replies

    def _claim(self, reply: Message) -> Message:
        metrics = reply.content.metric_records["metrics"]
        new = {name: value for name, value in self.claims.items() if name in metrics}
        reply.content["metrics"] = MetricRecord({**metrics, **new})
        return reply


def test_who_registers_endless_rows_owns_no_mean(tmp_path, run_federation):
    """Whole epochs, so that the bound of num-examples is that of the registered rows: 2^40 of them are not believed."""
    its = config(tmp_path, local_batches=0)
    for entry in entries(run_federation(its, Boasting(its, "train", {"num-examples": 2**39})))[1:]:
        [failure] = entry["failures"]
        assert failure["partition"] == 1
        assert failure["reason"].endswith("1000 times the median client's: see outlier-factor")


@pytest.mark.parametrize("keys", [{"algorithm": "fedavg"}, {"algorithm": "fedhe", "fedhe.mode": "async"}])
def test_who_registers_endless_test_rows_owns_no_accuracy(tmp_path, run_federation, keys):
    """It claims 2^40 test rows, registered as such, and an accuracy of 0."""
    its = config(tmp_path, local_batches=1, **keys)
    claims = {"num-examples": 2**40, "accuracy": 0.0, "global-accuracy": 0.0}
    rounds = entries(run_federation(its, Boasting(its, "test", claims)))
    assert len(rounds) == 3
    for entry in rounds if keys["algorithm"] == "fedavg" else rounds[::2]:  # asynchronously, after the next upload
        failure, *others = entry["failures"]
        assert others == ([failure] if entry["round"] and keys["algorithm"] != "fedavg" else [])  # due, and at the end
        assert (failure["partition"], failure["stage"]) == (1, "evaluate")
        assert failure["reason"].startswith("client 1 (mlp): metric 'num-examples' is 1099511627776, ")
        assert keys["algorithm"] != "fedavg" or entry["global_accuracy"] > 0.01
        assert "accuracy" not in entry["clients"].get("1", {})


def test_what_the_guards_know_is_part_of_a_checkpoint(tmp_path, run_federation):
    """Sizes know how many uploads and evaluations they are of, so that a run that forgot them would be found out."""
    its = config(tmp_path / "a", algorithm="fedhe", clients=3, local_batches=1)
    run_federation(its)
    parts = Checkpoint.read(run_federation(its.with_values({"rounds": 3, "resume": True})))
    whole = Checkpoint.read(run_federation(its.with_values({"rounds": 3, "output-dir": str(tmp_path / "b")})))
    assert parts.at["counts"]["sizes"] == whole.at["counts"]["sizes"]
    assert parts.at["counts"]["sizes"].keys() == {0, 1, 2}


def test_where_few_are_drawn_the_first_uploads_are_not_taken_on_trust():
    """A fourth of four clients: one a round. While fewer than three sizes are known, none is taken that is unheard of;
    of two clients there is never a third to compare with."""
    four, two = (federation_of(*map(member, range(clients)), fraction=0.25) for clients in (4, 2))
    [failure] = round_of(four, {0: sized(1e6)})
    assert "size 1e+06, more than 100, and too few clients are known to compare it with" in failure.reason
    assert round_of(two, {0: sized(1e6)}) == []


def test_the_sizes_of_clients_that_have_left_are_measures_no_more():
    """Three of five leave, whose sizes were small: what the others send then is not held against these."""
    federation = federation_of(*map(member, range(5)))
    assert round_of(federation, dict.fromkeys(range(5), sized(0.1))) == []
    for node in (100, 99, 98):
        del federation.grid.members[node]
    federation.welcome(1)
    assert round_of(federation, dict.fromkeys((3, 4), sized(80.0))) == []
    assert set(federation.exchange.guard.newest) == {3, 4}


def test_the_first_upload_of_an_asynchronous_run_is_not_taken_on_trust(tmp_path, run_federation):
    """The hostile client answers first, when nobody else is known, and each time after that."""
    keys = {"algorithm": "fedhe", "rounds": 3, "fedhe.mode": "async", "client_seconds": "3,1,3,3"}
    its = config(tmp_path, **keys)
    rounds = entries(run_federation(its, Tampering(its, 1, lambda reply: forged(reply, filled(1e5)))))
    for entry in rounds[1:]:
        assert [outlier["partition"] for outlier in entry["outliers"]] == [1]
        assert all("train-loss" in entry["clients"][honest] for honest in "023")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_upload_that_is_set_aside_has_cost_no_less(mode, tmp_path, run_federation):
    """All networks are the same, and an honest client trains at least once a round."""
    keys = {"algorithm": "fedhe", "rounds": 3, "fedhe.mode": mode, "evaluate_every": 3, "costs": "flops"}
    its = config(tmp_path, **keys)
    rounds = entries(run_federation(its, Tampering(its, 1, lambda reply: forged(reply, filled(1e5)))))
    for entry in rounds[1:3]:
        assert [outlier["partition"] for outlier in entry["outliers"]] == [1]
        assert list(entry["clients"]["1"]) == ["flops"]
        assert entry["clients"]["1"]["flops"] == pytest.approx(
            min(entry["clients"][honest]["flops"] for honest in "023"), rel=0.1
        )


@pytest.mark.parametrize("factor", [0.5, -1.0])
def test_a_factor_below_1_is_refused(factor, refusal):
    assert refusal(ConfigError, RunConfig.from_flat, {"outlier-factor": factor}).startswith("outlier-factor = ")


# --- public samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedmd", "agg", "fedhenn"])
def test_public_rows_that_are_far_are_set_aside_and_the_others_train(name, tmp_path, run_federation):
    """One value of 1e12 in one column of one client's table: that client is named, in the others it changes nothing."""
    its = config(tmp_path, algorithm=name, dataset="breast-cancer", **LITTLE.get(name, {}))

    def huge(reply: Message) -> Message:
        arrays = from_record(reply.content.array_records[ARRAYS])
        arrays["inputs"][0, 3] = 1e12
        reply.content[ARRAYS] = to_record(arrays)
        return reply

    rounds = entries(run_federation(its, Tampering(its, 1, huge, SHARE)))
    for entry in rounds[::2]:  # it is asked again with each welcome, from round 2 on
        [failure] = entry["failures"]
        assert (failure["partition"], failure["stage"]) == (1, "sharing of public samples")
        assert "array 'inputs, column 3' has size" in failure["reason"]
        assert failure["reason"].endswith("public samples are refused; outlier-factor = 0 lets them pass")
    assert all("train-loss" in rounds[-1]["clients"][other] for other in "023")


def test_public_rows_beyond_a_hundred_deviations_are_cut_on_the_node():
    """Two clients are too few to say who is wrong. Of a column with mean 6 and deviation 2, 1e12 becomes 206, and a
    column of one number only stays as it was."""
    table = Arrays(
        DataSpec((2,), 2),
        inputs=torch.tensor([[4.0, 7.0], [8.0, 7.0]]),
        labels=torch.tensor([0, 1]),
        train_rows=2,
        peak=torch.tensor([2.0, torch.inf]),
        centre=torch.tensor([3.0, 0.0]),
    )
    own = Samples(table, torch.tensor([0, 1]))
    theirs = own.like(torch.tensor([[1e12, 1e12], [-1e12, 5.0], [10.0, 7.0]]), torch.tensor([0, 1, 1]))
    assert theirs.stored()[0].tolist() == [[206.0, pytest.approx(1e12)], [-194.0, 5.0], [10.0, 7.0]]
    assert theirs.batch(torch.arange(3))[0].tolist() == [[100.0, 0.0], [-100.0, 0.0], [2.0, 0.0]]


def test_sizes_of_the_clients_that_came_last_are_kept(monkeypatch):
    monkeypatch.setattr("hetfl_flwr.server.guard.MAX_KNOWN", 4)
    guard = Guard(5.0)
    for clients in ((0, 1), (2, 3), (4, 5), (2,)):
        assert guard.reject_outliers({client: {"logits": Size(1.0)} for client in clients}) == {}
    assert list(guard.newest) == [3, 4, 5, 2]
    assert guard.reject_outliers({9: {"logits": Size(100.0)}}) != {}
    assert list(guard.newest) == [3, 4, 5, 2]
    guard.reject_outliers(uploads(*[1.0] * 6))  # a round of more
    assert list(guard.newest) == [0, 1, 2, 3, 4, 5]
