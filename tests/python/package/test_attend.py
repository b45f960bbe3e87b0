# SPDX-License-Identifier: Apache-2.0
"""quire.attend, append and merge on NumPy arrays, against attention in float64."""

import gc
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import quire
from exact_attention import attention, batch_attention

BLOCK_SIZE = 16
QUERY_BEGINS = [0, 5, 6, 6, 26]
KV_LENS = [5, 40, 7, 33]
TABLE = [[3, 0, 0], [7, 1, 4], [2, -1, -1], [5, 6, 8]]
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)


def make_inputs(dtype="float32", heads=4, kv_heads=2, dim=32, value_dim=32, seed=0):
    rng = np.random.default_rng(seed)
    tokens = QUERY_BEGINS[-1]
    shapes = [(tokens, heads, dim), (9, BLOCK_SIZE, kv_heads, dim), (9, BLOCK_SIZE, kv_heads, value_dim)]
    return [rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes]


def table_array():
    return np.array(TABLE, np.int32)


def call(q, k_cache, v_cache, **options):
    return quire.attend(q, k_cache, v_cache, QUERY_BEGINS, KV_LENS, table_array(), **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_formats(dtype):
    q, k, v = make_inputs(dtype, value_dim=48)
    out, lse = call(q, k, v, return_lse=True)
    exact, exact_lse = batch_attention(q, k, v, QUERY_BEGINS, KV_LENS, TABLE)
    assert out.dtype == q.dtype and out.shape == (26, 4, 48)
    assert lse.dtype == np.float32 and lse.shape == (26, 4)
    np.testing.assert_allclose(out.astype(np.float64), exact, atol=TOLERANCE[dtype])
    np.testing.assert_allclose(lse, exact_lse, atol=1e-4)
    as_f32 = call(q, k, v, out_dtype="f32")
    assert as_f32.dtype == np.float32
    np.testing.assert_allclose(as_f32, exact, atol=TOLERANCE[dtype])


OPTIONS = {
    "scale": {"scale": 0.3},
    "window": {"window": (7, 3), "causal": False},
    "window_left": {"window": 4},
    "chunk": {"chunk": 8},
    "full": {"causal": False},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 1.0], np.float32)},
    "alibi_list": {"alibi_slopes": [0.5, 0.25, 0.125, 1.0]},
    "sinks": {"sinks": [0.0, 1.0, -2.0, 3.0]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    options = OPTIONS[name]
    q, k, v = make_inputs()
    exact_options = dict(options)
    if isinstance(options.get("window"), int):
        exact_options["window"] = (options["window"], -1)
    out, lse = call(q, k, v, return_lse=True, **options)
    exact, exact_lse = batch_attention(q, k, v, QUERY_BEGINS, KV_LENS, TABLE, **exact_options)
    np.testing.assert_allclose(out, exact, atol=1e-5)
    np.testing.assert_allclose(lse, exact_lse, atol=1e-4)


def test_bias():
    q, k, v = make_inputs()
    bias = np.random.default_rng(3).standard_normal((4, 4, 20, 40)).astype(np.float32)
    bias[1, 2, 0, 5:9] = -np.inf
    out = call(q, k, v, bias=bias)
    exact, _ = batch_attention(q, k, v, QUERY_BEGINS, KV_LENS, TABLE, bias=bias)
    np.testing.assert_allclose(out, exact, atol=1e-5)
    of_head = np.broadcast_to(bias[:1, :1], bias.shape)  # strides of 0
    exact, _ = batch_attention(q, k, v, QUERY_BEGINS, KV_LENS, TABLE, bias=of_head)
    np.testing.assert_allclose(call(q, k, v, bias=of_head), exact, atol=1e-5)


def test_tree_mask():
    q, k, v = make_inputs()
    tree = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]], bool)
    begins, lens, table = [0, 5], [21], [[7, 1]]
    seen = np.ones((5, 21), bool)
    seen[:, 16:] = tree
    out = quire.attend(q[:5], k, v, begins, lens, table, tree_mask=quire.pack_tree_mask([tree]))
    exact, _ = batch_attention(q[:5], k, v, begins, lens, table, seen=[seen])
    np.testing.assert_allclose(out, exact, atol=1e-5)
    plain = quire.attend(q[:5], k, v, begins, lens, table, tree_mask=quire.pack_tree_mask([None]))
    np.testing.assert_array_equal(plain, quire.attend(q[:5], k, v, begins, lens, table))


def test_metadata_forms():
    """Lists, all integer types, strided arrays, indexed tables and gaps mean the same."""
    q, k, v = make_inputs()
    expected = call(q, k, v)
    wide = np.zeros((4, 8), np.int64)
    wide[:, ::2][:, :3] = TABLE
    indices = [3, 7, 1, 4, 2, 5, 6, 8]
    for begins, lens, table in [
        (np.array(QUERY_BEGINS), np.array(KV_LENS, np.uint16), wide[:, ::2]),
        (QUERY_BEGINS, tuple(KV_LENS), TABLE),
        (QUERY_BEGINS, KV_LENS, ([0, 1, 4, 5, 8], indices)),
        ((QUERY_BEGINS[:-1], QUERY_BEGINS[1:]), KV_LENS, [[3], [7, 1, 4], [2], [5, 6, 8]]),
    ]:
        np.testing.assert_array_equal(quire.attend(q, k, v, begins, lens, table), expected)
    out = np.full_like(expected, 77)
    quire.attend(q, k, v, ([0, 20], [5, 22]), [5, 40], TABLE[:2], out=out)
    np.testing.assert_array_equal(out[:5], expected[:5])
    assert (out[5:20] == 77).all() and (out[22:] == 77).all() and (out[20:22] != 77).all()


def test_cache_orders_and_packings():
    q, k, v = make_inputs()
    expected = call(q, k, v)
    swapped = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (k, v)]
    for got in [
        call(q, *swapped, kv_order="block_head_token_dim"),
        call(q, np.stack([k, v]), None, kv_packing="kv_first"),
        call(q, np.stack([k, v], axis=1), None, kv_packing="kv_per_block"),
        call(q, np.concatenate([k, v], axis=-1), None, kv_packing="kv_per_token"),
        call(q, quire.KvCacheView(k, v), None),
    ]:
        np.testing.assert_array_equal(got, expected)


def test_latent():
    q, k, _ = make_inputs()
    out = call(q, k, None, value_dim=24)
    exact, _ = batch_attention(q, k, k[..., :24], QUERY_BEGINS, KV_LENS, TABLE)
    np.testing.assert_allclose(out, exact, atol=1e-5)


def test_without_blocks():
    """Ragged K and V: self-attention, and cross-attention with keys that sequences share."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((6, 4, 32)).astype(np.float32)
    k = rng.standard_normal((30, 2, 32)).astype(np.float32)
    v = rng.standard_normal((30, 2, 32)).astype(np.float32)
    out = quire.attend(q, k, v, [0, 4, 6], [12, 18])
    np.testing.assert_allclose(out[:4], attention(q[:4], k[:12], v[:12])[0], atol=1e-5)
    np.testing.assert_allclose(out[4:], attention(q[4:], k[12:], v[12:])[0], atol=1e-5)
    out = quire.attend(
        q, k, v, [0, 4, 6], [20, 20], kv_begins=[3, 3], alignment="unaligned", causal=False
    )
    expected = attention(q, k[3:23], v[3:23], causal=False)[0]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("scales", ["number", "per_head", "per_token_head"])
def test_eight_bit_caches(kv_dtype, scales):
    """Stored by append with scales of every kind, read back through attend."""
    rng = np.random.default_rng(5)
    q, _, _ = make_inputs()
    new_k, new_v = (rng.standard_normal((9 * BLOCK_SIZE, 2, 32)).astype(np.float32) for _ in "kv")
    dtype = np.dtype(np.int8 if kv_dtype == "int8" else getattr(ml_dtypes, kv_dtype))
    k_cache, v_cache = (np.zeros((9, BLOCK_SIZE, 2, 32), dtype) for _ in "kv")
    step = {"float8_e4m3fn": 1 / 64, "float8_e5m2": 1 / 4096, "int8": 1 / 25}[kv_dtype]
    k_scale = {
        "number": step,
        "per_head": np.array([step, 2 * step], np.float32),
        "per_token_head": np.zeros((9, BLOCK_SIZE, 2), np.float32),
    }[scales]
    v_scale = k_scale.copy() if isinstance(k_scale, np.ndarray) else k_scale
    options = {"k_scale": k_scale, "v_scale": v_scale}
    quire.append(new_k, new_v, k_cache, v_cache, np.arange(9 * BLOCK_SIZE), **options)
    if scales == "per_token_head":
        assert (k_scale > 0).all()

    def widened(cache, scale):
        return cache.astype(np.float64) * (np.asarray(scale)[..., None] if scales != "number" else scale)

    stored = widened(k_cache, k_scale)
    np.testing.assert_allclose(stored, new_k.reshape(stored.shape), atol=0.5)
    out = call(q, k_cache, v_cache, **options)
    exact, _ = batch_attention(q, stored, widened(v_cache, v_scale), QUERY_BEGINS, KV_LENS, TABLE)
    np.testing.assert_allclose(out, exact, atol=1e-4)
    # The same bytes without a format of their own.
    name = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "int8": "i8"}[kv_dtype]
    as_bytes = call(q, k_cache.view(np.uint8), v_cache.view(np.uint8), kv_dtype=name, **options)
    np.testing.assert_array_equal(as_bytes, out)


def test_append_touches_its_slots_alone():
    rng = np.random.default_rng(2)
    k_cache, v_cache = (np.full((4, BLOCK_SIZE, 2, 32), 9, np.float32) for _ in "kv")
    k, v = (rng.standard_normal((3, 2, 32)).astype(np.float32) for _ in "kv")
    quire.append(k, v, k_cache, v_cache, [17, -1, 63])
    flat = k_cache.reshape(-1, 2, 32)
    np.testing.assert_array_equal(flat[[17, 63]], k[[0, 2]])
    assert (np.delete(flat, [17, 63], axis=0) == 9).all()
    with pytest.raises(quire.Error, match="slot 64"):
        quire.append(k, v, k_cache, v_cache, [1, 2, 64])
    with pytest.raises(quire.Error, match="17"):
        quire.append(k, v, k_cache, v_cache, [17, 3, 17])


def test_attend_stores_first():
    q, k, v = make_inputs()
    expected = call(q, k, v)
    rows = [(s, KV_LENS[s] - (QUERY_BEGINS[s + 1] - QUERY_BEGINS[s]) + i)
            for s in range(4) for i in range(QUERY_BEGINS[s + 1] - QUERY_BEGINS[s])]  # fmt: skip
    slots = np.array([TABLE[s][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for s, p in rows])
    new_k, new_v = k.reshape(-1, 2, 32)[slots].copy(), v.reshape(-1, 2, 32)[slots].copy()
    for cache in (k, v):
        cache.reshape(-1, 2, 32)[slots] = np.nan
    np.testing.assert_array_equal(call(q, k, v, k=new_k, v=new_v, slots=slots), expected)


def test_merge():
    q, k, v = make_inputs()
    sinks = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    whole, whole_lse = call(q, k, v, causal=False, return_lse=True)
    parts = []
    for first, count in ((0, 1), (1, 2)):  # blocks of every sequence
        lens = [min(max(n - first * BLOCK_SIZE, 0), count * BLOCK_SIZE) for n in KV_LENS]
        table = table_array()[:, first : first + count]
        parts.append(quire.attend(q, k, v, QUERY_BEGINS, lens, table, causal=False, return_lse=True))
    outs, lses = zip(*parts)
    out, lse = quire.merge(outs, lses, return_lse=True)
    np.testing.assert_allclose(out, whole, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-5)
    with_sinks = quire.merge(outs, lses, sinks=sinks)
    np.testing.assert_allclose(with_sinks, call(q, k, v, causal=False, sinks=sinks), atol=1e-6)


def test_outputs_of_the_caller():
    q, k, v = make_inputs()
    expected, expected_lse = call(q, k, v, return_lse=True)
    out = np.empty((26, 2, 4, 32), np.float32)[:, 1]  # strided
    lse = np.empty((26, 4), np.float32)
    got = call(q, k, v, out=out, lse=lse)
    assert got[0] is out and got[1] is lse
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


class Exchanged:
    """Any library that knows DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **settings):
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_any_producer_of_dlpack():
    q, k, v = make_inputs()
    expected = call(q, k, v)
    out = np.zeros_like(expected)
    call(Exchanged(q), Exchanged(k), Exchanged(v), out=Exchanged(out))
    np.testing.assert_array_equal(out, expected)


def test_the_interpreter_is_free_meanwhile():
    q, k, v = make_inputs()
    call(q, k, v)
    seen, num_calls = [], 0
    begun = threading.Event()

    def work():
        nonlocal num_calls
        begun.set()
        while not seen and num_calls < 20000:
            call(q, k, v)
            num_calls += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody has to give way
    try:
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        seen.append(True)  # only while a call has let go of the interpreter
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert num_calls < 20000


def test_threads():
    """Calls of many threads run side by side and agree."""
    q, k, v = make_inputs()
    expected = call(q, k, v)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(call(q, k, v), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_axis_of_one_may_have_any_stride():
    q, k, v = make_inputs()
    odd = np.ndarray((1, 4, 32), q.dtype, bytearray(1024), strides=(513, 128, 4))
    odd[0] = q[0]
    expected = quire.attend(q[:1], k, v, [0, 1], [5], [[3]])
    np.testing.assert_array_equal(quire.attend(odd, k, v, [0, 1], [5], [[3]]), expected)


def test_backends():
    q, k, v = make_inputs()
    expected = call(q, k, v)
    np.testing.assert_allclose(call(q, k, v, backend="reference"), expected, atol=1e-5)
    own = quire.Backend("cpu", num_threads=1)
    np.testing.assert_array_equal(call(q, k, v, backend=own), expected)
    del own
    gc.collect()
    quire.set_num_threads(1)
    assert quire.get_num_threads() == 1
    np.testing.assert_array_equal(call(q, k, v), expected)
    quire.set_num_threads(0)
    quire.release_memory()
    np.testing.assert_array_equal(call(q, k, v), expected)


def test_nothing_to_compute():
    """Arrays without elements, whatever a library says of their strides."""
    k, f32 = np.ones((6, 4, 2, 8), np.float32), np.float32
    none, no_tables = np.zeros(0, np.int32), np.zeros((0, 1), np.int32)
    assert quire.attend(np.zeros((0, 2, 8), f32), k, k + 1, [0], none, no_tables).shape == (0, 2, 8)
    rows = np.zeros((3, 2, 8), f32)[:0]
    assert quire.attend(rows, k, k + 1, [0], none, no_tables).shape == (0, 2, 8)
    quire.append(rows, rows, k, k + 1, np.zeros(0, np.int64))
