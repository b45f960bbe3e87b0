#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the library, the command and the Python package: tidy.py BUILD_DIR

Reads compile_commands.json of the build tree and runs one process per core. A source that was found
clean is not checked again until its text after preprocessing, the checks or clang-tidy change; the
record of clean sources lives below ${XDG_CACHE_HOME:-~/.cache}/quire/tidy. Exits 1 on any finding.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE_HOME = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
CACHE = CACHE_HOME / "quire/tidy"
CHECKED_FOLDERS = ("src", "cli", "python")
KEEP_SECONDS = 30 * 24 * 3600


def is_checked(path):
    """Tests are left out: gtest's macros cost most of the time and trip most of the checks."""
    return (
        path.suffix == ".cc"  # not what nvcc compiles
        and path.is_relative_to(ROOT)
        and path.relative_to(ROOT).parts[0] in CHECKED_FOLDERS
        and not path.stem.endswith("_test")
    )


def output(command, **options):
    return subprocess.run(command, capture_output=True, check=True, **options).stdout


def compile_command(entry):
    """The compiler and its arguments, without a launcher before it and without the output."""
    arguments = shlex.split(entry["command"])
    compiler = next(i for i, word in enumerate(arguments) if word.endswith(("++", "cc", "clang")))
    command = arguments[compiler:]
    at = command.index("-o")
    del command[at : at + 2]
    return command


def cache_key(entry, settings):
    """Names the text that clang-tidy sees: macros and comments included, folders left out."""
    text = output([*compile_command(entry), "-E", "-P", "-C", "-dD"], cwd=entry["directory"])
    return hashlib.sha256(settings + text).hexdigest()


def check(entry, settings):
    """Returns (path, was it known to be clean, findings)."""
    path = pathlib.Path(entry["file"])
    clean = CACHE / cache_key(entry, settings)
    if clean.exists():
        clean.touch()
        return path, True, ""
    flags = [word for word in compile_command(entry)[1:] if word not in ("-c", entry["file"])]
    command = ["clang-tidy", "--quiet", str(path), "--", *flags, "-Wno-unknown-warning-option"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=entry["directory"])
    if result.returncode == 0:
        clean.touch()
        return path, False, ""
    return path, False, result.stdout or result.stderr


def main(build_dir):
    settings = output(["clang-tidy", "--version"]) + (ROOT / ".clang-tidy").read_bytes()
    entries = json.loads((build_dir / "compile_commands.json").read_text())
    unique = {}  # the library's own entries come first; tests may compile a source once more
    for entry in entries:
        if is_checked(pathlib.Path(entry["file"])):
            unique.setdefault(entry["file"], entry)
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.iterdir():
        if time.time() - old.stat().st_mtime > KEEP_SECONDS:
            old.unlink(missing_ok=True)

    known = failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, was_known, findings in pool.map(
            lambda entry: check(entry, settings), unique.values()
        ):
            known += was_known
            if findings:
                failed += 1
                print(f"== {path.relative_to(ROOT)}\n{findings}", flush=True)
    print(f"clang-tidy: {len(unique)} sources, {known} known to be clean, {failed} with findings")
    return 1 if failed or not unique else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
