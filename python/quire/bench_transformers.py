# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of a Llama with random weights: quire's engine against generate_batch.

    python -m quire.bench_transformers [--device cuda] [--rounds 3] [--time-limit 150] ...

All serve the same ragged requests, taking turns in one run; the table has the medians. Time inside
attention is that of the attention function of all layers, for quire with the preparation of the
batch, for transformers with the update of its cache but without the making of its masks. On a GPU it
is what passes between events of the stream before and after each call: the gaps in which the device
waits for the host to launch the next kernel are in it, for all ways alike. Set-up (caches, for
generate_batch also its warm-up and the capture of graphs) is measured apart and in no other figure.
CPU time is that of the whole process: it says more than the time that passed where others use the
machine too. All decode greedily, and the share of tokens equal to those of the first way is printed; in
f32 all must be equal, or the exit status is 1. Every figure goes to stderr, and with --output into a
file, when it is there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import inspect
import json
import logging
import os
import pathlib
import random
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AttentionInterface
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

import quire
import quire.transformers
from quire._bench_report import ENGINE, Report, progress
from quire.transformers import batching, engine

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Clock:
    """Of one run: seconds of set-up, of serving, and in the functions that it watches; on a GPU the
    latter are those of the device between its events, which nothing waits for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._start = self._now()
        self._forget()

    def _now(self) -> tuple[float, float]:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), time.process_time()

    def _forget(self) -> None:
        self._ready = self._now()
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def set_up_done(self) -> None:
        """Serving begins here; what was watched before does not count."""
        self._forget()

    def result(self, has_attention: bool = True) -> dict[str, float | None]:
        """Serving ends here."""
        passed, cpu = (now - then for now, then in zip(self._now(), self._ready))
        if self._on_gpu:
            self._seconds = sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        return {
            "attention_seconds": self._seconds if has_attention else None, "total_seconds": passed,
            "cpu_seconds": cpu, "set_up_seconds": self._ready[0] - self._start[0],
        }  # fmt: skip

    def watched(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self._seconds += time.perf_counter() - start
            return result

        def call_on_gpu(*args: Any, **kwargs: Any) -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(torch.cuda.current_stream(self._device))
            result = function(*args, **kwargs)
            end.record(torch.cuda.current_stream(self._device))
            self._events.append((start, end))
            return result

        return call_on_gpu if self._on_gpu else call


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m quire.bench_transformers", description=__doc__.splitlines()[0]
    )
    run = parser.add_argument_group("measurement")
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument(
        "--time-limit", type=float, default=0, metavar="SECONDS", help="no round begins that would"
        " end later, the first excepted; 0: none",
    )  # fmt: skip
    run.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    run.add_argument(
        "--threads", type=int, default=0, help="of PyTorch and as many of quire; 0: what PyTorch takes"
        " by itself",
    )  # fmt: skip
    run.add_argument("--json", action="store_true", help="results as JSON instead of the table")
    run.add_argument(
        "--output", type=pathlib.Path, metavar="FILE", help="also write the JSON there, anew after"
        " everything that was measured",
    )  # fmt: skip
    run.add_argument(
        "--attention", help="of generate_batch, several with commas; sdpa, and on a GPU flash"
        " attention where it is installed",
    )  # fmt: skip
    run.add_argument(
        "--graphs", action="store_true", help="generate_batch also with CUDA graphs, inside of which"
        " attention cannot be timed, where its attention needs no mask",
    )  # fmt: skip
    run.add_argument(
        "--busy-waiting", action="store_true", help="on a CPU, also the engine with the threads of"
        " PyTorch waiting as they do by themselves",
    )  # fmt: skip
    load = parser.add_argument_group("requests")
    load.add_argument("--requests", type=int, default=16)
    load.add_argument("--shortest", type=int, default=32, help="prompt, in tokens")
    load.add_argument("--longest", type=int, default=512)
    load.add_argument("--max-new-tokens", "--new-tokens", dest="new_tokens", type=int, default=32)
    load.add_argument("--max-tokens", type=int, default=512, help="in one forward pass")
    load.add_argument("--page-size", type=int, default=256, help="of generate_batch")
    shape = parser.add_argument_group("model")
    shape.add_argument("--dtype", choices=DTYPES, default="bf16")
    shape.add_argument("--layers", type=int, default=24)
    shape.add_argument("--hidden", type=int, default=896)
    shape.add_argument("--heads", type=int, default=14)
    shape.add_argument("--kv-heads", type=int, default=2)
    shape.add_argument("--vocabulary", type=int, default=151936)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds: {arguments.rounds}, needs at least 1")
    if arguments.threads < 0:
        parser.error(f"--threads: {arguments.threads}, needs at least 0")
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


def run_engine(
    model: Any,
    prompts: list[list[int]],
    arguments: argparse.Namespace,
    sleeping_threads: bool = True,
) -> Any:
    clock = Clock(model.device)
    step, prepare = engine._Step, engine._Step.__init__
    attend = step.attend
    step.__init__, step.attend = clock.watched(prepare), clock.watched(attend)
    total = sum(len(prompt) + arguments.new_tokens + 32 for prompt in prompts)
    config = model.config
    row_bytes = 2 * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    try:
        with quire.transformers.Engine(
            model, cache_bytes=total * row_bytes * config.num_hidden_layers,
            max_tokens=arguments.max_tokens, sleeping_threads=sleeping_threads,
        ) as server:  # fmt: skip
            clock.set_up_done()
            tokens = server.generate(
                prompts, max_new_tokens=arguments.new_tokens, eos_token_id=()
            )
            return clock.result(), tokens
    finally:
        step.__init__, step.attend = prepare, attend


def batching_config(page_size: int, num_pages: int, max_tokens: int, graphs: bool = False) -> Any:
    """Of generate_batch, in the words of the installed version."""
    kind = transformers.ContinuousBatchingConfig
    known = inspect.signature(kind).parameters
    words: dict[str, Any] = {"page_size" if "page_size" in known else "block_size": page_size}
    if "auto_switch_to_flash" in known:
        words["auto_switch_to_flash"] = False
    if graphs:
        words["use_cuda_graph"] = True  # of prefill and of decode: 5.17 and 5.22 take one for both
    else:
        words |= {word: False for word in ("use_cuda_graph", "use_async_batching") if word in known}
    return kind(num_blocks=num_pages, max_batch_tokens=max_tokens, **words)


def run_generate_batch(
    model: Any,
    prompts: list[list[int]],
    arguments: argparse.Namespace,
    name: str,
    graphs: bool = False,
) -> Any:
    clock = Clock(model.device)
    if "paged|" + name in AttentionInterface():  # until 5.17
        name = "paged|" + name
    attention = AttentionInterface()[name]
    model.set_attn_implementation(name)
    page = arguments.page_size
    pages = sum(-(-(len(prompt) + arguments.new_tokens) // page) for prompt in prompts) + 4
    if not graphs:
        AttentionInterface.register(name, clock.watched(attention))
    warm_up = ContinuousBatchingManager.warmup

    def set_up(manager: Any) -> None:  # the last thing before it serves
        warm_up(manager)
        clock.set_up_done()

    ContinuousBatchingManager.warmup = set_up
    try:
        results = model.generate_batch(
            prompts,
            generation_config=transformers.GenerationConfig(
                max_new_tokens=arguments.new_tokens, do_sample=False, eos_token_id=-1,
                pad_token_id=0,
            ),
            continuous_batching_config=batching_config(page, pages, arguments.max_tokens, graphs),
            progress_bar=False,
        )  # fmt: skip
        figures = clock.result(has_attention=not graphs)
    finally:
        ContinuousBatchingManager.warmup = warm_up
        AttentionInterface.register(name, attention)
    by_number = sorted(results.values(), key=lambda one: int(one.request_id.split("_")[-1]))
    return figures, [one.generated_tokens for one in by_number]


def busy_cpu_seconds() -> float | None:
    """Of all programs since the machine started, where Linux tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = map(int, file.readline().split()[1:4])
    except (OSError, ValueError):
        return None
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def measure(run: Any, model: Any, prompts: list[list[int]], arguments: Any) -> Any:
    """One run of one way: its figures, and its tokens.

    In a new thread: generate_batch computes in one, and the threads of PyTorch belong to a thread.
    """
    start, busy, cpu = time.perf_counter(), busy_cpu_seconds(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(1, "", use_device, (model.device,)) as pool:
        figures, tokens = pool.submit(run, model, prompts, arguments).result()
    cpu, passed = time.process_time() - cpu, time.perf_counter() - start
    found = [len(one) for one in tokens]
    if found != [arguments.new_tokens] * len(prompts):
        raise RuntimeError(f"{arguments.new_tokens} new tokens were asked for, there are {found}")
    others = None if busy is None else max(0.0, busy_cpu_seconds() - busy - cpu) / passed
    speed = sum(found) / figures["total_seconds"]
    return {**figures, "new_tokens_per_second": speed, "cpus_of_others": others}, tokens


def use_device(device: torch.device) -> None:
    """In this thread; "cuda" without a number is the device that it has."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def run_under_generate_batch(
    model: Any, prompts: list[list[int]], arguments: argparse.Namespace
) -> Any:
    with batching.continuous_batching():
        return run_generate_batch(model, prompts, arguments, "sdpa")


def why_no_graphs(name: str, device: str) -> str:
    """Empty if generate_batch can capture graphs with this attention."""
    if not device.startswith("cuda"):
        return f"there are no CUDA graphs on {device}"
    if name.removeprefix("paged|") in ("sdpa", "eager"):
        return f"{name} needs a mask of the whole batch, with which transformers turns its graphs off"
    return ""


def make_ways(arguments: argparse.Namespace, report: Report) -> dict[str, Any]:
    """What is compared, by name."""
    ways: dict[str, Any] = {ENGINE: run_engine}
    if arguments.busy_waiting:
        busy = functools.partial(run_engine, sleeping_threads=False)
        ways[f"{ENGINE}, busy waiting"] = busy
    for name in arguments.attention.split(","):
        ways[f"generate_batch, {name}"] = functools.partial(run_generate_batch, name=name)
        if arguments.graphs:
            reason = why_no_graphs(name, arguments.device)
            way = f"generate_batch, {name}, graphs"
            if reason:
                report.leave_out(way, reason)
            else:
                ways[way] = functools.partial(run_generate_batch, name=name, graphs=True)
    ways["generate_batch, quire"] = run_under_generate_batch
    return ways


def attempt(ways: dict[str, Any], name: str, report: Report, *arguments: Any) -> Any:
    """A measurement; None if this way fails, which then is none any more."""
    try:
        return measure(ways[name], *arguments)
    except Exception as error:
        if name in report.needed:
            raise
        report.leave_out(name, str(error) or repr(error))
        del ways[name]
        return None


def main() -> None:
    arguments = parse_arguments()
    start = time.monotonic()
    transformers.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # asks for psutil
    num_threads = arguments.threads or torch.get_num_threads()
    torch.set_num_threads(num_threads)
    quire.set_num_threads(num_threads)
    use_device(torch.device(arguments.device))
    model = make_model(arguments)
    rng = random.Random(1)
    lengths = [rng.randint(arguments.shortest, arguments.longest) for _ in range(arguments.requests)]
    prompts = [[rng.randrange(arguments.vocabulary) for _ in range(n)] for n in lengths]
    report = Report(arguments, model, lengths)
    if not arguments.json:
        print(report.title() + "\n", flush=True)
    ways = make_ways(arguments, report)
    short = argparse.Namespace(**{**vars(arguments), "new_tokens": 2})
    for name in list(ways):  # what a first call pays for is not measured
        attempt(ways, name, report, model, [prompt[:32] for prompt in prompts], short)
    longest_round = 0.0
    for i in range(arguments.rounds):
        begin = time.monotonic()
        if i and arguments.time_limit and begin - start + longest_round > arguments.time_limit:
            progress(f"round {i + 1} would end after {arguments.time_limit:g} s")
            break
        names = list(ways)
        for name in names if i % 2 == 0 else names[::-1]:  # nobody always runs after the same one
            measured = attempt(ways, name, report, model, prompts, arguments)
            if measured is not None:
                report.add(name, *measured)
        longest_round = max(longest_round, time.monotonic() - begin)
    report.complete = True
    report.write()
    print(json.dumps(report.to_json(), indent=1) if arguments.json else report.table())
    differing = report.ways_that_differ()
    if arguments.dtype == "f32" and differing:
        sys.exit(f"in f32 the tokens of these are not those of the {ENGINE}: {'; '.join(differing)}")


if __name__ == "__main__":
    main()
