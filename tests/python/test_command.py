# SPDX-License-Identifier: Apache-2.0
"""The quire command as a user calls it. QUIRE_BUILD_DIR names the build tree that holds it."""

import os
import pathlib
import re
import subprocess

COMMAND = pathlib.Path(os.environ["QUIRE_BUILD_DIR"]) / "quire"
VERSION_HEADER = pathlib.Path(__file__).parents[2] / "include/quire/version.h"


def test_version_is_that_of_the_header():
    numbers = re.findall(r"#define QUIRE_VERSION_\w+ (\d+)", VERSION_HEADER.read_text())
    result = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ".".join(numbers)


def test_unknown_subcommand_fails():
    result = subprocess.run([COMMAND, "nonsense"], capture_output=True, text=True)
    assert result.returncode != 0
