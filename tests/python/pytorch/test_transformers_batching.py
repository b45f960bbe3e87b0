# SPDX-License-Identifier: Apache-2.0
"""quire under ``generate_batch`` of transformers, against its built-in attention, in f32."""

import random

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import quire
import quire.transformers
import tiny_models
from quire import bench_transformers
from quire.transformers import batching

if not transformers.__version__.startswith(("5.17.", "5.22.")):
    pytest.skip(
        f"transformers {transformers.__version__}: quire knows the batching of 5.17 and 5.22",
        allow_module_level=True,
    )
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # tiny models: threads would only wait for each other
quire.set_num_threads(1)
_RNG = random.Random(5)
PROMPTS = [
    [_RNG.randrange(3, tiny_models.VOCABULARY) for _ in range(_RNG.randrange(1, 50))]
    for _ in range(6)
]


def generate_batch(model):
    results = model.generate_batch(
        PROMPTS,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=20, do_sample=False, eos_token_id=1, pad_token_id=0
        ),
        continuous_batching_config=bench_transformers.batching_config(16, 64, 64),
        progress_bar=False,
    )
    by_number = sorted(results.values(), key=lambda one: int(one.request_id.split("_")[-1]))
    return [one.generated_tokens for one in by_number]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_tokens_are_those_of_the_built_in_attention(name, monkeypatch):
    model = tiny_models.make(name)
    if name == "gemma2":  # the built-in attentions ignore or refuse softcap: generate is right
        model.set_attn_implementation("eager")
        expected = []
        for prompt in PROMPTS:
            tokens = torch.tensor([prompt])
            output = model.generate(tokens, attention_mask=torch.ones_like(tokens),
                                    max_new_tokens=20, do_sample=False)  # fmt: skip
            expected.append(output[0, len(prompt) :].tolist())
    else:
        model.set_attn_implementation("eager" if name == "gpt_oss" else "sdpa")
        expected = generate_batch(model)
    calls = []
    forward = batching._paged_forward

    def counted(*args, **kwargs):
        calls.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(batching, "_paged_forward", counted)
    with quire.transformers.continuous_batching():
        found = generate_batch(model)
        assert len(calls) >= 2 * 20
        # Forward passes without a paged cache are computed as ever.
        calls.clear()
        with torch.no_grad():
            model(input_ids=torch.tensor(PROMPTS[:1]))
        assert not calls
    assert found == expected
    assert len(found) == len(PROMPTS)


def test_names_mean_what_they_did_before():
    interface = transformers.AttentionInterface()
    before = interface["sdpa"], interface["paged|eager"]
    with pytest.raises(ZeroDivisionError):
        with quire.transformers.continuous_batching():
            assert interface["sdpa"] is not before[0]
            raise ZeroDivisionError
    assert (interface["sdpa"], interface["paged|eager"]) == before


def test_benchmark(monkeypatch, capsys):
    arguments = "--rounds 1 --threads 1 --layers 2 --hidden 64 --heads 4 --kv-heads 2"
    arguments += " --vocabulary 128 --requests 3 --longest 64 --new-tokens 4"
    monkeypatch.setattr("sys.argv", ["bench_transformers", *arguments.split()])
    bench_transformers.main()
    lines = capsys.readouterr().out.splitlines()
    for way in "quire Engine", "generate_batch, sdpa", "generate_batch, quire":
        (line,) = (line for line in lines if line.startswith(way + "  "))
        attention, total, cpu, tokens_per_second = map(float, line[len(way) :].split())
        assert 0 < attention < total
        assert tokens_per_second == pytest.approx(12 / total, rel=0.5)
