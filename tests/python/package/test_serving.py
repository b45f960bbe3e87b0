# SPDX-License-Identifier: Apache-2.0
"""KvCache, PreparedBatch, BlockManager and Scheduler together: generation with a toy model."""

import time

import numpy as np
import pytest
import quire

VOCABULARY = 50
NUM_LAYERS = 2
SPEC = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "q_dtype": "f32", "block_size": 4}


class ToyModel:
    """Q, K and V of a token are rows of tables; the next token is read off the last output."""

    def __init__(self):
        rng = np.random.default_rng(11)
        self.q = rng.standard_normal((NUM_LAYERS, VOCABULARY, 4, 16)).astype(np.float32)
        self.k = rng.standard_normal((NUM_LAYERS, VOCABULARY, 2, 16)).astype(np.float32)
        self.v = rng.standard_normal((NUM_LAYERS, VOCABULARY, 2, 16)).astype(np.float32)
        self.head = rng.standard_normal((64, VOCABULARY)).astype(np.float32)

    def logits(self, hidden):
        return hidden.reshape(len(hidden), -1) @ self.head

    def alone(self, prompt, num_new):
        """The tokens of one request by itself, without any cache."""
        tokens = list(prompt)
        for _ in range(num_new):
            hidden = np.zeros((1, 64), np.float32)
            for layer in range(NUM_LAYERS):
                ids = np.array(tokens)
                out = quire.attend(
                    self.q[layer, ids[-1:]], self.k[layer, ids], self.v[layer, ids], [0, 1], [len(ids)]
                )
                hidden += out.reshape(1, -1)
            tokens.append(int(self.logits(hidden)[0].argmax()))
        return tokens[len(prompt) :]


def run_copies(batch, cache, host_cache):
    for stage in batch.copies:
        for group in stage:
            cache.copy_blocks(group["on_device"])
            if host_cache is not None:
                host_cache.copy_blocks(group["to_host"], src=cache)
                cache.copy_blocks(group["to_device"], src=host_cache)
                host_cache.copy_blocks(group["on_host"])


@pytest.mark.parametrize("layout", ["plain", "preferred"])
@pytest.mark.parametrize("num_blocks", [200, 14])
def test_generation(layout, num_blocks):
    """The same tokens as one by one: also when the cache is so small that requests are preempted."""
    model = ToyModel()
    spec = quire.AttentionSpec(**SPEC)
    cache = quire.KvCache(spec, num_blocks, num_layers=NUM_LAYERS, layout=layout)
    host_cache = quire.KvCache(spec, 20, num_layers=NUM_LAYERS, layout=layout, on_host=True)
    manager = quire.BlockManager(num_blocks, 4, num_host_blocks=20)
    scheduler = quire.Scheduler(manager, max_tokens=16, max_sequences=8)
    prepared = quire.PreparedBatch(cache.spec)
    rng = np.random.default_rng(1)
    shared = rng.integers(0, VOCABULARY, 9).tolist()
    prompts = [shared + rng.integers(0, VOCABULARY, int(n)).tolist() for n in rng.integers(1, 12, 6)]
    ids = [scheduler.submit(quire.Prompt(p, 4), max_new_tokens=10) for p in prompts]
    generated = {i: [] for i in ids}
    finished = {}
    for _ in range(2000):
        if len(finished) == len(ids):
            break
        batch = scheduler.schedule()
        run_copies(batch, cache, host_cache)
        if not batch.empty:
            prepared.prepare(batch.view(0))
            hidden = np.zeros((batch.num_tokens, 64), np.float32)
            tokens = batch.tokens
            for layer in range(NUM_LAYERS):
                view = cache.layer(layer)
                prepared.append(model.k[layer, tokens], model.v[layer, tokens], view)
                hidden += prepared.attend(model.q[layer, tokens], view).reshape(len(hidden), -1)
            logits = model.logits(hidden)
        result = scheduler.commit(batch)
        for ready in result["ready"]:
            token = int(logits[ready["row"]].argmax())
            generated[ready["id"]].append(token)
            scheduler.extend(ready["id"], token)
        for one in result["finished"]:
            finished[one["id"]] = one["reason"]
        manager.validate()
        scheduler.validate()
    assert finished == {i: "length" for i in ids}
    for request, prompt in zip(ids, prompts):
        assert generated[request] == model.alone(prompt, 10)
    stats = scheduler.stats()
    if num_blocks < 100:
        assert stats["num_preemptions"] > 0
    else:
        assert manager.stats()["num_hit_tokens"] > 0
        # Nobody holds a block any longer.
        assert manager.stats()["pools"][0]["num_in_use"] == 0


def test_prepared_batch_agrees_with_attend():
    rng = np.random.default_rng(0)
    spec = quire.AttentionSpec(**SPEC, lse=True, softcap=True, sinks=True)
    cache = quire.KvCache(spec, 10, layout="plain")
    view = cache.layer(0)
    keys = rng.standard_normal((40, 2, 16)).astype(np.float32)
    values = rng.standard_normal((40, 2, 16)).astype(np.float32)
    quire.append(keys, values, view, None, np.arange(40))
    np.testing.assert_array_equal(
        np.asarray(view.k).transpose(0, 2, 1, 3).reshape(40, 2, 16), keys
    )
    q = rng.standard_normal((7, 4, 16)).astype(np.float32)
    begins, lens, table = [0, 6, 7], [14, 5], [[9, 2, 3, 4], [1, 6, 0, 0]]
    prepared = quire.PreparedBatch(spec)
    with pytest.raises(quire.Error, match="prepare"):
        prepared.attend(q, view)
    prepared.prepare(quire.BatchView(begins, lens, table, block_size=4))
    options = {"softcap": 2.0, "sinks": [0.0, 1.0, 2.0, 3.0], "return_lse": True}
    got = prepared.attend(q, view, **options)
    expected = quire.attend(q, view, None, begins, lens, table, **options)
    plain = quire.attend(
        q, np.asarray(view.k), np.asarray(view.v), begins, lens, table,
        kv_order="block_head_token_dim", **options,
    )  # fmt: skip
    for one, two, three in zip(got, expected, plain):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    fixed = quire.PreparedBatch(spec, quire.BatchBounds(2, 8, 16, 32))
    fixed.prepare(quire.BatchView(begins, lens, table, block_size=4))
    np.testing.assert_array_equal(fixed.attend(q, view, **options)[0], got[0])
    with pytest.raises(quire.Error, match="max_tokens 8"):
        fixed.prepare(quire.BatchView([0, 9], [9], [[1, 2, 3]], block_size=4))
    with pytest.raises(quire.Error, match="prepare"):
        fixed.attend(q, view)


def test_cache_layouts_and_copies():
    rng = np.random.default_rng(4)
    spec = quire.AttentionSpec(4, 2, 32, q_dtype="bf16", block_size=16)
    tiled = quire.KvCache(spec, 6, num_layers=2, layout="pair_tiled")
    plain = quire.KvCache(spec, 6, num_layers=2, layout="plain")
    assert tiled.spec.layout == "pair_tiled" and plain.num_layers == 2
    keys = rng.standard_normal((16, 2, 32)).astype(np.float32)
    quire.append(keys, keys, tiled.layer(1), None, 48 + np.arange(16))
    tiled.copy_blocks([(3, 5)])
    plain.export_blocks(np.array([[5, 0]]), src=tiled)
    stored = quire.as_numpy(plain.layer(1).k)
    assert stored.dtype.name == "bfloat16" and stored.shape == (6, 2, 16, 32)
    np.testing.assert_allclose(stored[0].astype(np.float32).swapaxes(0, 1), keys, atol=0.02)
    tiled.import_blocks([[0, 1]], src=plain)
    plain.copy_region(0, 2, 4, 3)
    np.testing.assert_array_equal(
        quire.as_numpy(plain.layer(1).k)[2, :, 4:7], quire.as_numpy(plain.layer(1).k)[0, :, 4:7]
    )
    with pytest.raises(quire.Error, match="pair_tiled"):
        _ = tiled.layer(0).k
    with pytest.raises(quire.Error, match="6"):
        plain.copy_blocks([(0, 6)])
    with pytest.raises(quire.Error, match="-1"):
        plain.copy_blocks([(-1, 2)])


def test_views_keep_the_cache():
    spec = quire.AttentionSpec(4, 2, 16, q_dtype="f32", block_size=4)
    k = np.asarray(quire.KvCache(spec, 3, layout="plain").layer(0).k)
    k[:] = 1  # the cache and its view have no other name
    assert k.sum() == k.size


def test_block_manager():
    manager = quire.BlockManager(10, 4, events=True)
    prompt = quire.Prompt(range(11), 4)
    assert prompt.num_full_blocks == 2 and len(prompt.key(0)) == 32
    assert manager.can_admit(prompt) == "now"
    first, cached = manager.admit(prompt)
    assert cached == 0
    assert manager.append(first, 11)
    step = manager.write_step(0, [first])
    assert step.kv_lens.tolist() == [11] and step.slots.tolist()[:2] == [4, 5]
    manager.commit_prompt(first, 11)
    second, cached = manager.admit(quire.Prompt(range(12), 4))
    assert cached == 8
    assert manager.block_table(second).tolist() == manager.block_table(first).tolist()[:2]
    third = manager.fork(first)
    assert manager.append(third, 1)
    ticket, copies = manager.take_copies()
    assert len(copies) == 1 and len(copies[0]["on_device"]) == 1
    manager.complete_copies(ticket)
    manager.commit(third, [99])
    assert [event["kind"] for event in manager.take_events()].count("stored") >= 2
    assert manager.can_admit(quire.Prompt(range(100, 1000), 4)) == "never"
    for sequence in (first, second, third):
        manager.free(sequence)
    manager.validate()
    with pytest.raises(quire.Error, match="sequence"):
        manager.free(first)
    with pytest.raises(quire.Error):
        quire.BlockManager(10, 4, groups=[{"window": 3}])


def test_scheduler_ends_and_stale_batches():
    manager = quire.BlockManager(10, 4)
    scheduler = quire.Scheduler(manager)
    prompt = quire.Prompt([1, 2, 3], 4)
    late = scheduler.submit(prompt, max_new_tokens=2, deadline=time.monotonic() - 1)
    cancelled = scheduler.submit(prompt, max_new_tokens=2)
    too_large = scheduler.submit(quire.Prompt(range(50), 4))
    stopped = scheduler.submit(prompt, max_new_tokens=5)
    scheduler.cancel(cancelled)
    batch = scheduler.schedule()
    assert batch.tokens.tolist() == [1, 2, 3] and batch.positions.tolist() == [0, 1, 2]
    assert batch.sequences[0]["is_last_chunk"]
    with pytest.raises(quire.Error):
        scheduler.schedule()
    result = scheduler.commit(batch)
    reasons = {one["id"]: one["reason"] for one in result["finished"]}
    assert reasons == {late: "deadline", cancelled: "cancelled", too_large: "too_large"}
    scheduler.extend(stopped, [7, 8], drafts=[9])
    assert scheduler.new_tokens(stopped).tolist() == [7, 8]
    scheduler.finish(stopped)
    last = scheduler.schedule()
    with pytest.raises(quire.Error, match="step 1"):
        _ = batch.tokens
    assert scheduler.commit(last)["finished"][0]["reason"] == "stopped"
    with pytest.raises(quire.Error):
        scheduler.extend(stopped, 1)


def test_token_slots():
    """Keys named one by one, as transformers does it, are a batch of block size 1 or more."""
    rng = np.random.default_rng(8)
    spec = quire.AttentionSpec(4, 2, 16, q_dtype="f32", block_size=4)
    slots_k, slots_v = (rng.standard_normal((40, 2, 16)).astype(np.float32) for _ in "kv")
    begins, lens, table = [0, 2, 3], [6, 9], [[5, 2, 0], [1, 8, 3]]
    read = [table[s][p // 4] * 4 + p % 4 for s in range(2) for p in range(lens[s])]
    q = rng.standard_normal((3, 4, 16)).astype(np.float32)
    expected = quire.attend(
        q, slots_k.reshape(10, 4, 2, 16), slots_v.reshape(10, 4, 2, 16), begins, lens, table
    )
    assert quire.aligned_block_size(begins, [0, 6, 15], read) == 4
    for block_size in (1, 4):
        spec.block_size = block_size
        prepared = quire.PreparedBatch(spec)
        prepared.prepare(quire.from_token_slots(begins, [0, 6, 15], read, block_size=block_size))
        shape = (-1, block_size, 2, 16)
        view = quire.KvCacheView(slots_k.reshape(shape), slots_v.reshape(shape))
        np.testing.assert_allclose(prepared.attend(q, view), expected, atol=1e-6)
    with pytest.raises(quire.Error, match="key"):
        quire.from_token_slots(begins, [0, 6, 15], read[::-1], block_size=4)


def test_ids_that_nobody_gave_out():
    manager = quire.BlockManager(8, 4)
    for number in -1, 2**70, -(2**70):
        with pytest.raises(quire.Error, match=f"id: not one that was given out: {number}"):
            manager.append(number, 1)
        with pytest.raises(quire.Error, match=f"id: not one that was given out: {number}"):
            manager.write_step(0, [number])
    with pytest.raises(quire.Error, match="sequence 999.0 is not one of this block manager"):
        manager.append(999, 1)
    with pytest.raises(TypeError):
        manager.append("x", 1)
    scheduler = quire.Scheduler(manager)
    for call in scheduler.cancel, scheduler.finish, scheduler.fork, scheduler.new_tokens:
        with pytest.raises(quire.Error, match="id: not one that was given out: -1"):
            call(-1)
    with pytest.raises(quire.Error, match="id: not one that was given out: -1"):
        scheduler.extend(-1, 5)


def test_a_manager_has_one_master():
    manager = quire.BlockManager(8, 4)
    prompt = quire.Prompt([1, 2, 3], 4)
    sequence, _ = manager.admit(prompt)
    with pytest.raises(quire.Error, match="manager: has sequences that no scheduler knows"):
        quire.Scheduler(manager)
    manager.free(sequence)
    scheduler = quire.Scheduler(manager)
    with pytest.raises(quire.Error, match="manager: another scheduler drives it"):
        quire.Scheduler(manager)
    for call in (lambda: manager.admit(prompt), lambda: manager.append(sequence, 1),
                 lambda: manager.free(sequence), manager.take_copies,
                 manager.reset_prefix_cache, lambda: manager.resize(0, 4)):  # fmt: skip
        with pytest.raises(quire.Error, match="a scheduler drives it, so nobody else may change"):
            call()
    scheduler.submit(prompt)
    scheduler.commit(scheduler.schedule())
    manager.validate()
    assert manager.stats() and manager.can_admit(prompt) == "now"  # looking at it is free
