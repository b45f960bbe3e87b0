# SPDX-License-Identifier: Apache-2.0
"""The fragments of code in README.md."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def fragment(language):
    """The one block of code of that language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


def in_function(code, head):
    """Code as the body of a function, its includes before it."""
    lines = code.splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    return "\n".join([*includes, head, *body, "}", ""])
