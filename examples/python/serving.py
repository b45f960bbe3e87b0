# SPDX-License-Identifier: Apache-2.0
"""Continuous batching with scheduler, block manager and paged caches; the model is a toy.

Requests share a beginning, which is computed once, and the cache is too small for all of them.
"""

import numpy as np
import quire

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, DIM, BLOCK_SIZE, NUM_BLOCKS = 2, 4, 2, 32, 8, 16
VOCABULARY = 100
rng = np.random.default_rng(0)


def table(heads):
    return rng.standard_normal((NUM_LAYERS, VOCABULARY, heads, DIM)).astype(np.float32)


# Q, K and V of a token, and the next token from the output.
q_of, k_of, v_of = table(NUM_HEADS), table(NUM_KV_HEADS), table(NUM_KV_HEADS)
head = rng.standard_normal((NUM_HEADS * DIM, VOCABULARY)).astype(np.float32)

spec = quire.AttentionSpec(NUM_HEADS, NUM_KV_HEADS, DIM, q_dtype="f32", block_size=BLOCK_SIZE)
cache = quire.KvCache(spec, NUM_BLOCKS, num_layers=NUM_LAYERS)
manager = quire.BlockManager(NUM_BLOCKS, BLOCK_SIZE)
scheduler = quire.Scheduler(manager, max_tokens=32, max_sequences=8)
prepared = quire.PreparedBatch(cache.spec)

shared = rng.integers(0, VOCABULARY, 20).tolist()
texts = {}
for i in range(5):
    tokens = shared + rng.integers(0, VOCABULARY, 3 + i).tolist()
    texts[scheduler.submit(quire.Prompt(tokens, BLOCK_SIZE), max_new_tokens=12)] = []

num_finished = 0
while num_finished < len(texts):
    batch = scheduler.schedule()
    for stage in batch.copies:
        for group in stage:
            cache.copy_blocks(group["on_device"])
    if not batch.empty:
        prepared.prepare(batch.view(0))  # once per step
        hidden = np.zeros((batch.num_tokens, NUM_HEADS * DIM), np.float32)
        for layer in range(NUM_LAYERS):
            tokens, view = batch.tokens, cache.layer(layer)
            prepared.append(k_of[layer, tokens], v_of[layer, tokens], view)
            hidden += prepared.attend(q_of[layer, tokens], view).reshape(hidden.shape)
        logits = hidden @ head
    result = scheduler.commit(batch)
    for ready in result["ready"]:
        token = int(logits[ready["row"]].argmax())
        texts[ready["id"]].append(token)
        scheduler.extend(ready["id"], token)
    num_finished += len(result["finished"])

stats = scheduler.stats()
for request, tokens in texts.items():
    print(f"request {request}: {tokens}")
print(f"{stats['num_steps']} steps, {stats['num_preemptions']} preemptions, "
      f"{manager.stats()['num_hit_tokens']} tokens found in the prefix cache")  # fmt: skip
assert all(len(tokens) == 12 for tokens in texts.values())
