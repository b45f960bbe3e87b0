# SPDX-License-Identifier: Apache-2.0
"""Attention of a mixed batch over a paged cache, with NumPy arrays."""

import numpy as np
import quire

rng = np.random.default_rng(0)
num_blocks, block_size, num_heads, num_kv_heads, dim = 32, 16, 8, 2, 64
k_cache = np.zeros((num_blocks, block_size, num_kv_heads, dim), np.float32)
v_cache = np.zeros_like(k_cache)

# Two sequences: one begins with a prompt of 20 tokens, one decodes its 41st token.
query_begins = np.array([0, 20, 21], np.int32)
kv_lens = np.array([20, 41], np.int32)
block_table = np.array([[3, 5, 0], [7, 1, 9]], np.int32)

# The keys of the second that are there already.
old = rng.standard_normal((40, num_kv_heads, dim)).astype(np.float32)
positions = np.arange(40)
quire.append(old, old, k_cache, v_cache, block_table[1][positions // 16] * 16 + positions % 16)

# The step: Q, K and V of 21 new tokens. K and V are stored, then attention is computed.
q = rng.standard_normal((21, num_heads, dim)).astype(np.float32)
k = rng.standard_normal((21, num_kv_heads, dim)).astype(np.float32)
v = rng.standard_normal((21, num_kv_heads, dim)).astype(np.float32)
prompt = np.arange(20)
slots = np.append(block_table[0][prompt // 16] * 16 + prompt % 16, 9 * 16 + 40 % 16)
out = quire.attend(
    q, k_cache, v_cache, query_begins, kv_lens, block_table, k=k, v=v, slots=slots
)
print("out", out.shape, out.dtype)

# The same attention over two halves of the keys of the second sequence, merged.
row, whole = q[20:], out[20:]
first = quire.attend(row, k_cache, v_cache, [0, 1], [32], [[7, 1]], causal=False, return_lse=True)
second = quire.attend(row, k_cache, v_cache, [0, 1], [9], [[9]], causal=False, return_lse=True)
merged = quire.merge([first[0], second[0]], [first[1], second[1]])
print("merged differs by", float(np.abs(merged - whole).max()))
assert np.abs(merged - whole).max() < 1e-5

try:
    quire.attend(q, k_cache, v_cache, query_begins, kv_lens, [[3, 5], [7, 1, 99]])
except quire.Error as error:
    print("refused:", error)
