# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be honoured."""

from typing import Any

from quire._error import Error


def unsupported(message: str) -> Error:
    error = Error(message)
    error.code = "unsupported"
    return error


def refuse(reason: str, **arguments: Any) -> None:
    """Raises unless every argument is None, False or 0."""
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        if isinstance(value, (int, float)) and value == 0:
            continue
        raise unsupported(f"{name}: {reason}")
