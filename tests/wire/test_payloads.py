import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch import nn

from hetfl_flwr.errors import PayloadError
from hetfl_flwr.wire.codec import (
    arrays_wire_bytes,
    decode,
    from_record,
    payload_bytes,
    to_record,
    wire_bytes,
)
from hetfl_flwr.wire.spec import ArraySpec, Dim, PayloadSpec
from hetfl_flwr.wire.weights import load_model_arrays, model_arrays, weights

SPEC = PayloadSpec((ArraySpec("logits", (2, 3), "float32"), ArraySpec("counts", (2,), "int64", minimum=0)))
LOGITS, COUNTS = np.zeros((2, 3), np.float32), np.array([0, 4])


def record(logits, counts=COUNTS):
    return ArrayRecord({"logits": logits, "counts": Array(counts)})


def test_a_payload_as_declared_is_let_through_unchanged(refusal):
    """Counts may be 0, and not less."""
    decoded = decode(SPEC, to_record(SPEC.check_named({"logits": LOGITS, "counts": COUNTS}, "here")), "client 0")
    assert list(decoded) == ["logits", "counts"]
    assert decoded["logits"].dtype == np.float32
    assert decoded["counts"].tolist() == [0, 4]
    assert "below 0" in refusal(PayloadError, decode, SPEC, record(Array(LOGITS), np.array([3, -1])), "x")
    assert "below 0.5" in refusal(PayloadError, ArraySpec("a", (1,), "float32", 0.5).check, np.zeros(1, np.float32), "")


@given(
    st.lists(
        arrays_of.arrays(
            st.sampled_from([np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_]),
            arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
            elements={"allow_nan": False, "allow_infinity": False},
        ),
        max_size=4,
    )
)
def test_any_payload_comes_back_bit_for_bit(arrays):
    named = {f"array.{index}": array for index, array in enumerate(arrays)}
    spec = PayloadSpec(tuple(ArraySpec(name, array.shape, str(array.dtype)) for name, array in named.items()))
    sent = to_record(spec.check_named(named, "here"))
    for decoded in (decode(spec, sent, "there"), from_record(sent)):
        assert list(decoded) == list(named)
        for name, array in named.items():
            assert (decoded[name].shape, decoded[name].dtype) == (array.shape, array.dtype)
            assert decoded[name].tobytes() == array.tobytes()
    assert payload_bytes(Message(RecordDict({"arrays": sent}), 1, "train")) == spec.nbytes


def parts(thing):
    """Every object of a message once, by the id of its content: Flower sends equal chunks once."""
    found = {thing.object_id: len(thing.deflate())}
    for child in (thing.children or {}).values():
        found |= parts(child)
    return found


def message(arrays, **more):
    return Message(RecordDict({"arrays": to_record(arrays), **more}), 1, "train")


def test_wire_bytes_are_the_sum_of_the_parts_that_flower_sends():
    """NumPy pads the header to whole 64 bytes: 128 for few dimensions, 192 for thirty; an error has no payload."""
    arrays = {"a": np.arange(50.0), "same as a": np.arange(50.0), "b": np.arange(3)}
    sent = message(arrays, config=ConfigRecord({"server-round": 3}))
    assert wire_bytes(sent) == sum(parts(sent).values())
    assert payload_bytes(sent) == 2 * 400 + 24
    assert wire_bytes(sent) > 400 + 24 + 2 * 128  # the content and header of each distinct array, and more
    deep = {"a": np.zeros((1,) * 30, np.float32)}
    assert len(to_record(deep)["a"].data) == 192 + 4
    assert payload_bytes(message(deep)) == 4
    reply = Message(Error(0, "no"), reply_to=Message(RecordDict(), 1, "train"))
    assert payload_bytes(reply) == 0 < wire_bytes(reply)


LARGE = np.random.default_rng(0).normal(size=(3, 500_000)).astype(np.float32)
"""6 MB: two chunks."""


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a": np.zeros((0, 3)), "b": np.zeros((0, 3)), "c": np.float32(1)},
        {"a": np.ones(4), "b": np.ones(4), "c": np.zeros(4), "d": np.ones((4, 1))},
        {"a": LARGE, "b": np.zeros(5)},
        {"a": LARGE, "same as a": LARGE, "b": LARGE * 2},
        {"zeros": np.zeros((4, 1_000_000), np.float32), "more": np.zeros((8, 1_000_000), np.float32)},
        {f"{name} \u00e9": np.arange(7) for name in range(12)},
    ],
    ids=range(7),
)
def test_wire_bytes_of_arrays_are_those_of_their_record(arrays):
    """Flower sends what is equal once: arrays, and chunks of large arrays. Asked again, with other numbers, too."""
    for values in (arrays, arrays, {name: np.asarray(array + 1, array.dtype) for name, array in arrays.items()}):
        assert arrays_wire_bytes(values) == sum(parts(to_record(values)).values())


def batch_normed():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_loading_weights_leaves_the_integer_buffers_and_copies_the_rest():
    """Linear 2 x 3 + 3, batch norm 4 x 3: 21 numbers of 4 bytes; num_batches_tracked stays at home."""
    source, target = batch_normed(), batch_normed()
    spec = weights(source)
    assert spec.names == ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    assert spec.nbytes == 84
    source(torch.randn(4, 2))
    sent = model_arrays(source)
    before = {name: array.copy() for name, array in sent.items()}
    load_model_arrays(target, sent)
    assert [int(model[1].num_batches_tracked) for model in (source, target)] == [1, 0]
    assert all(np.array_equal(array, sent[name]) for name, array in model_arrays(target).items())
    target(torch.randn(4, 2))
    with torch.no_grad():
        target[0].weight += 1
        source[0].weight += 1
    assert all(np.array_equal(array, before[name]) for name, array in sent.items())


ROWS = Dim("R", 4)
FREE = PayloadSpec((ArraySpec("indices", (ROWS,), "int32", 0, 9), ArraySpec("values", (ROWS, 2), "float32")))


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_size_that_only_the_sender_knows_may_be_any_up_to_its_limit(rows):
    arrays = [np.zeros(rows, np.int32), np.zeros((rows, 2), np.float32)]
    sent = to_record(FREE.check_named(dict(zip(FREE.names, arrays, strict=True)), "x"))
    assert [len(array) for array in decode(FREE, sent, "x").values()] == [rows, rows]


@pytest.mark.parametrize(
    ("indices", "values", "said"),
    [
        (np.zeros(5, np.int32), np.zeros((5, 2), np.float32), "'indices' has shape (5,)"),
        (np.zeros(3, np.int32), np.zeros((3, 3), np.float32), "'values' has shape (3, 3)"),
        (np.zeros(3, np.int32), np.zeros((2, 2), np.float32), "'values' has R = 2"),
        (np.zeros((), np.int32), np.zeros((2, 2), np.float32), "'indices' has shape ()"),
        (np.full(2, 10, np.int32), np.zeros((2, 2), np.float32), "'indices' has values above 9"),
        (np.full(2, -1, np.int32), np.zeros((2, 2), np.float32), "'indices' has values below 0"),
    ],
)
def test_sizes_and_values_out_of_bounds_are_named(refusal, indices, values, said):
    assert said in refusal(PayloadError, FREE.check_named, {"indices": indices, "values": values}, "client 3")


POSTERIORS = ArraySpec("posteriors", (2, 2), "float32", sums_to_one=True)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0.5, 0.5], [0.6, 0.5]], "off by 0.1"),
        ([[0.5, 0.5], [0.4, 0.5]], "off by 0.1"),
        ([[0.5, 0.5], [1.5, -0.5]], "below 0"),
        ([[0.5, 0.5], [0.5, 0.5 + 2e-4]], "off by 0.0002"),
    ],
)
def test_rows_that_are_no_distribution_are_refused(refusal, rows, said):
    assert said in refusal(PayloadError, POSTERIORS.check, np.float32(rows), "client 1")
