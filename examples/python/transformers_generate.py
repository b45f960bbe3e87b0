# SPDX-License-Identifier: Apache-2.0
"""A model of Hugging Face transformers with the attention of quire: in generate, and in its engine.

The model is a small Llama with random weights; with weights of yours it is
``AutoModelForCausalLM.from_pretrained(name, attn_implementation="quire")``.
"""

import quire.transformers  # makes the name "quire" known to transformers
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    initializer_range=0.2,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config, attn_implementation="quire").eval()

prompts = [[2, 17, 99, 4], [2, 63, 8, 120, 77, 31, 5]]
length = max(map(len, prompts))
tokens = torch.tensor([[0] * (length - len(p)) + p for p in prompts])  # padded on the left
settings = dict(attention_mask=(tokens != 0).long(), max_new_tokens=16, do_sample=False)

with_quire = model.generate(tokens, **settings)
model.set_attn_implementation("eager")
assert torch.equal(model.generate(tokens, **settings), with_quire)
for row in with_quire[:, length:].tolist():
    print(row)

with quire.transformers.Engine(model, cache_bytes=1 << 20, block_size=16) as engine:
    requests = [engine.submit(prompt, max_new_tokens=16) for prompt in prompts]
    for request, token in engine.stream():  # tokens as they come
        print(f"request {request.id}: {token}")
for request, row in zip(requests, with_quire[:, length:].tolist()):
    assert request.tokens == row[: len(request.tokens)]
print("eager, quire and the engine give the same tokens")
