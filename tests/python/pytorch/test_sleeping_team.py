# SPDX-License-Identifier: Apache-2.0
"""How many teams sleep, who shares them, and when there are none."""

import subprocess
import sys
import threading

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import quire.transformers
import tiny_models
from quire.transformers import sleeping_team

CPU = torch.device("cpu")


@pytest.fixture
def threads(monkeypatch):
    """Two threads of PyTorch on some CPUs, and no word of the environment; gives those asleep."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for name in "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sleeping_team, "_num_cpus", lambda: 2)
    monkeypatch.setattr(sleeping_team, "_has_libgomp", lambda: True)

    def asleep():
        return sum(thread.name == "quire-sleeping-team" for thread in threading.enumerate())

    assert asleep() == 0
    yield asleep
    torch.set_num_threads(before)
    wait_until(lambda: asleep() == 0)


def wait_until(condition):
    for thread in threading.enumerate():
        if thread.name == "quire-sleeping-team":
            thread.join(10)
    assert condition()


def make_engine(**more):
    return quire.transformers.Engine(tiny_models.make("llama"), cache_bytes=1 << 20, **more)


def test_the_fewest_teams_that_outnumber_the_cpus():
    assert [sleeping_team.num_teams(n, n) for n in (2, 3, 64)] == [1, 1, 1]
    assert sleeping_team.num_teams(16, 2) == 15
    assert sleeping_team.num_teams(16, 8) == 2
    assert sleeping_team.num_teams(16, 9) == 1
    assert sleeping_team.num_teams(2, 8) == 1  # more threads than CPUs by themselves
    for num_cpus in range(1, 40):
        for num_threads in range(2, 40):
            count = sleeping_team.num_teams(num_cpus, num_threads)
            assert num_threads + count * (num_threads - 1) > num_cpus
            assert count == 1 or num_threads + (count - 1) * (num_threads - 1) <= num_cpus


def test_engines_share_the_teams(threads, monkeypatch):
    monkeypatch.setattr(sleeping_team, "_num_cpus", lambda: 4)
    first, second = make_engine(), make_engine()
    assert threads() == 3
    first.close()
    first.close()  # counts once
    assert threads() == 3
    monkeypatch.setattr(sleeping_team, "_num_cpus", lambda: 6)
    third = make_engine()  # as of its construction more are needed
    assert threads() == 5
    third.close()
    second.close()
    wait_until(lambda: threads() == 0)


def test_an_engine_that_nobody_has_any_more(threads):
    engine = make_engine()
    assert threads() == 1
    del engine
    wait_until(lambda: threads() == 0)


def test_when_there_are_none(threads, monkeypatch):
    make_engine(sleeping_threads=False)
    assert threads() == 0
    assert sleeping_team.hold_sleeping_teams(torch.device("cuda")) is None
    for name in "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME":
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert sleeping_team.hold_sleeping_teams(CPU) is None
    with monkeypatch.context() as patch:
        patch.setattr(sleeping_team, "_has_libgomp", lambda: False)
        assert sleeping_team.hold_sleeping_teams(CPU) is None
    torch.set_num_threads(1)
    assert sleeping_team.hold_sleeping_teams(CPU) is None


def test_a_system_without_further_threads(threads, monkeypatch):
    start, num_started = threading.Thread.start, []

    def second_fails(thread):
        num_started.append(1)
        if len(num_started) > 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(sleeping_team, "_num_cpus", lambda: 8)
    monkeypatch.setattr(threading.Thread, "start", second_fails)
    engine = make_engine()
    assert threads() == 1
    monkeypatch.undo()
    assert len(engine.generate([[5, 6, 7]], max_new_tokens=2, eos_token_id=())[0]) == 2
    engine.close()
    wait_until(lambda: threads() == 0)


def test_a_failed_construction_gives_everything_back(threads, monkeypatch):
    model = tiny_models.make("llama")
    model.set_attn_implementation("eager")
    for wrong in {"max_sequences": 0}, {"max_tokens": 0}, {"max_sequences": -5}:
        with pytest.raises(quire.Error):
            quire.transformers.Engine(model, cache_bytes=1 << 20, **wrong)
        assert model.config._attn_implementation == "eager"

    def fail(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(quire.transformers.engine, "hold_sleeping_teams", fail)
    with pytest.raises(KeyboardInterrupt):
        quire.transformers.Engine(model, cache_bytes=1 << 20)
    assert model.config._attn_implementation == "eager"
    wait_until(lambda: threads() == 0)


def test_libgomp_is_seen_where_it_is_loaded():
    maps = "any('libgomp' in line for line in open('/proc/self/maps'))"
    program = "import quire.transformers.sleeping_team as s; print(s._has_libgomp(), " + maps + ")"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert found[0] == found[1]


def test_an_open_engine_does_not_hold_up_the_exit():
    program = (
        "import quire.transformers, tiny_models, torch; torch.set_num_threads(2)\n"
        "e = quire.transformers.Engine(tiny_models.make('llama'), cache_bytes=1 << 20); print('made')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert (found.returncode, found.stdout.strip()) == (0, "made"), found.stderr
