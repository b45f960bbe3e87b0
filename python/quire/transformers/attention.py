# SPDX-License-Identifier: Apache-2.0
"""The attention ``quire`` of transformers: one call of ``quire.attend`` per layer.

Masks come as transformers builds them for ``sdpa``: None (all keys, or plain causality) or truth
values ``[batch, 1, q_len, kv_len]``. Those in which every row sees one range of keys (causal, with
windows, padded on either side, packed) become ranges, found once per forward pass; K and V are read
where they lie. Any other mask becomes a bias.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from quire._error import Error
from quire.attention import attend
from quire.transformers.mask_ranges import MaskRanges, find_ranges

NAME = "quire"


class _Active(threading.local):
    """What takes the attention calls of this thread while a packed batch is computed, or None."""

    step: Any = None


active = _Active()


def unsupported(message: str) -> Error:
    error = Error(message)
    error.code = "unsupported"
    return error


def register() -> None:
    """Makes the name ``quire`` known to transformers; importing quire.transformers does."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """The mask of a forward pass; none in a packed batch, which knows its sequences."""
    if active.step is not None:
        return None
    return sdpa_mask(*args, **kwargs)


def _rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """``[batch, heads, len, dim]`` as ``[rows, heads, dim]`` without a copy where strides allow it.

    Returns it with the distance of two batch entries in rows. Rows of different entries may overlap
    in memory (row + 1 of head 0 can be what row is of head 1); they are only read.
    """
    batch, heads, length, dim = x.shape
    if length == 0 or x.stride(3) != 1 or x.stride(2) == 0 or x.stride(0) % x.stride(2) != 0:
        x = x.contiguous()
    step = x.stride(0) // x.stride(2) if batch > 1 else length
    size = (step * (batch - 1) + length, heads, dim)
    return x.as_strided(size, (x.stride(2), x.stride(1), 1)), step


def _ranges_of(mask: torch.Tensor) -> MaskRanges | None:
    """The ranges of a boolean mask, kept with the mask: all layers are given the same one."""
    if mask.is_inference():
        return find_ranges(mask)
    kept = getattr(mask, "_quire_ranges", None)
    if kept is None or kept[0] != mask._version:
        kept = (mask._version, find_ranges(mask))
        mask._quire_ranges = kept
    return kept[1]


def _fitted(mask: torch.Tensor | None, batch: int, q_len: int, kv_len: int) -> torch.Tensor | None:
    """The mask with one entry per query and key; itself where it has that shape."""
    if mask is None or mask.shape[::2] + mask.shape[3:] == (batch, q_len, kv_len):
        return mask
    if mask.shape[3] < kv_len or mask.shape[0] not in (1, batch) or mask.shape[2] not in (1, q_len):
        raise Error(
            f"attention_mask: {list(mask.shape)}, needs [{batch}, heads, {q_len}, {kv_len}] or 1"
        )
    return mask[..., :kv_len].expand(batch, -1, q_len, -1)


def _bias(
    query: torch.Tensor,
    kv_len: int,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """What is added to the scores, ``[batch, num_q_heads, q_len, kv_len]``; hidden keys are -inf."""
    batch, heads, q_len, _ = query.shape
    if mask is None and causal:
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device).tril()[None, None]
    bias = position_bias
    if mask is not None and mask.dtype != torch.bool:
        bias = mask if bias is None else bias + mask
    elif mask is not None:
        if bias is None:
            bias = torch.zeros((), dtype=torch.float32, device=query.device)
        bias = torch.where(mask, bias, float("-inf"))
    if bias.dtype not in (torch.float32, query.dtype):
        bias = bias.float()
    if bias.stride(-1) != 1:
        bias = bias.contiguous()
    return bias[..., :kv_len].expand(batch, heads, q_len, kv_len)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    causal: bool,
    options: dict[str, Any],
) -> torch.Tensor:
    """A padded batch; causal only without a mask. ``[batch, q_len, num_q_heads, value_dim]``."""
    batch, heads, q_len, _ = query.shape
    if causal and key.shape[2] > q_len:  # an empty cache of fixed size: its first keys are ours
        key, value = key[:, :, :q_len], value[:, :, :q_len]
        position_bias = None if position_bias is None else position_bias[..., :q_len]
    kv_len = key.shape[2]
    q_rows = query.transpose(1, 2).reshape(batch * q_len, heads, query.shape[3])
    (k_rows, k_step), (v_rows, v_step) = _rows(key), _rows(value)
    if k_step != v_step:
        (k_rows, k_step), (v_rows, v_step) = _rows(key.contiguous()), _rows(value.contiguous())

    mask = _fitted(mask, batch, q_len, kv_len)
    ranges = None
    if position_bias is None and mask is not None and mask.dtype == torch.bool:
        ranges = _ranges_of(mask)
    if ranges is not None:
        out = query.new_zeros(batch * q_len, heads, value.shape[3])
        attend(
            q_rows, k_rows, v_rows, (ranges.query_begins, ranges.query_ends), ranges.kv_lens,
            kv_begins=ranges.kv_begins(k_step), causal=ranges.causal, window=ranges.window, out=out,
            alignment="aligned" if ranges.causal else "unaligned", **options,
        )  # fmt: skip
    else:
        if position_bias is not None or mask is not None:
            options["bias"] = _bias(query, kv_len, mask, position_bias, causal)
            causal = False
        out = attend(
            q_rows, k_rows, v_rows, [i * q_len for i in range(batch + 1)], [kv_len] * batch,
            kv_begins=[i * k_step for i in range(batch)], causal=causal,
            alignment="aligned" if causal else "unaligned", **options,
        )  # fmt: skip
    return out.view(batch, q_len, heads, value.shape[3])


@torch.compiler.disable
def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it.

    Arguments:
        query: ``[batch, num_q_heads, q_len, head_dim]``
        key, value: ``[batch, num_kv_heads, kv_len, dim]``
        attention_mask: None, or ``[batch, 1 or num_q_heads, q_len, kv_len]``: truth values, or
            numbers to be added to the scores.
        position_bias: ``[1 or batch, num_q_heads, q_len, kv_len]``, added to the scores.
        s_aux: ``[num_q_heads]`` sinks.

    Returns ``([batch, q_len, num_q_heads, value_dim], None)``: quire keeps no weights.
    """
    if dropout:
        raise unsupported(f"dropout: {dropout}, quire has none: call model.eval()")
    if kwargs.get("output_attentions"):
        raise unsupported("output_attentions: quire keeps no weights; use 'eager'")
    if s_aux is not None:
        s_aux = s_aux.detach().float()
    options = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    if active.step is not None:
        return active.step.attend(module, query, key, value, position_bias, options, kwargs), None

    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = causal and attention_mask is None and query.shape[2] > 1
    return _attend(query, key, value, attention_mask, position_bias, causal, options), None
