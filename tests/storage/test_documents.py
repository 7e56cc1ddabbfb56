import math
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.errors import StorageError
from thunder_tune.storage import documents
from thunder_tune.values.trial import Accuracy


def bits(samples):
    return struct.pack(f"<{len(samples)}d", *samples)


@given(st.lists(st.floats() | st.floats(width=32)))
def test_repeats_come_back_to_the_bit(samples):
    assert bits(documents.unpack(*documents.pack(samples))) == bits(samples)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_32_bit_floats_take_half_the_space(samples):
    encoding, blob = documents.pack(samples)
    assert encoding == "f4"
    assert len(zlib.decompress(blob)) == 4 * len(samples)


@pytest.mark.parametrize("sample", [0.1, 1e300, 5e-324])
def test_one_wide_float_keeps_all_wide(sample):
    assert documents.pack([1.0, sample])[0] == "f8"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_floats_that_json_lacks_are_strict_json_and_come_back(number):
    text = documents.encode({"error_ratio": number, "relative_error": 0.5, "cosine": 1.0})
    assert text.isascii()
    tree = documents.decode(text)
    assert isinstance(tree["error_ratio"], str)
    found = documents.value(Accuracy, tree).error_ratio
    assert found == number or (math.isnan(found) and math.isnan(number))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda: documents.decode("{"), "damaged: not JSON"),
        (lambda: documents.value(Accuracy, {"cosine": 1}), "damaged: not a valid Accuracy"),
        (lambda: documents.decompress(b"{}"), "damaged: Error -3"),
        (lambda: documents.unpack("f4", zlib.compress(b"abc")), "damaged: 3 bytes of f4"),
        (lambda: documents.unpack("f2", zlib.compress(b"")), "unknown encoding 'f2'"),
    ],
)
def test_damaged_documents_are_told(read, said):
    with pytest.raises(StorageError, match=said):
        read()
