# SPDX-License-Identifier: Apache-2.0
"""Functions with the signatures people already call, on NumPy arrays and tensors of PyTorch.

From flash-attn: :func:`flash_attn_varlen_func`, :func:`flash_attn_with_kvcache`. From vLLM:
:func:`merge_attn_states`, :func:`reshape_and_cache_flash`. From FlashInfer: plan and run,
:class:`BatchPrefillWithPagedKVCacheWrapper`, :class:`BatchDecodeWithPagedKVCacheWrapper`, and
:func:`append_paged_kv_cache`. Arguments mean what they mean there; one that cannot be honoured
raises :class:`quire.Error` with the reason. What only chooses a speed there (``num_splits``,
``deterministic``, workspaces) is taken and has no effect: results do not depend on it.
"""

from quire.compat.flash_attention import flash_attn_varlen_func, flash_attn_with_kvcache
from quire.compat.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    append_paged_kv_cache,
)
from quire.compat.vllm import merge_attn_states, reshape_and_cache_flash

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "append_paged_kv_cache",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "merge_attn_states",
    "reshape_and_cache_flash",
]
