# SPDX-License-Identifier: Apache-2.0
"""The command: its JSON keys, exit codes, errors and tables, as scripts and people rely on them."""

import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("QUIRE_BUILD_DIR")
COMMAND = pathlib.Path(BUILD or "") / "quire"

pytestmark = pytest.mark.skipif(
    not BUILD or not COMMAND.exists(), reason="QUIRE_BUILD_DIR names no build with the command"
)


def quire(*arguments, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, env={**clean, **environment}
    )


def check_json(*arguments, **environment):
    result = quire("check", "--json", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


TINY_BENCH = ["bench", "--batch", "q1@16*2", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "16",
              "--rounds", "2", "--backend", "cpu:scalar", "--threads", "1"]


def test_version_is_that_of_the_header():
    header = (ROOT / "include/quire/version.h").read_text()
    parts = [re.search(rf"QUIRE_VERSION_{p} (\d+)", header)[1] for p in ("MAJOR", "MINOR", "PATCH")]
    assert quire("--version").stdout.strip() == ".".join(parts)


def test_info_json():
    document = json.loads(quire("info", "--json").stdout)
    assert document["machine"]["cpu"]["num_cpus"] >= 1
    backends = {backend["name"]: backend for backend in document["backends"]}
    assert set(backends) >= {"cpu", "reference"}
    for backend in backends.values():
        assert backend.keys() >= {"name", "available", "version", "reasons", "features"}
        for feature in backend["features"].values():
            assert feature["supported"] == (feature["reasons"] == [])
    assert backends["cpu"]["batch_invariant"] and backends["reference"]["batch_invariant"]


def test_tables_fit_100_columns():
    for arguments in (["info"], ["check", "--suite", "smoke", "--filter", "decode/*"], ["--help"],
                      ["check", "--help"], ["info", "--help"], ["bench", "--help"],
                      [*TINY_BENCH, "--backend", "cpu,reference", "--threads", "1,2"]):
        for line in quire(*arguments).stdout.splitlines():
            assert len(line) <= 100, line


def test_check_json():
    runs = check_json("--suite", "smoke", "--filter", "decode/*")["runs"]
    assert {run["backend"] for run in runs} >= {"cpu", "reference"}
    for run in runs:
        assert run.keys() >= {"backend", "isa", "suite", "passed", "failed", "skipped", "cases"}
        assert run["suite"] == "smoke" and run["failed"] == 0 and run["passed"] > 0
        assert run["passed"] + run["skipped"] == len(run["cases"])
        for case in run["cases"]:
            assert case.keys() >= {"name", "status", "reason", "error", "limit"}
            assert case["name"].startswith("decode/") and case["error"] <= case["limit"]


def test_check_takes_backends_levels_and_filters():
    runs = check_json("--backend", "reference", "--suite", "smoke", "--filter", "merge/*")["runs"]
    assert [run["backend"] for run in runs] == ["reference"]
    runs = check_json("--suite", "smoke", "--filter", "merge/*", QUIRE_BACKEND="cpu")["runs"]
    assert {run["backend"] for run in runs} == {"cpu"}
    runs = check_json("--backend", "cpu", "--suite", "smoke", "--filter", "merge/*",
                      QUIRE_CPU_ISA="scalar")["runs"]
    assert [run["isa"] for run in runs] == ["scalar"]
    listed = json.loads(quire("check", "--list", "--json", "--suite", "full").stdout)["cases"]
    assert len(listed) == len(set(listed)) > 500


@pytest.mark.parametrize(
    "arguments, environment, message",
    [
        (["check", "--backend", "abacus"], {}, "no backend is named 'abacus'; known: cpu, reference,"),
        (["check", "--filter", "nothing/*"], {}, "no case of suite standard matches 'nothing/*'"),
        (["check", "--suite", "huge"], {}, "huge"),
        (["check", "--threads", "-1"], {}, "-1"),
        (["check"], {"QUIRE_BACKEND": "abacus"}, "no backend is named 'abacus'"),
        (
            ["check", "--backend", "cpu"],
            {"QUIRE_CPU_ISA": "abacus"},
            "level 'abacus' of the cpu backend does not exist; this machine has:",
        ),
        (["bench", "--batch", "q1@2x3"], {}, "--batch: batch 'q1@2x3': nothing more may follow"),
        (["bench", "--batch", "q1@8", "--kv-dtype", "f7"], {}, "--kv-dtype: f7 not in"),
        (["bench", "--q-heads", "4"], {}, "--q-heads requires --batch"),
        (["bench", "--suite", "huge"], {}, "--suite: huge not in"),
        (["bench", "--rounds", "0"], {}, "--rounds: Value 0 not in range"),
        (["bench", "--filter", "nothing/*"], {}, "no case of suite decode matches 'nothing/*'"),
        (["bench", "--backend", "abacus"], {}, "no backend is named 'abacus'"),
        (["bench", "--isa", "abacus"], {}, "no backend has a level named 'abacus'"),
        (["bench", "--backend", "cuda"], {"QUIRE_PLUGIN_PATH": ""}, "backend cuda cannot be used here"),
        (["bench", "--compare", "absent.json"], {}, "cannot read the file absent.json"),
        (["frobnicate"], {}, "frobnicate"),
        ([], {}, "subcommand"),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_why(arguments, environment, message):
    result = quire(*arguments, **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_bench_json():
    document = json.loads(quire(*TINY_BENCH, "--json").stdout)
    assert document.keys() >= {"machine", "ceilings", "results"}
    assert document["ceilings"]["read_bytes_per_second"] > 0
    assert all(rate > 0 for rate in document["ceilings"]["flops_per_second"].values())
    (result,) = document["results"]
    assert result.keys() >= {"suite", "case", "backend", "isa", "threads", "block_size", "kv_dtype",
                             "seconds", "setup_seconds", "first_seconds", "bytes_per_second",
                             "flops_per_second", "share_of_ceiling"}
    assert result["first_seconds"] > result["setup_seconds"]
    assert (result["backend"], result["isa"], result["threads"]) == ("cpu", "scalar", 1)
    assert result["seconds"] > 0 and result["share_of_ceiling"] > 0


def test_bench_lists_its_cases():
    listed = quire("bench", "--suite", "all", "--list").stdout.split()
    assert len(listed) == len(set(listed)) > 25
    assert set(quire("bench", "--suite", "all", "--quick", "--list").stdout.split()) < set(listed)
    gpu = quire("bench", "--suite", "gpu", "--list").stdout.split()
    assert len(gpu) == len(set(gpu)) > 25 and not set(gpu) & set(listed)


@pytest.mark.parametrize("factor, code, change", [(1e9, 1, "regression"), (1e-9, 0, "faster")])
def test_bench_compare(tmp_path, factor, code, change):
    document = json.loads(quire(*TINY_BENCH, "--json").stdout)
    document["results"][0]["share_of_ceiling"] *= factor
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document))
    result = quire(*TINY_BENCH, "--compare", old)
    assert result.returncode == code, result.stdout + result.stderr
    assert change in result.stdout
    result = quire(*TINY_BENCH, "--compare", old, "--json")
    assert json.loads(result.stdout)["comparison"]["cases"][0]["change"] == change


def test_bench_page_needs_nothing_else(tmp_path):
    page = tmp_path / "page.html"
    assert quire(*TINY_BENCH, "--html", page).returncode == 0
    text = page.read_text()
    assert "<svg" in text and "custom/q1@16*2" in text and "prefers-color-scheme: dark" in text
    assert not re.search(r"(src|href)=|url\(|<script|http", text)


def matrix_columns(text):
    """The columns of a Markdown table by their heading, first the names of its rows."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    del rows[1]  # the rule below the heading
    assert len({len(row) for row in rows}) == 1
    return {column[0]: list(column[1:]) for column in zip(*rows)}


def test_readme_holds_the_support_matrix():
    """Plug-ins that cannot run here are left out of the comparison, and of nothing else."""
    matrix = matrix_columns(quire("info", "--markdown").stdout)
    readme = (ROOT / "README.md").read_text()
    held = matrix_columns(readme.split("<!-- matrix -->\n")[1].split("<!-- /matrix -->")[0])
    for name, column in matrix.items():
        assert held.get(name) == column, f"put the column {name} of `quire info --markdown` there"
    backends = json.loads(quire("info", "--json").stdout)["backends"]
    absent = {b["name"] for b in backends if b["plugin"] and not b["available"]}
    assert held.keys() - matrix.keys() <= absent


def run_path(library):
    """The folders in which a shared object looks for others."""
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    found = re.search(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic)
    return found[1] if found else ""


def test_info_without_a_vendor_library(tmp_path):
    """A plug-in whose library is not where it was is a reason, and the others are untouched."""
    plugins = [p for p in (COMMAND.parent / "lib/quire").glob("libquire_*.so") if run_path(p)]
    if not plugins:
        pytest.skip("no plug-in of a vendor's library is built here")
    for plugin in plugins:
        path = run_path(plugin).encode()
        broken = plugin.read_bytes().replace(path, b"/nowhere".ljust(len(path), b"/"))
        (tmp_path / plugin.name).write_bytes(broken)
    result = quire("info", "--json", QUIRE_PLUGIN_PATH=str(tmp_path))
    backends = {backend["name"]: backend for backend in json.loads(result.stdout)["backends"]}
    for plugin in plugins:
        backend = backends[plugin.stem.removeprefix("libquire_")]
        assert not backend["available"]
        assert re.search(r": lib[a-z_]+\.so[.0-9]* not found$", backend["reasons"][0])
    assert backends["cpu"]["available"] and backends["reference"]["available"]


def test_info_without_plugins(tmp_path):
    result = quire("info", "--json", QUIRE_PLUGIN_PATH=str(tmp_path))
    backends = {backend["name"]: backend for backend in json.loads(result.stdout)["backends"]}
    for backend in backends.values():
        assert backend["available"] != backend["plugin"]
        assert (backend["reasons"] == []) == backend["available"]
    assert backends["openvino"]["reasons"] == [
        f"not built: there is no libquire_openvino.so in {tmp_path}"
    ]
    result = quire("check", "--backend", "openvino", QUIRE_PLUGIN_PATH=str(tmp_path))
    assert result.returncode == 2
    assert "backend openvino cannot be used here: not built" in result.stderr
