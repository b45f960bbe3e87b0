# SPDX-License-Identifier: Apache-2.0
"""The C interface through ctypes: layouts of structs, attention on NumPy arrays, errors, info."""

import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from c_header import HEADERS, INCLUDE, read_structs

BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD_DIR") or "")
LIBRARY = BUILD / "src/libquire.so"

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="QUIRE_BUILD_DIR names no build with the shared library"
)

STRUCTS = read_structs()
Q_HEADS, KV_HEADS, DIM, BLOCK_SIZE = 4, 2, 16, 4


def load():
    library = ctypes.CDLL(str(LIBRARY))
    library.quire_error_message.restype = ctypes.c_char_p
    library.quire_version.restype = ctypes.c_char_p
    library.quire_struct_bytes.restype = ctypes.c_size_t
    return library


@pytest.fixture(scope="module")
def quire():
    return load()


def ok(quire, status):
    assert status == 0, quire.quire_error_message().decode()


def fails(quire, word, status):
    assert status == 1
    assert word in quire.quire_error_message().decode()


@pytest.fixture
def backend(quire):
    handle = ctypes.c_void_p()
    ok(quire, quire.quire_backend_create(b"cpu", None, ctypes.byref(handle)))
    yield handle
    ok(quire, quire.quire_backend_destroy(handle))


def spec(**values):
    return STRUCTS["quire_attention_spec"](
        num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK_SIZE, **values
    )


def tensor(array, dtype=0):
    """A view of a NumPy array, strides and all; the array must outlive it."""
    rank = array.ndim
    strides = [stride // array.itemsize for stride in array.strides]
    return STRUCTS["quire_tensor"](
        data=array.ctypes.data,
        shape=(ctypes.c_int64 * 5)(*array.shape),
        strides=(ctypes.c_int64 * 5)(*strides),
        dtype=dtype,
        rank=rank,
    )


def address(value):
    return ctypes.cast(ctypes.byref(value), ctypes.c_void_p)


def test_every_struct_has_the_size_that_the_library_knows(quire):
    assert len(STRUCTS) == 40
    for name, struct in STRUCTS.items():
        assert quire.quire_struct_bytes(name.encode()) == ctypes.sizeof(struct), name
    assert quire.quire_struct_bytes(b"quire_nothing") == 0


def test_every_field_lies_where_c_puts_it(tmp_path):
    places = [(name, field) for name, struct in STRUCTS.items() for field, _ in struct._fields_]
    lines = [f'printf("%zu\\n", offsetof({name}, {field}));' for name, field in places]
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <quire/quire.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        "int main(void) {" + "\n".join(lines) + "return 0; }\n"
    )
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", INCLUDE]
    subprocess.run([*compiler, source, "-o", tmp_path / "offsets"], check=True)
    output = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)
    offsets = [int(line) for line in output.stdout.split()]
    assert offsets == [getattr(STRUCTS[name], field).offset for name, field in places]
    for struct in STRUCTS.values():
        assert struct.struct_bytes.offset == 0 and struct.struct_version.offset == 4


def test_every_header_is_in_the_one_to_include():
    whole = (INCLUDE / "quire/quire.h").read_text()
    for header in HEADERS:
        assert f'#include "quire/c/{header.name}"' in whole


def test_the_page_lists_every_function():
    page = (INCLUDE.parent / "docs/c_api.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+\.h)` \| (.*) \|$", page, re.MULTILINE))
    for header in HEADERS:
        names = re.findall(r"^QUIRE_API .*?\b(quire_\w+)\(", header.read_text(), re.MULTILINE)
        words = re.findall(r"`(\w+)`", rows.get(header.name, ""))
        for name in names:
            assert any(name == word or (word[0] == "_" and name.endswith(word)) for word in words), name
        assert len(words) == len(names), header.name


def naive(q, k, v):
    """Causal attention in float64: q [T, H, D], k and v [N, Hkv, D], queries at the end."""
    k, v = (np.repeat(x.astype(np.float64), Q_HEADS // KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) / np.sqrt(DIM)
    first = len(k) - len(q)
    scores = np.where(np.arange(len(k)) <= first + np.arange(len(q))[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


def prepare(quire, backend, the_spec, batch):
    bounds = STRUCTS["quire_batch_bounds"](
        max_sequences=4, max_tokens=32, max_kv_len=32, max_total_kv_len=128
    )
    prepared = ctypes.c_void_p()
    ok(quire, quire.quire_prepared_batch_create(backend, ctypes.byref(the_spec),
                                                ctypes.byref(bounds), None,
                                                ctypes.byref(prepared)))
    ok(quire, quire.quire_prepare(backend, prepared, ctypes.byref(batch), None))
    return prepared


def test_attention_on_numpy_arrays(quire, backend):
    rng = np.random.default_rng(7)
    lens = [7, 11]
    begins = np.array([0, 7, 18], np.int32)
    kv_lens = np.array(lens, np.int32)
    table = np.array([[5, 2, 0], [1, 7, 3]], np.int32)
    slots = np.array(
        [table[s, i // 4] * 4 + i % 4 for s in range(2) for i in range(lens[s])], np.int64
    )
    qkv = rng.standard_normal((18, Q_HEADS + 2 * KV_HEADS, DIM), np.float32)  # one projection
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    out = np.full((18, Q_HEADS, DIM), np.nan, np.float32)
    lse = np.full((18, Q_HEADS), np.nan, np.float32)
    the_spec = spec(features=32)
    cache = np.full((2, 8, KV_HEADS, BLOCK_SIZE, DIM), np.nan, np.float32)
    view = STRUCTS["quire_kv_cache_view"]()
    ok(quire, quire.quire_view_kv(ctypes.byref(the_spec), 0, ctypes.byref(tensor(cache[0])),
                                  ctypes.byref(tensor(cache[1])), ctypes.byref(view)))
    batch = STRUCTS["quire_batch"](
        num_sequences=2, query_begins=begins.ctypes.data, kv_lens=kv_lens.ctypes.data,
        block_indices=table.ctypes.data, num_block_indices=6, row_stride=3,
        slots=slots.ctypes.data, num_slots=18,
    )
    prepared = prepare(quire, backend, the_spec, batch)
    q_tensor, k_tensor, v_tensor, out_tensor, lse_tensor = map(tensor, (q, k, v, out, lse))
    ok(quire, quire.quire_append(backend, prepared, ctypes.byref(k_tensor),
                                 ctypes.byref(v_tensor), ctypes.byref(view), None))
    np.testing.assert_array_equal(cache[0, 5].transpose(1, 0, 2), k[:4])
    source = STRUCTS["quire_kv_source"](cache=address(view))
    output = STRUCTS["quire_attention_output"](out=address(out_tensor), lse=address(lse_tensor))
    ok(quire, quire.quire_attend(backend, prepared, None, ctypes.byref(q_tensor),
                                 ctypes.byref(source), ctypes.byref(output), None))
    for first, end in ((0, 7), (7, 18)):
        expected = naive(q[first:end], k[first:end], v[first:end])
        np.testing.assert_allclose(out[first:end], expected, atol=1e-5)
    assert np.isfinite(lse).all()

    # What is wrong is named, and nothing is written.
    before = out.copy()
    fails(quire, "q: needs", quire.quire_attend(
        backend, prepared, None, ctypes.byref(k_tensor), ctypes.byref(source),
        ctypes.byref(output), None))
    table[1, 0] = 8
    ok(quire, quire.quire_prepare(backend, prepared, ctypes.byref(batch), None))
    fails(quire, "holds block 8", quire.quire_attend(
        backend, prepared, None, ctypes.byref(q_tensor), ctypes.byref(source),
        ctypes.byref(output), None))
    table[1, 0] = -1
    fails(quire, "-1", quire.quire_prepare(backend, prepared, ctypes.byref(batch), None))
    np.testing.assert_array_equal(out, before)
    ok(quire, quire.quire_prepared_batch_destroy(prepared))


def test_structs_of_other_sizes(quire):
    small = spec()
    small.struct_bytes = 12
    fails(quire, "quire_attention_spec", quire.quire_attention_spec_validate(ctypes.byref(small)))

    class Grown(ctypes.Structure):
        _fields_ = [("known", STRUCTS["quire_attention_spec"]), ("newer", ctypes.c_int64)]

    grown = Grown(known=spec())
    grown.known.struct_bytes = ctypes.sizeof(grown)
    ok(quire, quire.quire_attention_spec_validate(ctypes.byref(grown)))
    grown.newer = 1
    fails(quire, "newer", quire.quire_attention_spec_validate(ctypes.byref(grown)))


def test_the_error_text_is_that_of_the_thread(quire):
    texts = {}

    def fail(name):
        handle = ctypes.c_void_p()
        quire.quire_backend_create(name.encode(), None, ctypes.byref(handle))
        barrier.wait()
        texts[name] = quire.quire_error_message().decode()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=fail, args=(f"name{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, text in texts.items():
        assert f"'{name}'" in text


def test_handles_of_another_kind(quire, backend):
    fails(quire, "a backend, not a scheduler", quire.quire_scheduler_validate(backend))
    fails(quire, "is NULL", quire.quire_scheduler_validate(None))


# In a process of its own: plug-ins stay loaded.
INFO = """
import ctypes, sys
quire = ctypes.CDLL(sys.argv[1])
info, text = ctypes.c_void_p(), ctypes.c_char_p()
assert quire.quire_info_create(ctypes.byref(info)) == 0
assert quire.quire_info_json(info, ctypes.byref(text)) == 0
sys.stdout.buffer.write(text.value)
"""


@pytest.mark.skipif(not (BUILD / "quire").exists(), reason="the build has no command")
def test_info_is_that_of_the_command():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    clean["QUIRE_PLUGIN_PATH"] = str(BUILD)

    def run(*command):
        result = subprocess.run(command, capture_output=True, env=clean, check=True)
        return json.loads(result.stdout)

    assert run(sys.executable, "-c", INFO, str(LIBRARY)) == run(BUILD / "quire", "info", "--json")
