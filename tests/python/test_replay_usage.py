# SPDX-License-Identifier: Apache-2.0
"""The flags of quire trace and quire replay: what is refused, in which words, and what --help says."""

import json
import re

import pytest

from replay_command import needs_command, quire, succeed, trace  # noqa: F401

pytestmark = needs_command


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["replay"], "TRACE is required"),
        (["replay", ""], "TRACE: must be the name of a file, is empty"),
        (["replay", "no/such/trace"], "no/such/trace: No such file"),
        (["replay", "TRACE", "--scale", "3"], "--scale 3: must divide the 512 tokens"),
        (["replay", "TRACE", "--cache-blocks", "4", "--cache-bytes", "4MiB"], "excludes"),
        (["replay", "TRACE", "--backend", "abacus"], "no backend is named 'abacus'"),
        (["replay", "TRACE", "--html", "no/such/folder/x"], "no/such/folder/x: cannot be written"),
        (["replay", "TRACE", "--html", "."], ".: cannot be written: Is a directory"),
        (["replay", "TRACE", "--token-budget", "3"],
         "--token-budget 3: must be at least --max-sequences 256"),
        (["replay", "TRACE", "--q-heads", "3"], "--q-heads 3: must be a multiple of --kv-heads 2"),
        (["replay", "TRACE", "--preemption", "swap"], "--preemption swap: needs room on the host"),
        (["replay", "TRACE", "--memory-only", "--canary"], "--canary: watches what is stored"),
        (["trace", "--first-tokens", "0:5,100:1"], "--first-tokens: quantile 100:1"),
        (["trace", "--turn-tokens", "1e300"], "--turn-tokens: values must be at most"),
        (["trace", "--system-tokens", "200000"],
         "--system-tokens 200000: must be less than --max-input 126195"),
        (["trace", "--resend-share", "0.9"], "--resend-share 0.9 and --rewind-share 0.22"),
        (["trace", "--stats", "-o", "-"], "--output -"),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_why(arguments, message, trace, tmp_path):
    result = quire(*(trace if a == "TRACE" else a for a in arguments), cwd=tmp_path)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert result.stdout == ""


WHOLE, REAL = "must be a whole number between", "must be a number between"
BAD_VALUES = [
    ("--requests", "0", WHOLE), ("--requests", "-1", WHOLE), ("--scale", "1.5", WHOLE),
    ("--seed", "-1", WHOLE), ("--seed", "18446744073709551616", WHOLE), ("--seed", "", WHOLE),
    ("--time-scale", "1e-300", REAL), ("--time-scale", "0", REAL), ("--time-scale", "inf", REAL),
    ("--step-ms", "nan", REAL), ("--token-us", "nan", REAL), ("--key-ns", "-1", REAL),
    ("--priorities", "0", WHOLE), ("--trace-block", "0", WHOLE), ("--block-size", "2097152", WHOLE),
    ("--cache-blocks", "0", WHOLE), ("--cache-blocks", "9223372036854775808", WHOLE),
    ("--cache-bytes", "0", "must be a size"), ("--cache-bytes", "-5", "must be a size"),
    ("--cache-bytes", "8EiB", "must be a size"), ("--cache-bytes", "5 parsecs", "must be a size"),
    ("--host-blocks", "-1", WHOLE), ("--watermark", "1e3", WHOLE), ("--token-budget", "0", WHOLE),
    ("--max-sequences", "0x10", WHOLE), ("--max-chunk", "-1", WHOLE), ("--aging", "-1", WHOLE),
    ("--layers", "0", WHOLE), ("--threads", "many", WHOLE), ("--verify", "-1", WHOLE),
    ("--validate", "-1", WHOLE), ("--html", "", "must be the name of a file, is empty"),
    ("--chrome-trace", "", "must be the name of a file"), ("--backend", "", "must be the name of"),
    ("--policy", "best", "must be one of rank, prefix, is 'best'"),
    ("--preemption", "no", "must be one of auto, recompute, partial, swap, is 'no'"),
    ("--dtype", "q4", "must be one of f32, f16, bf16, is 'q4'"),
]


@pytest.mark.parametrize("flag, value, message", BAD_VALUES)
def test_a_bad_value_names_its_flag_and_what_would_be_right(flag, value, message, trace):
    result = quire("replay", trace, flag, value)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"{flag}: {message}")
    assert max(map(len, result.stderr.splitlines())) <= 120


@pytest.mark.parametrize(
    "flag, value",
    [("--requests", "0"), ("--seed", "-1"), ("--duration", "0"), ("--tick", "nan"), ("-o", ""),
     ("--compare", ""), ("--arrivals", "late"), ("--form", "xml"), ("--mean-turns", "0.5"),
     ("--max-input", "16777217")])
def test_a_bad_value_of_a_made_trace(flag, value, tmp_path):
    result = quire("trace", flag, value, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert re.match(rf"--?[a-z-]+: must be .*is ('{value}'|empty)", result.stderr)


@pytest.mark.parametrize("mode", [[], ["--memory-only"]])
def test_absurd_shapes_name_their_flags(mode, trace):
    for shape in (["--layers", 4096, "--kv-heads", 4096, "--q-heads", 4096, "--head-dim", 4096,
                   "--block-size", 1048576],
                  ["--block-size", 1048576, "--cache-blocks", 2147483646, "--layers", 32]):
        result = quire("replay", trace, *mode, *shape)
        assert result.returncode == 2 and result.stdout == ""
        assert re.search(r"--block-size, --layers, --kv-heads, --head-dim: the number of bytes of the "
                         r"cache does not fit|--layers, --kv-heads, --head-dim, --block-size: the "
                         r"number of bytes of one block must be at most", result.stderr), result.stderr


def test_ten_is_ten(trace):
    report = json.loads(succeed("replay", trace, "--memory-only", "--requests", "010", "--json").stdout)
    assert report["requests"] == 10


def test_help_has_every_default():
    for command in ("replay", "trace"):
        text = succeed(command, "--help").stdout.split("\nOptions:\n")[1]
        options = re.split(r"\n(?=  -)", text.split("\nExit code")[0].split("\nThe defaults")[0])
        for option in options:
            name = re.match(r" *((?:-\w,)?--[\w-]+)(.*)", option)
            takes_value = re.match(r" (INT|UINT|FLOAT|NUMBER|SIZE|NAME|\w+\|)", name[2])
            if takes_value and name[1] != "--cache-bytes":  # which stands beside --cache-blocks
                assert re.search(r" U?INT=| FLOAT=|[Dd]efault", option), option
