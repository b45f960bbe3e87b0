# SPDX-License-Identifier: Apache-2.0
"""What the layers of a model ask of attention, and the caches and batches that serve them."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from quire._error import Error
from quire._quire import AttentionSpec, KvCache, PreparedBatch
from quire.transformers.attention import active, unsupported

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class _Probe:
    """Takes the attention calls of one forward pass, and keeps what they ask for."""

    def __init__(self, layer_types: list[str] | None, block_size: int) -> None:
        self.specs: dict[int, AttentionSpec] = {}
        self._layer_types = layer_types
        self._block_size = block_size

    def attend(self, module, query, key, value, position_bias, options, kwargs) -> torch.Tensor:
        layer = getattr(module, "layer_idx", None)
        name = type(module).__name__
        if layer is None or layer in self.specs:
            raise unsupported(f"model: {name} of layer {layer}: one attention per layer is needed")
        if position_bias is not None:
            raise unsupported(f"model: {name} adds a position bias")
        if not getattr(module, "is_causal", True):
            raise unsupported(f"model: {name} is not causal")
        if query.dtype not in DTYPES:
            raise unsupported(f"model: {query.dtype}, quire has {', '.join(DTYPES.values())}")
        self.specs[layer] = AttentionSpec(
            query.shape[1], key.shape[1], query.shape[3], value_dim=value.shape[3],
            q_dtype=DTYPES[query.dtype], block_size=self._block_size,
            window_left=self._window_left(layer, kwargs.get("sliding_window")),
            softcap=options["softcap"] > 0, sinks=options["sinks"] is not None,
        )  # fmt: skip
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    def _window_left(self, layer: int, window: int | None) -> int:
        kind = None if self._layer_types is None else self._layer_types[layer]
        if kind == "full_attention":
            return -1
        if kind not in (None, "sliding_attention"):
            raise unsupported(f"model: layer {layer} is of type {kind}")
        if kind == "sliding_attention" and window is None:
            raise unsupported(f"model: layer {layer} does not say its window")
        return -1 if window is None else window - 1


def find_specs(model: Any, block_size: int) -> list[AttentionSpec]:
    """One AttentionSpec per layer, from a forward pass of one token."""
    config = model.config.get_text_config()
    probe = _Probe(getattr(config, "layer_types", None), block_size)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    unread = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        unread["logits_to_keep"] = token[0, :0]
    active.step = probe
    try:
        with torch.no_grad():
            model(input_ids=token, position_ids=token, use_cache=False, **unread)
    finally:
        active.step = None
    num_layers = config.num_hidden_layers
    if sorted(probe.specs) != list(range(num_layers)):
        raise unsupported(
            f"model: {num_layers} layers, of which {len(probe.specs)} go through the attention"
            " interface"
        )
    return [probe.specs[layer] for layer in range(num_layers)]


class LayerGroup:
    """Layers with equal specs: one cache, and one prepared batch per step."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.layers: list[int] = []
        self.num_blocks = 0

    def block_bytes(self) -> int:
        """Of one block in all layers."""
        spec = self.spec
        size = 4 if spec.q_dtype == "f32" else 2
        row = spec.num_kv_heads * (spec.head_dim + spec.value_dim) * size
        return row * spec.block_size * len(self.layers)

    def most_blocks(self, max_sequences: int, max_chunk: int) -> float:
        """More are of no use to running sequences."""
        if self.spec.window_left < 0:
            return math.inf
        kept = self.spec.window_left + 1 + max_chunk
        return 1 + max_sequences * (-(-kept // self.spec.block_size) + 2)

    def allocate(self, device: str, backend: Any) -> None:
        self.cache = KvCache(
            self.spec, self.num_blocks, num_layers=len(self.layers), backend=backend, device=device
        )
        self.prepared = PreparedBatch(self.cache.spec, backend=backend, device=device)
        self.views = [self.cache.layer(i) for i in range(len(self.layers))]


def make_groups(specs: list[AttentionSpec]) -> list[LayerGroup]:
    groups: list[LayerGroup] = []
    for layer, spec in enumerate(specs):
        group = next((g for g in groups if g.spec == spec), None)
        if group is None:
            group = LayerGroup(spec)
            groups.append(group)
        group.layers.append(layer)
    return groups


def divide_memory(
    groups: list[LayerGroup], cache_bytes: int, max_sequences: int, max_chunk: int
) -> None:
    """Sets num_blocks of all groups: as many for each, but no more than its window can use."""
    left, open_groups = cache_bytes, list(groups)
    while open_groups:
        share = left // sum(group.block_bytes() for group in open_groups)
        full = [g for g in open_groups if g.most_blocks(max_sequences, max_chunk) <= share]
        for group in full or open_groups:
            group.num_blocks = int(min(share, group.most_blocks(max_sequences, max_chunk)))
            left -= group.num_blocks * group.block_bytes()
        open_groups = [g for g in open_groups if g not in full] if full else []
    for group in groups:
        if group.num_blocks < 2:
            needed = 2 * sum(group.block_bytes() for group in groups)
            raise Error(f"cache_bytes: {cache_bytes}, needs at least {needed}: two blocks a layer")
