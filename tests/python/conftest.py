# SPDX-License-Identifier: Apache-2.0
"""The tests of the Python package run where it was built; those of PyTorch in `make test-torch`."""

import importlib.util
import os
import pathlib

# A hypervisor that offers AMX and hides how large its tiles are kills oneDNN, which PyTorch uses
# (src/base/hidden_tiles.h).
_CPU = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
if " amx_tile" in _CPU and any(
        int(line.split(":")[1]) < 0x1D for line in _CPU.splitlines() if line.startswith("cpuid level")):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

collect_ignore = []
if importlib.util.find_spec("quire") is None:
    collect_ignore.append("package")


def pytest_report_header():
    return ["package: left out, quire is not built (QUIRE_BUILD_PYTHON)"] if collect_ignore else []
