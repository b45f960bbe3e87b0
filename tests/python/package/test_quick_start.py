# SPDX-License-Identifier: Apache-2.0
"""The quick start of README.md in Python runs as it stands, and is right."""

import pathlib
import sys

import numpy as np
from exact_attention import attention

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from readme import fragment  # noqa: E402

BLOCK_SIZE, HEADS, KV_HEADS, DIM = 16, 4, 2, 32
KV_LENS = [3, 20]


def test_python_runs():
    rng = np.random.default_rng(1)
    tokens = sum(KV_LENS)  # all of them new
    q, k, v = (rng.standard_normal((tokens, heads, DIM)).astype(np.float32)
               for heads in (HEADS, KV_HEADS, KV_HEADS))
    caches = [np.zeros((4, BLOCK_SIZE, KV_HEADS, DIM), np.float32) for _ in range(2)]
    block_table = np.array([[2, 0], [3, 1]], np.int32)
    slots = np.array([block_table[s, i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
                      for s, length in enumerate(KV_LENS) for i in range(length)], np.int64)
    names = {"q": q, "k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1], "slots": slots,
             "query_begins": np.cumsum([0, *KV_LENS]).astype(np.int32),
             "kv_lens": np.array(KV_LENS, np.int32), "block_table": block_table}
    exec(fragment("python"), names)  # the README is ours
    begin = 0
    for length in KV_LENS:
        rows = slice(begin, begin + length)
        want, _ = attention(q[rows], k[rows], v[rows], window=(1023, 0))
        np.testing.assert_allclose(names["out"][rows], want, rtol=1e-5, atol=1e-5)
        begin += length
