# SPDX-License-Identifier: Apache-2.0
"""quire.compat on NumPy arrays."""

import numpy as np
import pytest
import quire
import quire.compat
from compat_cases import CASES
from quire import _arrays


@pytest.mark.parametrize("name", CASES)
def test_numpy(name):
    CASES[name](lambda array: array)


def test_flashinfer_prepares_for_every_device(monkeypatch):
    """The tensors of a second device are none of those that the batch of the first can read."""
    devices = []
    make = quire.PreparedBatch

    def made(spec, device):
        devices.append(device)
        return make(spec)

    wrapper = quire.compat.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan([0, 1], [1], [3], 4, 2, 32, 16)
    q, pages = np.ones((1, 4, 32), np.float32), np.ones((2, 2, 16, 2, 32), np.float32)
    monkeypatch.setattr(quire, "PreparedBatch", made)
    for device in "cuda:0", "cuda:1", "cuda:0":
        monkeypatch.setattr(_arrays, "device_name", lambda array: device)
        np.testing.assert_allclose(wrapper.run(q, pages), 1, atol=1e-6)
    assert devices == ["cuda:0", "cuda:1"]
