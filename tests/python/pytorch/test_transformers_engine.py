# SPDX-License-Identifier: Apache-2.0
"""The engine against ``generate``, one request at a time with the attention ``eager``, in f32."""

import os
import random
import subprocess
import sys
import threading

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import quire
import quire.transformers
import tiny_models
from quire.transformers import Engine, Sampling

DECODERS = ["llama", "mistral", "gemma2", "gpt_oss"]
NUM_NEW = 24
ROOMY, TIGHT = 1 << 20, 40000
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # tiny models: threads would only wait for each other
quire.set_num_threads(1)


def make_prompts():
    """Ragged ones, half of them with the same beginning."""
    rng = random.Random(3)
    shared = [rng.randrange(3, tiny_models.VOCABULARY) for _ in range(20)]
    return [
        (shared if i % 2 else [])
        + [rng.randrange(3, tiny_models.VOCABULARY) for _ in range(rng.randrange(1, 30))]
        for i in range(8)
    ]


PROMPTS = make_prompts()


def generate(model, prompt, **settings):
    model.set_attn_implementation("eager")
    settings = {"do_sample": False, "max_new_tokens": NUM_NEW, **settings}
    tokens = torch.tensor([prompt])
    output = model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
    return output[0, len(prompt) :].tolist()


class Case:
    def __init__(self, name):
        self.model = tiny_models.make(name)
        self.expected = [generate(self.model, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def cases():
    made = {}

    def get(name):
        if name not in made:
            made[name] = Case(name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def llama(cases):
    return cases("llama")


def make_engine(model, cache_bytes=ROOMY, **more):
    settings = {"block_size": 4, "max_tokens": 32, "max_sequences": 8, **more}
    return Engine(model, cache_bytes=cache_bytes, **settings)


@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
@pytest.mark.parametrize("name", DECODERS)
def test_tokens_are_those_of_generate(cases, name, tight):
    case = cases(name)
    settings = {"cache_bytes": TIGHT if tight else ROOMY}
    if tight and name == "mistral":  # with windows in all layers, requests hold little
        settings = {"cache_bytes": 20000, "max_tokens": 8}
    with make_engine(case.model, **settings) as engine:
        assert engine.generate(PROMPTS, max_new_tokens=NUM_NEW) == case.expected
        stats = engine.stats()
        assert stats["cache_bytes"] <= settings["cache_bytes"]
        assert stats["blocks"]["num_hit_tokens"] > 0 or settings["cache_bytes"] == 20000
        assert (stats["scheduler"]["num_preemptions"] > 0) == tight
        assert all(pool["num_in_use"] == 0 for pool in stats["blocks"]["pools"])
        # Again, with all prompts in the prefix cache where there is room for them.
        hits = stats["blocks"]["num_hit_tokens"]
        assert engine.generate(PROMPTS[:2], max_new_tokens=NUM_NEW) == case.expected[:2]
        assert tight or engine.stats()["blocks"]["num_hit_tokens"] > hits
    assert case.model.config._attn_implementation == "eager"


def test_without_prefix_cache(llama):
    with make_engine(llama.model, prefix_cache=False) as engine:
        assert engine.generate(PROMPTS, max_new_tokens=NUM_NEW) == llama.expected
        assert engine.stats()["blocks"]["num_hit_tokens"] == 0


def test_tokens_come_as_they_are_made(llama):
    with make_engine(llama.model) as engine:
        first = engine.submit(PROMPTS[0], max_new_tokens=NUM_NEW)
        for i, token in enumerate(first):
            assert token == llama.expected[0][i]
            assert len(first.tokens) == i + 1
            if i == 3:
                second = engine.submit(PROMPTS[1], max_new_tokens=NUM_NEW)
        assert first.finish_reason == "length"
        assert 0 < len(second.tokens) < NUM_NEW
        assert [token for request, token in engine.stream() if request is second]
        assert second.tokens == llama.expected[1]
        assert engine.num_unfinished == 0


def test_cancel(llama):
    with make_engine(llama.model, TIGHT) as engine:
        requests = [engine.submit(prompt, max_new_tokens=NUM_NEW) for prompt in PROMPTS]
        for request, _ in engine.stream():
            if len(request.tokens) == 3 and request in requests[1::2]:
                request.cancel()
        for i, request in enumerate(requests):
            if i % 2:
                assert request.finish_reason == "cancelled"
                assert request.tokens == llama.expected[i][:3]
            else:
                assert request.finish_reason in ("length", "stopped")
                assert request.tokens == llama.expected[i]
        assert all(pool["num_in_use"] == 0 for pool in engine.stats()["blocks"]["pools"])


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_draws_are_those_of_generate(llama, penalty):
    settings = dict(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=penalty)
    torch.manual_seed(11)
    expected = generate(llama.model, PROMPTS[1], do_sample=True, **settings)
    assert expected != llama.expected[1]
    with make_engine(llama.model) as engine:
        torch.manual_seed(11)
        sampling = Sampling(**settings)
        found = engine.generate([PROMPTS[1]], max_new_tokens=NUM_NEW, sampling=sampling)
    assert found == [expected]


def test_settings_are_those_of_the_request(llama):
    settings = [
        Sampling(),
        Sampling(temperature=0.8, seed=1),
        Sampling(temperature=0.8, seed=2),
        Sampling(repetition_penalty=1.5),
    ]

    def together(cache_bytes, order):
        with make_engine(llama.model, cache_bytes) as engine:
            requests = {
                i: engine.submit(PROMPTS[0], max_new_tokens=NUM_NEW, sampling=settings[i])
                for i in order
            }
            list(engine.stream())
            return [requests[i].tokens for i in range(4)]

    found = together(ROOMY, range(4))
    assert found == together(TIGHT, reversed(range(4)))  # seeds belong to requests
    assert found[0] == llama.expected[0]
    assert found[3] == generate(llama.model, PROMPTS[0], repetition_penalty=1.5)
    assert len({tuple(tokens) for tokens in found}) == 4


def test_end_tokens(llama):
    ends = [llama.expected[0][5], llama.expected[0][9]]
    expected = generate(llama.model, PROMPTS[0], eos_token_id=ends)
    assert len(expected) < NUM_NEW
    with make_engine(llama.model) as engine:
        request = engine.submit(PROMPTS[0], max_new_tokens=NUM_NEW, eos_token_id=ends)
        other = engine.submit(PROMPTS[0], max_new_tokens=NUM_NEW, eos_token_id=())
        list(engine.stream())
        assert (request.tokens, request.finish_reason) == (expected, "stopped")
        assert len(other.tokens) == NUM_NEW


def test_a_step_that_failed_comes_again(llama, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError

    with make_engine(llama.model, TIGHT) as engine:
        requests = [engine.submit(prompt, max_new_tokens=NUM_NEW) for prompt in PROMPTS]
        for count in range(2000):
            if engine.num_unfinished == 0:
                break
            if count % 7 == 3:
                with monkeypatch.context() as patch:
                    patch.setattr(llama.model.lm_head, "forward", fail)
                    with pytest.raises(ZeroDivisionError):
                        engine.step()
            engine.step()
        assert [request.tokens for request in requests] == llama.expected


def failing_after(count, error):
    """A processor that raises at its call of that number."""
    calls = []

    def fail(tokens, scores):
        calls.append(1)
        if len(calls) > count:
            raise error
        return scores

    return Sampling(logits_processors=[fail])


def test_a_processor_that_fails_ends_its_request_alone(llama):
    error = ZeroDivisionError("of one")
    with make_engine(llama.model) as engine:
        first = engine.submit(PROMPTS[2], max_new_tokens=NUM_NEW)
        bad = engine.submit(PROMPTS[0], max_new_tokens=NUM_NEW, sampling=failing_after(3, error))
        last = engine.submit(PROMPTS[1], max_new_tokens=NUM_NEW)
        streamed = {first: [], bad: [], last: []}
        for request, token in engine.stream():
            streamed[request].append(token)
        # Tokens that others got in the step of the failure included.
        assert streamed[first] == first.tokens == llama.expected[2]
        assert streamed[last] == last.tokens == llama.expected[1]
        assert streamed[bad] == bad.tokens == llama.expected[0][:3]
        assert (bad.finish_reason, bad.error) == ("error", error)
        assert "ZeroDivisionError('of one')" in bad.detail
        with pytest.raises(ZeroDivisionError, match="of one"):
            list(bad)
        assert (first.finish_reason, first.error) == ("length", None)
        with pytest.raises(ZeroDivisionError, match="of one"):
            engine.generate(PROMPTS[:2], sampling=failing_after(5, error))
        assert engine.num_unfinished == 0
        assert engine.generate(PROMPTS[:1], max_new_tokens=NUM_NEW) == llama.expected[:1]


@pytest.mark.parametrize(
    "scores, message",
    {
        "nothing": (lambda s: None, "returned NoneType, needs scores .1, 128."),
        "too_wide": (lambda s: torch.arange(1000.0)[None], "returned .1, 1000., needs scores"),
        "nan": (lambda s: s * float("nan"), "scores: are not numbers"),
        "none_left": (lambda s: s - float("inf"), "scores: are not numbers"),
    }.values(),
)
def test_scores_that_choose_no_token(llama, scores, message):
    """They would end the steps of all: a token that the model lacks, or a fault on a GPU."""
    sampling = Sampling(temperature=1.0, logits_processors=[lambda tokens, s: scores(s)])
    with make_engine(llama.model) as engine:
        bad = engine.submit(PROMPTS[0], sampling=sampling)
        good = engine.submit(PROMPTS[1], max_new_tokens=NUM_NEW)
        list(engine.stream())
        assert good.tokens == llama.expected[1] and bad.finish_reason == "error"
        with pytest.raises(quire.Error, match=message):
            list(bad)


def test_an_interrupt_between_tokens_loses_none(llama):
    with make_engine(llama.model) as engine:
        settings = [None, failing_after(4, KeyboardInterrupt()), None]
        requests = [
            engine.submit(prompt, max_new_tokens=NUM_NEW, sampling=sampling)
            for prompt, sampling in zip(PROMPTS, settings)
        ]
        streamed = []
        with pytest.raises(KeyboardInterrupt):
            for request, _ in engine.stream():
                streamed.append(request)
        requests[1]._sampler._steps = []  # it goes on where it was
        streamed += [request for request, _ in engine.stream()]
        assert [request.tokens for request in requests] == llama.expected[:3]
        # Those that were chosen before the interrupt, in its step, are given too.
        assert [streamed.count(x) for x in requests] == [len(x.tokens) for x in requests]


def test_a_processor_may_use_the_engine(llama):
    with make_engine(llama.model) as engine:
        made = []

        def submit(tokens, scores):
            if not made:
                made.append(engine.submit(PROMPTS[1], max_new_tokens=NUM_NEW))
            return scores

        def step(tokens, scores):
            engine.step()

        good = engine.submit(
            PROMPTS[0], max_new_tokens=NUM_NEW, sampling=Sampling(logits_processors=[submit])
        )
        bad = engine.submit(PROMPTS[2], sampling=Sampling(logits_processors=[step]))
        list(engine.stream())
        assert good.tokens == llama.expected[0] and made[0].tokens == llama.expected[1]
        assert str(bad.error) == "engine: a step inside a step"


def test_requests_from_many_threads(llama):
    found = {}

    def serve(engine, i):
        found[i] = list(engine.submit(PROMPTS[i], max_new_tokens=NUM_NEW))

    with make_engine(llama.model, TIGHT) as engine:
        threads = [
            threading.Thread(target=serve, args=(engine, i)) for i in range(len(PROMPTS))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[i] for i in range(len(PROMPTS))] == llama.expected


def test_engines_share_a_model(llama):
    llama.model.set_attn_implementation("sdpa")
    first, second = make_engine(llama.model), make_engine(llama.model)
    assert first.generate(PROMPTS[:2], max_new_tokens=NUM_NEW) == llama.expected[:2]
    first.close()
    with pytest.raises(quire.Error, match="it is closed"):
        first.submit(PROMPTS[0])
    with pytest.raises(quire.Error, match="it is closed"):
        first.step()
    assert second.generate(PROMPTS[:2], max_new_tokens=NUM_NEW) == llama.expected[:2]
    second.close()
    assert llama.model.config._attn_implementation == "sdpa"
    llama.model.set_attn_implementation("eager")


def test_another_attention_is_noticed(llama):
    with make_engine(llama.model) as engine:
        llama.model.set_attn_implementation("sdpa")
        with pytest.raises(quire.Error, match=r"layers \[0, 1.*did not go through"):
            engine.generate(PROMPTS[:1])


def test_wrong_requests(llama):
    with make_engine(llama.model, TIGHT) as engine:
        with pytest.raises(quire.Error, match="tokens: is empty"):
            engine.submit([])
        with pytest.raises(quire.Error, match="tokens: 128 at 1, the model has 128"):
            engine.submit([5, 128])
        for bad in [1.9], ["a"], [[5, 6]], torch.ones(2, 3), [None]:
            with pytest.raises(quire.Error, match="tokens: .* at 0 is not a whole number"):
                engine.submit(bad)
        with pytest.raises(quire.Error, match="eos_token_id: 'x' at 1 is not a whole number"):
            engine.submit([5], eos_token_id=[1, "x"])
        for good in torch.tensor([5, 6]), (5, 6), iter([5, 6]):
            engine.submit(good, eos_token_id=torch.tensor([1, 2])).cancel()
        engine.submit([5], eos_token_id=torch.tensor(1)).cancel()
        assert engine.generate([]) == []
        with pytest.raises(quire.Error, match="sampling: needs a Sampling, has dict"):
            engine.submit([5], sampling={"temperature": 1.0})
        with pytest.raises(quire.Error, match="max_new_tokens: 0"):
            engine.submit([5], max_new_tokens=0)
        with pytest.raises(quire.Error, match="entry 0: needs 1002 tokens"):
            engine.generate([[5, 6, 7]], max_new_tokens=1000)
        nan = float("nan")
        for settings in (
            {"top_p": 0}, {"temperature": -1}, {"top_k": -1}, {"min_p": 2}, {"temperature": nan},
            {"temperature": float("inf")}, {"top_p": nan}, {"min_p": nan}, {"top_k": 2.5},
            {"repetition_penalty": nan}, {"repetition_penalty": 0}, {"seed": "x"},
            {"logits_processors": [3]}, {"seed": 2**64},
        ):  # fmt: skip
            with pytest.raises(quire.Error, match=next(iter(settings))):
                Sampling(**settings)
        assert engine.generate(PROMPTS[:1], max_new_tokens=NUM_NEW) == llama.expected[:1]


def test_prompts_beside_a_wrong_one_are_not_computed(llama):
    with make_engine(llama.model) as engine:
        with pytest.raises(quire.Error, match="tokens: is empty"):
            engine.generate([PROMPTS[0], []], max_new_tokens=NUM_NEW)
        assert list(engine.stream()) == []
        assert engine.num_unfinished == 0


def test_closing_waits_for_the_step_of_another_thread(llama):
    entered, go_on = threading.Event(), threading.Event()

    def wait(tokens, scores):
        entered.set()
        go_on.wait()
        return scores

    engine = make_engine(llama.model)
    request = engine.submit(
        PROMPTS[0], max_new_tokens=1, sampling=Sampling(logits_processors=[wait])
    )
    stepping = threading.Thread(target=engine.step)
    stepping.start()
    entered.wait()
    closing = threading.Thread(target=engine.close)
    closing.start()
    go_on.set()
    stepping.join()
    closing.join()
    assert request.tokens == llama.expected[0][:1]
    with pytest.raises(quire.Error, match="it is closed"):
        engine.step()


def test_models_it_cannot_serve(llama):
    with pytest.raises(quire.Error, match="model: needs a model of transformers, has NoneType"):
        Engine(None)
    with pytest.raises(quire.Error, match="encoder-decoder"):
        Engine(tiny_models.make("bart"))
    with pytest.raises(quire.Error, match="not causal"):
        Engine(tiny_models.make("bert"))
    with pytest.raises(quire.Error, match="training"):
        Engine(tiny_models.make("llama").train())
    with pytest.raises(quire.Error, match="cache_bytes: 100"):
        Engine(llama.model, cache_bytes=100)
    assert llama.model.config._attn_implementation == "eager"


WAITING = """
import statistics, time, torch, quire.transformers, tiny_models

def waiting():
    seconds = []
    for _ in range(20):
        torch.zeros(1 << 18).add_(1)
        start = time.process_time()
        time.sleep(0.02)
        seconds.append(time.process_time() - start)
    return seconds

model = tiny_models.make("llama")
alone = max(waiting())
with quire.transformers.Engine(model, cache_bytes=1 << 20):
    seconds = waiting()
    print(alone, statistics.median(seconds), max(seconds))
"""


@pytest.mark.parametrize("choice", [{}, {"GOMP_SPINCOUNT": "300000"}], ids=["default", "chosen"])
def test_threads_of_pytorch_sleep_while_an_engine_is_open(choice):
    """In a process of its own: libgomp reads the environment once."""
    num_cpus = len(os.sched_getaffinity(0))
    if num_cpus < 2:
        pytest.skip("one CPU: PyTorch has one thread")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    paths = [os.path.dirname(__file__), *sys.path]
    environment |= {"OMP_NUM_THREADS": str(num_cpus), "PYTHONPATH": os.pathsep.join(paths), **choice}
    found = subprocess.run(
        [sys.executable, "-c", WAITING], env=environment, capture_output=True, text=True, check=True
    )
    alone, usual, longest = map(float, found.stdout.split())
    if alone < 1e-3:
        pytest.skip("the threads of this PyTorch do not wait busily")
    if choice:  # what the environment says stays
        assert longest > 5e-4
    else:
        assert usual < 0.2 * alone
