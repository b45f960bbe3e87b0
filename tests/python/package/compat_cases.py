# SPDX-License-Identifier: Apache-2.0
"""What the functions of quire.compat must give, for arrays of any library.

Every case takes `to`, which makes an array of the library from one of NumPy without a copy.
"""

import numpy as np
import pytest
import quire
from exact_attention import attention, gather
from quire import compat

BLOCK_SIZE = 16
LENS = [5, 40, 33]
TABLE = np.array([[3, 0, 0], [7, 1, 4], [5, 6, 8]], np.int32)


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def i32(values):
    return np.array(values, np.int32)


def on_host(array):
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(on_host(got), on_host(expected), atol=tolerance)


def varlen_ragged(to):
    """Without blocks; sequence 1 has more queries than keys: its first rows see nothing."""
    q, k, v = random(13, 4, 32), random(20, 2, 32), random(20, 2, 32, seed=1)
    begins_q, begins_k = [0, 4, 13], [0, 14, 20]
    for causal, window in ((True, (-1, -1)), (False, (3, 2)), (True, (4, 0)), (False, (-1, -1))):
        out, lse, probabilities = compat.flash_attn_varlen_func(
            to(q), to(k), to(v), to(i32(begins_q)), to(i32(begins_k)), 9, 14, causal=causal,
            window_size=window, softmax_scale=0.2, softcap=3.0, return_attn_probs=True,
        )  # fmt: skip
        assert probabilities is None and tuple(lse.shape) == (4, 13)
        for s in range(2):
            rows = slice(begins_q[s], begins_q[s + 1])
            keys = slice(begins_k[s], begins_k[s + 1])
            exact, exact_lse = attention(
                q[rows], k[keys], v[keys], causal=causal, window=window, scale=0.2, softcap=3.0
            )
            close(out[rows], exact)
            close(lse[:, rows], np.where(np.isinf(exact_lse), np.inf, exact_lse).T)


def varlen_paged(to):
    q, k, v = random(8, 4, 32), random(9, 16, 2, 32), random(9, 16, 2, 32, seed=1)
    begins = [0, 5, 6, 8]
    slopes = np.abs(random(3, 4, seed=4))
    options = [None, slopes[0], slopes]
    for alibi in options:
        out = compat.flash_attn_varlen_func(
            to(q), to(k), to(v), to(i32(begins)), to(i32([0, 5, 45, 78])), 5, 40, causal=True,
            alibi_slopes=None if alibi is None else to(alibi), block_table=to(TABLE),
        )  # fmt: skip
        for s in range(3):
            own = alibi if alibi is None or alibi.ndim == 1 else alibi[s]
            keys, values = (gather(c, TABLE[s], LENS[s]) for c in (k, v))
            rows = slice(begins[s], begins[s + 1])
            close(out[rows], attention(q[rows], keys, values, alibi_slopes=own)[0])


def with_kvcache(to, paged):
    """New K and V are stored behind the old ones and seen."""
    batch, len_q, len_new = 3, 2, 2
    q = random(batch, len_q, 4, 32)
    new_k, new_v = random(batch, len_new, 2, 32, seed=2), random(batch, len_new, 2, 32, seed=3)
    k = random(9, 16, 2, 32) if paged else random(5, 64, 2, 32)
    v = random(*k.shape, seed=1)
    before = i32([3, 38, 31])
    rows = TABLE if paged else i32([[4], [0], [2]])
    options = {"block_table": to(TABLE)} if paged else {"cache_batch_idx": to(rows[:, 0].copy())}
    k_cache, v_cache = to(k.copy()), to(v.copy())
    out, lse = compat.flash_attn_with_kvcache(
        to(q), k_cache, v_cache, to(new_k), to(new_v), cache_seqlens=to(before), causal=True,
        return_softmax_lse=True, **options,
    )  # fmt: skip
    assert tuple(out.shape) == (3, 2, 4, 32) and tuple(lse.shape) == (3, 4, 2)
    for s in range(batch):
        keys, values = (gather(c, rows[s], before[s]) for c in (k, v))
        keys, values = np.concatenate([keys, new_k[s]]), np.concatenate([values, new_v[s]])
        exact, exact_lse = attention(q[s], keys, values)
        close(out[s], exact)
        close(lse[s], exact_lse.T)
        close(gather(on_host(k_cache), rows[s], before[s] + len_new), keys)
        close(gather(on_host(v_cache), rows[s], before[s] + len_new), values)
    again = compat.flash_attn_with_kvcache(
        to(q), k_cache, v_cache, cache_seqlens=to(before + 2), causal=True, **options
    )
    close(again, on_host(out), 0)


def with_kvcache_whole(to):
    q, k, v = random(2, 1, 4, 32), random(2, 10, 2, 32), random(2, 10, 2, 32, seed=1)
    out = compat.flash_attn_with_kvcache(to(q), to(k), to(v))
    one_number = compat.flash_attn_with_kvcache(to(q), to(k), to(v), cache_seqlens=7)
    for s in range(2):
        close(out[s], attention(q[s], k[s], v[s], causal=False)[0])
        close(one_number[s], attention(q[s], k[s][:7], v[s][:7], causal=False)[0])


def merge_states(to):
    q, k, v = random(6, 4, 32), random(20, 2, 32), random(20, 2, 32, seed=1)
    (out_a, lse_a), (out_b, lse_b) = (
        attention(q, k[keys], v[keys], causal=False) for keys in (slice(0, 9), slice(9, 20))
    )
    f32 = np.float32
    lse_a[2] = np.inf  # as flash-attn says that nothing was seen
    out, lse = np.empty((6, 4, 32), f32), np.empty((4, 6), f32)
    written, written_lse = to(out), to(lse)
    compat.merge_attn_states(
        written, to(out_a.astype(f32)), to(np.ascontiguousarray(lse_a.T.astype(f32))),
        to(out_b.astype(f32)), to(np.ascontiguousarray(lse_b.T.astype(f32))), written_lse,
    )  # fmt: skip
    whole, whole_lse = attention(q, k, v, causal=False)
    whole[2], whole_lse[2] = out_b[2], lse_b[2]
    close(written, whole)
    close(written_lse, whole_lse.T)


def merge_states_of_some_rows(to):
    """Rows behind those with context are the suffix, whatever the prefix holds there."""
    prefix, suffix = random(6, 4, 32), random(6, 4, 32, seed=1)
    prefix_lse, suffix_lse = random(4, 6), random(4, 6, seed=1)
    suffix_lse[1, 5] = np.inf  # copied as it is

    def merge(count, **more):
        written, written_lse = to(np.zeros((6, 4, 32), np.float32)), to(np.zeros((4, 6), np.float32))
        parts = to(prefix), to(prefix_lse), to(suffix), to(suffix_lse)
        try:
            compat.merge_attn_states(written, *parts, written_lse, count, **more)
        except quire.Error:
            assert not on_host(written).any() and not on_host(written_lse).any()
            raise
        return written, written_lse

    whole, whole_lse = merge(None)
    prefix[4:], prefix_lse[:, 4:] = np.nan, np.nan
    for count in (4, 1, 0):
        written, written_lse = merge(count)
        close(written[:count], whole[:count], 0)
        close(written_lse[:, :count], whole_lse[:, :count], 0)
        close(written[count:], suffix[count:], 0)
        close(written_lse[:, count:], suffix_lse[:, count:], 0)
    for count in (-1, 7):
        with pytest.raises(quire.Error, match=rf"prefill_tokens_with_context: {count} is not in"):
            merge(count)
    with pytest.raises(TypeError):
        merge(2.5)
    for name in "output_scale", "output_block_scale", "quant_group_size", "quant_scale_ue8m0":
        with pytest.raises(quire.Error, match=f"{name}: results are not quantized") as caught:
            merge(None, **{name: True})
        assert caught.value.code == "unsupported"
    prefix_lse = prefix_lse[:, :5].copy()
    with pytest.raises(quire.Error, match=r"prefix_lse: needs shape \[4, 6\], has \[4, 5\]"):
        merge(4)


def cache_flash(to):
    k_cache, v_cache = (to(np.zeros((4, 16, 2, 32), np.float32)) for _ in "kv")
    key, value = random(5, 2, 32), random(5, 2, 32, seed=1)
    compat.reshape_and_cache_flash(
        to(key), to(value), k_cache, v_cache, to(np.array([17, -1, 63])), "auto",
        to(np.ones(1, np.float32)), to(np.ones(1, np.float32)),
    )  # fmt: skip
    close(k_cache.reshape(-1, 2, 32)[[17, 63]], key[[0, 2]], 0)
    close(v_cache.reshape(-1, 2, 32)[[17, 63]], value[[0, 2]], 0)
    assert np.count_nonzero(on_host(k_cache)) == 2 * 2 * 32
    as_bytes = [to(np.zeros((4, 16, 2, 32), np.uint8)) for _ in "kv"]
    compat.reshape_and_cache_flash(
        to(key), to(value), *as_bytes, to(np.array([0, 1, 2])), "fp8", 0.5, 0.5
    )
    import ml_dtypes

    stored = on_host(as_bytes[0]).view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(-1, 2, 32)[:3]
    np.testing.assert_array_equal(
        stored, (key[:3] / 0.5).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )


def flashinfer_prefill(to, kv_layout, packed):
    q, k, v = random(8, 4, 32), random(9, 16, 2, 32), random(9, 16, 2, 32, seed=1)
    begins = [0, 5, 6, 8]
    indptr, indices = i32([0, 1, 4, 7]), i32([3, 7, 1, 4, 5, 6, 8])
    stored = [x if kv_layout == "NHD" else x.transpose(0, 2, 1, 3).copy() for x in (k, v)]
    cache = to(np.stack(stored, axis=1)) if packed else tuple(to(x) for x in stored)
    wrapper = compat.BatchPrefillWithPagedKVCacheWrapper(None, kv_layout)
    with pytest.raises(quire.Error, match="plan"):
        wrapper.run(to(q), cache)
    plan = (to(i32(begins)), to(indptr), to(indices), to(i32([5, 8, 1])), 4, 2, 32, 16)
    wrapper.plan(*plan, causal=True, window_left=20, logits_soft_cap=4.0, sm_scale=0.3)
    for layer in range(2):
        out, lse = wrapper.run(to(q), cache, return_lse=True)
        for s in range(3):
            rows = slice(begins[s], begins[s + 1])
            keys, values = (gather(c, TABLE[s], LENS[s]) for c in (k, v))
            exact, exact_lse = attention(
                q[rows], keys, values, window=(20, -1), softcap=4.0, scale=0.3
            )
            close(out[rows], exact)
            close(lse[rows], exact_lse / np.log(2), 1e-4)
    mask = np.random.default_rng(7).random(5 * 5 + 40 + 2 * 33) < 0.7
    wrapper.plan(*plan, custom_mask=to(mask))
    out = wrapper.run(to(q), cache, k_scale=0.5, v_scale=2.0)
    first = 0
    for s in range(3):
        rows = slice(begins[s], begins[s + 1])
        n = begins[s + 1] - begins[s]
        seen = mask[first : first + n * LENS[s]].reshape(n, LENS[s])
        first += seen.size
        keys, values = (gather(c, TABLE[s], LENS[s]) for c in (k, v))
        close(out[rows], 2 * attention(q[rows], 0.5 * keys, values, seen=seen)[0])


def flashinfer_decode(to):
    q, k, v = random(4, 4, 32), random(9, 16, 2, 32), random(9, 16, 2, 32, seed=1)
    wrapper = compat.BatchDecodeWithPagedKVCacheWrapper()
    indptr = i32([0, 1, 4, 4, 7])  # the third has no page
    wrapper.plan(to(indptr), to(i32([3, 7, 1, 4, 5, 6, 8])), to(i32([5, 8, 0, 1])), 4, 2, 32, 16)
    out = wrapper.run(to(q), (to(k), to(v)))
    for row, s in ((0, 0), (1, 1), (3, 2)):
        keys, values = (gather(c, TABLE[s], LENS[s]) for c in (k, v))
        close(out[row : row + 1], attention(q[row : row + 1], keys, values)[0])
    close(out[2], np.zeros((4, 32)))
    new = random(2, 2, 32, seed=9)
    pages = to(k), to(v)
    arguments = (to(i32([0, 1])), to(i32([4, 33])), pages, to(i32([3, 7, 1, 4])),
                 to(i32([0, 1, 4])), to(i32([5, 8])))  # fmt: skip
    compat.append_paged_kv_cache(to(new), to(new), *arguments)
    close(pages[0][3, 4], new[0], 0)
    close(pages[1][4, 1], new[1], 0)


def refused(to):
    q, k, v = random(2, 1, 4, 32), random(2, 10, 2, 32), random(2, 10, 2, 32, seed=1)
    wrapper = compat.BatchPrefillWithPagedKVCacheWrapper()
    one = to(i32([0, 1]))
    for pattern, call in {
        "dropout": lambda: compat.flash_attn_varlen_func(
            to(q[:, 0]), to(k[0]), to(v[0]), one, one, 1, 1, dropout_p=0.1
        ),
        "rotate": lambda: compat.flash_attn_with_kvcache(to(q), to(k), to(v), rotary_cos=1.0),
        "cache_leftpad": lambda: compat.flash_attn_with_kvcache(
            to(q), to(k), to(v), cache_leftpad=one
        ),
        "do not fit": lambda: compat.flash_attn_with_kvcache(
            to(q), to(k), to(v), to(k[:, :1].copy()), to(v[:, :1].copy()), cache_seqlens=10
        ),
        "kv_cache_dtype": lambda: compat.reshape_and_cache_flash(
            to(k[0]), to(v[0]), to(k), to(v), to(np.array([0])), "int4"
        ),
        "ROPE_LLAMA": lambda: wrapper.plan(
            one, one, to(i32([0])), to(i32([1])), 4, 2, 32, 16, pos_encoding_mode="ROPE_LLAMA"
        ),
        "window_lft has no meaning": lambda: wrapper.plan(
            one, one, to(i32([0])), to(i32([1])), 4, 2, 32, 16, window_lft=1
        ),
        "NHD or HND": lambda: compat.BatchPrefillWithPagedKVCacheWrapper(None, "XYZ"),
        "positions": lambda: compat.append_paged_kv_cache(
            to(k[0][:1]), to(v[0][:1]), to(i32([0])), to(i32([9])), (to(k), to(v)), to(i32([0])),
            one, to(i32([9])),
        ),
    }.items():  # fmt: skip
        with pytest.raises(quire.Error, match=pattern):
            call()
    cache, new = to(k.copy()), to(k[:, :1].copy())
    with pytest.raises(quire.Error, match="softcap"):
        compat.flash_attn_with_kvcache(to(q), cache, to(v), new, new, cache_seqlens=3, softcap=-1.0)
    close(cache, k, 0)  # nothing was stored
    wrapper.plan(one, one, to(i32([0])), to(i32([1])), 4, 2, 32, 10)
    with pytest.raises(quire.Error, match="custom_mask"):  # and the plan before it stays
        wrapper.plan(one, one, to(i32([0])), to(i32([1])), 4, 2, 32, 10, custom_mask=to(i32([])))
    out = wrapper.run(to(q[:1, 0]), (to(k), to(v)))
    assert tuple(out.shape) == (1, 4, 32)
    close(wrapper.run(to(2 * q[:1, 0]), (to(k), to(v)), q_scale=0.5, window_left=-1), out, 1e-5)
    close(wrapper.run_return_lse(to(q[:1, 0]), (to(k), to(v)))[0], out, 0)
    with pytest.raises(quire.Error, match="planned was -1"):
        wrapper.run(to(q[:1, 0]), (to(k), to(v)), window_left=3)
    with pytest.raises(quire.Error, match="2 rows, planned were 1"):
        wrapper.run(to(q[:, 0]), (to(k), to(v)))


def lists(to):
    """Metadata may be lists, as in quire.attend; what is no array at all raises Error."""
    q, k, v = random(8, 4, 32), random(9, 16, 2, 32), random(9, 16, 2, 32, seed=1)
    begins, kv_begins = [0, 5, 6, 8], [0, 5, 45, 78]
    same = [
        compat.flash_attn_varlen_func(
            to(q), to(k), to(v), make(begins), make(kv_begins), 5, 40, block_table=make(TABLE),
        )
        for make in (lambda x: to(i32(x)), lambda x: np.asarray(x).tolist())
    ]  # fmt: skip
    close(same[1], on_host(same[0]), 0)
    ragged = to(k.reshape(-1, 2, 32)), to(v.reshape(-1, 2, 32))
    compat.flash_attn_varlen_func(to(q), *ragged, begins, kv_begins, 5, 40)
    cached = [
        compat.flash_attn_with_kvcache(
            to(q[:3, None]), to(k), to(v), cache_seqlens=make(LENS), block_table=make(TABLE)
        )
        for make in (lambda x: to(i32(x)), lambda x: np.asarray(x).tolist())
    ]
    close(cached[1], on_host(cached[0]), 0)
    compat.flash_attn_with_kvcache(to(q[:2, None]), to(k), to(v), cache_batch_idx=[3, 4])
    stored = to(k.copy())
    compat.reshape_and_cache_flash(to(q[:2, :2].copy()), to(q[:2, :2].copy()), stored, to(v), [3, 9])
    close(stored[0, 3], q[0, :2], 0)
    wrapper = compat.BatchPrefillWithPagedKVCacheWrapper()
    wrapper.plan(to(i32(begins)), [0, 1, 4, 7], [3, 7, 1, 4, 5, 6, 8], [5, 8, 1], 4, 2, 32, 16)
    close(wrapper.run(to(q), (to(k), to(v))), on_host(same[0]), 1e-6)
    decode = compat.BatchDecodeWithPagedKVCacheWrapper()
    decode.plan([0, 1, 4, 7], [3, 7, 1, 4, 5, 6, 8], [5, 8, 1], 4, 2, 32, 16)
    decode.run(to(q[:3]), (to(k), to(v)))
    compat.append_paged_kv_cache(
        to(q[:1, :2].copy()), to(q[:1, :2].copy()), [1], [17], (to(k.copy()), to(v.copy())),
        [3, 7, 1], [0, 1, 3], [5, 2],
    )  # fmt: skip
    for pattern, call in {
        "cu_seqlens_q: needs an array or a list": lambda: compat.flash_attn_varlen_func(
            to(q), to(k), to(v), [0.5, 8], [0, 5], 5, 5
        ),
        "cu_seqlens_k: needs an array or a list": lambda: compat.flash_attn_varlen_func(
            to(q), to(k), to(v), begins, 7, 5, 5
        ),
        "block_table: needs an array or a list": lambda: compat.flash_attn_varlen_func(
            to(q), to(k), to(v), begins, kv_begins, 5, 5, block_table=[[1], [1, 2], [3]]
        ),
        "q: needs an array, has list": lambda: compat.flash_attn_varlen_func(
            q.tolist(), to(k), to(v), begins, kv_begins, 5, 40
        ),
        "k_cache: needs rank 4, has 3": lambda: compat.flash_attn_with_kvcache(
            to(q[:, None]), ragged[0], to(v)
        ),
        "cache_batch_idx: needs shape": lambda: compat.flash_attn_with_kvcache(
            to(q[:2, None]), to(k), to(v), cache_batch_idx=[3]
        ),
        "slot_mapping: needs an array or a list": lambda: compat.reshape_and_cache_flash(
            to(q[:, :2]), to(q[:, :2]), to(k), to(v), "ab"
        ),
        "output_lse: needs an array": lambda: compat.merge_attn_states(
            to(q), to(q), to(q[..., 0]), to(q), to(q[..., 0]), [1.0]
        ),
        "paged_kv_cache: needs .k, v., has 1": lambda: wrapper.run(to(q), (to(k),)),
    }.items():
        with pytest.raises(quire.Error, match=pattern):
            call()


CASES = {
    "lists": lists,
    "varlen_ragged": varlen_ragged,
    "varlen_paged": varlen_paged,
    "with_kvcache_paged": lambda to: with_kvcache(to, True),
    "with_kvcache_rows": lambda to: with_kvcache(to, False),
    "with_kvcache_whole": with_kvcache_whole,
    "merge_states": merge_states,
    "merge_states_of_some_rows": merge_states_of_some_rows,
    "cache_flash": cache_flash,
    "flashinfer_prefill_nhd": lambda to: flashinfer_prefill(to, "NHD", False),
    "flashinfer_prefill_hnd_packed": lambda to: flashinfer_prefill(to, "HND", True),
    "flashinfer_decode": flashinfer_decode,
    "refused": refused,
}
