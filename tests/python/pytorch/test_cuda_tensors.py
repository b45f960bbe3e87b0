# SPDX-License-Identifier: Apache-2.0
"""quire on tensors of PyTorch in GPU memory, against its own attention on the same GPU.

Needs a CUDA device and the plug-in ``libquire_cuda.so`` (QUIRE_PLUGIN_PATH); skipped without.
"""

import threading

import compat_cases
import pytest
import quire
import ragged_batch
import torch
from ragged_batch import KV_LENS, QUERY_BEGINS, TABLE, metadata, sdpa


def what_is_missing():
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    cuda = next(one for one in quire.info()["backends"] if one["name"] == "cuda")
    return "" if cuda["available"] else f"backend cuda: {'; '.join(cuda['reasons'])}"


MISSING = what_is_missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE)
DELAY = 200_000_000  # cycles: about a tenth of a second


def make_inputs(dtype=torch.float32, dim=64, device="cuda"):
    return ragged_batch.make_inputs(dtype, dim, device)


def check(out, q, k, v):
    torch.testing.assert_close(out.double(), sdpa(q, k, v), atol=TOLERANCE[q.dtype], rtol=0)


@pytest.mark.parametrize("where", ["lists", "cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attend(dtype, where):
    q, k, v = make_inputs(dtype)
    batch = (QUERY_BEGINS, KV_LENS, TABLE) if where == "lists" else metadata(where)
    out, lse = quire.attend(q, k, v, *batch, return_lse=True)
    assert out.device == q.device and out.dtype == dtype
    assert lse.device == q.device and lse.dtype == torch.float32 and lse.shape == (26, 4)
    check(out, q, k, v)


def test_written_where_it_lies():
    q, k, v = make_inputs(torch.bfloat16)
    out = torch.zeros_like(q)
    address = out.data_ptr()
    assert quire.attend(q, k, v, *metadata("cuda"), out=out) is out
    assert out.data_ptr() == address
    check(out, q, k, v)
    # A slice of a wider tensor: the rest of it stays.
    wide = torch.full((26, 6, 64), 7.0, dtype=torch.bfloat16, device="cuda")
    quire.attend(q, k, v, *metadata("cuda"), out=wide[:, 1:5])
    assert torch.equal(wide[:, 1:5], out)
    assert (wide[:, 0] == 7).all() and (wide[:, 5] == 7).all()
    same = q.clone()
    assert torch.equal(quire.attend(same, k, v, *metadata("cuda"), out=same), out)
    with pytest.raises(quire.Error, match="out: overlaps q"):
        rows = torch.zeros(27, 4, 64, dtype=torch.bfloat16, device="cuda")
        quire.attend(rows[:26], k, v, *metadata("cuda"), out=rows[1:])


@pytest.mark.parametrize("where", ["list", "cpu", "cuda"])
def test_append(where):
    _, k, v = make_inputs(torch.bfloat16)
    before = k.clone()
    new = torch.randn(4, 2, 64, device="cuda")
    slots = [0, 17, -1, 50]
    quire.append(new, 2 * new, k, v, slots if where == "list" else torch.tensor(slots, device=where))
    flat = k.view(-1, 2, 64)
    assert torch.equal(flat[[0, 17, 50]], new[[0, 1, 3]].bfloat16())
    assert torch.equal(v.view(-1, 2, 64)[[0, 17, 50]], (2 * new)[[0, 1, 3]].bfloat16())
    rest = [i for i in range(9 * 16) if i not in slots]
    assert torch.equal(flat[rest], before.view(-1, 2, 64)[rest])


def test_storing_in_passing():
    q, k, v = make_inputs(torch.float16)
    expected = quire.attend(q[5:6], k, v, [0, 1], [40], TABLE[1:2])
    slot = torch.tensor([TABLE[1][2] * 16 + 7], device="cuda")  # of key 39
    rows = [cache.view(-1, 2, 64)[slot].clone() for cache in (k, v)]
    for cache in (k, v):
        cache.view(-1, 2, 64)[slot] = float("nan")
    for slots in ([int(slot)], slot.cpu()):
        out = quire.attend(
            q[5:6], k, v, [0, 1], [40], TABLE[1:2], k=rows[0], v=rows[1], slots=slots
        )
        assert torch.equal(out, expected)


def test_merge():
    q, k, v = make_inputs()
    begins, lens, table = [0, 1], [40], [TABLE[1]]
    whole, whole_lse = quire.attend(q[:1], k, v, begins, lens, table, return_lse=True)
    options = {"causal": False, "alignment": "unaligned", "return_lse": True}
    parts = [
        quire.attend(q[:1], k, v, begins, [16], [TABLE[1][:1]], **options),
        quire.attend(q[:1], k, v, begins, [24], [TABLE[1][1:]], **options),
    ]
    out, lse = quire.merge(*zip(*parts), return_lse=True)
    torch.testing.assert_close(out, whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(lse, whole_lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["plain", "preferred"])
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cache_and_prepared_batch(layout, device):
    spec = quire.AttentionSpec(4, 2, 64, q_dtype="bf16", block_size=16)
    q, k, v = make_inputs(torch.bfloat16)
    cache = quire.KvCache(spec, 9, num_layers=2, layout=layout, device=device)
    prepared = quire.PreparedBatch(cache.spec, device=device)
    slots = torch.arange(9 * 16)
    everything = quire.BatchView([0], [], [], slots=slots, block_size=16)
    for i in range(2):
        prepared.prepare(everything)
        prepared.append(k.view(-1, 2, 64) * (i + 1), v.view(-1, 2, 64), cache.layer(i))
    bounds = quire.BatchBounds(
        max_sequences=3, max_tokens=26, max_kv_len=48, max_total_kv_len=3 * 48
    )
    bounded = quire.PreparedBatch(cache.spec, bounds, device=device)
    for one, batch in ((prepared, (QUERY_BEGINS, KV_LENS, TABLE)), (bounded, metadata("cuda"))):
        one.prepare(quire.BatchView(*batch, block_size=16))
        for i in range(2):
            check(one.attend(q, cache.layer(i)), q, k * (i + 1), v)
        one.poll()
    with pytest.raises(quire.Error, match="bounds: PreparedBatch needs them"):
        prepared.prepare(quire.BatchView(*metadata("cuda"), block_size=16))
    prepared.prepare(quire.BatchView(QUERY_BEGINS, KV_LENS, TABLE, block_size=16))
    if layout == "plain":
        seen = torch.from_dlpack(cache.layer(0).k)  # [num_blocks, num_kv_heads, block_size, dim]
        assert seen.is_cuda and torch.equal(seen.transpose(1, 2), k)
        seen[3] = 0  # of the cache itself
        changed = k.clone()
        changed[3] = 0
        check(prepared.attend(q, cache.layer(0)), q, changed, v)
    cache.copy_blocks([(7, 2)])
    table = [TABLE[0], [2, 1, 4], TABLE[2]]
    out = quire.attend(q, cache.layer(1), None, QUERY_BEGINS, KV_LENS, table)
    check(out, q, 2 * k, v)


def test_swap():
    spec = quire.AttentionSpec(4, 2, 64, q_dtype="bf16", block_size=16)
    on_device = quire.KvCache(spec, 9, layout="plain", device="cuda")
    on_host = quire.KvCache(spec, 9, layout="plain", device="cuda", on_host=True)
    content = torch.randn(9, 2, 16, 64).bfloat16()
    torch.from_dlpack(on_device.layer(0).k).copy_(content)
    torch.from_dlpack(on_device.layer(0).v).copy_(content)
    on_host.copy_blocks([(4, 1)], src=on_device)
    on_device.copy_blocks([(1, 8)], src=on_host)
    torch.cuda.synchronize()
    assert torch.equal(torch.from_dlpack(on_host.layer(0).k)[1], content[4])
    assert torch.equal(torch.from_dlpack(on_device.layer(0).k)[8].cpu(), content[4])


def late(side, tensor, value):
    """Gives the tensor its value on that stream, a while after the host has gone on."""
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)
        tensor.copy_(value)


@pytest.mark.parametrize("form", ["current", "number"])
def test_streams_are_respected(form):
    q, k, v = make_inputs()
    batch = metadata("cuda")  # made before: PyTorch waits for the stream when it copies lists
    arrives, out = torch.full_like(q, float("nan")), torch.zeros_like(q)
    side = torch.cuda.Stream()

    def attend():
        if form == "number":
            return quire.attend(arrives, k, v, *batch, out=out, stream=side.cuda_stream)
        with torch.cuda.stream(side):
            return quire.attend(arrives, k, v, *batch, out=out)

    attend()  # its memory is made, which may wait for all streams
    torch.cuda.synchronize()
    late(side, arrives, q)
    attend()
    with torch.cuda.stream(side):
        copied = out.clone()
    assert not side.query()  # the call came back before the stream had even got to it
    side.synchronize()
    check(copied, q, k, v)


def test_streams_of_append_copies_and_merge():
    q, k, v = make_inputs()
    spec = quire.AttentionSpec(4, 2, 64, q_dtype="f32", block_size=16)
    cache = quire.KvCache(spec, 9, layout="plain", device="cuda")
    stored = torch.from_dlpack(cache.layer(0).k)
    for tensor in (stored, torch.from_dlpack(cache.layer(0).v)):
        tensor.zero_()
    whole, lse = quire.attend(q, k, v, *metadata("cuda"), return_lse=True)
    new, part = torch.zeros_like(k[0]), torch.zeros_like(whole)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for value in (k[0], k[1]):  # the first time memory is made, which may wait
        torch.cuda.synchronize()
        late(side, new, value)
        with torch.cuda.stream(side):
            part.copy_(whole)
            quire.append(new, new, cache.layer(0), None, list(range(16, 32)))
            cache.copy_blocks([(1, 5)])
            merged = quire.merge([part], [lse])
    side.synchronize()
    assert torch.equal(stored[5].transpose(0, 1), k[1])
    torch.testing.assert_close(merged, whole, atol=1e-6, rtol=0)


def test_threads_with_streams_of_their_own():
    q, k, v = make_inputs(torch.bfloat16)
    expected = quire.attend(q, k, v, QUERY_BEGINS, KV_LENS, TABLE)
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                out = quire.attend(q, k, v, QUERY_BEGINS, KV_LENS, TABLE)
                if not torch.equal(out, expected):
                    wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype):
    q, k, v = make_inputs(torch.float16)
    k8, v8 = k.to(dtype), v.to(dtype)
    scale = torch.full((2,), 0.5, device="cuda")
    out = quire.attend(q, k8, v8, *metadata("cuda"), k_scale=scale, v_scale=scale)
    torch.testing.assert_close(
        out.double(), sdpa(q, k8.half() * 0.5, v8.half() * 0.5), atol=1e-2, rtol=0
    )
    numbers = quire.attend(q, k8, v8, *metadata("cuda"), k_scale=0.5, v_scale=0.5)
    torch.testing.assert_close(numbers, out, atol=1e-3, rtol=0)


def test_devices_that_differ():
    q, k, v = make_inputs()
    on_host = make_inputs(device="cpu")
    lists = (QUERY_BEGINS, KV_LENS, TABLE)
    begins, lens, table = metadata("cuda")
    out = torch.zeros_like(q)
    for pattern, call in {
        "cache: on cuda 0, but the backend computes on host": lambda: quire.attend(
            on_host[0], k, v, *lists
        ),
        "on host, but the backend computes on cuda 0": lambda: quire.attend(
            q, on_host[1], on_host[2], *lists
        ),
        "q: on host, but the backend computes on cuda 0": lambda: quire.attend(
            on_host[0], k, v, *lists, backend="cuda", out=out
        ),
        "out: on host, but": lambda: quire.attend(q, k, v, *lists, out=torch.zeros(26, 4, 64)),
        "params.sinks: on host, but": lambda: quire.attend(q, k, v, *lists, sinks=[0.0] * 4),
        "new_kv.k: on host, but": lambda: quire.append(
            on_host[1][0], on_host[2][0], k, v, range(16), backend="cuda"
        ),
        "partials.1..out: on host, but": lambda: quire.merge(
            [out, out.cpu()], [out[..., 0].contiguous(), out[..., 0].cpu()]
        ),
        "on host|on cuda": lambda: quire.attend(q, k, v, begins, KV_LENS, table),
        "device: is 'cuda', but the backend cpu computes on": lambda: quire.KvCache(
            quire.AttentionSpec(4, 2, 64), 4, device="cuda", backend="cpu"
        ),
    }.items():
        with pytest.raises(quire.Error, match=pattern) as raised:
            call()
        assert raised.value.code == "invalid_argument"
    k_of_host, v_of_cuda = on_host[1], v
    with pytest.raises(quire.Error):
        quire.attend(q, k_of_host, v_of_cuda, *lists)
    torch.cuda.synchronize()
    assert (out == 0).all()


def test_metadata_on_the_device():
    q, k, v = make_inputs()
    begins, lens, table = metadata("cuda")
    with pytest.raises(quire.Error, match="query_begins: on a device it needs int32, has int64"):
        quire.attend(q, k, v, begins.long(), lens, table)
    with pytest.raises(quire.Error, match="block_table: on a device it must be contiguous"):
        quire.attend(q, k, v, begins, lens, torch.stack([table, table], 2)[..., 0])
    with pytest.raises(quire.Error, match="slots: on a device it needs int64, has int32"):
        quire.append(k[0], v[0], k, v, torch.arange(16, dtype=torch.int32, device="cuda"))
    ragged = k.view(-1, 2, 64), v.view(-1, 2, 64)
    with pytest.raises(quire.Error, match="kv_begins: needed, because kv_lens is on a device"):
        quire.attend(q, *ragged, begins, lens)
    rows = torch.tensor([0, 5, 45], device="cuda")
    on_device = quire.attend(q, *ragged, begins, lens, kv_begins=rows)
    on_host = quire.attend(q, *ragged, QUERY_BEGINS, KV_LENS)
    torch.testing.assert_close(on_device, on_host, atol=1e-5, rtol=0)


def test_gradients_are_refused():
    q, k, v = make_inputs()
    with pytest.raises(quire.Error, match="requires grad"):
        quire.attend(q.requires_grad_(), k, v, *metadata("cuda"))


@pytest.mark.parametrize("name", compat_cases.CASES)
def test_compat(name):
    if name == "cache_flash":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    compat_cases.CASES[name](lambda array: torch.from_numpy(array).cuda())


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_transformers(name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    import quire.transformers
    import tiny_models

    model = tiny_models.make(name).cuda()
    tokens, mask = tiny_models.prompts(3, 12, "left")
    settings = {"do_sample": False, "max_new_tokens": 16, "attention_mask": mask.cuda()}
    model.set_attn_implementation("eager")
    expected = model.generate(tokens.cuda(), **settings)
    model.set_attn_implementation("quire")
    assert torch.equal(model.generate(tokens.cuda(), **settings), expected)
    prompts = [row[seen.bool()].tolist() for row, seen in zip(tokens, mask)]
    new = expected[:, 12:].tolist()
    with quire.transformers.Engine(model, cache_bytes=1 << 20) as engine:
        found = engine.generate(prompts, max_new_tokens=16, eos_token_id=())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            again = engine.generate(prompts, max_new_tokens=16, eos_token_id=())
    assert again == found
    for one, whole in zip(found, new):
        end = whole.index(1) + 1 if 1 in whole else len(whole)  # padded after the end token
        assert one[:end] == whole[:end]


def test_cupy():
    """Arrays of another library with DLPack, on its stream, against the same of NumPy."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    arrays = [tensor.numpy() for tensor in make_inputs(device="cpu")]
    expected, expected_lse = quire.attend(*arrays, QUERY_BEGINS, KV_LENS, TABLE, return_lse=True)
    batch = [tensor.numpy() for tensor in metadata()]
    for where in (lambda array: array), cupy.asarray:  # metadata on the host, and on the device
        with cupy.cuda.Stream(non_blocking=True) as stream:
            q, k, v = (cupy.asarray(array) for array in arrays)
            out, lse = quire.attend(q, k, v, *map(where, batch), return_lse=True)
            assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
            stream.synchronize()
        cupy.testing.assert_allclose(out, expected, atol=1e-5)
        cupy.testing.assert_allclose(lse, expected_lse, atol=1e-5)
    new = cupy.ones((2, 2, 64), cupy.float32)
    quire.append(new, 2 * new, k, v, [3, 17])
    cupy.testing.assert_array_equal(k.reshape(-1, 2, 64)[[3, 17]], new)
    cupy.testing.assert_array_equal(v.reshape(-1, 2, 64)[[3, 17]], 2 * new)
