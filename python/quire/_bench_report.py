# SPDX-License-Identifier: Apache-2.0
"""What ``python -m quire.bench_transformers`` has measured, as a table and as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
from typing import Any

import torch
import transformers

import quire

ENGINE = "quire Engine"
WIDTHS = (11, 8, 8, 9, 9, 8)  # of the columns of the table


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def flash_attn_version() -> str:
    found = []
    for name in "flash-attn", "flash-attn-3":
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found) or "flash-attn: not installed"


def share_of_equal(tokens: list[list[int]], others: list[list[int]]) -> float:
    """Of all places, how many have the same token in both."""
    pairs = [pair for one, other in zip(tokens, others, strict=True) for pair in zip(one, other)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


class Report:
    """What was measured so far, and about what."""

    def __init__(self, arguments: argparse.Namespace, model: Any, lengths: list[int]) -> None:
        self._output = arguments.output
        self._on_gpu = model.device.type == "cuda"
        self.about = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": arguments.layers, "dtype": arguments.dtype, "device": arguments.device,
            "where": torch.cuda.get_device_name(model.device) if self._on_gpu else "",
            "threads": torch.get_num_threads(), "quire_threads": quire.get_num_threads(),
            "prompt_tokens": lengths, "new_tokens": arguments.new_tokens,
            "transformers": transformers.__version__, "torch": torch.__version__,
            "quire": quire.__version__, "flash_attn": flash_attn_version(),
        }  # fmt: skip
        self.needed = (ENGINE, f"generate_batch, {arguments.attention.split(',')[0]}")
        self.complete = False
        self.left_out: dict[str, str] = {}
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self._tokens: list[list[int]] | None = None  # of the first way in the first round

    def title(self) -> str:
        about, lengths = self.about, self.about["prompt_tokens"]
        lines = [
            f"Llama of {about['parameters'] / 1e6:.0f} million parameters, {about['layers']} layers,"
            f" {about['dtype']}, {about['device']}",
            f"{about['threads']} threads of PyTorch, {about['quire_threads']} of quire",
            f"{len(lengths)} requests of {min(lengths)} to {max(lengths)} tokens,"
            f" {about['new_tokens']} new ones each",
            f"transformers {about['transformers']}, torch {about['torch']}, quire {about['quire']}",
        ]
        if self._on_gpu:
            lines[0] += f", {about['where']}"
            lines[-1] += f", {about['flash_attn']}"
        return "\n".join(lines)

    def leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = " ".join(reason.split())[:200]
        progress(self._said(name))
        self.write()

    def _said(self, name: str) -> str:
        rounds = len(self.runs.get(name, ()))
        after = f" after {plural(rounds, 'round')}" if rounds else ""
        return f"{name} was left out{after}: {self.left_out[name]}"

    def add(self, name: str, run: dict[str, Any], tokens: list[list[int]]) -> None:
        if self._tokens is None:
            self._tokens = tokens
        run = {**run, "equal_tokens": share_of_equal(tokens, self._tokens)}
        self.runs.setdefault(name, []).append(run)
        text = f"round {len(self.runs[name])}, {name}: {run['total_seconds']:.2f} s,"
        text += f" {run['new_tokens_per_second']:.1f} tokens/s, CPU {run['cpu_seconds']:.2f} s"
        if run["attention_seconds"] is not None:
            text += f", attention {run['attention_seconds']:.3f} s"
        text += f", set-up {run['set_up_seconds']:.2f} s"
        text += f", {run['equal_tokens']:.1%} of the tokens equal"
        if run["cpus_of_others"] is not None:
            text += f"; others took {run['cpus_of_others']:.1f} CPUs"
        progress(text)
        self.write()

    def ways_that_differ(self) -> list[str]:
        """Those of which not every token of every round is that of the first way."""
        return [
            name for name, runs in self.runs.items() if any(run["equal_tokens"] < 1 for run in runs)
        ]

    def medians(self) -> dict[str, dict[str, float | None]]:
        def median(runs: list[dict[str, Any]], key: str) -> float | None:
            known = [run[key] for run in runs if run[key] is not None]
            return statistics.median(known) if known else None

        return {name: {key: median(runs, key) for key in runs[0]} for name, runs in self.runs.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            **self.about, "complete": self.complete, "left_out": self.left_out,
            "left_out_after": {name: len(self.runs.get(name, ())) for name in self.left_out},
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
        beside = [["", "rounds", "set-up s", "equal"]]
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
            beside.append([
                name, str(len(self.runs[name])), f"{median['set_up_seconds']:.2f}",
                f"{median['equal_tokens']:.1%}",
            ])  # fmt: skip
        width = max(map(len, medians))
        lines = [
            f"{row[0]:{width}}" + "".join(f" {cell:>{n}}" for cell, n in zip(row[1:], WIDTHS))
            for row in [*rows, [""], *beside]
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", *self._remarks(medians)])

    def _remarks(self, medians: dict[str, Any]) -> list[str]:
        counts = sorted(map(len, self.runs.values()))
        rounds = plural(counts[-1], "round")
        if counts[0] != counts[-1]:
            rounds = f"{counts[0]} to {rounds}, as the second table says"
        lines = [
            f"Medians of {rounds}. The last columns of the first table: how many times lower",
            f"the time inside attention is in the {ENGINE}, and how many times as many tokens per second",
            "it gives. Set-up is not in the total. Equal: the share of tokens that are those of the",
            f"{ENGINE}.",
        ]
        if self._on_gpu:
            lines += [
                "Time inside attention is between events of the stream: gaps in which the device waited for",
                "the host's launches are in it.",
            ]
        others = max((m["cpus_of_others"] or 0.0 for m in medians.values()), default=0.0)
        if others >= 0.2:
            lines.append(f"Other programs took up to {others:.1f} CPUs of {os.cpu_count()} meanwhile.")
        return lines + [self._said(name)[:100] for name in self.left_out]


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
