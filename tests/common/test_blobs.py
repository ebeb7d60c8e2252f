"""One format for all that a run keeps: a file is read as it was written, or refused in one line."""

import json

import numpy as np
import pytest

from hetfl_flwr.common import blobs
from hetfl_flwr.common.blobs import pack, read_blob, unpack, verified
from hetfl_flwr.errors import DamagedError

ARRAYS = {
    "wide": np.arange(6.0).reshape(2, 3).T,
    "bits": np.array([True, False]),
    "one": np.array(2**62),
    "none": np.zeros((0, 3), np.float32),
}
VALUES = {"round": 3, "names of classes": ["a", "\u00e9"]}
WHOLE = pack("test", VALUES, ARRAYS)


def test_what_was_packed_is_unpacked_in_its_order_with_types_and_shapes():
    values, arrays, checksum = unpack(WHOLE, "test")
    assert values.items() >= VALUES.items()
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)
    assert checksum == verified(WHOLE, "test")["checksum"]


def test_equal_content_gives_equal_bytes_and_other_content_another_checksum():
    assert pack("test", VALUES, ARRAYS) == WHOLE
    other = pack("test", VALUES, {**ARRAYS, "bits": np.array([True, True])})
    assert unpack(other, "test").checksum != unpack(WHOLE, "test").checksum
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack("test", {"loss": float("nan")}, {})


def test_each_single_bit_that_changes_is_noticed():
    for place in range(len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[place] ^= 1
        with pytest.raises(DamagedError):
            unpack(bytes(damaged), "test")


def with_header(inner: str) -> bytes:
    header = json.dumps({"__metadata__": {"test": inner}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        *(WHOLE[: len(WHOLE) // 2], WHOLE[:-1], WHOLE[:5], b"", b"\xff" * 100, bytes(100), WHOLE + b"x"),
        *map(with_header, ("[]", "3", "[" * 10**5, "{", '"x"', '{"checksum": 3, "layout": 4}', '{"checksum": ""}')),
    ],
)
def test_what_is_cut_or_of_something_else_is_refused(content, tmp_path, refusal):
    refusal(DamagedError, unpack, content, "test")
    (tmp_path / "file").write_bytes(content)
    line = refusal(DamagedError, read_blob, tmp_path / "file", "test")
    assert line.startswith(f"{tmp_path / 'file'}: damaged (")


def test_another_kind_or_layout_is_refused(refusal, monkeypatch):
    refusal(DamagedError, unpack, WHOLE, "other")
    monkeypatch.setattr(blobs, "LAYOUT", blobs.LAYOUT + 1)
    assert "layout" in refusal(DamagedError, unpack, WHOLE, "test")
