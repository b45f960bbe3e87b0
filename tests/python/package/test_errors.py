# SPDX-License-Identifier: Apache-2.0
"""What is wrong raises Error with the value, before anything is written."""

import ctypes
import pickle

import numpy as np
import pytest
import quire

Q = np.ones((6, 4, 32), np.float32)
K = np.ones((9, 16, 2, 32), np.float32)
V = K.copy()
BEGINS, LENS, TABLE = [0, 5, 6], [5, 40], [[3, 0, 0], [7, 1, 4]]


def attend(q=Q, k=K, v=V, begins=BEGINS, lens=LENS, table=TABLE, **options):
    return quire.attend(q, k, v, begins, lens, table, **options)


WRONG = {
    "rank": (r"q: needs rank 3, has 2", {"q": Q[0]}),
    "dtype": (r"q: needs .* has int64", {"q": Q.astype(np.int64)}),
    "q_dtype_8_bit": (r"q_dtype: not f32, f16 or bf16: i8", {"q": Q.astype(np.int8)}),
    "dim": (r"q: has dim 16, K has 32", {"q": Q[..., :16].copy()}),
    "heads": (r"num_kv_heads: does not divide num_q_heads 3: 2", {"q": Q[:, :3].copy()}),
    "last_stride": (r"q: needs stride 1 in the last axis, has -1", {"q": Q[..., ::-1]}),
    "no_array": (r"q: needs an array .* has str", {"q": "abc"}),
    "five_axes": (r"k_cache: needs rank 4", {"k": K[None]}),
    "v_dtype": (r"V has dtype f16, expected f32", {"v": V.astype(np.float16)}),
    "v_blocks": (r"V axis 0 \(block\) has extent 8, expected 9", {"v": V[:8]}),
    "swapped": (r"other order", {"q": Q.astype(">f4")}),
    "rows": (r"sequence 1 ends at row 7|needs shape \[>= 7", {"begins": [0, 5, 7]}),
    "order": (r"sequence 1 ends at row 4, before its begin at 5", {"begins": [0, 5, 4]}),
    "negative_row": (r"begins at a negative row: -2", {"begins": [-2, 5, 6]}),
    "negative_len": (r"sequence 0 has a negative length: -3", {"lens": [-3, 40]}),
    "long_len": (r"sequence 1 has 49 keys, .*: 48", {"lens": [5, 49]}),
    "num_lens": (r"kv.lens: needs 2 lengths, has 3", {"lens": [5, 40, 1], "table": TABLE * 2}),
    "table_rows": (r"block_table: needs 2 rows, has 1", {"table": TABLE[:1]}),
    "block_id": (r"sequence 1, table entry 2 holds block 9, .*: 9", {"table": [[3], [7, 1, 9]]}),
    "negative_id": (r"sequence 1, table entry 1: negative block: -7", {"table": [[3], [7, -7, 4]]}),
    "wide_id": (r"does not fit 32 bits: 4294967296", {"table": [[3], [7, 1, 2**32]]}),
    "float_ids": (r"block_table: needs whole numbers, has float32",
                  {"table": np.ones((2, 3), np.float32)}),
    "no_table": (r"block_table: missing", {"table": None}),
    "window": (r"window_left: not in .*: -5", {"window": (-5, 0)}),
    "softcap": (r"softcap", {"softcap": -1.0}),
    "scale": (r"scale", {"scale": float("nan")}),
    "slopes": (r"alibi_slopes: needs 4 heads, has 3", {"alibi_slopes": [1.0, 2.0, 3.0]}),
    "sinks": (r"sinks: head 1 is not a number", {"sinks": [0.0, float("nan"), 0.0, 0.0]}),
    "bias": (r"bias: needs shape .*>= 40\]", {"bias": np.zeros((2, 4, 5, 39), np.float32)}),
    "alignment": (r"alignment: needs one of aligned, unaligned, has 'x'", {"alignment": "x"}),
    "unaligned": (r"unaligned attention has no positions", {"alignment": "unaligned"}),
    "kv_order": (r"kv_order: needs one of .* has 'x'", {"kv_order": "x"}),
    "backend": (r"no backend is named 'x'; known: cpu", {"backend": "x"}),
    "k_scale": (r"k_scale: a cache of f32 has no scales", {"k_scale": 2.0}),
    "slots": (r"slots: given without k", {"slots": [1, 2]}),
    "out_shape": (r"out: needs shape", {"out": np.zeros((6, 4, 31), np.float32)}),
    "out_dtype": (r"out_dtype: neither f32 nor", {"out": np.zeros((6, 4, 32), np.float16)}),
    "out_overlap": (r"out: elements overlap",
                    {"out": np.lib.stride_tricks.as_strided(Q, (6, 4, 32), (0, 128, 4))}),
    "out_in_cache": (r"out: overlaps the cache", {"out": K.reshape(-1)[:768].reshape(6, 4, 32)}),
    "stream": (r"stream: the host takes only the default one", {"stream": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    pattern, options = WRONG[name]
    with pytest.raises(quire.Error, match=pattern) as raised:
        attend(**options)
    assert raised.value.code == "invalid_argument"


def test_read_only():
    frozen = np.zeros((6, 4, 32), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(quire.Error, match="out: is read-only"):
        attend(out=frozen)
    cache = K.copy()
    cache.flags.writeable = False
    np.testing.assert_array_equal(attend(k=cache), attend())  # reading is allowed
    with pytest.raises(quire.Error, match="k_cache: is read-only"):
        quire.append(K[0, :1], K[0, :1], cache, V, [0])


def test_nothing_is_written_by_a_call_that_fails():
    out = np.full((6, 4, 32), 5, np.float32)
    with pytest.raises(quire.Error):
        attend(table=[[3], [7, 1, 99]], out=out)
    assert (out == 5).all()


def test_missing_backend_says_why():
    with pytest.raises(quire.Error, match="libquire_cuda.so|libcuda") as raised:
        attend(backend="cuda")
    assert raised.value.code == "unsupported"


class OnDevice:
    """A DLPack producer that claims to be on a GPU."""

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
            ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ]  # fmt: skip

    def __init__(self, device_type):
        self.shape = (ctypes.c_int64 * 3)(6, 4, 32)
        self.tensor = self.Tensor(
            4096, device_type, 0, 3, 2, 32, 1, ctypes.addressof(self.shape), None, 0, None, None
        )

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.tensor.device_type, 0


def test_devices():
    with pytest.raises(quire.Error, match="cuda"):
        attend(q=OnDevice(2))  # no backend for it here
    with pytest.raises(quire.Error, match="q: on cuda"):
        attend(q=OnDevice(2), backend="cpu", out=np.zeros((6, 4, 32), np.float32))
    with pytest.raises(quire.Error, match="no backend computes on"):
        attend(q=OnDevice(10))
    with pytest.raises(quire.Error, match="DLPack type 8"):
        attend(q=OnDevice(8))


def test_error_is_one_class():
    assert issubclass(quire.Error, RuntimeError)
    error = quire.Error("text")
    assert error.code == "invalid_argument"
    assert str(pickle.loads(pickle.dumps(error))) == "text"
