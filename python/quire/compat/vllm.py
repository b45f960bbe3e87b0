# SPDX-License-Identifier: Apache-2.0
"""Two operations of vLLM."""

import operator
from typing import Any

import quire
from quire import _arrays
from quire._error import Error
from quire.compat._refuse import refuse

_CACHE_FORMATS: dict[str, Any] = {"auto": None, "fp8": "f8e4m3", "fp8_e4m3": "f8e4m3", "fp8_e5m2": "f8e5m2"}


def _natural(lse):
    """[num_heads, num_tokens] -> [num_tokens, num_heads]; +inf, too, means that no key was seen."""
    lse = lse.swapaxes(0, 1)
    return _arrays.where(lse == float("inf"), float("-inf"), lse)


def merge_attn_states(
    output: Any,
    prefix_output: Any,
    prefix_lse: Any,
    suffix_output: Any,
    suffix_lse: Any,
    output_lse: Any | None = None,
    prefill_tokens_with_context: int | None = None,
    output_scale: Any | None = None,
    output_block_scale: Any | None = None,
    quant_group_size: int | None = None,
    quant_scale_ue8m0: bool | None = None,
) -> None:
    """vLLM's ``merge_attn_states``: attention over two disjoint sets of keys becomes one.

    Arguments:
        output: ``[num_tokens, num_heads, head_dim]``, written.
        prefix_output, suffix_output: as ``output``.
        prefix_lse, suffix_lse: ``[num_heads, num_tokens]`` float32, natural logarithm.
        output_lse: as those, written if given.
        prefill_tokens_with_context: rows from there on have no prefix: they are copies of the
            suffix, and what the prefix holds for them is not read. None: all rows have one.
        output_scale, output_block_scale, quant_group_size, quant_scale_ue8m0: must be None.
    """
    refuse(
        "results are not quantized here: they have the format of output",
        output_scale=output_scale, output_block_scale=output_block_scale,
        quant_group_size=quant_group_size, quant_scale_ue8m0=quant_scale_ue8m0,
    )  # fmt: skip
    states = {"output": output, "prefix_output": prefix_output, "suffix_output": suffix_output}
    lses = {"prefix_lse": prefix_lse, "suffix_lse": suffix_lse, "output_lse": output_lse}
    _arrays.require_arrays(**states, **lses)
    _arrays.require_shape("output", output, None, None, None)
    num_tokens, num_heads, _ = output.shape
    for name, array in states.items():
        _arrays.require_shape(name, array, *output.shape)
    for name, array in lses.items():
        if array is not None:
            _arrays.require_shape(name, array, num_heads, num_tokens)
    num_merged = None
    if prefill_tokens_with_context is not None:
        num_merged = operator.index(prefill_tokens_with_context)
        if not 0 <= num_merged <= num_tokens:
            raise Error(f"prefill_tokens_with_context: {num_merged} is not in [0, {num_tokens}]")
    merged = slice(num_merged)
    quire.merge(
        [prefix_output[merged], suffix_output[merged]],
        [_natural(prefix_lse[:, merged]), _natural(suffix_lse[:, merged])],
        out=output[merged],
        lse=None if output_lse is None else output_lse[:, merged].swapaxes(0, 1),
    )
    if num_merged is not None:
        output[num_merged:] = suffix_output[num_merged:]
        if output_lse is not None:
            output_lse[:, num_merged:] = suffix_lse[:, num_merged:]


def reshape_and_cache_flash(
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    kv_cache_dtype: str = "auto",
    k_scale: Any | None = None,
    v_scale: Any | None = None,
) -> None:
    """vLLM's ``reshape_and_cache_flash``: stores K and V at the slots of a paged cache.

    Arguments:
        key, value: ``[num_tokens, num_kv_heads, head_dim]``; rows behind the last slot are padding.
        key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``, written.
        slot_mapping: ``[num_slots]``, -1: not stored.
        kv_cache_dtype: ``"auto"`` (that of the cache), ``"fp8"``, ``"fp8_e4m3"`` or ``"fp8_e5m2"``.
        k_scale, v_scale: of 8-bit caches: a number or ``[1]``, or ``[num_kv_heads]``; values are
            stored divided by them.
    """
    if kv_cache_dtype not in _CACHE_FORMATS:
        known = ", ".join(_CACHE_FORMATS)
        raise Error(f"kv_cache_dtype: needs one of {known}, has '{kv_cache_dtype}'")
    _arrays.require_arrays(key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    if not hasattr(slot_mapping, "shape"):  # devices take slots of 64 bits alone
        slot_mapping = _arrays.as_int64(_arrays.integers("slot_mapping", slot_mapping, key))
    _arrays.require_shape("slot_mapping", slot_mapping, None)
    for name, array in {"key": key, "value": value}.items():
        _arrays.require_shape(name, array, None, None, None)
    num_slots = slot_mapping.shape[0]
    if num_slots > key.shape[0]:
        raise Error(f"slot_mapping: has {num_slots} slots for {key.shape[0]} rows of key")
    is_scaled = _arrays.item_bytes(key_cache) == 1
    quire.append(
        key[:num_slots], value[:num_slots], key_cache, value_cache, slot_mapping,
        k_scale=k_scale if is_scaled else None, v_scale=v_scale if is_scaled else None,
        kv_dtype=_CACHE_FORMATS[kv_cache_dtype],
    )  # fmt: skip
