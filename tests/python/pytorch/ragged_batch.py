# SPDX-License-Identifier: Apache-2.0
"""A ragged batch of tensors, and PyTorch's own attention over it."""

import torch

QUERY_BEGINS = [0, 5, 6, 26]
KV_LENS = [5, 40, 33]
TABLE = [[3, 0, 0], [7, 1, 4], [5, 6, 8]]


def make_inputs(dtype=torch.float32, dim=32, device="cpu"):
    """q and the caches of K and V."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(26, 4, dim), (9, 16, 2, dim), (9, 16, 2, dim)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def metadata(device="cpu"):
    return [
        torch.tensor(values, dtype=torch.int32, device=device)
        for values in (QUERY_BEGINS, KV_LENS, TABLE)
    ]


def sdpa(q, k_cache, v_cache):
    """Of every sequence alone, in f64, where the tensors lie."""
    outs = []
    for s, length in enumerate(KV_LENS):
        own = q[QUERY_BEGINS[s] : QUERY_BEGINS[s + 1]].double().transpose(0, 1)
        k, v = (
            c[TABLE[s]].flatten(0, 1)[:length].double().transpose(0, 1).repeat_interleave(2, 0)
            for c in (k_cache, v_cache)
        )
        n = own.shape[1]
        mask = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)
        out = torch.nn.functional.scaled_dot_product_attention(own, k, v, attn_mask=mask)
        outs.append(out.transpose(0, 1))
    return torch.cat(outs)
