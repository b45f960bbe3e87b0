# SPDX-License-Identifier: Apache-2.0
"""quire under the continuous batching that transformers has itself (``generate_batch``).

It accepts its own attention names only, so for the time of a with-block they mean quire. K and V of
layers with full attention are read from its pages in place; those of layers with windows, which it
keeps as rings, are gathered by its cache first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AttentionInterface

from quire._quire import AttentionSpec, KvCacheView, PreparedBatch, from_token_slots
from quire.attention import attend
from quire.transformers.attention import unsupported
from quire.transformers.layers import DTYPES

_NAMES = ("sdpa", "paged|sdpa", "paged|eager")
_blocks = threading.Lock()  # one with-block at a time


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where the paged cache of transformers keeps K and V of one layer."""

    group: int  # in read_index and write_index
    layer_type: str
    window: int | None
    k_pages: torch.Tensor | None  # [num_pages, page_size, num_kv_heads, dim]; None with windows
    v_pages: torch.Tensor | None
    stride: int  # slots from one page of this layer to the next


def _place(cache: Any, layer: int) -> _Place:
    if hasattr(cache, "layer_to_allocator"):  # 5.22
        allocator = cache.layer_to_allocator[layer]
        if allocator.layer_type != "full_attention":
            window = allocator.sliding_window
            return _Place(allocator.index, allocator.layer_type, window, None, None, 0)
        pages = allocator.get_cache_for_block_table(layer)
        # Between two blocks of one layer lie the pages of V and of the other layers.
        stride = allocator.block_physical_stride
        k, v = (x[:: stride // x.shape[1]] for x in pages)
        return _Place(allocator.index, allocator.layer_type, None, k, v, stride)
    if hasattr(cache, "layer_index_to_group_indices"):  # 5.17
        group, index = cache.layer_index_to_group_indices[layer]
        window = cache.sliding_windows[layer]
        if window != 1:
            return _Place(group, "sliding_attention", window, None, None, 0)
        k, v = (
            x[index].view(-1, cache.block_size, *x[index].shape[1:])
            for x in (cache.key_cache, cache.value_cache)
        )
        return _Place(group, "full_attention", None, k, v, cache.block_size)
    raise unsupported("transformers: its paged cache is neither that of 5.17 nor that of 5.22")


def _gather(cache: Any, key: Any, value: Any, layer: int, kwargs: dict[str, Any]) -> Any:
    """Stores new K and V and returns all that the queries see, ``[keys, num_kv_heads, dim]``."""
    if hasattr(cache, "layer_to_allocator"):
        own = dict(kwargs)  # it writes into them
        k, v = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=own)
        return k[0].transpose(0, 1), v[0].transpose(0, 1)
    return cache.update(
        key_states=key, value_states=value, layer_idx=layer, read_index=kwargs["read_index"],
        write_index=kwargs["write_index"],
    )  # fmt: skip


def _kv_begins(place: _Place, kwargs: dict[str, Any]) -> torch.Tensor:
    begins = kwargs["cu_seq_lens_k"]
    return _ints(begins[place.layer_type] if isinstance(begins, dict) else begins)


class _Batches(threading.local):
    """The prepared batches of the forward pass that this thread computes."""

    key: Any = None  # an object that all layers of one pass are given, and no other pass

    def __init__(self) -> None:
        self.ready: dict[Any, tuple[PreparedBatch, int]] = {}
        self.kept: dict[Any, PreparedBatch] = {}

    def get(
        self, spec: AttentionSpec, place: _Place, device: torch.device, kwargs: dict[str, Any]
    ) -> tuple[PreparedBatch, int]:
        """The prepared batch of this layer, and how many rows of it are tokens."""
        if self.key is not kwargs["write_index"]:
            self.key = kwargs["write_index"]
            self.ready = {}
        name = (place.group, str(spec), str(device))
        if name not in self.ready:
            if name not in self.kept:
                self.kept[name] = PreparedBatch(spec, device=str(device))
            prepared = self.kept[name]
            query_begins, kv_begins = _ints(kwargs["cu_seq_lens_q"]), _kv_begins(place, kwargs)
            read = _ints(kwargs["read_index"][place.group][: int(kv_begins[-1])])
            write = _ints(kwargs["write_index"][place.group][: int(query_begins[-1])])
            page = spec.block_size
            read, write = (
                torch.div(x, place.stride, rounding_mode="floor") * page + x % place.stride
                for x in (read, write)
            )
            prepared.prepare(
                from_token_slots(
                    query_begins, kv_begins, read if read.numel() else None, write, page
                )
            )
            self.ready[name] = prepared, int(query_begins[-1])
        return self.ready[name]


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
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise unsupported("transformers: its graphs cannot hold quire: use_cuda_graph=False")
    cache, layer = kwargs.pop("cache"), module.layer_idx
    options = {"scale": scaling, "softcap": softcap or 0.0}
    options["sinks"] = None if s_aux is None else s_aux.detach().float()
    place = _place(cache, layer)
    q = query[0].transpose(0, 1)
    out = query.new_zeros(q.shape[0], q.shape[1], value.shape[3])  # rows of no sequence stay 0
    if place.window is None:
        spec = AttentionSpec(
            query.shape[1], key.shape[1], query.shape[3], value_dim=value.shape[3],
            q_dtype=DTYPES[query.dtype], block_size=place.k_pages.shape[1], softcap=bool(softcap),
            sinks=s_aux is not None,
        )  # fmt: skip
        prepared, num_rows = _batches.get(spec, place, query.device, kwargs)
        view = KvCacheView(place.k_pages, place.v_pages)
        k, v = (x[0].transpose(0, 1)[:num_rows] for x in (key, value))
        prepared.append(k, v, view)
        prepared.attend(q, view, out=out, **options)
    else:
        begins = _kv_begins(place, kwargs)
        k, v = _gather(cache, key, value, layer, kwargs)
        attend(
            q, k, v, _ints(kwargs["cu_seq_lens_q"]), begins[1:] - begins[:-1],
            kv_begins=begins[:-1], window=place.window - 1, out=out, **options,
        )  # fmt: skip
    return out[None], None


@contextlib.contextmanager
def continuous_batching() -> Iterator[None]:
    """For the time of the with-block ``generate_batch`` of transformers computes with quire.

        with quire.transformers.continuous_batching():
            model.generate_batch(inputs, generation_config=...)

    The attention of the model must be ``sdpa`` or ``eager``, and continuous batching must not
    change it to another (``auto_switch_to_flash=False``) nor, on a GPU, record graphs
    (``use_cuda_graph=False``). Other forward passes with these names
    are computed as ever. Written for transformers 5.17 and 5.22; another paged cache is an error.
    One with-block at a time: a second one, inside the first or in another thread, is an error too.
    """
    try:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
    except ImportError as error:
        raise unsupported(f"transformers: no continuous batching that quire knows: {error}")
    if not _blocks.acquire(blocking=False):
        raise unsupported("continuous_batching: a with-block of it is open; one at a time")
    try:
        interface = AttentionInterface()
        before = {name: interface[name] for name in _NAMES if name in interface}
        if not before:
            raise unsupported(f"transformers: has none of the attentions {_NAMES}")

        def forward_for(previous: Any) -> Any:
            def forward(module, query, key, value, attention_mask, **kwargs):
                if not isinstance(kwargs.get("cache"), PagedAttentionCache):
                    return previous(module, query, key, value, attention_mask, **kwargs)
                return _paged_forward(module, query, key, value, attention_mask, **kwargs)

            return forward

        try:
            for name, previous in before.items():
                AttentionInterface.register(name, forward_for(previous))
            yield
        finally:
            for name, previous in before.items():
                AttentionInterface.register(name, previous)
    finally:
        _blocks.release()
