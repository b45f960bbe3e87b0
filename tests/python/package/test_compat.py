# SPDX-License-Identifier: Apache-2.0
"""quire.compat on NumPy arrays."""

import pytest
from compat_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_numpy(name):
    CASES[name](lambda array: array)
