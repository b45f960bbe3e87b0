# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of a Llama with random weights: quire's engine against generate_batch.

    python -m quire.bench_transformers [--device cuda] [--rounds 3] [--dtype bf16] ...

Both serve the same ragged requests, taking turns in one run; the table has the medians. Time inside
attention is that of the attention function of all layers, for quire with the preparation of the
batch, for transformers with the update of its cache but without the making of its masks. CPU time is
that of the whole process: it says more than the time that passed where others use the machine too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import inspect
import logging
import random
import statistics
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AttentionInterface

import quire
import quire.transformers
from quire.transformers import batching, engine

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Clock:
    """Seconds spent in the functions that it watches: on a GPU those of the device between its
    events, which nothing waits for."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
            return sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        return self._seconds

    def watched(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self._seconds += time.perf_counter() - start
            return result

        def call_on_gpu(*args: Any, **kwargs: Any) -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = function(*args, **kwargs)
            end.record()
            self._events.append((start, end))
            return result

        return call_on_gpu if self._on_gpu else call


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m quire.bench_transformers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch and quire; 0: all")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=32, help="prompt, in tokens")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=512, help="in one forward pass")
    parser.add_argument("--page-size", type=int, default=256, help="of generate_batch")
    parser.add_argument(
        "--attention", help="of generate_batch, several with commas; sdpa, and on a GPU flash"
        " attention where it is installed",
    )  # fmt: skip
    parser.add_argument(
        "--graphs", action="store_true", help="generate_batch may use CUDA graphs: then time"
        " inside its attention is that of the steps without",
    )  # fmt: skip
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--heads", type=int, default=14)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=151936)
    arguments = parser.parse_args()
    if arguments.attention is None:
        arguments.attention = ",".join(installed_attentions(arguments.device))
    return arguments


def installed_attentions(device: str) -> list[str]:
    """Those of transformers that can be compared with here; the first is always there."""
    names = ["sdpa"]
    if device.startswith("cuda"):
        for name, package in (("flash_attention_2", "flash_attn"),
                              ("flash_attention_3", "flash_attn_interface")):  # fmt: skip
            if importlib.util.find_spec(package) is not None:
                names.append(name)
    return names


def make_model(arguments: argparse.Namespace) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 38 // 7, num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads, num_key_value_heads=arguments.kv_heads,
        max_position_embeddings=32768, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[arguments.dtype])
    try:
        model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None
    return model.to(arguments.device).eval()


def run_engine(model: Any, prompts: list[list[int]], arguments: argparse.Namespace) -> Any:
    clock = Clock(model.device)
    step, prepare = engine._Step, engine._Step.__init__
    attend = step.attend
    step.__init__, step.attend = clock.watched(prepare), clock.watched(attend)
    total = sum(len(prompt) + arguments.new_tokens + 32 for prompt in prompts)
    config = model.config
    row_bytes = 2 * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    start = clock.now()
    try:
        with quire.transformers.Engine(
            model, cache_bytes=total * row_bytes * config.num_hidden_layers,
            max_tokens=arguments.max_tokens,
        ) as server:  # fmt: skip
            tokens = server.generate(
                prompts, max_new_tokens=arguments.new_tokens, eos_token_id=()
            )
            seconds = clock.now() - start
    finally:
        step.__init__, step.attend = prepare, attend
    return clock.seconds(), seconds, tokens


def batching_config(page_size: int, num_pages: int, max_tokens: int, graphs: bool = False) -> Any:
    """Of generate_batch, in the words of the installed version."""
    kind = transformers.ContinuousBatchingConfig
    known = inspect.signature(kind).parameters
    words: dict[str, Any] = {"page_size" if "page_size" in known else "block_size": page_size}
    if "auto_switch_to_flash" in known:
        words["auto_switch_to_flash"] = False
    if not graphs:
        words |= {word: False for word in ("use_cuda_graph", "use_async_batching") if word in known}
    return kind(num_blocks=num_pages, max_batch_tokens=max_tokens, **words)


def run_generate_batch(
    model: Any, prompts: list[list[int]], arguments: argparse.Namespace, name: str
) -> Any:
    clock = Clock(model.device)
    if "paged|" + name in AttentionInterface():  # until 5.17
        name = "paged|" + name
    attention = AttentionInterface()[name]
    model.set_attn_implementation(name)
    page = arguments.page_size
    pages = sum(-(-(len(prompt) + arguments.new_tokens) // page) for prompt in prompts) + 4
    AttentionInterface.register(name, clock.watched(attention))
    start = clock.now()
    try:
        results = model.generate_batch(
            prompts,
            generation_config=transformers.GenerationConfig(
                max_new_tokens=arguments.new_tokens, do_sample=False, eos_token_id=-1,
                pad_token_id=0,
            ),
            continuous_batching_config=batching_config(
                page, pages, arguments.max_tokens, arguments.graphs
            ),
            progress_bar=False,
        )  # fmt: skip
        seconds = clock.now() - start
    finally:
        AttentionInterface.register(name, attention)
    by_number = sorted(results.values(), key=lambda one: int(one.request_id.split("_")[-1]))
    return clock.seconds(), seconds, [one.generated_tokens for one in by_number]


def measure(run: Any, *arguments: Any) -> tuple[float, float, float, list[list[int]]]:
    """Seconds in attention, in all, and of the CPU; and the tokens.

    In a new thread: generate_batch computes in one, and the threads of PyTorch belong to a thread.
    """
    start = time.process_time()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        attention, total, tokens = pool.submit(run, *arguments).result()
    return attention, total, time.process_time() - start, tokens


def run_under_generate_batch(
    model: Any, prompts: list[list[int]], arguments: argparse.Namespace
) -> Any:
    with batching.continuous_batching():
        return run_generate_batch(model, prompts, arguments, "sdpa")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # asks for psutil
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        quire.set_num_threads(arguments.threads)
    model = make_model(arguments)
    rng = random.Random(1)
    lengths = [rng.randint(arguments.shortest, arguments.longest) for _ in range(arguments.requests)]
    prompts = [[rng.randrange(arguments.vocabulary) for _ in range(n)] for n in lengths]
    count = sum(parameter.numel() for parameter in model.parameters())
    where = f"{torch.get_num_threads()} threads"
    if model.device.type == "cuda":
        where = torch.cuda.get_device_name(model.device)
    print(
        f"Llama of {count / 1e6:.0f} million parameters, {arguments.dtype}, {arguments.device},"
        f" {where}; transformers {transformers.__version__}, torch {torch.__version__}, quire"
        f" {quire.__version__}\n"
        f"{len(prompts)} requests of {min(lengths)} to {max(lengths)} tokens,"
        f" {arguments.new_tokens} new ones each; medians of {arguments.rounds} rounds\n",
        flush=True,
    )
    names = arguments.attention.split(",")
    ways: dict[str, Any] = {"quire Engine": run_engine}
    for name in names:
        ways[f"generate_batch, {name}"] = functools.partial(run_generate_batch, name=name)
    ways["generate_batch, quire"] = run_under_generate_batch
    short = argparse.Namespace(**{**vars(arguments), "new_tokens": 2})
    for name, run in list(ways.items()):  # what a first call pays for is not measured
        try:
            measure(run, model, [prompt[:32] for prompt in prompts], short)
        except Exception as error:
            if run is run_engine or name == f"generate_batch, {names[0]}":
                raise  # the two that are compared
            print(f"{name}: left out: {error}\n")
            del ways[name]
    results: dict[str, list[Any]] = {name: [] for name in ways}
    for i in range(arguments.rounds):
        for name, run in ways.items():
            results[name].append(measure(run, model, prompts, arguments))
            progress(f"round {i + 1}, {name}: {results[name][-1][1]:.1f} s")
    print_table(results)


def print_table(results: dict[str, list[Any]]) -> None:
    print(f"{'':28}{'attention s':>12}{'total s':>10}{'CPU s':>10}{'tokens/s':>10}")
    medians = {}
    for name, runs in results.items():
        medians[name] = [statistics.median(run[i] for run in runs) for i in range(3)]
        attention, total, cpu = medians[name]
        new = sum(map(len, runs[0][3]))
        print(f"{name:28}{attention:12.3f}{total:10.2f}{cpu:10.2f}{new / total:10.1f}")
    ours, *others = medians
    print()
    for other in others:
        ratios = [medians[other][i] / medians[ours][i] for i in range(3)]
        print(
            f"Engine against {other}: time inside attention {ratios[0]:.1f} times lower, total"
            f" {ratios[1]:.2f} times, CPU {ratios[2]:.2f} times"
        )


if __name__ == "__main__":
    main()
