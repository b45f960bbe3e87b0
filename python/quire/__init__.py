# SPDX-License-Identifier: Apache-2.0
"""Paged attention for LLM servers.

    import numpy as np, quire

    out = quire.attend(q, k_cache, v_cache, query_begins, kv_lens, block_table)

Arrays are those of NumPy (with the formats of ml_dtypes), PyTorch, or any library with
``__dlpack__``; none is copied. What is wrong raises :class:`quire.Error` before anything is
written. ``help(quire.attend)`` says what the call takes, docs/python.md the rest.
"""

import os as _os

from quire._error import Error
from quire._quire import (
    AttentionSpec,
    Backend,
    BatchBounds,
    BatchView,
    BlockManager,
    KvCache,
    KvCacheView,
    PreparedBatch,
    Prompt,
    ScheduledBatch,
    Scheduler,
    __version__,
    aligned_block_size,
    from_token_slots,
)
from quire._quire import _after_fork
from quire.attention import append, attend, merge, pack_tree_mask
from quire.system import (
    as_numpy,
    check,
    get_num_threads,
    info,
    release_memory,
    set_num_threads,
)

Error.__module__ = "quire"
_os.register_at_fork(after_in_child=_after_fork)

__all__ = [
    "AttentionSpec",
    "Backend",
    "BatchBounds",
    "BatchView",
    "BlockManager",
    "Error",
    "KvCache",
    "KvCacheView",
    "PreparedBatch",
    "Prompt",
    "ScheduledBatch",
    "Scheduler",
    "__version__",
    "aligned_block_size",
    "append",
    "as_numpy",
    "attend",
    "check",
    "from_token_slots",
    "get_num_threads",
    "info",
    "merge",
    "pack_tree_mask",
    "release_memory",
    "set_num_threads",
]
