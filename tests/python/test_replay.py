# SPDX-License-Identifier: Apache-2.0
"""quire trace and quire replay: keys, exit codes, files, and the page in a real browser."""

import html
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from replay_command import COMMAND, SMALL, needs_command, quire, succeed, trace  # noqa: F401

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = needs_command

KEYS = ["requests", "steps", "seconds", "prompt_tokens", "full_blocks", "hit_blocks",
        "ideal_hit_blocks", "preemptions", "evictions", "copies", "violations", "verified_rows",
        "max_error"]


def test_trace_is_written_to_a_file_or_to_standard_output(trace, tmp_path):
    text = succeed("trace", "--seed", 5, *SMALL).stdout
    assert text == trace.read_text()
    requests = [json.loads(line) for line in text.splitlines()]
    assert len(requests) == 60
    for request in requests:
        assert list(request) == ["timestamp", "input_length", "output_length", "hash_ids"]
    assert succeed("trace", "--seed", 6, *SMALL).stdout != text
    assert quire("trace", "--seed", 5, *SMALL, "-o", "-", cwd=tmp_path).stdout == text
    assert os.listdir(tmp_path) == []


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


def test_an_operation_that_stores_by_itself_carries_the_engine(tmp_path):
    """Swaps, copies on write and shared tails in caches of the layout of openvino."""
    backends = json.loads(quire("info", "--json").stdout)["backends"]
    openvino = next(backend for backend in backends if backend["name"] == "openvino")
    if not openvino["available"]:
        pytest.skip(openvino["reasons"][0])
    path = tmp_path / "trace.jsonl"
    succeed("trace", "--seed", 7, "--requests", 200, "--duration", 60, "--mean-turns", 3,
            "--turn-gap", "0:5,50:30,100:200", "-o", path)
    report = json.loads(succeed("replay", path, "--backend", "openvino", "--block-size", 32,
                                "--cache-bytes", "4MiB", "--host-blocks", 256, "--share-tails",
                                "--priorities", 3, "--json").stdout)
    assert report["violations"] == 0 and report["verified_rows"] > 100
    assert report["max_error"] < 1e-5
    assert report["copies"] > 0 and report["preemptions"] > 0


def test_a_replay_under_the_canary(trace):
    report = json.loads(succeed("replay", trace, "--canary", "--share-tails", "--cache-bytes", "1MiB",
                                "--host-blocks", 64, "--json").stdout)
    assert report["violations"] == 0 and report["evictions"] > 0


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
        ('{"timestamp": 0, "input_length": 5, "outp',
         "bad:1: output_length: not JSON at column 42: expected a key in quotes, ',' or '}', found "
         "the end of the line after"),
        ('{"timestamp": 0, "input_length": -5, "output_length": 1}',
         "bad:1: input_length: must be a whole number between 1 and 16777216, is -5"),
        ('{"timestamp": 0, "input_length": 5, "output_length": NaN}',
         "bad:1: output_length: not JSON at column 54: expected a whole number between 0 and "
         "16777216, found 'NaN}'"),
        ('{"timestamp": 9, "input_length": 5, "output_length": 1}\n'
         '{"timestamp": 8, "input_length": 5, "output_length": 1}',
         "bad:2: timestamp: must be at least 9, that of the request before, is 8"),
        ("[1, 2]", "bad:1: the line: must be a JSON object, is an array"),
        ("", "bad:1: the trace must hold at least one request, has none"),
        ("input_length,output_length\n5,9223372036854775808\n",
         "bad:2: output_length: must be a whole number between 0 and 16777216, is "
         "'9223372036854775808'"),
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
        file.write(b'{"input_length": 5, "output_length": ')
        file.truncate(10 * 10**9)
    result = quire("replay", path, "--memory-only")
    assert result.returncode == 2
    assert "sparse:1: output_length: a line must have at most 16777216 bytes" in result.stderr


def test_a_cache_too_small_names_request_and_bytes(trace):
    for size in (["--cache-blocks", 4], ["--cache-bytes", 1]):
        result = quire("replay", trace, "--memory-only", *size)
        assert result.returncode == 2
        assert re.search(r"too small for request \d+ of the trace, its largest: \d+ \+ \d+ tokens take "
                         r"\d+ blocks of 512, so it needs \d+ blocks, .* or \d+ bytes", result.stderr)
    need = int(re.search(r"or (\d+) bytes", result.stderr)[1])
    enough = quire("replay", trace, "--memory-only", "--cache-bytes", need)
    assert enough.returncode == 0, enough.stderr
    too_small = quire("replay", trace, "--memory-only", "--cache-bytes", need - 1)
    assert too_small.returncode == 2


def test_requests_that_are_skipped_are_named_with_their_reason(trace, tmp_path):
    page = tmp_path / "page.html"
    arguments = ["replay", trace, "--memory-only", "--cache-blocks", 10, "--skip-too-large"]
    report = json.loads(succeed(*arguments, "--json", "--html", page).stdout)
    assert report["num_refused"] == len(report["refused"]) > 8
    reason = report["refused"][0]["reason"]
    assert re.fullmatch(r"too large: needs \d+ tokens, \d+ bytes of K and V; alone in the cache it "
                        r"would find 5120 tokens, \d+ bytes", reason)
    assert html.escape(reason) in page.read_text()
    text = succeed(*arguments).stdout
    assert f"refused       {report['num_refused']} requests" in text
    assert reason in re.sub(r"\n +", " ", text)
    assert f"refused: {report['num_refused'] - 8} more requests" in text
    assert max(map(len, text.splitlines())) <= 100


def cache_of(*arguments):
    report = json.loads(succeed("replay", *arguments, "--json").stdout)
    return report["cache_blocks"], report["watermark_blocks"]


def test_the_default_cache(trace):
    # One block of more than 256 MiB: room for the largest request, and no more.
    huge = ["--requests", 3, "--block-size", 65536, "--layers", 16, "--verify", 0]
    assert cache_of(trace, *huge) == (1, 0)
    assert cache_of(trace, *huge, "--watermark", 1) == (2, 1)
    # What nobody has given leaves nothing.
    assert cache_of(trace, "--requests", 5)[1] == cache_of(trace, "--memory-only")[1] == 0
    assert cache_of(trace, "--memory-only", "--cache-blocks", 300) == (300, 3)
    # Bytes include the null block, blocks do not.
    bytes_of_one = 512 * 2 * 2 * 32 * 8 * 128
    assert cache_of(trace, "--memory-only", "--cache-bytes", 301 * bytes_of_one) == (300, 3)


def test_output_that_is_lost_is_no_success(trace, tmp_path):
    with open("/dev/full", "w") as full:
        for arguments in (["replay", trace, "--memory-only", "--json"], ["--help"]):
            result = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE,
                                    text=True)
            assert result.returncode == 2
    result = quire("replay", trace, "--memory-only", "--html", "/dev/full")
    assert result.returncode == 2 and "/dev/full: cannot be written" in result.stderr
    assert quire("replay", trace, "--memory-only", "--html", trace).returncode == 2
    same = tmp_path / "same"
    result = quire("replay", trace, "--memory-only", "--html", same, "--chrome-trace", same)
    assert result.returncode == 2 and not same.exists()


def test_memory_that_runs_out_is_exit_code_2(trace):
    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    for arguments in (["--memory-only", "--cache-blocks", "2000000000"], ["--cache-bytes", "64GiB"]):
        result = subprocess.run([COMMAND, "replay", trace, *arguments], capture_output=True, text=True,
                                preexec_fn=limit_memory)
        assert result.returncode == 2 and result.stdout == ""
        assert "out of memory" in result.stderr and "--cache-bytes" in result.stderr


def test_a_closed_standard_output_is_not_a_file(trace, tmp_path):
    def run(*arguments):
        return subprocess.run([COMMAND, *arguments], stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: os.close(1))
    page = tmp_path / "page.html"
    result = run("replay", trace, "--memory-only", "--html", page)
    assert result.returncode == 2 and "standard output: cannot be written" in result.stderr
    assert page.read_text().startswith("<!DOCTYPE") and page.read_text().endswith("</html>\n")
    made = tmp_path / "trace.jsonl"
    assert run("trace", "--seed", "5", *SMALL, "-o", made).returncode == 0
    assert made.read_text() == trace.read_text()
    assert run("trace", "--seed", "5", *SMALL).returncode == 2
    assert sorted(os.listdir(tmp_path)) == ["page.html", "trace.jsonl"]


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


def test_one_of_a_thing_is_not_several(tmp_path):
    path = tmp_path / "one"
    path.write_text('{"input_length": 1, "output_length": 1}\n')
    for mode in (["--scale", 1, "--block-size", 1], ["--memory-only"]):
        page = tmp_path / "page.html"
        result = succeed("replay", path, *mode, "--cache-blocks", 1, "--verify", 1, "--html", page)
        for text in (result.stdout, result.stderr, page.read_text()):
            assert not re.search(r"\b1 (new |prompt |full )?(request|token|block|step|row|violation|layer)s",
                                 re.sub("<[^>]*>", " ", text)), text
    result = succeed("trace", "--requests", 1, "-o", tmp_path / "trace")
    assert "1 request," in result.stderr


def test_numbers_stay_readable_at_every_limit(trace):
    for extremes in (["--time-scale", 0.001, "--step-ms", 1e6, "--token-us", 1e6, "--key-ns", 1e6],
                     ["--time-scale", 1e6, "--step-ms", 0, "--token-us", 0, "--key-ns", 1e-12],
                     ["--block-size", 1048576, "--layers", 128]):
        for line in succeed("replay", trace, "--memory-only", *extremes).stdout.splitlines():
            assert len(line) <= 100 and not re.search(r"\d{12}|nan|inf", line), line


def running_replay(tmp_path, *arguments, **options):
    """A replay that takes a while, once its files are under way."""
    trace = tmp_path / "long.jsonl"
    succeed("trace", "--requests", 20000, "--duration", 7200, "-o", trace)
    before = os.listdir(tmp_path)
    process = subprocess.Popen([COMMAND, "replay", trace, "--memory-only", "--serial", *arguments],
                               **options)
    while len(os.listdir(tmp_path)) < len(before) + 1 and process.poll() is None:
        time.sleep(0.02)
    return process, before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupted_replay_leaves_no_file(number, tmp_path):
    process, before = running_replay(tmp_path, "--html", tmp_path / "page.html",
                                     "--chrome-trace", tmp_path / "chrome.json")
    process.send_signal(number)
    assert process.wait(timeout=60) == -number
    assert os.listdir(tmp_path) == before


def test_a_reader_that_goes_away_leaves_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["head", "-c", "1", pipe], stdout=subprocess.DEVNULL)
    process, before = running_replay(tmp_path, "--html", tmp_path / "page.html", "--chrome-trace", pipe)
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert reader.wait(timeout=60) == 0
    assert os.listdir(tmp_path) == before


def test_progress_moves_within_one_request(tmp_path):
    path = tmp_path / "one"
    path.write_text('{"input_length": 60000, "output_length": 1}\n')
    try:
        leader, follower = os.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error.strerror}")
    process = subprocess.Popen(
        [COMMAND, "replay", path, "--scale", "1", "--block-size", "64", "--layers", "8", "--verify", "0",
         "--threads", "1"], stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown, lines = b"", set()
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
            lines = set(re.findall(rb"\] (\d+) %, \S+ \w+ left  0 of 1 request, \S+ tokens/s", shown))
            if len(lines) >= 3:
                break
    except OSError:  # the other end is closed
        pass
    process.terminate()
    process.wait(timeout=60)
    os.close(leader)
    assert len(lines) >= 3, shown


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
