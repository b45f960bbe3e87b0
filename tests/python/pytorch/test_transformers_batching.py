# SPDX-License-Identifier: Apache-2.0
"""quire under ``generate_batch`` of transformers, against its built-in attention, in f32."""

import json
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


WAYS = "quire Engine", "generate_batch, sdpa", "generate_batch, quire"


def run_benchmark(monkeypatch, more):
    arguments = "--threads 1 --layers 2 --hidden 64 --heads 4 --kv-heads 2"
    arguments += " --vocabulary 128 --requests 3 --longest 64 --max-new-tokens 4 " + more
    monkeypatch.setattr("sys.argv", ["bench_transformers", *arguments.split()])
    bench_transformers.main()


def test_benchmark(monkeypatch, capsys):
    run_benchmark(monkeypatch, "--rounds 1 --busy-waiting --graphs --dtype f32")
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert "1 threads of PyTorch, 1 of quire" in lines
    totals = {}
    for way in *WAYS, "quire Engine, busy waiting":
        first, second = (line for line in lines if line.startswith(way + "  "))
        attention, totals[way], cpu, speed, *ratios = (x.rstrip("x") for x in first[len(way) :].split())
        # The total is rounded to hundredths of a second and attention to thousandths, which may be all
        # that they have.
        shortest, longest = (float(totals[way]) + off for off in (-0.006, 0.006))
        assert 0 <= float(attention) < longest
        assert 12 / longest <= float(speed) and (shortest <= 0 or float(speed) <= 12 / shortest)
        assert len(ratios) == (0 if way == WAYS[0] else 2)
        assert f"round 1, {way}: " in captured.err
        rounds, set_up, equal = second[len(way) :].split()
        assert (rounds, equal) == ("1", "100.0%") and float(set_up) >= 0
    left_out = "generate_batch, sdpa, graphs was left out: there are no CUDA graphs on cpu"
    assert left_out in lines


def test_graphs_are_asked_for_where_attention_needs_no_mask():
    assert bench_transformers.batching_config(16, 64, 64, graphs=True).use_cuda_graph is True
    assert not any(bench_transformers.batching_config(16, 64, 64).cuda_graph_booleans)
    for name in "sdpa", "paged|sdpa", "paged|eager":
        assert "needs a mask" in bench_transformers.why_no_graphs(name, "cuda:1")
    assert bench_transformers.why_no_graphs("flash_attention_2", "cuda") == ""


def test_one_with_block_at_a_time():
    with quire.transformers.continuous_batching():
        with pytest.raises(quire.Error, match="one at a time"):
            with quire.transformers.continuous_batching():
                pass
    with quire.transformers.continuous_batching():
        pass


def test_bench_takes_a_device_without_a_number():
    # PyTorch refuses to make such a device the current one.
    bench_transformers.use_device(torch.device("cuda"))
    bench_transformers.use_device(torch.device("cpu"))


def test_benchmark_compares_tokens(monkeypatch, capsys):
    run = bench_transformers.run_under_generate_batch

    def wrong(*arguments):
        figures, tokens = run(*arguments)
        tokens[1][-1] ^= 1
        return figures, tokens

    monkeypatch.setattr(bench_transformers, "run_under_generate_batch", wrong)
    with pytest.raises(SystemExit, match="tokens of these are not .*: generate_batch, quire$"):
        run_benchmark(monkeypatch, "--rounds 1 --dtype f32 --json")
    found = json.loads(capsys.readouterr().out)["medians"]
    assert [found[way]["equal_tokens"] for way in WAYS] == [1, 1, pytest.approx(11 / 12)]


def test_benchmark_as_json(monkeypatch, capsys, tmp_path):
    file, seen = tmp_path / "bench.json", []
    measure = bench_transformers.measure

    def watched(*arguments):
        seen.append(json.loads(file.read_text()) if file.exists() else None)
        return measure(*arguments)

    monkeypatch.setattr(bench_transformers, "measure", watched)
    run_benchmark(monkeypatch, f"--rounds 3 --time-limit 0.001 --json --output {file}")
    found = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == found and found["complete"]
    # A try of each way, then the only round that the time allows.
    assert len(seen) == 6 and seen[:4] == [None] * 4
    assert [list(x["runs"]) for x in seen[4:]] == [list(WAYS[:1]), list(WAYS[:2])]
    assert not seen[5]["complete"] and found["rounds"] == 1
    assert set(found["ratios"]) == set(WAYS[1:])
    for way in WAYS:
        (run,) = found["runs"][way]
        assert run == found["medians"][way]
        assert run["new_tokens_per_second"] == pytest.approx(12 / run["total_seconds"])
    ours, other = (found["medians"][way] for way in WAYS[:2])
    assert found["ratios"][WAYS[1]]["attention"] == pytest.approx(
        other["attention_seconds"] / ours["attention_seconds"]
    )


def test_benchmark_of_a_way_that_fails(monkeypatch, capsys):
    def fail(*arguments):
        raise ValueError("not here")

    monkeypatch.setattr(bench_transformers, "run_under_generate_batch", fail)
    run_benchmark(monkeypatch, "--rounds 1")
    assert "generate_batch, quire was left out: not here" in capsys.readouterr().out
    calls = []
    run = bench_transformers.run_generate_batch

    def fail_later(*arguments):
        calls.append(1)
        if len(calls) > 2:  # a try, and one round
            raise ValueError("not again")
        return run(*arguments, "sdpa")

    monkeypatch.setattr(bench_transformers, "run_under_generate_batch", fail_later)
    run_benchmark(monkeypatch, "--rounds 2")
    lines = capsys.readouterr().out.splitlines()
    assert "generate_batch, quire was left out after 1 round: not again" in lines
    assert any(line.startswith("Medians of 1 to 2 rounds") for line in lines)
    monkeypatch.setattr(bench_transformers, "run_engine", fail)
    with pytest.raises(ValueError, match="not here"):
        run_benchmark(monkeypatch, "--rounds 1")
