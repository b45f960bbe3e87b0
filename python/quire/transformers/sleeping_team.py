# SPDX-License-Identifier: Apache-2.0
"""How the threads of PyTorch wait for work while an engine computes on the CPU.

libgomp, on whose threads PyTorch computes there, has them look for new work for milliseconds after
every operation, as long as it has no more of them than the machine has CPUs. It knows nothing of
the threads of quire and of other programs, which need these CPUs meanwhile: where two of them share
one, an operation of microseconds takes until the one that waits is interrupted. With more threads
than CPUs it lets them sleep at once. A second team that is always asleep is that more.
"""

from __future__ import annotations

import os
import threading

import torch

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def start_sleeping_team(device: torch.device) -> threading.Event:
    """Threads of libgomp that sleep until the event is set; none for a GPU, where PyTorch has one
    thread, and where the environment says how to wait."""
    end = threading.Event()
    chosen = any(name in os.environ for name in _CHOICES)
    if device.type == "cpu" and torch.get_num_threads() > 1 and not chosen:
        started = threading.Event()
        args = started, end
        threading.Thread(target=_sleep, args=args, name="quire-sleeping-team", daemon=True).start()
        started.wait()
    return end


def _sleep(started: threading.Event, end: threading.Event) -> None:
    try:
        torch.zeros(1 << 18).add_(1)  # large enough for a team, which then lives as this thread
    finally:
        started.set()
    end.wait()
