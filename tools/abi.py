#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface that the C headers promise.

  abi.py names INCLUDE_DIR               prints the functions, one a line
  abi.py dump INCLUDE_DIR OUT            writes the interface, as abidw does
  abi.py compare BASELINE INCLUDE_DIR    0: as the baseline, 2: only more, 1: programs would break

Makes a C file that defines every function the headers below INCLUDE_DIR/quire/c declare, compiles
it with debug information, and lets abidw write what it exports. So the result holds the C interface
and nothing of the C++ behind it, and does not depend on how the library is compiled. (That the
library has these very functions, its own compilation proves: it includes the same headers.)

The value of each constant becomes the length of an array in the signature of a function of its
name, since an enumerator that no signature uses is no part of what abidw sees.

More: functions and constants that are new, and structs that have grown at their end; structs carry
their size. Everything else that abidiff reports breaks programs. CC names the compiler.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

FUNCTION = re.compile(r"^QUIRE_API ([^;]*?)\b(quire_\w+)(\([^;]*\));", re.MULTILINE)
ENUM = re.compile(r"^enum\s*\{(.*?)\};", re.MULTILINE | re.DOTALL)


def without_comments(text):
    return re.sub(r"//.*", "", text)


def read_headers(include_dir):
    headers = sorted((include_dir / "quire/c").glob("*.h"))
    return "\n".join(without_comments(header.read_text()) for header in headers)


def function_names(include_dir):
    text = read_headers(include_dir)
    names = sorted(name for _, name, _ in FUNCTION.findall(text))
    if text.count("QUIRE_API ") != len(names):
        sys.exit("a declaration that begins with QUIRE_API was not understood")
    return names


def stubs(text):
    lines = ["#include <quire/quire.h>"]
    for result, name, parameters in FUNCTION.findall(text):
        lines.append(f"{result}{name}{parameters} {{ __builtin_trap(); }}")
    for body in ENUM.findall(text):
        for constant in re.findall(r"QUIRE_\w+", body):
            lines.append(
                f"QUIRE_API void value_of_{constant}(char (*value)[1 + {constant}]);\n"
                f"void value_of_{constant}(char (*value)[1 + {constant}]) {{ (void)value; }}"
            )
    return "\n".join(lines) + "\n"


def dump(include_dir, out):
    with tempfile.TemporaryDirectory() as work:
        (pathlib.Path(work) / "abi.c").write_text(stubs(read_headers(include_dir)))
        # The names of files enter the result: they are short and always the same.
        compile_stubs = [os.environ.get("CC", "cc"), "-std=c11", "-g", "-O0", "-fPIC", "-shared",
                         "-fvisibility=hidden", "-I", include_dir, "abi.c", "-o", "libquire.so"]
        subprocess.run(compile_stubs, check=True, cwd=work)
        write = ["abidw", "--no-corpus-path", "--no-show-locs", "--no-comp-dir-path",
                 "--type-id-style", "hash", "--out-file", out, "libquire.so"]
        subprocess.run(write, check=True, cwd=work)


SUMMARY = re.compile(r"^(Leaf changes|Changed leaf types|Removed/Changed/Added \w+) summary: ")
ADDED = re.compile(r"^\d+ Added functions?:$|^\s+\[A\] 'function ")
CHANGED = re.compile(r"^'struct \w+' changed:$")
GROWN = re.compile(r"^\s+type size changed from (\d+) to \d+ \(in bits\)$")
INSERTED = re.compile(r"^\s+'.*', at offset (\d+) \(in bits\)$")
NUM_INSERTED = re.compile(r"^\s+\d+ data member insertions?:$")


def breaks(report):
    """The first line of a report that is neither new nor growth at the end of a struct, or None."""
    old_bits = None
    for line in report.splitlines():
        if CHANGED.match(line):
            old_bits = None
        elif GROWN.match(line):
            old_bits = int(GROWN.match(line)[1])
        elif INSERTED.match(line):
            if old_bits is None or int(INSERTED.match(line)[1]) < old_bits:
                return line
        elif line and not any(known.match(line) for known in (SUMMARY, ADDED, NUM_INSERTED)):
            return line
    return None


def compare(baseline, include_dir):
    with tempfile.TemporaryDirectory() as work:
        now = pathlib.Path(work) / "now.abi"
        dump(include_dir, now)
        result = subprocess.run(
            ["abidiff", "--leaf-changes-only", baseline, now], capture_output=True, text=True
        )
    if result.returncode == 0:
        return 0
    print(result.stdout, result.stderr, sep="")
    if result.returncode & 3:  # abidiff itself failed
        return 1
    broken = breaks(result.stdout)
    if broken is not None:
        print(f"This breaks programs: {broken.strip()}")
    return 2 if broken is None else 1


def main(command, *paths):
    paths = [pathlib.Path(path).resolve() for path in paths]
    if command == "names":
        print("\n".join(function_names(paths[0])))
        return 0
    if command == "dump":
        return dump(*paths)
    return compare(*paths)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("names", "dump", "compare"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
