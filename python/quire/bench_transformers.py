# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of a Llama with random weights: quire's engine against generate_batch.

    python -m quire.bench_transformers [--device cuda] [--rounds 3] [--time-limit 150] ...

All serve the same ragged requests, taking turns in one run; the table has the medians. Time inside
attention is that of the attention function of all layers, for quire with the preparation of the
batch, for transformers with the update of its cache but without the making of its masks. CPU time is
that of the whole process: it says more than the time that passed where others use the machine too.
Every figure goes to stderr, and with --output into a file, when it is there.
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
import statistics
import sys
import threading
import time
from typing import Any

import torch
import transformers
from transformers import AttentionInterface

import quire
import quire.transformers
from quire.transformers import batching, engine

ENGINE = "quire Engine"
WIDTHS = (11, 8, 8, 9, 9, 8)  # of the columns of the table
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
    run = parser.add_argument_group("measurement")
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument(
        "--time-limit", type=float, default=0, metavar="SECONDS", help="no round begins that would"
        " end later, the first excepted; 0: none",
    )  # fmt: skip
    run.add_argument("--device", default="cpu", help="cpu or cuda")
    run.add_argument("--threads", type=int, default=0, help="of PyTorch and quire; 0: all")
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
        "--graphs", action="store_true", help="generate_batch also as it would run by itself on a"
        " GPU, with CUDA graphs, inside of which attention cannot be timed",
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


def run_engine_busy(model: Any, prompts: list[list[int]], arguments: argparse.Namespace) -> Any:
    start_team = engine.start_sleeping_team
    engine.start_sleeping_team = lambda device: threading.Event()
    try:
        return run_engine(model, prompts, arguments)
    finally:
        engine.start_sleeping_team = start_team


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
    start = clock.now()
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
        seconds = clock.now() - start
    finally:
        AttentionInterface.register(name, attention)
    by_number = sorted(results.values(), key=lambda one: int(one.request_id.split("_")[-1]))
    attention_seconds = None if graphs else clock.seconds()
    return attention_seconds, seconds, [one.generated_tokens for one in by_number]


def busy_cpu_seconds() -> float | None:
    """Of all programs since the machine started, where Linux tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = map(int, file.readline().split()[1:4])
    except (OSError, ValueError):
        return None
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def measure(run: Any, model: Any, prompts: list[list[int]], arguments: Any) -> dict[str, Any]:
    """One run of one way.

    In a new thread: generate_batch computes in one, and the threads of PyTorch belong to a thread.
    """
    busy, cpu = busy_cpu_seconds(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        attention, total, tokens = pool.submit(run, model, prompts, arguments).result()
    cpu = time.process_time() - cpu
    found = [len(one) for one in tokens]
    if found != [arguments.new_tokens] * len(prompts):
        raise RuntimeError(f"{arguments.new_tokens} new tokens were asked for, there are {found}")
    others = None if busy is None else max(0.0, busy_cpu_seconds() - busy - cpu) / total
    return {
        "attention_seconds": attention, "total_seconds": total, "cpu_seconds": cpu,
        "new_tokens_per_second": sum(found) / total, "cpus_of_others": others,
    }  # fmt: skip


def run_under_generate_batch(
    model: Any, prompts: list[list[int]], arguments: argparse.Namespace
) -> Any:
    with batching.continuous_batching():
        return run_generate_batch(model, prompts, arguments, "sdpa")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_ways(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is compared, by name."""
    ways: dict[str, Any] = {ENGINE: run_engine}
    if arguments.busy_waiting:
        ways[f"{ENGINE}, busy waiting"] = run_engine_busy
    for name in arguments.attention.split(","):
        ways[f"generate_batch, {name}"] = functools.partial(run_generate_batch, name=name)
        if arguments.graphs:
            ways[f"generate_batch, {name}, graphs"] = functools.partial(
                run_generate_batch, name=name, graphs=True
            )
    ways["generate_batch, quire"] = run_under_generate_batch
    return ways


class Report:
    """What was measured so far, and about what."""

    def __init__(self, arguments: argparse.Namespace, model: Any, lengths: list[int]) -> None:
        self._output = arguments.output
        where = f"{torch.get_num_threads()} threads"
        if model.device.type == "cuda":
            where = torch.cuda.get_device_name(model.device)
        self.about = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": arguments.layers, "dtype": arguments.dtype, "device": arguments.device,
            "where": where, "prompt_tokens": lengths, "new_tokens": arguments.new_tokens,
            "transformers": transformers.__version__, "torch": torch.__version__,
            "quire": quire.__version__,
        }  # fmt: skip
        self.needed = (ENGINE, f"generate_batch, {arguments.attention.split(',')[0]}")
        self.complete = False
        self.left_out: dict[str, str] = {}
        self.runs: dict[str, list[dict[str, Any]]] = {}

    def title(self) -> str:
        about, lengths = self.about, self.about["prompt_tokens"]
        return (
            f"Llama of {about['parameters'] / 1e6:.0f} million parameters, {about['layers']} layers,"
            f" {about['dtype']}, {about['device']}, {about['where']}\n"
            f"{len(lengths)} requests of {min(lengths)} to {max(lengths)} tokens,"
            f" {about['new_tokens']} new ones each; transformers {about['transformers']},\n"
            f"torch {about['torch']}, quire {about['quire']}"
        )

    def leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = " ".join(reason.split())[:200]
        progress(f"{name}: left out: {self.left_out[name]}")
        self.write()

    def add(self, name: str, run: dict[str, Any]) -> None:
        self.runs.setdefault(name, []).append(run)
        text = f"round {len(self.runs[name])}, {name}: {run['total_seconds']:.2f} s,"
        text += f" {run['new_tokens_per_second']:.1f} tokens/s, CPU {run['cpu_seconds']:.2f} s"
        if run["attention_seconds"] is not None:
            text += f", attention {run['attention_seconds']:.3f} s"
        if run["cpus_of_others"] is not None:
            text += f"; others took {run['cpus_of_others']:.1f} CPUs"
        progress(text)
        self.write()

    def medians(self) -> dict[str, dict[str, float | None]]:
        def median(runs: list[dict[str, Any]], key: str) -> float | None:
            known = [run[key] for run in runs if run[key] is not None]
            return statistics.median(known) if known else None

        return {name: {key: median(runs, key) for key in runs[0]} for name, runs in self.runs.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            **self.about, "complete": self.complete, "left_out": self.left_out,
            "rounds": max(map(len, self.runs.values()), default=0), "runs": self.runs,
            "medians": self.medians(), "ratios": ratios(self.medians()),
        }  # fmt: skip

    def write(self) -> None:
        """So that whoever reads finds the file of before or the one of now."""
        if self._output is not None:
            beside = self._output.with_name(self._output.name + ".new")
            beside.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            beside.replace(self._output)

    def table(self) -> str:
        medians = self.medians()
        compared = ratios(medians)
        rows = [["", "attention s", "total s", "CPU s", "tokens/s", "attention", "speed"]]
        for name, median in medians.items():
            attention = median["attention_seconds"]
            rows.append([
                name, "-" if attention is None else f"{attention:.3f}",
                f"{median['total_seconds']:.2f}", f"{median['cpu_seconds']:.2f}",
                f"{median['new_tokens_per_second']:.1f}",
            ])  # fmt: skip
            if name in compared:
                times = compared[name]["attention"]
                rows[-1].append("-" if times is None else f"{times:.1f}x")
                rows[-1].append(f"{compared[name]['speed']:.2f}x")
        width = max(map(len, medians))
        lines = [
            f"{row[0]:{width}}" + "".join(f" {cell:>{n}}" for cell, n in zip(row[1:], WIDTHS))
            for row in rows
        ]
        rounds = max(map(len, self.runs.values()))
        lines.append(
            f"\nMedians of {rounds} round{'s'[: rounds - 1]}. The last columns: how many"
            f" times lower the time inside attention is\nin the {ENGINE}, and how many times as many"
            " tokens per second it gives."
        )
        others = max((m["cpus_of_others"] or 0.0 for m in medians.values()), default=0.0)
        if others >= 0.2:
            lines.append(f"Other programs took up to {others:.1f} CPUs of {os.cpu_count()} meanwhile.")
        lines += [f"{name} was left out: {why}"[:100] for name, why in self.left_out.items()]
        return "\n".join(lines)


def ratios(medians: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of the engine to all others, above 1 where it is better."""
    ours, found = medians.get(ENGINE), {}
    for name, other in medians.items() if ours else ():
        if name != ENGINE:
            attention = other["attention_seconds"]
            found[name] = {
                "attention": None if attention is None else attention / ours["attention_seconds"],
                "speed": other["total_seconds"] / ours["total_seconds"],
                "cpu": other["cpu_seconds"] / ours["cpu_seconds"],
            }
    return found


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
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        quire.set_num_threads(arguments.threads)
    model = make_model(arguments)
    rng = random.Random(1)
    lengths = [rng.randint(arguments.shortest, arguments.longest) for _ in range(arguments.requests)]
    prompts = [[rng.randrange(arguments.vocabulary) for _ in range(n)] for n in lengths]
    report = Report(arguments, model, lengths)
    if not arguments.json:
        print(report.title() + "\n", flush=True)
    ways = make_ways(arguments)
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
            run = attempt(ways, name, report, model, prompts, arguments)
            if run is not None:
                report.add(name, run)
        longest_round = max(longest_round, time.monotonic() - begin)
    report.complete = True
    report.write()
    print(json.dumps(report.to_json(), indent=1) if arguments.json else report.table())


if __name__ == "__main__":
    main()
