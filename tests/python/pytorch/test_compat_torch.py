# SPDX-License-Identifier: Apache-2.0
"""quire.compat on tensors of PyTorch."""

import pytest
import torch
from compat_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_torch(name):
    CASES[name](torch.from_numpy)
