# SPDX-License-Identifier: Apache-2.0
"""For the tests of quire trace and quire replay: the command, and a small trace."""

import os
import pathlib
import subprocess

import pytest

BUILD = os.environ.get("QUIRE_BUILD_DIR")
COMMAND = pathlib.Path(BUILD or "") / "quire"

needs_command = pytest.mark.skipif(
    not BUILD or not COMMAND.exists(), reason="QUIRE_BUILD_DIR names no build with the command"
)

SMALL = ["--requests", "60", "--duration", "30", "--max-input", "12000", "--mean-turns", "3",
         "--turn-gap", "0:1,100:9"]


def quire(*arguments, cwd=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, env=clean,
                          cwd=cwd)


def succeed(*arguments):
    result = quire(*arguments)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    succeed("trace", "--seed", 5, *SMALL, "-o", path)
    return path
