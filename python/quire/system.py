# SPDX-License-Identifier: Apache-2.0
"""What this machine has, whether it is right here, and what calls share."""

from typing import Any, Literal

from quire import _quire


def info() -> dict[str, Any]:
    """What this installation has and this machine can run.

    Returns ``{"version", "plugin_folders", "backends": [{"name", "summary", "automatic", "plugin",
    "available", "version", "reasons", "isa_levels"}]}``; ``reasons`` says why a backend, or
    a level of it, is not available. Loads the plug-ins.
    """
    return _quire.info()


def check(
    backend: str | _quire.Backend = "auto",
    *,
    suite: Literal["smoke", "standard", "full"] = "smoke",
    filter: str = "",
) -> dict[str, Any]:
    """Runs the conformance suite on a backend of this machine.

    Arguments:
        suite: seconds, about a minute, or everything.
        filter: patterns of case names, separated by commas: ``"decode/*,merge/*"``.

    Returns ``{"backend", "suite", "passed", "failed", "skipped", "failures": [{"name",
    "reason"}]}``.
    """
    return _quire.check(backend, suite, filter)


def set_num_threads(num_threads: int) -> None:
    """Threads of the backends that calls share by name, this one included; 0: one per CPU.

    Results are the same bits for any number. A ``quire.Backend`` has threads of its own.
    """
    _quire.set_num_threads(num_threads)


def get_num_threads() -> int:
    """What set_num_threads was given; 0: one per CPU."""
    return _quire.get_num_threads()


def release_memory() -> None:
    """Gives up the memory and the threads that calls keep for the next call."""
    _quire.release_memory()


def as_numpy(array: Any) -> Any:
    """A host array as NumPy sees it, without a copy; bfloat16 and float8 need ml_dtypes.

    For what NumPy's own ``from_dlpack`` does not take, as ``KvCacheView.k`` of a bf16 cache.
    """
    from quire import _arrays

    return _arrays.as_numpy(array)
