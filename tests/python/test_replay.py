# SPDX-License-Identifier: Apache-2.0
"""quire trace and quire replay: keys, exit codes, files, and the page in a real browser."""

import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

BUILD = os.environ.get("QUIRE_BUILD_DIR")
COMMAND = pathlib.Path(BUILD or "") / "quire"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(
    not BUILD or not COMMAND.exists(), reason="QUIRE_BUILD_DIR names no build with the command"
)

KEYS = ["requests", "steps", "seconds", "prompt_tokens", "full_blocks", "hit_blocks",
        "ideal_hit_blocks", "preemptions", "evictions", "copies", "violations", "verified_rows",
        "max_error"]
SMALL = ["--requests", "60", "--duration", "30", "--max-input", "12000", "--mean-turns", "3",
         "--turn-gap", "0:1,100:9"]


def quire(*arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, env=clean)


def succeed(*arguments):
    result = quire(*arguments)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    succeed("trace", "--seed", 5, *SMALL, "-o", path)
    return path


def test_trace_is_written_to_a_file_or_to_standard_output(trace):
    text = succeed("trace", "--seed", 5, *SMALL).stdout
    assert text == trace.read_text()
    requests = [json.loads(line) for line in text.splitlines()]
    assert len(requests) == 60
    for request in requests:
        assert list(request) == ["timestamp", "input_length", "output_length", "hash_ids"]
    assert succeed("trace", "--seed", 6, *SMALL).stdout != text


def test_trace_json_has_the_figures(trace):
    document = json.loads(succeed("trace", *SMALL, "--compare", trace, "--json").stdout)
    for part in ("generated", "compared"):
        assert document[part]["requests"] == 60
        assert document[part]["full_blocks"] > document[part]["ideal_hit_blocks"] > 0


@pytest.mark.parametrize("form", ["lengths", "csv"])
def test_other_forms_are_replayed_too(form, tmp_path):
    path = tmp_path / "trace"
    succeed("trace", *SMALL, "--form", form, "-o", path)
    report = json.loads(succeed("replay", path, "--memory-only", "--json").stdout)
    assert report["requests"] == 60 and report["hit_blocks"] == report["ideal_hit_blocks"] == 0


def test_replay_json_keys_and_determinism(trace):
    first, second = (
        json.loads(succeed("replay", trace, "--json", "--cache-bytes", "4MiB", "--threads", n).stdout)
        for n in (1, 2))
    assert list(first)[:len(KEYS)] == KEYS
    assert first["violations"] == 0
    assert first["verified_rows"] == 4 * first["steps"] > 0
    assert 0 < first["max_error"] < 1e-5
    assert 0 < first["hit_blocks"] <= first["ideal_hit_blocks"] < first["full_blocks"]
    for key in KEYS:
        if key not in ("seconds", "max_error"):
            assert first[key] == second[key], key


def test_memory_only_schedules_at_full_size(trace):
    report = json.loads(succeed("replay", trace, "--memory-only", "--serial", "--json").stdout)
    lengths = [json.loads(line)["input_length"] for line in trace.read_text().splitlines()]
    assert report["prompt_tokens"] == sum(lengths)
    assert report["full_blocks"] == sum(length // 512 for length in lengths)
    assert report["hit_blocks"] == report["ideal_hit_blocks"] > 0
    assert report["evictions"] == report["preemptions"] == report["verified_rows"] == 0


def test_report_fits_100_columns(trace):
    for arguments in (["replay", trace], ["replay", "--help"], ["trace", "--help"],
                      ["trace", "--stats"], ["replay", trace, "--memory-only"]):
        for line in succeed(*arguments).stdout.splitlines():
            assert len(line) <= 100, line


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"timestamp": 0, "input_length": 5, "outp', "bad:1: input_length: not JSON"),
        ('{"timestamp": 0, "input_length": -5, "output_length": 1}', "bad:1: input_length: must be"),
        ("", "bad: the trace holds no request"),
        ("input_length,output_length\n5,9223372036854775808\n", "bad:2: output_length: is too large"),
    ],
)
def test_a_bad_trace_is_exit_code_2_and_names_the_place(text, message, tmp_path):
    path = tmp_path / "bad"
    path.write_text(text)
    result = quire("replay", path, "--memory-only", "--html", tmp_path / "page.html")
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert os.listdir(tmp_path) == ["bad"]


def test_an_endless_line_is_refused_at_its_limit(tmp_path):
    path = tmp_path / "sparse"
    with open(path, "wb") as file:  # 10 GB without a line end, and without taking space
        file.write(b"{")
        file.truncate(10 * 10**9)
    result = quire("replay", path, "--memory-only")
    assert result.returncode == 2
    assert "sparse:1: the line is longer than 16777216 bytes" in result.stderr


def test_a_cache_too_small_names_request_and_bytes(trace):
    result = quire("replay", trace, "--memory-only", "--cache-blocks", 4)
    assert result.returncode == 2
    assert re.search(r"too small for request \d+ of the trace, its largest: \d+ \+ \d+ tokens are "
                     r"\d+ blocks .* a cache of \d+ bytes", result.stderr)
    need = int(re.search(r"a cache of (\d+) bytes", result.stderr)[1])
    enough = quire("replay", trace, "--memory-only", "--cache-bytes", need)
    assert enough.returncode == 0, enough.stderr
    too_small = quire("replay", trace, "--memory-only", "--cache-bytes", need - 1)
    assert too_small.returncode == 2


def test_output_that_is_lost_is_no_success(trace, tmp_path):
    with open("/dev/full", "w") as full:
        result = subprocess.run([COMMAND, "replay", trace, "--memory-only", "--json"], stdout=full,
                                stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "standard output: cannot be written" in result.stderr
    assert quire("replay", trace, "--memory-only", "--html", trace).returncode == 2
    same = tmp_path / "same"
    result = quire("replay", trace, "--memory-only", "--html", same, "--chrome-trace", same)
    assert result.returncode == 2 and not same.exists()


def test_a_link_or_a_pipe_stays_what_it_is(trace, tmp_path):
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    assert quire("replay", trace, "--memory-only", "--html", link).returncode == 0
    assert link.is_symlink() and "<html" in target.read_text()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert quire("replay", trace, "--memory-only", "--html", pipe).returncode == 0
    assert "<html" in reader.communicate(timeout=60)[0]
    assert pipe.is_fifo()


@pytest.mark.parametrize("flag", ["--step-ms", "--token-us", "--key-ns"])
def test_nan_is_refused_by_the_name_of_its_flag(trace, flag):
    result = quire("replay", trace, "--memory-only", flag, "nan")
    assert result.returncode == 2 and flag in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["replay"], "TRACE is required"),
        (["replay", "no/such/trace"], "no/such/trace: No such file"),
        (["replay", "TRACE", "--scale", "3"], "the scale must divide"),
        (["replay", "TRACE", "--time-scale", "0"], "the time scale"),
        (["replay", "TRACE", "--cache-blocks", "4", "--cache-bytes", "4MiB"], "excludes"),
        (["replay", "TRACE", "--backend", "abacus"], "no backend is named 'abacus'"),
        (["replay", "TRACE", "--html", "no/such/folder/x"], "no/such/folder/x: cannot be written"),
        (["replay", "TRACE", "--token-budget", "3"], "max_tokens must be at least"),
        (["trace", "--requests", "0"], "the number of requests"),
        (["trace", "--first-tokens", "0:5,100:1"], "--first-tokens: quantile 100:1"),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_why(arguments, message, trace):
    result = quire(*(trace if a == "TRACE" else a for a in arguments))
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert result.stdout == ""


def test_an_interrupted_replay_leaves_no_file(tmp_path):
    trace = tmp_path / "long.jsonl"
    succeed("trace", "--requests", 20000, "--duration", 7200, "-o", trace)
    before = os.listdir(tmp_path)
    process = subprocess.Popen(
        [COMMAND, "replay", trace, "--memory-only", "--serial", "--html", tmp_path / "page.html",
         "--chrome-trace", tmp_path / "chrome.json"])
    while len(os.listdir(tmp_path)) < len(before) + 2 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    assert os.listdir(tmp_path) == before


def test_chrome_trace_is_json(trace, tmp_path):
    path = tmp_path / "chrome.json"
    report = json.loads(succeed("replay", trace, "--chrome-trace", path, "--json").stdout)
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == report["steps"]
    assert len({event["id"] for event in events if event["ph"] == "b"}) == report["requests"]


# What a page has become in the browser, as its title.
PROBE = """<script>
addEventListener("load", () => {
  const figures = [...document.querySelectorAll("figure")].map(figure => {
    const svg = figure.querySelector("svg");
    const box = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
    const shapes = figure.querySelectorAll("path, rect.bar").length;
    return {id: figure.id, width: box.width, height: box.height, shapes};
  });
  const style = getComputedStyle(document.body);
  document.title = JSON.stringify({figures, ink: style.color, paper: style.backgroundColor,
    requests: performance.getEntriesByType("resource").map(entry => entry.name),
    overflow: document.documentElement.scrollWidth - innerWidth});
});
</script>"""


def open_page(path, *flags):
    result = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={path.parent / 'profile'}", "--window-size=1200,900", *flags,
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    return json.loads(html.unescape(re.search(r"<title>(\{.*?)</title>", result.stdout)[1]))


def brightness(color):
    return sum(int(part) for part in re.findall(r"\d+", color)[:3]) / 3


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_page_in_a_browser_light_and_dark(trace, tmp_path):
    path = tmp_path / "page.html"
    succeed("replay", trace, "--cache-bytes", "4MiB", "--html", path)
    path.write_text(path.read_text().replace("</head>", PROBE + "</head>", 1))
    light = open_page(path)
    dark = open_page(path, "--blink-settings=preferredColorScheme=0")
    for page in (light, dark):
        figures = {figure["id"]: figure for figure in page["figures"]}
        assert {"occupancy", "hits", "batches", "queue", "latency", "token", "lifetime"} <= set(figures)
        for name in ("occupancy", "hits", "batches", "queue", "latency", "token", "lifetime"):
            assert figures[name]["width"] > 300 and figures[name]["height"] > 100, name
            assert figures[name]["shapes"] > 0, name
        assert page["requests"] == []  # nothing from the network
        assert page["overflow"] <= 0
    assert brightness(light["paper"]) > 200 and brightness(light["ink"]) < 80
    assert brightness(dark["paper"]) < 60 and brightness(dark["ink"]) > 180
