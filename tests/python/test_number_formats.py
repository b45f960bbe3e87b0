# SPDX-License-Identifier: Apache-2.0
"""Compares quire's number formats with numpy's float16 and with ml_dtypes.

quire's side comes from the tool number_formats_dump, whose head describes the bytes; its path is
in QUIRE_NUMBER_FORMATS_DUMP.
"""

import os
import subprocess

import pytest

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

# Name of the format, the other library's type, its unsigned bits.
FORMATS = [
    ("f16", np.float16, np.uint16),
    ("bf16", ml_dtypes.bfloat16, np.uint16),
    ("f8e4m3", ml_dtypes.float8_e4m3fn, np.uint8),
    ("f8e5m2", ml_dtypes.float8_e5m2, np.uint8),
]
EIGHT_BIT_FLOATS = [entry for entry in FORMATS if entry[2] is np.uint8]


def dump(name, bits_type):
    """Returns (decoded float32 by code, encoded bits of the floats of encoded_floats())."""
    tool = os.environ.get("QUIRE_NUMBER_FORMATS_DUMP")
    if not tool:
        pytest.skip("QUIRE_NUMBER_FORMATS_DUMP does not name the built number_formats_dump")
    raw = subprocess.run([tool, name], check=True, stdout=subprocess.PIPE).stdout
    num_codes = np.iinfo(bits_type).max + 1
    decoded = np.frombuffer(raw, np.float32, num_codes)
    encoded = np.frombuffer(raw, bits_type, offset=decoded.nbytes)
    return decoded, encoded


def encoded_floats():
    upper = np.arange(1 << 20, dtype=np.uint32)[:, None] << np.uint32(12)
    lower = np.array([0x000, 0x001, 0xFFF], np.uint32)
    return (upper | lower).reshape(-1).view(np.float32)


def assert_equal_or_both_nan(ours, theirs, inputs):
    nan = np.isnan(ours) & np.isnan(theirs)
    bits = np.dtype(f"u{ours.dtype.itemsize}")
    differs = (ours.view(bits) != theirs.view(bits)) & ~nan
    assert not differs.any(), (inputs[differs][:8], ours[differs][:8], theirs[differs][:8])


@pytest.mark.parametrize("name, dtype, bits_type", FORMATS)
def test_every_code_decodes_the_same(name, dtype, bits_type):
    decoded, _ = dump(name, bits_type)
    codes = np.arange(decoded.size, dtype=np.uint32).astype(bits_type)
    assert_equal_or_both_nan(decoded, codes.view(dtype).astype(np.float32), codes)


@pytest.mark.parametrize("name, dtype, bits_type", FORMATS)
@np.errstate(over="ignore", invalid="ignore")
def test_floats_encode_the_same(name, dtype, bits_type):
    _, encoded = dump(name, bits_type)
    floats = encoded_floats()
    assert encoded.size == floats.size
    compared = np.ones(floats.size, bool)
    if bits_type is np.uint8:
        # Beyond the largest value ml_dtypes overflows and quire saturates.
        compared = ~(np.abs(floats) > float(ml_dtypes.finfo(dtype).max))
        assert np.isnan(floats[compared]).any()
    floats = floats[compared]
    assert_equal_or_both_nan(encoded[compared].view(dtype), floats.astype(dtype), floats)


@pytest.mark.parametrize("name, dtype, bits_type", EIGHT_BIT_FLOATS)
def test_eight_bit_floats_saturate(name, dtype, bits_type):
    _, encoded = dump(name, bits_type)
    floats = encoded_floats()
    largest = float(ml_dtypes.finfo(dtype).max)
    beyond = np.abs(floats) > largest
    assert np.isinf(floats[beyond]).any()
    stored = encoded[beyond].view(dtype).astype(np.float32)
    np.testing.assert_array_equal(stored, np.copysign(np.float32(largest), floats[beyond]))


@np.errstate(invalid="ignore")
def test_int8_rounds_to_even_and_saturates():
    decoded, encoded = dump("i8", np.uint8)
    codes = np.arange(256, dtype=np.uint8).view(np.int8)
    np.testing.assert_array_equal(decoded, codes.astype(np.float32))
    floats = encoded_floats()
    expected = np.nan_to_num(np.clip(np.rint(floats), -128, 127), nan=0.0).astype(np.int8)
    np.testing.assert_array_equal(encoded.view(np.int8), expected)
