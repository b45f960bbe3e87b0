# SPDX-License-Identifier: Apache-2.0
"""The command ``quire``: the program that lies in the package takes the place of this one."""

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).with_name("bin") / "quire"
    if not program.exists():
        sys.exit(f"quire: {program} is missing: the package was built without the command")
    os.execv(program, ["quire", *sys.argv[1:]])


if __name__ == "__main__":
    main()
