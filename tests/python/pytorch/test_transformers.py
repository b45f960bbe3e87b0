# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with the attention ``quire`` against ``eager``, with random weights."""

import copy
import pathlib
import runpy

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import quire
import quire.transformers
import tiny_models
from quire.transformers import attention
from quire.transformers.mask_ranges import find_ranges
from transformers import masking_utils

DECODERS = ["llama", "mistral", "gemma2", "gpt_oss"]
ENCODER_DECODERS = ["bart", "t5"]
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # tiny models: threads would only wait for each other
quire.set_num_threads(1)


@pytest.fixture(scope="module")
def models():
    made = {}

    def get(name):
        if name not in made:
            made[name] = tiny_models.make(name)
        return made[name]

    return get


@pytest.fixture
def calls(monkeypatch):
    """The arguments of every call of quire.attend that models make."""
    seen = []

    def attend(*args, **kwargs):
        seen.append(kwargs)
        return quire.attend(*args, **kwargs)

    monkeypatch.setattr(attention, "attend", attend)
    return seen


def use(model, implementation):
    model.set_attn_implementation(implementation)
    if model.config.model_type == "t5":  # it does not reach them in transformers 5.17
        model.encoder.set_attn_implementation(implementation)
        model.decoder.set_attn_implementation(implementation)


def generate(model, implementation, tokens, mask, **settings):
    use(model, implementation)
    return model.generate(
        tokens, attention_mask=mask, do_sample=False, max_new_tokens=24, min_new_tokens=24,
        **settings,
    )  # fmt: skip


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS + ENCODER_DECODERS)
def test_greedy_tokens_are_those_of_eager(models, calls, name, padding):
    model = models(name)
    tokens, mask = tiny_models.prompts(3, 13, padding)
    expected = generate(model, "eager", tokens, mask, no_repeat_ngram_size=2)
    assert not calls
    found = generate(model, "quire", tokens, mask, no_repeat_ngram_size=2)
    assert len(calls) >= 24 * 2
    assert torch.equal(found, expected)
    assert len(set(expected[:, -24:].flatten().tolist())) > 9  # not one token again and again


def logits(model, implementation, tokens, mask):
    use(model, implementation)
    more = {}
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = tokens.flip(1).clamp(min=3)
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=mask, **more).logits.float()


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS + ENCODER_DECODERS)
def test_logits(models, calls, name, padding):
    tokens, mask = tiny_models.prompts(3, 21, padding)
    used = (torch.ones_like(mask) if name in ENCODER_DECODERS else mask).bool()
    expected = logits(models(name), "eager", tokens, mask)[used]
    scale = expected.abs().max()
    found = logits(models(name), "quire", tokens, mask)[used]
    assert (found - expected).abs().max() <= 1e-5 * scale
    assert calls

    # In bf16 as far from the result in f32 as eager is, and a little more.
    rounded = copy.deepcopy(models(name)).to(torch.bfloat16)
    eager_error = (logits(rounded, "eager", tokens, mask)[used] - expected).abs()
    quire_error = (logits(rounded, "quire", tokens, mask)[used] - expected).abs()
    assert quire_error.mean() <= 1.25 * eager_error.mean() + 1e-3 * scale
    assert quire_error.max() <= 2 * eager_error.max() + 1e-2 * scale


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_bert_hidden_states(models, calls, padding):
    model = models("bert")
    tokens, mask = tiny_models.prompts(4, 17, padding)
    states = {}
    for implementation in "eager", "quire":
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            output = model(tokens, attention_mask=mask, output_hidden_states=True)
        states[implementation] = torch.stack(output.hidden_states)
    assert len(calls) == 2
    assert all("bias" not in call for call in calls)
    torch.testing.assert_close(states["quire"], states["eager"], rtol=1e-4, atol=1e-4)


def test_fixed_size_cache(models, calls):
    tokens, mask = tiny_models.prompts(2, 9, "none")
    settings = dict(cache_implementation="static", disable_compile=True)
    expected = generate(models("llama"), "eager", tokens, mask, **settings)
    assert torch.equal(generate(models("llama"), "quire", tokens, mask, **settings), expected)
    assert calls


@pytest.mark.parametrize("change", ["window", "softcap", "sinks", "bias"])
def test_what_a_model_asks_for_matters(models, change):
    """The models of these tests would show it if a window, softcap, sink or bias were ignored."""
    names = {"window": "mistral", "softcap": "gemma2", "sinks": "gpt_oss", "bias": "t5"}
    name = names[change]
    tokens, mask = tiny_models.prompts(1, 21, "none")
    exact = logits(models(name), "eager", tokens, mask)
    other = copy.deepcopy(models(name))
    for module in other.modules():
        if change == "softcap" and hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = None
        if change == "sinks" and hasattr(module, "sinks"):
            module.sinks.data.fill_(-100)
        if change == "bias" and hasattr(module, "relative_attention_bias"):
            module.relative_attention_bias.weight.data.zero_()
    if change == "window":
        other.config.sliding_window = 100
    assert (logits(other, "quire", tokens, mask) - exact).abs().max() > 0.1


def seen_by(ranges, shape):
    """The mask that ranges describe."""
    batch, _, q_len, kv_len = shape
    mask = torch.zeros(batch * q_len, kv_len, dtype=torch.bool)
    for i, (begin, end) in enumerate(zip(ranges.query_begins, ranges.query_ends)):
        last = ranges.kv_first[i] + ranges.kv_lens[i]
        for row in range(begin, end):
            stop = last - (end - 1 - row) if ranges.causal else last
            start = ranges.kv_first[i]
            if ranges.window is not None:
                start = max(start, stop - 1 - ranges.window)
            mask[row, start:stop] = True
    return mask.view(batch, 1, q_len, kv_len)


@pytest.mark.parametrize("kind", ["causal", "window", "both_ways", "packed", "chunked"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_ranges_of_masks(kind, padding):
    length = 12
    _, padded = tiny_models.prompts(3, length, padding)
    function = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(5),
        "both_ways": masking_utils.bidirectional_mask_function,
        "packed": masking_utils.and_masks(
            masking_utils.causal_mask_function,
            masking_utils.packed_sequence_mask_function(torch.arange(length).expand(3, -1) // 5),
        ),
        "chunked": masking_utils.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.int)),
    }[kind]
    for q_len in 1, 4, length:
        mask = masking_utils.sdpa_mask(
            3, q_len, length, q_offset=length - q_len, mask_function=function,
            attention_mask=padded.bool(), allow_is_causal_skip=False,
        )  # fmt: skip
        ranges = find_ranges(mask)
        if ranges is None:
            assert not mask.any() or (kind == "window" and padding == "right")
        else:
            assert torch.equal(seen_by(ranges, mask.shape), mask)
            assert ranges.causal == (kind != "both_ways" and q_len > 1)


def test_masks_with_holes_have_no_ranges():
    mask = torch.ones(1, 1, 3, 6, dtype=torch.bool)
    mask[..., 3] = False
    assert find_ranges(mask) is None
    heads = torch.ones(1, 2, 3, 6, dtype=torch.bool)
    assert find_ranges(heads) is None


def test_ranges_follow_changes_of_a_mask(calls):
    mask = torch.ones(1, 1, 2, 6, dtype=torch.bool)
    q, k = torch.randn(1, 4, 2, 16), torch.randn(1, 2, 6, 16)
    for hidden in 0, 3:
        mask[..., :hidden] = False
        found, _ = attention.attention_forward(torch.nn.Module(), q, k, k, mask)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, k, attn_mask=mask, enable_gqa=True
        )
        torch.testing.assert_close(found, expected.transpose(1, 2))
    assert [call["kv_begins"] for call in calls] == [[0], [3]]


def test_additive_masks(calls):
    q, k = torch.randn(2, 4, 3, 16), torch.randn(2, 4, 5, 16)
    for mask in torch.randn(2, 1, 3, 5), torch.randn(2, 4, 3, 5), torch.rand(2, 4, 3, 5) < 0.7:
        found, _ = attention.attention_forward(torch.nn.Module(), q, k, k, mask, scaling=0.3)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, k, attn_mask=mask, scale=0.3
        )
        torch.testing.assert_close(found, expected.nan_to_num().transpose(1, 2))
    assert all("bias" in call for call in calls)


@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 1, 3, 5), (1, 1, 1, 9), (2, 4, 1, 5)])
def test_masks_that_broadcast(shape):
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 3, 16), torch.randn(2, 4, 5, 16)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[-1:, ..., :2] = False
    found, _ = attention.attention_forward(torch.nn.Module(), q, k, k, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask[..., :5])
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_masks_that_do_not_fit():
    q, k = torch.randn(2, 4, 3, 16), torch.randn(2, 4, 5, 16)
    for shape in (2, 1, 3, 4), (2, 1, 2, 5), (3, 1, 3, 5):
        with pytest.raises(quire.Error, match=r"attention_mask: .* needs \[2, heads, 3, 5\]"):
            mask = torch.ones(shape, dtype=torch.bool)
            attention.attention_forward(torch.nn.Module(), q, k, k, mask)


def test_what_it_cannot_do_is_an_error(models):
    q = torch.randn(1, 4, 3, 16)
    module = torch.nn.Module()
    with pytest.raises(quire.Error, match="dropout: 0.1"):
        attention.attention_forward(module, q, q, q, None, dropout=0.1)
    with pytest.raises(quire.Error, match="output_attentions"):
        attention.attention_forward(module, q, q, q, None, output_attentions=True)
    models("llama").set_attn_implementation("quire")
    with pytest.raises(quire.Error, match="gradient"):
        models("llama")(input_ids=torch.ones(1, 4, dtype=torch.int))


def test_example(capsys):
    folder = pathlib.Path(__file__).parents[3] / "examples" / "python"
    runpy.run_path(str(folder / "transformers_generate.py"))
    assert "the same tokens" in capsys.readouterr().out
