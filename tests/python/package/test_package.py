# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: what it says of itself, stubs, other libraries, processes."""

import ast
import inspect
import multiprocessing
import os
import pathlib
import pydoc
import subprocess
import sys
import time

import numpy as np
import pytest
import quire
from exact_attention import attention

ROOT = pathlib.Path(__file__).resolve().parents[3]


def one_attend():
    q, k = np.ones((1, 2, 16), np.float32), np.ones((3, 4, 2, 16), np.float32)
    return quire.attend(q, k, k.copy(), [0, 1], [9], [[0, 1, 2]])


def test_info():
    info = quire.info()
    assert info["version"] == quire.__version__
    backends = {backend["name"]: backend for backend in info["backends"]}
    assert backends["cpu"]["available"] and "scalar" in backends["cpu"]["isa_levels"]
    for backend in backends.values():
        assert backend["available"] or backend["reasons"]
    package = pathlib.Path(quire._quire.__file__).resolve().parent
    if "QUIRE_PLUGIN_PATH" not in os.environ:
        assert str(package / "lib/quire") in info["plugin_folders"]


def test_help_that_the_docs_show():
    """All but white space, which versions of Python set differently."""
    text = pydoc.render_doc(quire.attend, "Help on %s:", renderer=pydoc.plaintext)
    shown = (ROOT / "docs/help_attend.txt").read_text(encoding="utf-8")
    assert "".join(shown.split()) == "".join(text.split())


def test_plugin_path():
    code = "import quire; print(quire.info()['plugin_folders'])"
    output = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "QUIRE_PLUGIN_PATH": "/one:/two"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert output.stdout.strip() == "['/one', '/two']"


def test_check():
    report = quire.check(filter="decode/*")
    assert report["passed"] > 5 and report["failed"] == 0 and report["failures"] == []
    with pytest.raises(quire.Error, match="suite"):
        quire.check(suite="none")


def test_backend_object():
    backend = quire.Backend("cpu", num_threads=1, isa="scalar")
    assert backend.info()["isa"] == "scalar" and backend.info()["device"] == "host"
    spec = quire.AttentionSpec(4, 2, 32)
    assert backend.supports(spec)["ok"]
    assert backend.workspace(spec, quire.BatchBounds(1, 1, 16, 16))["host_bytes"] > 0
    assert backend.preferred_layout(spec) in ("plain", "pair_tiled")
    with pytest.raises(quire.Error, match="no level named 'x'"):
        quire.Backend("cpu", isa="x")


def test_spec():
    spec = quire.AttentionSpec(32, 8, 128, kv_dtype="f8e4m3", scales="per_head", window_left=1023)
    assert str(spec) == "32/8 heads, dim 128, bf16, kv f8e4m3 block 16 per-head, causal window 1023:-1"
    other = spec.copy()
    assert other == spec
    other.head_dim = 64
    assert other != spec and spec.head_dim == 128 and spec != "spec"
    with pytest.raises(quire.Error, match="does not divide"):
        quire.AttentionSpec(32, 7, 128)


def documented():
    for name in quire.__all__:
        thing = getattr(quire, name)
        if inspect.isclass(thing) or callable(thing):
            yield name, thing


@pytest.mark.parametrize("name, thing", list(documented()))
def test_doc_strings(name, thing):
    assert inspect.getdoc(thing), name


def test_every_argument_of_attend_is_documented():
    for function in (quire.attend, quire.append, quire.merge):
        for argument in inspect.signature(function).parameters:
            assert argument in inspect.getdoc(function), argument


def test_the_example_of_attend_runs():
    text = inspect.getdoc(quire.attend).partition("Example")[2].partition("::")[2]
    names = {"np": np, "quire": quire}
    exec(inspect.cleandoc(text), names)
    assert names["out"].shape == (6, 8, 64) and np.isfinite(names["out"]).all()


def test_stubs_match():
    """python/quire/_quire.pyi is what tools/make_stubs.py writes."""
    script = ROOT / "tools/make_stubs.py"
    made = subprocess.run([sys.executable, script, "-"], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "python/quire/_quire.pyi").read_text(), f"run {script}"


def test_hand_written_stubs_match():
    """Names, kinds and defaults of attention.pyi are those of attention.py."""
    stub = ast.parse((ROOT / "python/quire/attention.pyi").read_text())
    functions = {node.name: node.args for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert set(functions) == {"append", "attend", "merge", "pack_tree_mask"}
    for name, typed in functions.items():
        parameters = inspect.signature(getattr(quire, name)).parameters.values()
        positional = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        by_name = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        assert [a.arg for a in typed.args] == [p.name for p in positional]
        assert [a.arg for a in typed.kwonlyargs] == [p.name for p in by_name]
        defaults = [ast.literal_eval(d) for d in (*typed.defaults, *typed.kw_defaults)]
        given = [p.default for p in (*positional, *by_name) if p.default is not p.empty]
        assert defaults == given
        assert all(a.annotation is not None for a in (*typed.args, *typed.kwonlyargs))


def test_import_is_light():
    """Neither NumPy nor any other library is imported before it is needed."""
    code = "import sys, quire; print([m for m in ('numpy', 'torch', 'ml_dtypes') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_buffer_protocol():
    """Objects that have a buffer and nothing else."""
    q = np.random.default_rng(0).standard_normal((2, 2, 16)).astype(np.float32)
    expected = quire.attend(q, q, q, [0, 2], [2])
    out = quire.attend(memoryview(q), memoryview(q), memoryview(q), [0, 2], [2])
    np.testing.assert_array_equal(np.asarray(out), expected)


def test_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    q = jax.random.normal(jax.random.key(0), (3, 2, 16))
    out, lse = quire.attend(q, q, q, jax.numpy.array([0, 3]), [3], return_lse=True)
    assert isinstance(out, jax.Array) and lse.shape == (3, 2)
    array = np.asarray(q)
    np.testing.assert_allclose(np.asarray(out), attention(array, array, array)[0], atol=1e-5)
    half = quire.attend(*[q.astype(jax.numpy.bfloat16)] * 3, [0, 3], [3])
    assert half.dtype == jax.numpy.bfloat16


def test_fork():
    """A child has no threads of its parent, and makes its own."""
    expected = one_attend()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for got in [pool.apply_async(one_attend).get(timeout=60) for _ in range(4)]:
            np.testing.assert_array_equal(got, expected)


def test_call_overhead(record_property):
    """Reported, not judged: the time of a machine under load says nothing."""
    q, k = np.ones((1, 2, 16), np.float32), np.ones((3, 4, 2, 16), np.float32)
    begins, lens, table = np.array([0, 1], np.int32), np.array([9], np.int32), np.array([[0, 1, 2]])
    v, out, backend = k.copy(), np.empty_like(q), quire.Backend("cpu", num_threads=1)

    def seconds(calls=500):
        start = time.thread_time()
        for _ in range(calls):
            quire.attend(q, k, v, begins, lens, table, out=out, backend=backend)
        return (time.thread_time() - start) / calls

    microseconds = min(seconds() for _ in range(5)) * 1e6
    record_property("attend_microseconds", microseconds)
    print(f"attend of one token over 9 keys: {microseconds:.1f} us")


@pytest.mark.parametrize("path", sorted((ROOT / "examples/python").glob("*.py")), ids=lambda p: p.stem)
def test_examples(path):
    source = path.read_text()
    for library in ("torch", "transformers"):
        if f"import {library}" in source:
            pytest.importorskip(library, reason=f"{library} is in `make test-torch`")
    output = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    assert output.stdout
