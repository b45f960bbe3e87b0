# SPDX-License-Identifier: Apache-2.0
"""Plan and run over pages, as FlashInfer's wrappers do it.

``plan`` takes the batch once per step, ``run`` computes a layer. Pages are named by ``indptr`` and
``indices``; the log-sum-exp is to the base 2, as there.
"""

import math
from typing import Any

import quire
from quire import _arrays
from quire._error import Error
from quire.compat._refuse import refuse, unsupported

_ORDERS = {"NHD": "block_token_head_dim", "HND": "block_head_token_dim"}


def _order(kv_layout):
    if kv_layout not in _ORDERS:
        raise Error(f"kv_layout: needs NHD or HND, has '{kv_layout}'")
    return _ORDERS[kv_layout]


def _pages(paged_kv_cache, kv_layout, k_scale=None, v_scale=None):
    """The KvCacheView of (k, v), or of [num_pages, 2, ...]."""
    order = _order(kv_layout)
    if isinstance(paged_kv_cache, (tuple, list)):
        if len(paged_kv_cache) != 2:
            raise Error(f"paged_kv_cache: needs (k, v), has {len(paged_kv_cache)} arrays")
        k_cache, v_cache = paged_kv_cache
        packing = None
    else:
        k_cache, v_cache, packing = paged_kv_cache, None, "kv_per_block"
    _arrays.require_arrays(paged_kv_cache=k_cache)
    if _arrays.item_bytes(k_cache) != 1:
        k_scale = v_scale = None
    return quire.KvCacheView(
        k_cache, v_cache, kv_order=order, kv_packing=packing, k_scale=k_scale, v_scale=v_scale
    )


# What chooses a speed or a place of memory there, and nothing here.
_CONSTRUCTOR_OPTIONS = frozenset({
    "use_cuda_graph", "use_tensor_cores", "backend", "qo_indptr_buf", "paged_kv_indptr_buf",
    "paged_kv_indices_buf", "paged_kv_last_page_len_buf", "paged_kv_indptr_buffer",
    "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer", "custom_mask_buf",
    "mask_indptr_buf",
})  # fmt: skip
_PLAN_OPTIONS = frozenset({"non_blocking", "fixed_split_size", "disable_split_kv"})


def _refuse_others(where: str, options: dict, known: frozenset) -> None:
    for name, value in options.items():
        if name not in known and value is not None:
            raise unsupported(f"{where}: {name} has no meaning here")


class _Wrapper:
    """What planning has left: a batch, and a PreparedBatch for every format seen since."""

    is_cuda_graph_enabled = False
    use_tensor_cores = False

    def __init__(
        self,
        float_workspace_buffer: Any = None,
        kv_layout: str = "NHD",
        *places: Any,
        **options: Any,
    ) -> None:
        # `places` are flags and buffers of graphs, by position: as _CONSTRUCTOR_OPTIONS.
        _refuse_others(type(self).__name__, options, _CONSTRUCTOR_OPTIONS)
        self._kv_layout = kv_layout
        _order(kv_layout)
        self._prepared: dict = {}  # by spec and device
        self._batch = None

    def _plan(self, begins, indptr, indices, last_page_len, page_size, **plan):
        _refuse_positions(plan.pop("pos_encoding_mode"))
        _refuse_others("plan", plan.pop("options"), _PLAN_OPTIONS)
        # As there, the host plans.
        begins, indptr, indices, last_page_len = (
            _arrays.on_host(_arrays.integers(name, array, None))
            for name, array in (
                ("qo_indptr", begins), ("indptr", indptr), ("indices", indices),
                ("last_page_len", last_page_len),
            )
        )  # fmt: skip
        lens = _kv_lens(indptr, last_page_len, page_size)
        batch = quire.BatchView(begins, lens, (indptr, indices), block_size=page_size)
        mask = plan["custom_mask"]
        bias = None if mask is None else _mask_bias(mask, begins, lens, plan["num_qo_heads"])
        num_rows = int(begins[-1])
        # All or nothing: a plan that raises leaves the last one.
        self._batch, self._bias, self._num_rows = batch, bias, num_rows
        self._page_size, self._plan_options = page_size, plan
        self._planned = set()  # keys whose PreparedBatch has this batch

    def begin_forward(self, *args: Any, **options: Any) -> None:
        """``plan`` by its older name."""
        self.plan(*args, **options)

    def end_forward(self) -> None:
        """Nothing is left to do."""

    def reset_workspace_buffer(self, *buffers: Any) -> None:
        """Memory is quire's own."""

    def run_return_lse(self, q: Any, paged_kv_cache: Any, *args: Any, **options: Any) -> Any:
        """``run`` with ``return_lse=True``."""
        return self.run(q, paged_kv_cache, *args, return_lse=True, **options)

    forward_return_lse = run_return_lse

    def run(
        self,
        q: Any,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: Any | None = None,
        k_scale: Any | None = None,
        v_scale: Any | None = None,
        out: Any | None = None,
        lse: Any | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Any | None = None,
    ) -> Any:
        """Attention of a layer over the planned batch.

        Arguments:
            q: ``[qo_indptr[-1], num_qo_heads, head_dim]``; decode: ``[batch, ...]``.
            paged_kv_cache: ``(k, v)``, or one array ``[num_pages, 2, ...]``.
            q_scale, k_scale, v_scale: factors of Q, K and V.
            window_left: None, or as planned.
            return_lse: also return ``[qo_indptr[-1], num_qo_heads]``, logarithm to the base 2.
        """
        if args:
            raise unsupported("run: parameters of custom kernels are not taken")
        if self._batch is None:
            raise Error("run: plan was not called")
        plan = self._plan_options
        if window_left is not None and window_left != plan["window_left"]:
            raise Error(f"window_left: {window_left}, planned was {plan['window_left']}")
        _arrays.require_arrays(q=q)
        _arrays.require_shape("q", q, None, None, None)
        if q.shape[0] != self._num_rows:
            raise Error(f"q: has {q.shape[0]} rows, planned were {self._num_rows}")
        pages = _pages(paged_kv_cache, self._kv_layout, k_scale, v_scale)
        if pages.block_size != self._page_size:
            raise Error(f"paged_kv_cache: pages of {pages.block_size} tokens, planned for "
                        f"{self._page_size}")  # fmt: skip
        is_scaled = pages.scales != "none"
        spec = quire.AttentionSpec(
            plan["num_qo_heads"], plan["num_kv_heads"], plan["head_dim_qk"],
            value_dim=plan["head_dim_vo"], q_dtype=_arrays.dtype_name(q), kv_dtype=pages.dtype,
            scales=pages.scales, block_size=self._page_size,
            causal=plan["causal"] and self._bias is None, window_left=plan["window_left"],
            softcap=plan["logits_soft_cap"] > 0, bias=self._bias is not None,
            sinks=sinks is not None, lse=True,
        )  # fmt: skip
        device = _arrays.device_name(q)
        key = str(spec), device
        if key not in self._prepared:
            self._prepared[key] = quire.PreparedBatch(spec, device=device)
        prepared = self._prepared[key]
        if key not in self._planned:
            prepared.prepare(self._batch)
            self._planned.add(key)
        scale = plan["sm_scale"]
        if scale is None:
            scale = 1 / math.sqrt(plan["head_dim_qk"])
        if q_scale is not None:
            scale *= _factor("q_scale", q_scale)
        if k_scale is not None and not is_scaled:
            scale *= _factor("k_scale", k_scale)
        v_factor = None
        if v_scale is not None and not is_scaled:
            v_factor = _factor("v_scale", v_scale)
        result = prepared.attend(
            q, pages, scale=scale, softcap=plan["logits_soft_cap"], sinks=sinks, bias=self._bias,
            out=out, lse=lse, return_lse=return_lse,
        )  # fmt: skip
        got = result[0] if isinstance(result, tuple) else result
        if v_factor is not None:
            got *= v_factor
        if not return_lse and lse is None:
            return got
        made = result[1]
        made *= math.log2(math.e)
        return (got, made) if return_lse else got


def _refuse_positions(mode: str) -> None:
    if mode != "NONE":
        raise unsupported(
            f"pos_encoding_mode: '{mode}' is not computed here: rotate Q and K before, and give "
            "slopes of ALiBi to quire.attend"
        )


def _factor(name, value):
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise Error(f"{name}: needs one number: {error}") from error


def _kv_lens(indptr, last_page_len, page_size):
    if not 1 <= page_size < 2**31:
        raise Error(f"page_size: {page_size} is not in [1, {2**31})")
    _arrays.require_integers("indptr", indptr, None)
    if indptr.shape[0] == 0:
        raise Error("indptr: is empty, needs one more than there are sequences")
    _arrays.require_integers("last_page_len", last_page_len, indptr.shape[0] - 1)
    indptr, last_page_len = (_arrays.as_int64(x) for x in (indptr, last_page_len))
    pages = indptr[1:] - indptr[:-1]
    lens = (pages - 1) * page_size + last_page_len
    return _arrays.where(pages > 0, lens, 0 * lens)


def _mask_bias(mask, begins, lens, num_heads):
    """0 where a flat mask [sum of q_len * kv_len] is true and -inf elsewhere, for all heads."""
    q_lens = (begins[1:] - begins[:-1]).tolist()
    kv_lens = lens.tolist()
    wanted = sum(n * m for n, m in zip(q_lens, kv_lens))
    _arrays.require_shape("custom_mask", mask, None)
    if mask.shape[0] != wanted:
        raise Error(f"custom_mask: needs {wanted} values, has {mask.shape[0]}")
    shape = (len(q_lens), 1, max(q_lens, default=0), max(kv_lens, default=0))
    bias = _arrays.empty(mask, shape, "f32")
    bias[...] = 0
    first = 0
    for s, (n, m) in enumerate(zip(q_lens, kv_lens)):
        own = mask[first : first + n * m].reshape(n, m) != 0
        bias[s, 0, :n, :m] = _arrays.where(own, 0.0, float("-inf"))
        first += n * m
    return _arrays.broadcast_heads(bias, num_heads)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's wrapper of that name: prefill and chunks of it over pages.

    kv_layout: ``"NHD"``: pages ``[page_size, num_kv_heads, head_dim]``, or ``"HND"``.
    """

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Any | None = None,
        packed_custom_mask: Any | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any | None = None,
        **options: Any,
    ) -> None:
        """Takes the batch of a step.

        Arguments:
            qo_indptr: ``[batch + 1]`` offsets of the queries.
            paged_kv_indptr, paged_kv_indices: pages of sequence s are
                ``indices[indptr[s]:indptr[s + 1]]``.
            paged_kv_last_page_len: ``[batch]`` tokens in the last page, 1 to page_size.
            custom_mask: flat, ``sum(q_len * kv_len)`` truth values; takes the place of ``causal``.
            packed_custom_mask: must be None. rope_scale, rope_theta: unused, as with the
                pos_encoding_mode NONE there.
        """
        refuse("give custom_mask", packed_custom_mask=packed_custom_mask)
        self._plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size,
            num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo or head_dim_qk, custom_mask=custom_mask, causal=causal,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap or 0.0,
            pos_encoding_mode=pos_encoding_mode, options=options,
        )  # fmt: skip


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's wrapper of that name: one query per sequence."""

    def plan(
        self,
        indptr: Any,
        indices: Any,
        last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any | None = None,
        o_data_type: Any | None = None,
        data_type: Any | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        **options: Any,
    ) -> None:
        """Takes the batch of a step: pages of sequence s are ``indices[indptr[s]:indptr[s + 1]]``,
        the last of them with ``last_page_len[s]`` tokens."""
        if o_data_type is not None and o_data_type != q_data_type:
            raise unsupported(f"o_data_type: {o_data_type}, results have the format of q")
        indptr = _arrays.integers("indptr", indptr, None)
        _arrays.require_shape("indptr", indptr, None)
        begins = _arrays.arange(indptr, indptr.shape[0])
        self._plan(
            begins, indptr, indices, last_page_len, page_size, num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads, head_dim_qk=head_dim, head_dim_vo=head_dim,
            custom_mask=None, causal=True, sm_scale=sm_scale, window_left=window_left,
            logits_soft_cap=logits_soft_cap or 0.0, pos_encoding_mode=pos_encoding_mode,
            options=options,
        )  # fmt: skip


def append_paged_kv_cache(
    append_key: Any,
    append_value: Any,
    batch_indices: Any,
    positions: Any,
    paged_kv_cache: Any,
    kv_indices: Any,
    kv_indptr: Any,
    kv_last_page_len: Any,
    kv_layout: str = "NHD",
) -> None:
    """FlashInfer's function of that name: stores token i at ``positions[i]`` of its sequence.

    Arguments:
        append_key, append_value: ``[n, num_kv_heads, head_dim]``.
        batch_indices, positions: ``[n]`` the sequence, and the place in it.
        paged_kv_cache: ``(k, v)``, or one array ``[num_pages, 2, ...]``; written.
        kv_indices, kv_indptr, kv_last_page_len: pages as in ``plan``, the new tokens included.
    """
    pages = _pages(paged_kv_cache, kv_layout)
    page_size = pages.block_size
    _arrays.require_arrays(append_key=append_key, append_value=append_value)
    _arrays.require_shape("append_key", append_key, None, None, None)
    batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len = (
        _arrays.integers(name, array, append_key)
        for name, array in (
            ("batch_indices", batch_indices), ("positions", positions),
            ("kv_indices", kv_indices), ("kv_indptr", kv_indptr),
            ("kv_last_page_len", kv_last_page_len),
        )
    )  # fmt: skip
    num_tokens = append_key.shape[0]
    _arrays.require_integers("batch_indices", batch_indices, num_tokens)
    _arrays.require_integers("positions", positions, num_tokens)
    _arrays.require_integers("kv_indices", kv_indices, None)
    lens = _kv_lens(kv_indptr, kv_last_page_len, page_size).tolist()
    for i, (s, position) in enumerate(zip(batch_indices.tolist(), positions.tolist())):
        if not 0 <= s < len(lens):
            raise Error(f"batch_indices: index {i} is not in [0, {len(lens)}): {s}")
        if not 0 <= position < lens[s]:
            raise Error(f"positions: index {i} is not in [0, {lens[s]}): {position}")
    batch_indices, positions, kv_indptr = map(_arrays.as_int64, (batch_indices, positions, kv_indptr))
    at = kv_indptr[batch_indices] + positions // page_size
    for i, entry in enumerate(at.tolist()):
        if not 0 <= entry < kv_indices.shape[0]:
            raise Error(f"kv_indices: has {kv_indices.shape[0]} entries, token {i} needs number {entry}")
    slots = _arrays.as_int64(kv_indices[at]) * page_size + positions % page_size
    quire.append(append_key, append_value, pages, None, slots)
