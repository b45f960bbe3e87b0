# SPDX-License-Identifier: Apache-2.0
"""The tests of the Python package run where it was built; those of PyTorch in `make test-torch`."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("quire") is None:
    collect_ignore.append("package")


def pytest_report_header():
    return ["package: left out, quire is not built (QUIRE_BUILD_PYTHON)"] if collect_ignore else []
