# SPDX-License-Identifier: Apache-2.0
"""quire under the continuous batching that transformers has itself (``generate_batch``).

It accepts its own attention names only, so for the time of a with-block they mean quire. K and V of
layers with full attention are read from its pages in place; those of layers with windows, which it
keeps as rings, are gathered by its cache first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AttentionInterface

from quire._quire import AttentionSpec, KvCacheView, PreparedBatch, from_token_slots
from quire.attention import attend
from quire.transformers.attention import unsupported
from quire.transformers.layers import DTYPES

_NAMES = ("sdpa", "paged|eager")
_blocks = threading.Lock()  # one with-block at a time


class _Batches(threading.local):
    """The prepared batches of the forward pass that this thread computes."""

    key: Any = None  # an object that all layers of one pass are given, and no other pass

    def __init__(self) -> None:
        self.ready: dict[Any, PreparedBatch] = {}
        self.kept: dict[Any, PreparedBatch] = {}

    def get(self, spec: AttentionSpec, allocator: Any, kwargs: dict[str, Any]) -> PreparedBatch:
        if self.key is not kwargs["write_index"]:
            self.key = kwargs["write_index"]
            self.ready = {}
        name = (allocator.index, str(spec))
        prepared = self.ready.get(name)
        if prepared is None:
            prepared = self.kept.setdefault(name, PreparedBatch(spec))
            read = kwargs["read_index"][allocator.index]
            write = kwargs["write_index"][allocator.index]
            query_begins = kwargs["cu_seq_lens_q"]
            num_rows = int(query_begins[-1])
            kv_begins = kwargs["cu_seq_lens_k"][allocator.layer_type]
            # Between two blocks of one layer lie the pages of V and of the other layers.
            stride, page = allocator.block_physical_stride, spec.block_size
            read, write = (
                torch.div(x, stride, rounding_mode="floor") * page + x % stride
                for x in (_ints(read[: int(kv_begins[-1])]), _ints(write[:num_rows]))
            )
            batch = from_token_slots(
                _ints(query_begins), _ints(kv_begins), read if read.numel() else None, write, page
            )
            prepared.prepare(batch)
            self.ready[name] = prepared
        return prepared


def _ints(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu", torch.int64)


_batches = _Batches()


@torch.compiler.disable
def _paged_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As ``attention_forward``, of one packed row over the paged cache of transformers."""
    cache = kwargs["cache"]
    options = {"scale": scaling, "softcap": softcap or 0.0}
    options["sinks"] = None if s_aux is None else s_aux.detach().float()
    allocator = cache.layer_to_allocator[module.layer_idx]
    q = query[0].transpose(0, 1)
    out = query.new_zeros(q.shape[0], q.shape[1], value.shape[3])  # rows of no sequence stay 0
    if allocator.layer_type == "full_attention":
        k_pages, v_pages = allocator.get_cache_for_block_table(module.layer_idx)
        step = allocator.block_physical_stride // k_pages.shape[1]
        view = KvCacheView(k_pages[::step], v_pages[::step])
        spec = AttentionSpec(
            query.shape[1], key.shape[1], query.shape[3], value_dim=value.shape[3],
            q_dtype=DTYPES[query.dtype], block_size=k_pages.shape[1], softcap=bool(softcap),
            sinks=s_aux is not None,
        )  # fmt: skip
        prepared = _batches.get(spec, allocator, kwargs)
        num_rows = int(kwargs["cu_seq_lens_q"][-1])
        k, v = (x[0].transpose(0, 1)[:num_rows] for x in (key, value))
        prepared.append(k, v, view)
        prepared.attend(q, view, out=out, **options)
    else:
        query_begins = _ints(kwargs["cu_seq_lens_q"])
        kv_begins = _ints(kwargs["cu_seq_lens_k"][allocator.layer_type])
        key, value = cache.update(
            key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs
        )
        attend(
            q, key[0].transpose(0, 1), value[0].transpose(0, 1), query_begins,
            kv_begins[1:] - kv_begins[:-1], kv_begins=kv_begins[:-1],
            window=allocator.sliding_window - 1, out=out, **options,
        )  # fmt: skip
    return out[None], None


@contextlib.contextmanager
def continuous_batching() -> Iterator[None]:
    """For the time of the with-block ``generate_batch`` of transformers computes with quire.

        with quire.transformers.continuous_batching():
            model.generate_batch(inputs, generation_config=...)

    The attention of the model must be ``sdpa`` or ``eager``, and continuous batching must not
    change it to another (``auto_switch_to_flash=False``). Other forward passes with these names
    are computed as ever. Written for transformers 5.22; a version whose cache differs is an error.
    """
    try:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
    except ImportError as error:
        raise unsupported(f"transformers: no continuous batching that quire knows: {error}")
    with _blocks:
        interface = AttentionInterface()
        before = {name: interface[name] for name in _NAMES if name in interface}
        if not before:
            raise unsupported(f"transformers: has none of the attentions {_NAMES}")

        def forward_for(previous: Any) -> Any:
            def forward(module, query, key, value, attention_mask, **kwargs):
                if not isinstance(kwargs.get("cache"), PagedAttentionCache):
                    return previous(module, query, key, value, attention_mask, **kwargs)
                if not hasattr(kwargs["cache"], "layer_to_allocator"):
                    raise unsupported("transformers: its paged cache is not that of version 5.22")
                return _paged_forward(module, query, key, value, attention_mask, **kwargs)

            return forward

        try:
            for name, previous in before.items():
                AttentionInterface.register(name, forward_for(previous))
            yield
        finally:
            for name, previous in before.items():
                AttentionInterface.register(name, previous)
