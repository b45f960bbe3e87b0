# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, written as the mathematics reads."""

import numpy as np


def gather(cache, table, length):
    """[num_blocks, block_size, heads, dim] -> [length, heads, dim]"""
    blocks = [cache[block] for block in table[: -(-length // cache.shape[1])]]
    if not blocks:
        return np.zeros((0, *cache.shape[2:]))
    return np.concatenate(blocks)[:length].astype(np.float64)


def attention(q, k, v, *, scale=None, causal=True, window=(-1, -1), chunk=0, softcap=0.0,
              alibi_slopes=None, bias=None, sinks=None, seen=None):  # fmt: skip
    """One sequence: q [n, heads, dim], k and v [m, kv_heads, dim]. Returns out and lse.

    seen [n, m] replaces causality.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    n, heads, dim = q.shape
    m = k.shape[0]
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    query_pos = (m - n + np.arange(n))[:, None]
    key_pos = np.arange(m)[None, :]
    if alibi_slopes is not None:
        distance = np.abs(query_pos - key_pos)
        scores = scores - np.asarray(alibi_slopes, np.float64)[:, None, None] * distance
    if bias is not None:
        scores = scores + bias[:, :n, :m].astype(np.float64)
    visible = np.ones((n, m), bool)
    if seen is not None:
        visible &= seen
    elif causal:
        visible &= key_pos <= query_pos
    if window[0] >= 0:
        visible &= key_pos >= query_pos - window[0]
    if window[1] >= 0:
        visible &= key_pos <= query_pos + window[1]
    if chunk:
        visible &= key_pos // chunk == query_pos // chunk
    scores = np.where(visible, scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.max(scores, axis=-1, initial=-np.inf)
        shifted = np.exp(scores - np.where(np.isfinite(largest), largest, 0)[..., None])
        total = shifted.sum(-1)
        lse = np.where(np.isfinite(largest), largest, 0) + np.log(total)
        weights = shifted / np.where(total > 0, total, 1)[..., None]
    out = np.einsum("hnm,mhd->nhd", weights, v)
    lse = lse.T  # [n, heads]
    if sinks is not None:
        with np.errstate(over="ignore"):
            out = out / (1 + np.exp(np.asarray(sinks, np.float64) - lse))[..., None]
    return out, lse


def batch_attention(q, k_cache, v_cache, query_begins, kv_lens, block_table, **options):
    """The same for a ragged batch over [num_blocks, block_size, heads, dim]."""
    outs, lses = [], []
    per_sequence = {name: options.pop(name) for name in ("bias", "seen") if name in options}
    for s, length in enumerate(kv_lens):
        own = {name: value[s] for name, value in per_sequence.items() if value[s] is not None}
        out, lse = attention(
            q[query_begins[s] : query_begins[s + 1]],
            gather(k_cache, block_table[s], length),
            gather(v_cache, block_table[s], length),
            **options,
            **own,
        )
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)
