# SPDX-License-Identifier: Apache-2.0
# Types of attention.py, which is without them so that help() stays readable.
from collections.abc import Sequence
from typing import Any, Literal

from quire import _quire

Array = Any
KvOrder = Literal["block_token_head_dim", "block_head_token_dim"]
KvPacking = Literal["kv_first", "kv_per_block", "kv_per_token"]
DTypeName = Literal["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8"]

def attend(
    q: Array,
    k_cache: Array | _quire.KvCacheView,
    v_cache: Array | None,
    query_begins: Array | Sequence[int] | tuple[Array, Array],
    kv_lens: Array | Sequence[int],
    block_table: Array | Sequence[Sequence[int]] | tuple[Array, Array] | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | tuple[int, int] | None = None,
    chunk: int = 0,
    alignment: Literal["aligned", "unaligned"] = "aligned",
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    sinks: Array | Sequence[float] | None = None,
    bias: Array | None = None,
    tree_mask: tuple | None = None,
    kv_begins: Array | Sequence[int] | None = None,
    k: Array | None = None,
    v: Array | None = None,
    slots: Array | Sequence[int] | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    kv_order: KvOrder = "block_token_head_dim",
    kv_packing: KvPacking | None = None,
    kv_dtype: DTypeName | None = None,
    value_dim: int = 0,
    out: Array | None = None,
    lse: Array | None = None,
    out_dtype: DTypeName | None = None,
    return_lse: bool = False,
    backend: str | _quire.Backend = "auto",
    stream: int | None = None,
) -> Any: ...

def append(
    k: Array,
    v: Array | None,
    k_cache: Array | _quire.KvCacheView,
    v_cache: Array | None,
    slots: Array | Sequence[int],
    *,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    kv_order: KvOrder = "block_token_head_dim",
    kv_packing: KvPacking | None = None,
    kv_dtype: DTypeName | None = None,
    backend: str | _quire.Backend = "auto",
    stream: int | None = None,
) -> None: ...

def merge(
    outs: Sequence[Array],
    lses: Sequence[Array],
    *,
    sinks: Array | Sequence[float] | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    out_dtype: DTypeName | None = None,
    return_lse: bool = False,
    backend: str | _quire.Backend = "auto",
    stream: int | None = None,
) -> Any: ...

def pack_tree_mask(
    masks: Sequence[Any | None], depths: Array | Sequence[int] | None = None
) -> tuple: ...
