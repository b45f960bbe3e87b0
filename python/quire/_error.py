# SPDX-License-Identifier: Apache-2.0
"""The one exception of quire."""


class Error(RuntimeError):
    """Misuse, or a failing environment; the message names argument, index, value and limit.

    ``code`` is one of ``"invalid_argument"``, ``"unsupported"``, ``"out_of_memory"``,
    ``"device"``, ``"io"`` and ``"internal"``.
    """

    code: str = "invalid_argument"
