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
                      ["check", "--help"], ["info", "--help"]):
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
        (["check", "--backend", "abacus"], {}, "no backend is named 'abacus'; known: cpu, reference"),
        (["check", "--filter", "nothing/*"], {}, "no case of suite standard matches 'nothing/*'"),
        (["check", "--suite", "huge"], {}, "huge"),
        (["check", "--threads", "-1"], {}, "-1"),
        (["check"], {"QUIRE_BACKEND": "abacus"}, "no backend is named 'abacus'"),
        (["check", "--backend", "cpu"], {"QUIRE_CPU_ISA": "abacus"}, "is named 'abacus'; there are:"),
        (["frobnicate"], {}, "frobnicate"),
        ([], {}, "subcommand"),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_why(arguments, environment, message):
    result = quire(*arguments, **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_readme_holds_the_support_matrix():
    matrix = quire("info", "--markdown").stdout
    readme = (ROOT / "README.md").read_text()
    held = readme.split("<!-- matrix -->\n")[1].split("<!-- /matrix -->")[0]
    assert held == matrix, "put the output of `quire info --markdown` between the marks"
