# SPDX-License-Identifier: Apache-2.0
"""attend, append and merge. Their types are in attention.pyi."""

import operator

from quire import _quire
from quire._error import Error


_BOOL, _INT, _FLOAT, _NAME = "True or False", "a whole number", "a number", "a name"
_TYPES = {
    "scale": (_FLOAT, True), "causal": (_BOOL, False), "window": (_INT, False),
    "chunk": (_INT, False), "alignment": (_NAME, False), "softcap": (_FLOAT, False),
    "kv_order": (_NAME, False), "kv_packing": (_NAME, True), "kv_dtype": (_NAME, True),
    "value_dim": (_INT, False), "out_dtype": (_NAME, True), "return_lse": (_BOOL, False),
}  # fmt: skip


def _fits(kind, value):
    if kind is _BOOL:
        return isinstance(value, bool)
    if kind is _NAME:
        return isinstance(value, str)
    try:
        if kind is _FLOAT:
            float(value)
        else:
            return -(2**63) <= operator.index(value) < 2**63
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _explained(error, **arguments):
    """The TypeError of the compiled part in words: which of these has a wrong type."""
    for name, value in arguments.items():
        kind, optional = _TYPES[name]
        for one in value if isinstance(value, tuple) else (value,):
            if not _fits(kind, one) and not (one is None and optional):
                none = ", or None" if optional else ""
                return TypeError(f"{name}: needs {kind}{none}, has {one!r}")
    return error


def _window(window):
    if window is None:
        return -1, -1
    if isinstance(window, (tuple, list)):
        if len(window) != 2:
            raise Error(f"window: needs (left, right), has {len(window)} values")
        return window[0], window[1]
    return window, -1


def attend(
    q,
    k_cache,
    v_cache,
    query_begins,
    kv_lens,
    block_table=None,
    *,
    scale=None,
    causal=True,
    window=None,
    chunk=0,
    alignment="aligned",
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    bias=None,
    tree_mask=None,
    kv_begins=None,
    k=None,
    v=None,
    slots=None,
    k_scale=None,
    v_scale=None,
    kv_order="block_token_head_dim",
    kv_packing=None,
    kv_dtype=None,
    value_dim=0,
    out=None,
    lse=None,
    out_dtype=None,
    return_lse=False,
    backend="auto",
    stream=None,
):
    """Attention of a ragged batch over a paged KV cache.

    Sequence ``s`` owns the rows ``query_begins[s]`` to ``query_begins[s + 1]`` of ``q``; they are
    the last of its ``kv_lens[s]`` tokens, whose K and V lie in the blocks ``block_table[s]``.
    Prefill, chunked prefill and decode are the same call, and mix in one batch.

    Arrays are of NumPy (bfloat16 and float8 by ml_dtypes), PyTorch, or any library with
    ``__dlpack__``; they are read and written in place. Metadata may also be lists.

    Arguments:
        q: ``[num_tokens, num_q_heads, head_dim]``, float32, float16 or bfloat16.
        k_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]`` (see ``kv_order``), any
            float format or int8; or a layer of a ``KvCache``, with ``v_cache`` None; or
            ``[num_rows, num_kv_heads, head_dim]`` without blocks, with ``block_table`` None.
        v_cache: as ``k_cache``, with a last axis of its own. None: ``kv_packing`` says how
            ``k_cache`` holds both, or else V is the first ``value_dim`` elements of every K (latent
            attention; 0: all of them).
        query_begins: ``[num_sequences + 1]`` offsets (cu_seqlens), or a pair ``(begins, ends)``;
            rows in no range are neither read nor written.
        kv_lens: ``[num_sequences]`` keys of each sequence, the new ones included.
        block_table: ``[num_sequences, max_blocks]`` block of every ``block_size`` keys, an array or
            a list of rows; a tuple is always ``(begins [num_sequences + 1], indices)``. Entries
            behind the last key may hold anything.

    Scores:
        scale: ``S = scale * q.k``; None: ``1 / sqrt(head_dim)``.
        softcap: ``S = softcap * tanh(S / softcap)`` if positive.
        alibi_slopes: ``[num_q_heads]``: ``S -= slope * |query_pos - key_pos|``.
        bias: ``[num_sequences, num_q_heads, >= longest query, >= longest kv_len]``, float32 or the
            format of q, added to S; ``-inf`` hides a key. Strides of 0 broadcast.
        sinks: ``[num_q_heads]``: a further key per head with this score and no value. Not in lse.

    Masks (all that are given hold together):
        causal: a query sees keys up to its own position.
        window: ``(left, right)``: keys from ``query_pos - left`` to ``query_pos + right``; -1 is no
            limit. A number is ``(number, -1)``: a window of n keys is ``window=n - 1``.
        chunk: a query sees keys of its own chunk of so many positions.
        alignment: ``"unaligned"`` for cross-attention: tokens have no positions; needs
            ``causal=False``.
        tree_mask: ``(bits, begins[, depths])`` replaces causality among the new tokens; made by
            ``pack_tree_mask``.

    Storing:
        k, v, slots: new K ``[n, num_kv_heads, head_dim]`` and V, stored at ``slots [n]`` (block *
            block_size + offset, -1: not stored) before attention is computed.

    Cache:
        kv_order: ``"block_token_head_dim"`` or ``"block_head_token_dim"``.
        kv_packing: one array holds both: ``"kv_first" [2, num_blocks, ...]``, ``"kv_per_block"
            [num_blocks, 2, ...]`` or ``"kv_per_token" [..., head_dim + value_dim]``.
        kv_dtype: what an array of bytes holds: ``"f8e4m3"``, ``"f8e5m2"`` or ``"i8"``.
        k_scale, v_scale: of 8-bit caches: a number, ``[num_kv_heads]``, or one per token and head
            in the order of the cache. None: 1.
        kv_begins: without blocks: ``[num_sequences]`` rows of K and V at which sequences begin;
            None: they follow each other.

    Results:
        out: written if given: ``[num_tokens, num_q_heads, value_dim]``, of q's format or float32.
            It shares no element with what is read, but may be ``q`` itself.
        lse: written if given: ``[num_tokens, num_q_heads]`` float32.
        out_dtype: of a new ``out``: q's format, or ``"f32"`` for partial results to merge.
        return_lse: also return the log-sum-exp of the scores (natural logarithm, ``-inf`` for a row
            that saw no key).

    backend: a name (``quire.info()`` lists them) or a ``quire.Backend``; ``"auto"``: QUIRE_BACKEND,
    else the one for the memory of ``q``. stream: the number of a device stream; None: the current
    one of the library of ``q``.

    Returns ``out``, or ``(out, lse)``, new ones being of the library of ``q``; their rows that
    belong to no sequence hold anything. Raises ``quire.Error`` with argument, index and value if
    something does not fit; then nothing has been written. The GIL is released while it computes.

    Example, two sequences with 5 and 1 new tokens, of which the second has 39 before::

        k_cache = np.random.rand(9, 16, 2, 64).astype(np.float32)  # 9 blocks of 16 tokens
        v_cache = np.random.rand(9, 16, 2, 64).astype(np.float32)
        q = np.random.rand(6, 8, 64).astype(np.float32)            # 5 + 1 tokens, 8 heads
        out = quire.attend(q, k_cache, v_cache, [0, 5, 6], [5, 40], [[3], [7, 1, 4]])
    """
    window_left, window_right = _window(window)
    try:
        return _quire.attend(
            q, k_cache, v_cache, query_begins, kv_lens, block_table, kv_begins, k, v, slots, scale,
            softcap, alibi_slopes, sinks, bias, tree_mask, causal, window_left, window_right, chunk,
            alignment, k_scale, v_scale, kv_order, kv_packing, kv_dtype, value_dim, out, lse,
            out_dtype, return_lse, backend, stream,
        )  # fmt: skip
    except TypeError as error:
        raise _explained(
            error, scale=scale, softcap=softcap, causal=causal, window=(window_left, window_right),
            chunk=chunk, alignment=alignment, kv_order=kv_order, kv_packing=kv_packing,
            kv_dtype=kv_dtype, value_dim=value_dim, out_dtype=out_dtype, return_lse=return_lse,
        ) from None  # fmt: skip


def append(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    *,
    k_scale=None,
    v_scale=None,
    kv_order="block_token_head_dim",
    kv_packing=None,
    kv_dtype=None,
    backend="auto",
    stream=None,
):
    """Stores new K and V in a paged cache: row i at slot i.

    Arguments:
        k: ``[n, num_kv_heads, head_dim]``, float32, float16 or bfloat16.
        v: ``[n, num_kv_heads, value_dim]``; None where V is a part of K.
        k_cache, v_cache: as in ``attend``; written.
        slots: ``[n]`` block * block_size + offset in the block; -1: this row is not stored. A slot
            may occur once.
        k_scale, v_scale: of 8-bit caches: values are stored divided by them. Those per token and
            head are computed and written.
        kv_order, kv_packing, kv_dtype, backend, stream: as in ``attend``.

    No byte of another slot is touched. Raises ``quire.Error`` before anything is written.
    """
    try:
        _quire.append(
            k, v, k_cache, v_cache, slots, k_scale, v_scale, kv_order, kv_packing, kv_dtype,
            backend, stream,
        )  # fmt: skip
    except TypeError as error:
        raise _explained(
            error, kv_order=kv_order, kv_packing=kv_packing, kv_dtype=kv_dtype
        ) from None


def merge(
    outs,
    lses,
    *,
    sinks=None,
    out=None,
    lse=None,
    out_dtype=None,
    return_lse=False,
    backend="auto",
    stream=None,
):
    """Attention over the union of disjoint sets of keys, from the attention over each of them.

    Arguments:
        outs: each ``[num_tokens, num_q_heads, value_dim]``, of one float format.
        lses: each ``[num_tokens, num_q_heads]`` float32, as ``attend(..., return_lse=True)`` gives
            them; ``-inf``: saw no key.
        sinks: ``[num_q_heads]``: enter here, once, and not in the parts.
        out, lse, out_dtype, return_lse, backend, stream: as in ``attend``.

    Returns ``out``, or ``(out, lse)``.
    """
    try:
        return _quire.merge(outs, lses, sinks, out, lse, out_dtype, return_lse, backend, stream)
    except TypeError as error:
        raise _explained(error, out_dtype=out_dtype, return_lse=return_lse) from None


def pack_tree_mask(masks, depths=None):
    """The ``tree_mask`` of ``attend`` from one matrix per sequence.

    Arguments:
        masks: for every sequence None (plain causal) or a matrix ``[q_len, q_len]`` of truth
            values: whether new token i sees new token j.
        depths: ``[num_tokens]`` of all query rows: the position of a new token is
            ``kv_len - q_len + depth``. None: its place in the sequence.
    """
    bits = bytearray()
    begins = []
    for mask in masks:
        if mask is None:
            begins.append(-1)
            continue
        begins.append(len(bits))
        rows = mask.tolist() if hasattr(mask, "tolist") else mask
        for row in rows:
            if len(row) != len(rows):
                raise Error(
                    f"masks: sequence {len(begins) - 1} has {len(rows)} rows, but one of {len(row)}"
                )
            number = sum(1 << j for j, seen in enumerate(row) if seen)
            bits += number.to_bytes((len(row) + 7) // 8, "little")
    return list(bits), begins, depths
