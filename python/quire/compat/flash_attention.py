# SPDX-License-Identifier: Apache-2.0
"""The two functions of flash-attn that serve engines."""

from typing import Any

import quire
from quire import _arrays
from quire._error import Error
from quire.compat._refuse import refuse


def _attend(q, k_cache, v_cache, begins, lens, table, *, alibi_slopes, lse, **options):
    """attend, where slopes may be of every sequence its own. lse [num_tokens, heads] or None."""
    if alibi_slopes is None or alibi_slopes.ndim == 1:
        result = quire.attend(
            q, k_cache, v_cache, begins, lens, table, alibi_slopes=alibi_slopes, lse=lse, **options
        )
        return result[0] if lse is not None else result
    num_sequences = len(lens)
    if tuple(alibi_slopes.shape) != (num_sequences, q.shape[1]):
        raise Error(
            f"alibi_slopes: needs shape [{num_sequences}, {q.shape[1]}], has "
            f"{list(alibi_slopes.shape)}"
        )
    out = _arrays.empty(q, (q.shape[0], q.shape[1], v_cache.shape[-1]), _arrays.dtype_name(q))
    kv_begins = options.pop("kv_begins", None)
    for s in range(num_sequences):
        own = {} if kv_begins is None else {"kv_begins": kv_begins[s : s + 1]}
        quire.attend(
            q, k_cache, v_cache, (begins[s : s + 1], begins[s + 1 : s + 2]), lens[s : s + 1],
            None if table is None else table[s : s + 1], alibi_slopes=alibi_slopes[s], out=out,
            lse=lse, **own, **options,
        )  # fmt: skip
    return out


def _new_lse(q, num_heads, num_rows):
    """[num_heads, num_rows], and the view of it that attend writes."""
    lse = _arrays.empty(q, (num_heads, num_rows), "f32")
    return lse, lse.swapaxes(0, 1)


def _as_there(lse):
    """flash-attn gives +inf to a row that sees no key."""
    lse[lse == float("-inf")] = float("inf")
    return lse


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any | None = None,
) -> Any:
    """``flash_attn.flash_attn_varlen_func``: attention of sequences of different lengths.

    Arguments:
        q: ``[total_q, num_heads, head_dim]``.
        k, v: ``[total_k, num_kv_heads, head_dim]``; with ``block_table [num_sequences,
            max_blocks]`` a cache ``[num_blocks, block_size, num_kv_heads, head_dim]``.
        cu_seqlens_q, cu_seqlens_k: ``[num_sequences + 1]`` offsets.
        causal: aligned to the bottom right: query i sees the keys up to ``i + len_k - len_q``.
        window_size: ``(left, right)`` around that key; -1: no limit.
        alibi_slopes: ``[num_heads]`` or ``[num_sequences, num_heads]``.
        dropout_p: must be 0.

    Returns ``out [total_q, num_heads, head_dim]``; with ``return_attn_probs`` ``(out, softmax_lse
    [num_heads, total_q], None)``: there are no probabilities to return without dropout.
    """
    refuse("quire has no dropout", dropout_p=dropout_p)
    _arrays.require_arrays(q=q, k=k, v=v, alibi_slopes=alibi_slopes)
    cu_seqlens_k = _arrays.integers("cu_seqlens_k", cu_seqlens_k, q)
    cu_seqlens_q = _arrays.integers("cu_seqlens_q", cu_seqlens_q, q)
    _arrays.require_shape("q", q, None, None, None)
    for name, array in {"k": k, "v": v}.items():
        _arrays.require_shape(name, array, *[None] * (3 if block_table is None else 4))
    for name, array in {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}.items():
        _arrays.require_integers(name, array, None)
    if block_table is not None:
        block_table = _arrays.integers("block_table", block_table, q)
    lens = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    options = {}
    if block_table is None:
        options["kv_begins"] = _arrays.as_int64(cu_seqlens_k[:-1])
    lse, written = _new_lse(q, q.shape[1], q.shape[0]) if return_attn_probs else (None, None)
    out = _attend(
        q, k, v, cu_seqlens_q, lens, block_table, scale=softmax_scale, causal=causal,
        window=tuple(window_size), softcap=softcap, alibi_slopes=alibi_slopes, lse=written,
        **options,
    )  # fmt: skip
    return (out, _as_there(lse), None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any | None = None,
    v: Any | None = None,
    rotary_cos: Any | None = None,
    rotary_sin: Any | None = None,
    cache_seqlens: int | Any | None = None,
    cache_batch_idx: Any | None = None,
    cache_leftpad: Any | None = None,
    block_table: Any | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """``flash_attn.flash_attn_with_kvcache``: a step of generation, K and V stored in passing.

    Arguments:
        q: ``[batch, len_q, num_heads, head_dim]``.
        k_cache, v_cache: ``[batch_cache, len_cache, num_kv_heads, head_dim]``; with ``block_table
            [batch, max_blocks]`` ``[num_blocks, block_size, num_kv_heads, head_dim]``. Written.
        k, v: ``[batch, len_new, num_kv_heads, head_dim]``: stored behind the ``cache_seqlens``
            tokens that are there, and seen.
        cache_seqlens: ``[batch]`` or one number: tokens in the cache before; None: all of it.
        cache_batch_idx: ``[batch]`` rows of an unpaged cache.
        rotary_cos, rotary_sin, cache_leftpad: must be None.

    Returns ``out [batch, len_q, num_heads, head_dim]``, or ``(out, softmax_lse [batch, num_heads,
    len_q])``.
    """
    refuse("rotate Q and K before", rotary_cos=rotary_cos, rotary_sin=rotary_sin)
    refuse("quire's sequences begin at the first slot of their blocks", cache_leftpad=cache_leftpad)
    _arrays.require_arrays(
        q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, alibi_slopes=alibi_slopes
    )
    for name, array in {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}.items():
        if array is not None:
            _arrays.require_shape(name, array, None, None, None, None)
    batch, len_q, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    if block_table is None:
        rows = _arrays.arange(q, batch)
        if cache_batch_idx is not None:
            rows = _arrays.integers("cache_batch_idx", cache_batch_idx, q)
        _arrays.require_integers("cache_batch_idx", rows, batch)
        table = rows.reshape(batch, 1)
    else:
        refuse("is for caches without a block table", cache_batch_idx=cache_batch_idx)
        table = _arrays.integers("block_table", block_table, q)
        _arrays.require_integers("block_table", table, batch, None)
    if cache_seqlens is None:
        lens = _arrays.full(q, batch, table.shape[1] * block_size)
    elif isinstance(cache_seqlens, int):
        if not 0 <= cache_seqlens < 2**31:
            raise Error(f"cache_seqlens: {cache_seqlens} is not in [0, {2**31})")
        lens = _arrays.full(q, batch, cache_seqlens)
    else:
        lens = _arrays.integers("cache_seqlens", cache_seqlens, q)
        _arrays.require_integers("cache_seqlens", lens, batch)
    if (k is None) != (v is None):
        raise Error("v: k and v are given together or not at all")
    stored = {}
    if k is not None and v is not None:
        len_new = k.shape[1]
        _arrays.require_shape("k", k, batch, None, None, None)
        _arrays.require_shape("v", v, batch, len_new, None, None)
        new = {
            "k": k.reshape(batch * len_new, *k.shape[2:]),
            "v": v.reshape(batch * len_new, *v.shape[2:]),
            "slots": _new_slots(table, lens, len_new, block_size),
        }
        if len_new == len_q and (alibi_slopes is None or alibi_slopes.ndim == 1):
            stored = new  # in the call below, which checks everything before it writes
        else:
            quire.append(new["k"], new["v"], k_cache, v_cache, new["slots"])
        lens = lens + len_new
    rows_of_q = q.reshape(batch * len_q, num_heads, head_dim)
    begins = _arrays.arange(q, batch + 1) * len_q
    lse, written = (
        _new_lse(q, num_heads, batch * len_q) if return_softmax_lse else (None, None)
    )
    out = _attend(
        rows_of_q, k_cache, v_cache, begins, lens, table, scale=softmax_scale, causal=causal,
        window=tuple(window_size), softcap=softcap, alibi_slopes=alibi_slopes, lse=written,
        **stored,
    )  # fmt: skip
    out = out.reshape(batch, len_q, num_heads, out.shape[-1])
    if not return_softmax_lse:
        return out
    return out, _as_there(lse).reshape(num_heads, batch, len_q).swapaxes(0, 1)


def _new_slots(table, lens, len_new, block_size):
    """[batch * len_new]: behind the tokens that are there. They must have blocks."""
    capacity = table.shape[1] * block_size
    for s, length in enumerate(lens.tolist()):
        if length < 0 or length + len_new > capacity:
            raise Error(
                f"cache_seqlens: sequence {s} has {length} tokens, {len_new} more do not fit its "
                f"{capacity} slots"
            )
    positions = lens.reshape(-1, 1) + _arrays.arange(lens, len_new).reshape(1, -1)
    blocks = _arrays.take_along_rows(table, positions // block_size)
    negative = (blocks < 0).any()
    if negative:
        raise Error("block_table: a new token would be stored in a negative block")
    return (_arrays.as_int64(blocks) * block_size + positions % block_size).reshape(-1)
