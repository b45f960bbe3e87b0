# SPDX-License-Identifier: Apache-2.0
"""How the threads of PyTorch wait for work while engines compute on the CPU.

libgomp, on whose threads PyTorch computes there, has them look for new work for milliseconds after
every operation, as long as it has no more of them than the process has CPUs. It knows nothing of
the threads of quire and of other programs, which need these CPUs meanwhile: where two of them share
one, an operation of microseconds takes until the one that waits is interrupted. With more threads
than CPUs it lets them sleep at once. Further teams that are always asleep are that more: next to
the team of the thread that computes, each adds all of its threads but the one that started it.

One set of teams serves all engines of the process, from the first that needs it to the last. How many
there are follows from the CPUs and the threads of PyTorch as of the construction of an engine; a
change after that is not seen. A child of fork() has none of them, as it has none of the threads of
PyTorch. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import torch

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_GRAIN = 32768  # elements: with fewer for each thread PyTorch has fewer of them compute

_lock = threading.RLock()  # a finalizer may release while the same thread holds it
_num_engines = 0
_ends: list[threading.Event] = []  # of every team


def hold_sleeping_teams(device: torch.device) -> Callable[[], None] | None:
    """Has teams asleep until the function that it returns is called, once.

    None, and no teams, for a GPU, where PyTorch has one thread, where its threads are not those of
    libgomp, and where the environment says how to wait. If the system gives no more threads there are
    fewer teams, or none.
    """
    global _num_engines
    num_threads = torch.get_num_threads()
    chosen = any(name in os.environ for name in _CHOICES)
    if device.type != "cpu" or num_threads < 2 or chosen or not _has_libgomp():
        return None
    with _lock:
        _num_engines += 1
        try:
            while len(_ends) < num_teams(_num_cpus(), num_threads):
                _start_team(num_threads)
        except RuntimeError:  # no more threads: waiting busily is slower, and right
            pass
        except BaseException:
            _release()
            raise
    return _release


def num_teams(num_cpus: int, num_threads: int) -> int:
    """The fewest beside a team that computes with which there are more threads than CPUs.

    REQUIRES: num_threads > 1.
    """
    return max(1, -(-(num_cpus + 1 - num_threads) // (num_threads - 1)))


def _release() -> None:
    global _num_engines
    with _lock:
        _num_engines -= 1
        if _num_engines == 0:
            while _ends:
                _ends.pop().set()


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _has_libgomp() -> bool:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return any("libgomp" in line for line in file)
    except OSError:
        return False


def _start_team(num_threads: int) -> None:
    started, end = threading.Event(), threading.Event()
    args = num_threads, started, end
    threading.Thread(target=_sleep, args=args, name="quire-sleeping-team", daemon=True).start()
    _ends.append(end)
    started.wait()


def _sleep(num_threads: int, started: threading.Event, end: threading.Event) -> None:
    try:
        torch.zeros(num_threads * _GRAIN).add_(1)  # a team, which then lives as long as this thread
    finally:
        started.set()
    end.wait()
