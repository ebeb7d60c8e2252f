"""A corpus of bad uploads, thrown at every algorithm: each is refused alone and by name, and changes nothing else."""

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from fixtures.federations.grids import Meddled, Tampering, little
from fixtures.wrong.peers import CASES, ODD, npy, raw
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.learning.training import draw_batches, max_drawn
from hetfl_flwr.methods import build_strategy, names
from hetfl_flwr.server.exchange import LONGEST_REASON, Outcome
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import InFlight
from hetfl_flwr.wire.codec import NPY_HEADER, decode, from_record, payload_bytes, payload_numbers
from hetfl_flwr.wire.messages import ARRAYS, METRICS, SHARE
from hetfl_flwr.wire.spec import ArraySpec, Dim, PayloadSpec
from hetfl_flwr.wire.weights import state_arrays, weights, whole_state
from simulations.testing.contract import entries, train

ALGORITHMS = names()
SHARING = [name for name in ALGORITHMS if build_strategy(RunConfig(algorithm=name)).sharing]


def small(name: str, **keys: Any) -> RunConfig:
    """Return a config of three clients and hardly any work."""
    return RunConfig.from_flat({**little(name), **{key.replace("_", "-"): value for key, value in keys.items()}})


class Trained:
    """A federation after the training of round 1: what was sent, and what honest clients have answered."""

    def __init__(self, name: str, **keys: Any) -> None:
        config, sent, came = small(name, **keys), list[Message](), list[Message]()
        grid = Meddled(
            config, asked=lambda grid, message: sent.append(message), answered=lambda reply: came.append(reply) or reply
        )
        self.strategy = build_strategy(config)
        self.federation = Federation(grid, config, self.strategy)
        self.federation.registration.assemble()
        self.arrays = self.strategy.prepare(self.federation.roster, config)
        self.federation.samples.share()
        sent.clear(), came.clear()
        train(self.federation, self.strategy, self.arrays)
        self.sent, self.honest = (
            sorted(those, key=lambda one: max(one.metadata.src_node_id, one.metadata.dst_node_id))
            for those in (sent, came)
        )
        self.spec = self.strategy.upload_spec(self.member(1))

    def member(self, client_id: int) -> Member:
        """Return a client."""
        return self.federation.roster.of(self.sent[client_id].metadata.dst_node_id)

    def judged(self, answer: Message) -> Outcome:
        """Judge an answer of client 1 between those of the others."""
        result, exchange = Outcome(), self.federation.exchange
        for client_id, reply in enumerate([self.honest[0], answer, self.honest[2]]):
            message = self.sent[client_id]
            download = from_record(message.content.array_records[ARRAYS])
            sent = InFlight(self.member(client_id), MessageType.TRAIN, 1, download, asked=message.metadata, reply=reply)
            exchange.judge(sent, result)
        return result

    def answer(self, content: RecordDict) -> Message:
        """Return content as an answer of client 1."""
        return Message(content, reply_to=self.sent[1])

    def forged(self, case: str) -> list[Message]:
        """Return a case's replies."""
        return [self.answer(bad) for bad in CASES[case].forge(self.honest[1].content, self.spec)]


trained = cache(Trained)


def wrong(federation: Trained, answer: Message, said: str) -> str | None:
    """Return what is wrong with the refusal of an answer."""
    result = federation.judged(answer)
    if [reply.client_id for reply in result.replies] != [0, 2]:
        return "it is taken, or an honest one is not"
    [failure] = result.failures
    reason = failure.reason
    named = (failure.client_id, failure.stage) == (1, "train") and reason.startswith("client 1 (")
    plain = reason.isprintable() and len(reason) <= LONGEST_REASON
    return None if named and plain and any(part in reason for part in said.split("|")) else reason


# --- one reply -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_bad_upload_is_refused_by_name_and_the_others_are_kept(name):
    federation = trained(name)
    found = {
        (case, index): fault
        for case, one in CASES.items()
        for index, answer in enumerate(federation.forged(case))
        if (fault := wrong(federation, answer, one.said)) is not None
    }
    assert found == {}


def test_every_case_of_the_corpus_can_happen():
    assert [case for case in CASES if not any(trained(name).forged(case) for name in ALGORITHMS)] == []
    assert len(CASES) > 60


WORK: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{"fedavg.exchange-every": 4}],
    "fedprox": [{"fedprox.exchange-every": 3, "fedprox.mu": 0.1}],
    "fedrep": [{"fedrep.head-epochs": 3}],
    "fedh2l": [{"fedh2l.exchange-every": 4}, {"fedh2l.public-labels": False}],
    "fedhe": [{"fedhe.mode": "async"}, {"augment": "flip"}],
    "fedmd": [{"fedmd.private": "without-public", "public-fraction": 0.5}],
    "dsfl": [{"dsfl.private": "without-public", "public-fraction": 0.5}],
    "fedhenn": [{"fedhenn.mode": "homogeneous", "models": "mlp"}],
    "chfl": [{"chfl.mode": "avgkd"}],
    "lgfedavg": [{"lgfedavg.mode": "body", "models": "mlp"}],
}
"""Options of algorithms that change what is trained on, or by whom it is weighed."""

LENGTHS: list[dict[str, Any]] = [
    {},
    {"local-batches": 3, "batch-size": 50},
    {"local-batches": 7, "batch-size": 200},
    {"local-batches": 5, "batch-size": 418},
    {"local-batches": 4, "batch-size": 1},
    {"local-batches": 0, "local-epochs": 2, "batch-size": 64},
]
"""Rounds of batches and of epochs. Of 419 rows, 418 leave one over, which joins the batch before it."""


def claiming(federation: Trained, **claims: int) -> Message:
    """Return client 1's honest answer with other numbers."""
    content = federation.honest[1].content
    said = {name.replace("_", "-"): number for name, number in claims.items()}
    return federation.answer(
        RecordDict({**content, METRICS: MetricRecord({**content.metric_records[METRICS], **said})})
    )


@pytest.mark.parametrize(
    ("name", "keys"), [(name, keys) for name in ALGORITHMS for keys in [*LENGTHS, *WORK.get(name, [])]]
)
def test_a_client_says_no_more_samples_than_its_rows_and_the_run_allow(name, keys):
    """One more than that is refused; honest clients stay within it, whatever their local work."""
    if keys.get("batch-size") == 1:  # batch norm cannot train on one sample
        keys = {
            **keys,
            "models": "mlp",
            **{key: "mlp" for key in ("fml.meme", "fedkd.mentee") if key.startswith(f"{name}.")},
        }
    federation = Trained(name, **keys, **{"outlier-factor": 0.0})
    assert len(federation.honest) == 3
    for client_id, reply in enumerate(federation.honest):
        member = federation.member(client_id)
        most, said = federation.strategy.sample_limits(member), reply.content.metric_records[METRICS]
        assert said["num-examples"] == most.samples == member.train
        assert 0 < said["samples-seen"] <= most.seen
        assert most.seen <= 1.6 * said["samples-seen"]
    metrics = federation.honest[1].content.metric_records[METRICS]
    for number, largest in (("num-examples", most.samples), ("samples-seen", most.seen)):
        for claimed, taken in ((metrics[number], 3), (largest, 3), (largest + 1, 2), (2**53, 2)):
            result = federation.judged(claiming(federation, **{number: claimed}))
            assert len(result.replies) == taken
            reasons = [failure.reason for failure in result.failures]
            assert all(f"metric '{number}' is {claimed}, expected at most {largest}, " in reason for reason in reasons)


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 8, 9, 10, 16, 17, 100])
@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_no_round_draws_more_than_the_bound_of_as_many_samples_or_more(samples, size):
    rng = np.random.default_rng(0)
    for epochs, batches in [(1, 0), (3, 0), (1, 1), (1, 2), (5, 3), (1, 13)]:
        config = RunConfig(batch_size=size, local_epochs=epochs, local_batches=batches)
        drawn = sum(map(len, draw_batches(rng, samples, size, epochs=epochs, batches=batches)))
        assert drawn <= max_drawn(config, samples) <= max_drawn(config, samples + 1)
        assert drawn == max_drawn(config, samples) or batches
        twice = sum(map(len, draw_batches(rng, samples, size, epochs=2 * epochs, batches=2 * batches)))
        assert twice <= max_drawn(config, samples, times=2)


@pytest.mark.parametrize("weighting", ["uploads", "samples"])
def test_the_counts_of_classes_add_up_to_no_more_than_a_round_draws(weighting):
    """A round is one batch of 8 or 9; ten classes may be counted once each, as where noise makes up for them."""
    federation = Trained("fedhe", **{"fedhe.weighting": weighting})
    content = federation.honest[1].content
    honest = from_record(content.array_records[ARRAYS])
    assert honest["counts"].sum() == 8
    for counts, taken in (([9, 1] + [0] * 8, 3), ([1] * 10, 3), ([9, 2] + [0] * 8, 2), ([2**62] * 10, 2)):
        forged = {"logits": honest["logits"], "counts": np.array(counts)}
        record = ArrayRecord({name: Array(array) for name, array in forged.items()})
        result = federation.judged(federation.answer(RecordDict({**content, ARRAYS: record})))
        assert len(result.replies) == taken
        for failure in result.failures:
            assert failure.reason.startswith("client 1 (")
            assert f"array 'counts' adds up to {sum(counts):.15g}, expected at most 10" in failure.reason


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_evaluation_counts_no_more_than_the_registered_test_samples(name, tmp_path, run_federation):
    """Honest clients say that number; one more, which its other rows would allow, is refused in round 2."""
    heard = []

    def claims(reply: Message) -> None:
        metrics = reply.content.metric_records[METRICS]
        heard.append(metrics["num-examples"])
        reply.content[METRICS] = MetricRecord({**metrics, "num-examples": heard[-1] + (len(heard) == 3)})

    keys = {"validation-fraction": 0.2, "keep-best": True, "rounds": 2, "output-dir": str(tmp_path)}
    config = small(name, **keys)
    rounds = entries(run_federation(config, Tampering(config, 1, each_round([claims] * 3), MessageType.EVALUATE)))
    assert [entry["failures"] for entry in rounds[:2]] == [[], []]
    [failure] = rounds[2]["failures"]
    assert (failure["partition"], failure["stage"]) == (1, "evaluate")
    said = f"metric 'num-examples' is {heard[2] + 1}, expected at most {heard[2]}, the number of test samples"
    assert said in failure["reason"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_odd_upload_is_taken_and_leaves_everything_finite(name):
    """Denormals, zeros below zero and whatever lies at a limit: the server state stays finite."""
    federation = trained(name)
    for case, forge in ODD.items():
        for content in forge(federation.honest[1].content, federation.spec):
            result = federation.judged(federation.answer(content))
            assert result.failures == [], case
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                learnt = federation.strategy.learn(federation.arrays, result.replies, 1)
            for array, values in learnt.items():
                assert np.isfinite(values).all(), (case, array)


STAMPS = {
    "in another node's name": ("src_node_id", 5),
    "to another node": ("dst_node_id", 9),
    "of another run": ("run_id", 8),
    "of another type": ("message_type", "evaluate"),
    "of another group": ("group_id", "x\ny"),
    "dead": ("ttl", -1.0),
}


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("failed", [False, True])
def test_a_reply_with_a_forged_stamp_is_refused(stamp, failed):
    federation = trained("fedhe")
    answer = federation.answer(federation.honest[1].content)
    answer = Message(Error(2, "broke"), reply_to=federation.sent[1]) if failed else answer
    field, value = STAMPS[stamp]
    answer.metadata.__dict__[f"_{field}"] = value
    uploads = dict(federation.federation.uploads.counts)
    assert wrong(federation, answer, "forged metadata") is None
    assert federation.federation.uploads.counts == uploads


def test_an_error_of_any_length_and_kind_is_one_line():
    federation = trained("local")
    answer = Message(Error(3, "\x1b[2J it\nbroke " * 100_000), reply_to=federation.sent[1])
    assert wrong(federation, answer, "it broke") is None


class Twice(Meddled):
    """Delivers each reply twice."""

    def pull_messages(self, message_ids):
        return super().pull_messages(message_ids) * 2


# --- whole runs ----------------------------------------------------------------------------------


def each_round(changes: list[Callable[[Message], None]]) -> Callable[[Message], Message]:
    """Change the reply of the first round in the first way, and so on; then none."""
    left: Iterator[Callable[[Message], None]] = iter(changes)

    def tamper(reply: Message) -> Message:
        next(left, lambda reply: None)(reply)
        return reply

    return tamper


def fails(reply: Message) -> None:
    reply.__dict__["_content"] = None
    reply.error = Error(3, "not there")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_with_bad_uploads_is_the_run_in_which_they_are_missing(name, tmp_path, run_federation):
    """Three bad uploads of client 1, in rounds 1 to 3, and good ones of all clients in round 4. Bit for bit."""
    spec = trained(name).spec
    kinds = ["NaN", "one byte more", "number of samples below 0"] if spec.arrays else list(CASES)[-3:]

    def forge(kind: str) -> Callable[[Message], None]:
        def change(reply: Message) -> None:
            reply.content = next(iter(CASES[kind].forge(reply.content, spec)))

        return change

    runs = {}
    for run, changes in {"bad": [forge(kind) for kind in kinds], "missing": [fails] * 3}.items():
        config = small(name, rounds=4, output_dir=str(tmp_path / run))
        runs[run] = run_federation(config, Tampering(config, 1, each_round(changes)))

    bad, missing = (entries(folder) for folder in runs.values())
    for entry, kind in zip(bad[1:4], kinds, strict=True):
        [failure] = entry["failures"]
        assert failure["partition"] == 1
        assert CASES[kind].said in failure["reason"]
    assert bad[4]["failures"] == bad[0]["failures"] == []
    assert "train-loss" in bad[4]["clients"]["1"]
    assert [entry["clients"] for entry in bad] == [entry["clients"] for entry in missing]
    server_state = [(folder / "knowledge.safetensors").read_bytes() for folder in runs.values()]
    assert server_state[0] == server_state[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_metrics_of_one_client_alone_end_no_run(name, tmp_path, run_federation):
    def measures_otherwise(reply: Message) -> None:
        metrics = dict(reply.content.metric_records[METRICS])
        del metrics["train-loss"]
        reply.content[METRICS] = MetricRecord({**metrics, "mood": 1.0})

    config = small(name, rounds=1, output_dir=str(tmp_path))
    rounds = entries(run_federation(config, Tampering(config, 1, each_round([measures_otherwise]))))
    assert rounds[1]["failures"] == []
    assert rounds[1]["clients"]["1"]["mood"] == 1.0
    assert rounds[1]["clients"]["2"]["train-loss"] > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_the_first_of_two_replies_to_a_message_counts(mode, tmp_path, run_federation):
    """Three uploads a round, of 480 bytes each."""
    config = small("fedhe", rounds=2, output_dir=str(tmp_path), **{"fedhe.mode": mode})
    rounds = entries(run_federation(config, Twice(config)))
    assert [(entry["failures"], entry["bytes_up"] // 480) for entry in rounds] == [([], 0), ([], 3), ([], 3)]


@pytest.mark.parametrize("name", SHARING)
def test_a_client_whose_public_rows_are_bad_is_left_out_until_it_has_sent_good_ones(name, tmp_path, run_federation):
    def cut(reply: Message) -> None:
        arrays = from_record(reply.content.array_records[ARRAYS])
        reply.content[ARRAYS] = ArrayRecord({key: Array(array[1:]) for key, array in arrays.items()})

    config = small(name, rounds=2, output_dir=str(tmp_path))
    rounds = entries(run_federation(config, Tampering(config, 1, each_round([cut]), SHARE)))
    [failure] = rounds[0]["failures"]
    assert (failure["partition"], failure["stage"]) == (1, "sharing of public samples")
    assert "array 'inputs' has shape" in failure["reason"]
    assert ["train-loss" in entry["clients"]["1"] for entry in rounds] == [False, True, True]
    assert all("train-loss" in entry["clients"][other] for entry in rounds[1:] for other in "02")
    assert rounds[1]["failures"] == rounds[2]["failures"] == []


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("declare", [weights, whole_state])
def test_weights_that_have_diverged_are_refused_and_large_running_statistics_are_not(refusal, declare):
    """Of inputs with a deviation of 10,000 the running variance is 1e8."""
    model = nn.BatchNorm1d(2)
    good = state_arrays(model)
    arrays = {name: good[name] for name in declare(model).names}
    declare(model).check_named({**arrays, "running_var": np.float32([1e8, 1e8])}, "x")
    over = {**arrays, "weight": np.float32([1, -2e6])}
    assert "'weight'" in refusal(PayloadError, declare(model).check_named, over, "x")


# --- memory --------------------------------------------------------------------------------------

SPEC = PayloadSpec((ArraySpec("logits", (10, 25), "float32"),))
LOGITS = np.arange(250, dtype=np.float32).reshape(10, 25)
MUCH = 200 << 20


ROWS = PayloadSpec((ArraySpec("logits", (Dim("R", 2**30), 1), "uint8"),))

PROMISES: dict[str, tuple[PayloadSpec, Callable[[], bytes], str]] = {
    "declared in the header": (SPEC, lambda: npy(LOGITS, shape=(10, MUCH // 40)), "has shape (10, 5242880)"),
    "not there": (SPEC, lambda: npy(LOGITS)[:-1], "999 bytes follow the header, expected 1000"),
    "of a size that only the sender knows": (  # a billion rows are allowed, a billion are declared, and 1 kB came
        ROWS,
        lambda: npy(np.zeros(1000, np.uint8), shape=(2**30, 1)),
        "1000 bytes follow the header, expected 1073741824",
    ),
    "200 MB for 1 kB": (SPEC, lambda: npy(LOGITS) + bytes(MUCH), "bytes follow the header, expected 1000"),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_what_a_header_promises_is_checked_before_memory_is_set_aside(refusal, monkeypatch, promise):
    spec, forge, said = PROMISES[promise]
    forged = ArrayRecord({"logits": raw(forge(), LOGITS)})
    monkeypatch.setattr(np, "load", lambda *args, **keys: pytest.fail("opened"))
    tracemalloc.start()
    line = refusal(PayloadError, decode, spec, forged, "client 3")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line.startswith("client 3: array 'logits' ")
    assert said in line
    assert peak < 100_000


# --- any bytes at all ----------------------------------------------------------------------------

GOOD = npy(LOGITS)
HEADERS = st.text(alphabet="{}()[],:'\" \n-0123456789abcdefoxlLTrue_<>|f4", max_size=NPY_HEADER + 100)


def with_header(text: str) -> bytes:
    header = text.encode("latin1", "replace")
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + LOGITS.tobytes()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good file of which some bytes are replaced, removed or repeated."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)) | st.integers(0, min(128, len(data))))
        end = draw(st.integers(start, min(start + 8, len(data))))
        data[start:end] = draw(st.binary(max_size=12))
    return bytes(data)


SHAPES = st.lists(st.integers(-(2**70), 2**70) | st.integers(-3, 30) | st.booleans(), max_size=5).map(tuple)


@given(
    st.binary(max_size=300)
    | mutated()
    | st.integers(0, len(GOOD)).map(lambda end: GOOD[:end])
    | HEADERS.map(with_header)
    | SHAPES.map(lambda shape: npy(LOGITS, shape=shape))
)
def test_any_bytes_give_the_array_or_a_payload_error_in_little_memory(data):
    """Never another exception, never a warning, and never more memory than the bytes that came and a parsed header."""
    forged = ArrayRecord({"logits": raw(data, LOGITS)})
    message = Message(RecordDict({ARRAYS: forged}), 1, MessageType.TRAIN)
    assert payload_numbers(message) <= len(data)
    assert payload_bytes(message) <= len(data)
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decoded = decode(SPEC, forged, "client 3")["logits"]
    except PayloadError as error:
        assert str(error).startswith("client 3: array 'logits' ")  # noqa: PT017 (the array is the other good end)
    else:
        assert (decoded.shape, decoded.dtype) == (LOGITS.shape, LOGITS.dtype)
        assert np.isfinite(decoded).all()
        assert decoded.tobytes(order="A") == data[-LOGITS.nbytes :]
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + "f" * 900 + ",), }\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10L, 25L), }\n",
        "{'descr': [('', '<f4')] , 'fortran_order': False, 'shape': (10, 25), }\n",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (10, 25), }\n",
        *("[" * 500 + "]" * 500, "-" * 900 + "1", "(" * 60_000),
    ],
    ids=["a number too long to print", "Python 2", "a field without a name", "no dtype", *("deep", "signs", "open")],
)
def test_headers_that_need_care_are_refused_without_a_warning(refusal, recwarn, text):
    refusal(PayloadError, decode, SPEC, ArrayRecord({"logits": raw(with_header(text), LOGITS)}), "client 3")
    assert [str(one.message) for one in recwarn] == []
