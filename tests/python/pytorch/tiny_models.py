# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers with random weights, made from their configurations."""

import torch
import transformers

VOCABULARY = 128
_SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=512, initializer_range=0.2,
)  # fmt: skip
_TOKENS = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2)
_DECODER = dict(**_SIZES, **_TOKENS, num_key_value_heads=2, head_dim=16)
WINDOW = 8


def _configuration(name):
    if name == "llama":
        return transformers.LlamaConfig(**_DECODER)
    if name == "mistral":
        return transformers.MistralConfig(**_DECODER, sliding_window=WINDOW)
    if name == "gemma2":
        return transformers.Gemma2Config(
            **_DECODER, sliding_window=WINDOW, attn_logit_softcapping=2.0,
            query_pre_attn_scalar=16, tie_word_embeddings=False,
        )  # fmt: skip
    if name == "gpt_oss":
        return transformers.GptOssConfig(
            **_DECODER, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2
        )
    if name == "bart":
        return transformers.BartConfig(
            vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
            decoder_ffn_dim=96, max_position_embeddings=512, init_std=0.2, **_TOKENS,
            decoder_start_token_id=2, forced_eos_token_id=None,
        )  # fmt: skip
    if name == "t5":
        return transformers.T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
            initializer_factor=1.5, decoder_start_token_id=0, tie_word_embeddings=False,
            pad_token_id=0, eos_token_id=1,
        )  # fmt: skip
    assert name == "bert"
    return transformers.BertConfig(**_SIZES, pad_token_id=0)


def make(name, dtype=torch.float32):
    """The model of that name; always the same weights."""
    torch.manual_seed(1)
    configuration = _configuration(name)
    kind = {
        "bart": transformers.AutoModelForSeq2SeqLM,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "bert": transformers.AutoModel,
    }.get(name, transformers.AutoModelForCausalLM)
    model = kind.from_config(configuration).eval()
    for module in model.modules():
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
        if hasattr(module, "relative_attention_bias"):
            torch.nn.init.normal_(module.relative_attention_bias.weight)
    if hasattr(model, "generation_config"):
        model.generation_config.pad_token_id = 0
    return model.to(dtype)


def prompts(batch, length, padding, seed=2):
    """Tokens and their mask, with padding "none", "left" or "right" in all rows but the last."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(tokens)
    for row in range(batch - 1):
        hidden = 2 + 3 * row
        if padding == "left":
            mask[row, :hidden] = 0
        if padding == "right":
            mask[row, -hidden:] = 0
    return tokens * mask, mask
