# SPDX-License-Identifier: Apache-2.0
"""Masks of truth values as ranges of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class MaskRanges:
    """A mask as sequences of ``quire.attend``: runs of rows whose ranges of keys move along.

    Rows are numbered through the batch; a row of no run sees nothing. Of run i, the last row sees
    the keys up to ``kv_first[i] + kv_lens[i]``.
    """

    causal: bool
    window: int | None
    query_begins: list[int]
    query_ends: list[int]
    kv_lens: list[int]
    kv_first: np.ndarray
    batch_of: np.ndarray

    def kv_begins(self, step: int) -> list[int]:
        """First row of K of every run, where batch entries are step rows apart."""
        return (self.kv_first + self.batch_of * step).tolist()


def find_ranges(mask: torch.Tensor) -> MaskRanges | None:
    """The ranges of ``mask [batch, 1, q_len, kv_len]``; None if they do not describe it."""
    batch, heads, q_len, kv_len = mask.shape
    if (heads != 1 and mask.stride(1) != 0) or mask.numel() == 0:
        return None
    seen = mask[:, 0].detach().cpu().numpy().reshape(batch * q_len, kv_len)
    counts = seen.sum(axis=1, dtype=np.int64)
    begins = seen.argmax(axis=1)
    ends = kv_len - seen[:, ::-1].argmax(axis=1)
    used = counts > 0
    if not used.any() or ((ends - begins) != counts)[used].any():
        return None
    batch_of = np.arange(batch * q_len) // q_len
    both = used[1:] & used[:-1] & (batch_of[1:] == batch_of[:-1])
    end_step, begin_step = np.diff(ends), np.diff(begins)

    # Rows of one batch entry that all see the same: an encoder, or one query each.
    same = both & (end_step == 0) & (begin_step == 0)
    runs = _Runs(same, used)
    if runs.num == batch - np.count_nonzero(~used.reshape(batch, q_len).any(axis=1)):
        return runs.ranges(False, None, begins, ends, batch_of)

    window = int(counts.max())
    runs = _Runs(both & (end_step == 1) & (begin_step >= 0) & (begin_step <= 1), used)
    lowest = begins[runs.begins][runs.run_of]
    expected = np.maximum(lowest, ends - window)
    if (expected != begins)[used].any():
        return None
    narrow = (begins > lowest)[used].any()
    return runs.ranges(True, window - 1 if narrow else None, begins, ends, batch_of)


class _Runs:
    """Maximal runs of used rows in which every row joins the one before it."""

    def __init__(self, joins: np.ndarray, used: np.ndarray) -> None:
        starts = used.copy()
        starts[1:] &= ~joins
        self.begins = np.flatnonzero(starts)
        self.run_of = np.maximum(np.cumsum(starts) - 1, 0)
        last = used.copy()
        last[:-1] &= ~joins
        self.lasts = np.flatnonzero(last)
        self.num = len(self.begins)

    def ranges(self, causal, window, begins, ends, batch_of) -> MaskRanges:
        first = begins[self.begins]
        return MaskRanges(
            causal, window, self.begins.tolist(), (self.lasts + 1).tolist(),
            (ends[self.lasts] - first).tolist(), first, batch_of[self.begins],
        )  # fmt: skip
