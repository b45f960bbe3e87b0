# SPDX-License-Identifier: Apache-2.0
"""What is wrong raises Error with the value, before anything is written."""

import copy
import ctypes
import pickle

import numpy as np
import pytest
import quire

Q = np.ones((6, 4, 32), np.float32)
K = np.ones((9, 16, 2, 32), np.float32)
V = K.copy()
ROWS = np.ones((7, 4, 32), np.float32)
BIAS = np.zeros((2, 4, 5, 40), np.float32)
BEGINS, LENS, TABLE = [0, 5, 6], [5, 40], [[3, 0, 0], [7, 1, 4]]


def attend(q=Q, k=K, v=V, begins=BEGINS, lens=LENS, table=TABLE, k_new=False, **options):
    if k_new:
        options |= {"k": K[0].copy(), "v": V[0].copy()}
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
    "out_behind_q": (r"out: overlaps q, and is not q element for element",
                     {"q": ROWS[:6], "out": ROWS[1:7]}),
    "out_in_bias": (r"out: overlaps params.bias",
                    {"bias": BIAS, "out": BIAS.reshape(-1)[:768].reshape(6, 4, 32)}),
    "bool_ids": (r"block_table: needs whole numbers, has bool", {"table": np.ones((2, 3), bool)}),
    "table_is_a_tuple_of_rows": (r"block_table: a tuple is \(begins, indices\), and begins needs 3 "
                                 r"offsets, has 2; rows of blocks go into a list",
                                 {"table": ([3, 0], [7, 1])}),
    "table_is_a_tuple_of_three": (r"block_table: a tuple is .* has 3 entries; rows of blocks go",
                                  {"table": ([3], [7], [1])}),
    "table_is_a_tuple_of_numbers": (r"block_table\[0\]: needs an array", {"table": (3, 7)}),
    "value_dim": (r"value_dim: is 16, but V has 32", {"value_dim": 16}),
    "masked": (r"q: is a masked array", {"q": np.ma.masked_array(Q, mask=Q > 0)}),
    "masked_table": (r"block_table: is a masked array", {"table": np.ma.masked_array(TABLE[1:] * 2)}),
    "stream": (r"stream: the host takes only the default one", {"stream": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    pattern, options = WRONG[name]
    with pytest.raises(quire.Error, match=pattern) as raised:
        attend(**options)
    assert raised.value.code == "invalid_argument"


WRONG_TYPES = {
    "scale": ("x", "a number, or None, has 'x'"),
    "softcap": (None, "a number, has None"),
    "causal": (1, "True or False, has 1"),
    "window": (3.5, "a whole number, has 3.5"),
    "chunk": (2**70, "a whole number, has 1180591620717411303424"),
    "alignment": (3, "a name, has 3"),
    "kv_packing": (1, "a name, or None, has 1"),
    "out_dtype": (np.float32, "a name, or None, has <class 'numpy.float32'>"),
    "value_dim": ("a", "a whole number, has 'a'"),
    "return_lse": ("yes", "True or False, has 'yes'"),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types_name_the_argument(name):
    value, words = WRONG_TYPES[name]
    with pytest.raises(TypeError) as raised:
        attend(**{name: value})
    assert str(raised.value) == f"{name}: needs {words}"


def test_wrong_types_of_append_and_merge():
    with pytest.raises(TypeError, match="kv_dtype: needs a name, or None, has 8"):
        quire.append(K[0], V[0], K.copy(), V.copy(), range(16), kv_dtype=8)
    with pytest.raises(TypeError, match="return_lse: needs True or False, has None"):
        quire.merge([Q], [Q[..., 0].copy()], return_lse=None)


def test_specs_are_values():
    spec = quire.AttentionSpec(
        8, 2, 64, value_dim=32, q_dtype="f16", out_dtype="f32", kv_dtype="i8", block_size=8,
        scales="per_head", window_left=100, softcap=True, sinks=True, lse=True,
    )  # fmt: skip
    bounds = quire.BatchBounds(1, 2, 3, 4, max_q_len=2)
    for make in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)),
                 lambda x: x.copy()):  # fmt: skip
        other = make(spec)
        assert other == spec and str(other) == str(spec)
        other.head_dim = 128
        assert spec.head_dim == 64
        again = make(bounds)
        assert (again.max_sequences, again.max_total_kv_len, again.max_q_len) == (1, 4, 2)
    # Every property of a spec is in its pickle.
    names = [name for name, value in vars(quire.AttentionSpec).items() if type(value) is property]
    assert set(spec.__getstate__()) == set(names) and len(names) > 20
    for thing in (quire.KvCache(spec, 4), quire.Backend("cpu"), quire.PreparedBatch(spec)):
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.copy(thing)


def test_sequences_that_are_not_objects_of_ours():
    class Raises(list):
        def __len__(self):
            raise ZeroDivisionError("of the caller")

    cache = quire.KvCache(quire.AttentionSpec(4, 2, 32), 4)
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        cache.copy_blocks(Raises([(0, 1)]))
    with pytest.raises(quire.Error, match="slots: missing, k is given"):
        attend(k_new=True)
    with pytest.raises(quire.Error, match="q: quire has no number format 'void32'"):
        attend(q=np.zeros((6, 4, 32), [("a", "f4")]))


def test_tables_of_every_form():
    expected = attend()
    forms = [
        [[3], [7, 1, 4]], [(3,), (7, 1, 4)], ([0, 1, 4], [3, 7, 1, 4]), ((0, 1, 4), (3, 7, 1, 4)),
        *(np.array(TABLE, kind) for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")),
    ]  # fmt: skip
    for table in forms:
        np.testing.assert_array_equal(attend(table=table), expected, err_msg=repr(table))
    for begins in (np.array([0, 5, 6], np.int8), (np.int64(0), np.int64(5), np.int64(6)),
                   ([0, 5], [5, 6]), (np.array([0, 5]), np.array([5, 6]))):  # fmt: skip
        np.testing.assert_array_equal(attend(begins=begins), expected, err_msg=repr(begins))
    one = attend(q=Q[:5], begins=(np.int64(0), np.int64(5)), lens=[5], table=[[3]])
    np.testing.assert_array_equal(one, expected[:5])


def test_results_in_place():
    rng = np.random.default_rng(0)
    # One row holds q, K, V and room for the result of a token: nothing of it is shared.
    rows = rng.standard_normal((6, 12, 32), np.float32)
    q, k, v, out = rows[:, :4], rows[:, 4:6], rows[:, 6:8], rows[:, 8:]
    expected = quire.attend(q.copy(), k.copy(), v.copy(), [0, 6], [6])
    assert quire.attend(q, k, v, [0, 6], [6], out=out) is out
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(quire.Error, match="out: overlaps the cache"):
        quire.attend(q, k, v, [0, 6], [6], out=rows[:, 7:11])
    before = q.copy()
    with pytest.raises(quire.Error, match="out: overlaps q, and is not q element for element"):
        quire.attend(q, k, v, [0, 6], [6], out=rows[:, 3:7])
    np.testing.assert_array_equal(q, before)
    quire.attend(q, k, v, [0, 6], [6], out=q)  # q itself
    np.testing.assert_array_equal(q, expected)


def test_threads_have_a_limit():
    before = quire.get_num_threads()
    for number in 4097, 10**9, 2**40, -1:
        with pytest.raises(quire.Error, match=rf"num_threads: not in \[0, 4096\]: {number}"):
            quire.set_num_threads(number)
    with pytest.raises(quire.Error, match=r"num_threads: not in \[0, 4096\]: 4097"):
        quire.Backend("cpu", num_threads=4097)
    assert quire.get_num_threads() == before


def test_devices_by_name():
    spec = quire.AttentionSpec(4, 2, 32)
    for name in "gpu", "cudax", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "":
        with pytest.raises(quire.Error, match=rf"device: needs 'cpu', 'cuda' .* has '{name}'"):
            quire.KvCache(spec, 4, device=name)
        with pytest.raises(quire.Error, match="device: needs 'cpu'"):
            quire.PreparedBatch(spec, device=name)
    with pytest.raises(quire.Error, match="device: is 'cuda:0', but the backend cpu computes on"):
        quire.KvCache(spec, 4, device="cuda:0", backend="cpu")


def test_value_dim_beside_views():
    spec = quire.AttentionSpec(4, 2, 32, block_size=16)
    view = quire.KvCache(spec, 9).layer(0)
    with pytest.raises(quire.Error, match="value_dim: is 8, but V has 32"):
        attend(k=view, v=None, value_dim=8)
    with pytest.raises(quire.Error, match="kv_packing: given together with a KvCacheView"):
        attend(k=view, v=None, kv_packing="kv_first")
    attend(value_dim=32)


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


class NumbersOnDevice(OnDevice):
    """[size] int32."""

    def __init__(self, size):
        super().__init__(2)
        self.shape[0] = size
        self.tensor.ndim, self.tensor.code = 1, 0


def test_batches_on_a_device_have_bounds():
    three, two = NumbersOnDevice(3), NumbersOnDevice(2)
    batch = quire.BatchView(three, two, (three, two), block_size=16)
    prepared = quire.PreparedBatch(quire.AttentionSpec(4, 2, 32, block_size=16))
    with pytest.raises(quire.Error, match="bounds: PreparedBatch needs them for a batch on a dev"):
        prepared.prepare(batch)
    with pytest.raises(quire.Error, match="queries.begins: on cuda 0, but the backend computes on"):
        attend(begins=three, lens=two, table=(three, two))
    with pytest.raises(quire.Error, match="kv.lens: on host, but queries.begins on cuda 0"):
        attend(begins=three)


def test_error_is_one_class():
    assert issubclass(quire.Error, RuntimeError)
    error = quire.Error("text")
    assert error.code == "invalid_argument"
    assert str(pickle.loads(pickle.dumps(error))) == "text"
