#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/quire/_quire.pyi, the types of the compiled part: make_stubs.py [-]

Run it where the built package can be imported, after a change of what is bound; `-` prints.
"""

import pathlib
import sys

import quire._quire
from nanobind.stubgen import StubGen

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Written by tools/make_stubs.py.\n"


def make() -> str:
    generator = StubGen(quire._quire)
    generator.put(quire._quire)
    text = generator.get().rstrip("\n") + "\n"
    # Arrays may be of any library.
    text = text.replace("-> object:", "-> Any:").replace("-> tuple:", "-> tuple[Any, ...]:")
    text = text.replace("-> dict:", "-> dict[str, Any]:").replace("-> list:", "-> list[Any]:")
    text = text.replace("\nfrom collections.abc", "\nfrom typing import Any\n\nfrom collections.abc", 1)
    # What the generator leaves out and the package uses.
    return HEAD + text + "\n__version__: str\n\ndef _after_fork() -> None: ...\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        print(make(), end="")
    else:
        ROOT.joinpath("python/quire/_quire.pyi").write_text(make())
