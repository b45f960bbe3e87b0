# SPDX-License-Identifier: Apache-2.0
"""quire on tensors of PyTorch, against its own scaled dot product attention."""

import numpy as np
import pytest
import quire
import torch
from ragged_batch import make_inputs, metadata, sdpa


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_formats(dtype):
    q, k, v = make_inputs(dtype)
    out, lse = quire.attend(q, k, v, *metadata(), return_lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype and lse.dtype == torch.float32
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), sdpa(q, k, v), atol=tolerance, rtol=0)
    given = torch.empty_like(out)
    assert quire.attend(q, k, v, *metadata(), out=given) is given
    assert torch.equal(given, out)


def test_numpy_and_torch_agree():
    q, k, v = make_inputs()
    expected = quire.attend(q, k, v, *metadata())
    arrays = [x.numpy() for x in (q, k, v, *metadata())]
    out = quire.attend(*arrays)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected.numpy())


def test_written_in_place():
    _, k, v = make_inputs(torch.bfloat16)
    new = torch.randn(3, 2, 32)
    quire.append(new, new, k, v, torch.tensor([0, 17, 50]))
    flat = k.view(-1, 2, 32)
    assert torch.equal(flat[[0, 17, 50]], new.bfloat16())


def test_strided():
    q, k, v = make_inputs()
    packed = torch.stack([k, v], dim=3).flatten(3)  # K and V of a token and head side by side
    expected = quire.attend(q, k, v, *metadata())
    assert torch.equal(
        quire.attend(q, packed, None, *metadata(), kv_packing="kv_per_token"), expected
    )
    parts = quire.attend(q, packed[..., :32], packed[..., 32:], *metadata())
    assert torch.equal(parts, expected)
    wide = torch.randn(26, 4, 64)
    wide[..., :32] = q
    assert torch.equal(quire.attend(wide[..., :32], k, v, *metadata()), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype):
    q, k, v = make_inputs()
    k8, v8 = k.to(dtype), v.to(dtype)
    out = quire.attend(q, k8, v8, *metadata(), k_scale=1.0, v_scale=torch.ones(1)[0])
    torch.testing.assert_close(out, sdpa(q, k8.float(), v8.float()).float(), atol=1e-4, rtol=0)


def test_cache_of_quire():
    spec = quire.AttentionSpec(4, 2, 32, q_dtype="bf16", block_size=16)
    cache = quire.KvCache(spec, 9, layout="plain")
    q, k, v = make_inputs(torch.bfloat16)
    torch.from_dlpack(cache.layer(0).k).copy_(k.transpose(1, 2))
    torch.from_dlpack(cache.layer(0).v).copy_(v.transpose(1, 2))
    out = quire.attend(q, cache.layer(0), None, *metadata())
    assert torch.equal(out, quire.attend(q, k, v, *metadata()))


def test_refused():
    q, k, v = make_inputs()
    with pytest.raises(quire.Error, match="int64"):
        quire.attend(q.long(), k, v, *metadata())
    with pytest.raises(quire.Error, match="grad"):
        quire.attend(q.requires_grad_(), k, v, *metadata())
    with torch.no_grad():
        quire.attend(q, k, v, *metadata())
    with pytest.raises(quire.Error, match="meta|device|DLPack"):
        quire.attend(torch.empty(26, 4, 32, device="meta"), k, v, *metadata())
    with pytest.raises(quire.Error):
        quire.attend(torch.randn(26, 4, 32).to_sparse(), k, v, *metadata())
