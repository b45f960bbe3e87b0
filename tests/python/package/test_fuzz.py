# SPDX-License-Identifier: Apache-2.0
"""Arguments that nobody would write: every call gives a result or raises Error.

What a call writes lies between guards; whatever it says, they must not change. A fault of memory
would end the interpreter, and with it the test.
"""

import numpy as np
import quire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

INTERESTING = [-(2**63), -(2**31) - 1, -(2**31), -65, -2, -1, 0, 1, 2, 3, 5, 15, 16, 17, 63, 64, 65,
               1000, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1]  # fmt: skip
small = st.integers(0, 9)
number = st.one_of(small, st.sampled_from(INTERESTING))
INT_TYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOAT_TYPES = [np.float32, np.float16, np.float64, np.int8, np.uint8, np.bool_, np.complex64]


@st.composite
def numbers(draw, max_size=6):
    """A list, or an array of some integer type and strides, or not numbers at all."""
    values = draw(st.lists(number, max_size=max_size))
    form = draw(st.integers(0, 5))
    if form == 0:
        return values
    if form == 1:
        return draw(st.sampled_from([None, 7, "abc", 2.5, object(), [[1], [2]], [1.5], {}, b"xy"]))
    dtype = draw(st.sampled_from(INT_TYPES))
    array = np.array([v % (2**63) if v >= 0 else v for v in values], np.int64).astype(dtype)
    if form == 2:
        return np.repeat(array, 2)[::2]
    if form == 3:
        return array[::-1]
    return array.copy()


@st.composite
def tables(draw):
    form = draw(st.integers(0, 4))
    if form == 0:
        return draw(numbers())
    if form == 1:
        return (draw(numbers()), draw(numbers()))
    rows, columns = draw(small), draw(small)
    if form == 2:
        return [draw(st.lists(number, max_size=4)) for _ in range(rows)]
    values = draw(st.lists(number, min_size=rows * columns, max_size=rows * columns))
    array = np.array(values, object).reshape(rows, columns)
    array = np.clip(array.astype(np.float64), -(2.0**31), 2.0**31 - 1).astype(np.int64)
    return array.astype(draw(st.sampled_from(INT_TYPES)))


@st.composite
def floats(draw, rank=None):
    """An array of some shape, format and strides."""
    rank = draw(st.integers(0, 6)) if rank is None or draw(st.integers(0, 9)) == 0 else rank
    shape = [draw(st.sampled_from([0, 1, 1, 2, 2, 4, 8, 16])) for _ in range(rank)]
    dtype = draw(st.sampled_from(FLOAT_TYPES if draw(st.booleans()) else [np.float32]))
    form = draw(st.integers(0, 6))
    if form == 0 and rank:
        return np.broadcast_to(np.ones((), dtype), shape)
    array = np.ones(shape, dtype)
    if form == 1 and rank:
        array = array.swapaxes(0, rank - 1)
    if form == 2 and rank:
        array = array[..., ::-1]
    if form == 3:
        array.flags.writeable = False
    return array


def outcome(call, *arguments, **options):
    """A result, or an Error with a message; TypeError for what is not even an argument."""
    try:
        return call(*arguments, **options)
    except (quire.Error, TypeError) as error:
        assert str(error)
        return None


OPTIONS = {
    "scale": st.one_of(st.none(), st.floats(width=32), st.just("x")),
    "softcap": st.floats(width=32),
    "causal": st.booleans(),
    "window": st.one_of(st.none(), number, st.tuples(number, number), st.just((1, 2, 3))),
    "chunk": number,
    "alignment": st.sampled_from(["aligned", "unaligned", "", "left"]),
    "alibi_slopes": st.one_of(st.none(), floats(1), st.lists(st.floats(width=32), max_size=5)),
    "sinks": st.one_of(st.none(), floats(1)),
    "bias": st.one_of(st.none(), floats(4)),
    "tree_mask": st.one_of(st.none(), st.tuples(numbers(), numbers()), st.just((1,)), st.just(4)),
    "kv_begins": st.one_of(st.none(), numbers()),
    "k": st.one_of(st.none(), floats(3)),
    "v": st.one_of(st.none(), floats(3)),
    "slots": st.one_of(st.none(), numbers()),
    "k_scale": st.one_of(st.none(), st.floats(), floats(1), floats(3)),
    "v_scale": st.one_of(st.none(), st.floats(), floats(1)),
    "kv_order": st.sampled_from(["block_token_head_dim", "block_head_token_dim", "?"]),
    "kv_packing": st.sampled_from([None, "kv_first", "kv_per_block", "kv_per_token", "?"]),
    "kv_dtype": st.sampled_from([None, "f8e4m3", "i8", "f32", "?"]),
    "value_dim": number,
    "out": st.one_of(st.none(), floats(3)),
    "lse": st.one_of(st.none(), floats(2)),
    "out_dtype": st.sampled_from([None, "f32", "bf16", "i8", "?"]),
    "return_lse": st.booleans(),
    "backend": st.sampled_from(["auto", "cpu", "reference", "none such", ""]),
    "stream": st.sampled_from([None, 0, 1, "s"]),
}


def perturbed(data, valid, wild):
    """`valid` with up to three of its values replaced by wild ones."""
    names = data.draw(st.lists(st.sampled_from(sorted(wild)), unique=True, max_size=3))
    return {**valid, **{name: data.draw(wild[name]) for name in names}}


WILD = {
    **OPTIONS,
    "q": floats(3),
    "k_cache": floats(4),
    "v_cache": st.one_of(st.none(), floats(4)),
    "query_begins": st.one_of(numbers(), st.tuples(numbers(), numbers())),
    "kv_lens": numbers(),
    "block_table": tables(),
}


@FUZZ
@given(st.data())
def test_attend_takes_anything(data):
    valid = {
        "q": np.ones((3, 4, 8), np.float32),
        "k_cache": np.ones((5, 4, 2, 8), np.float32),
        "v_cache": np.ones((5, 4, 2, 8), np.float32),
        "query_begins": [0, 2, 3],
        "kv_lens": [5, 7],
        "block_table": [[0, 1], [4, 3]],
    }
    outcome(quire.attend, **perturbed(data, valid, WILD))


def guarded(shape, dtype=np.float32):
    """An array inside a larger one, and what tells whether the rest was touched."""
    size = int(np.prod(shape))
    memory = np.full(size + 128, 77, dtype)
    return memory[64 : 64 + size].reshape(shape), lambda: (
        (memory[:64] == 77).all() and (memory[64 + size :] == 77).all()
    )


@FUZZ
@given(st.data())
def test_attend_with_wrong_metadata(data):
    """Arrays that fit, metadata that mostly does: nothing but out is written."""
    q = np.ones((6, 4, 8), np.float32)
    k, k_kept = guarded((5, 4, 2, 8))
    v, v_kept = guarded((5, 4, 2, 8))
    k[:], v[:] = 1, 1
    out, kept = guarded((6, 4, 8))
    near = st.one_of(st.integers(-1, 6), number)
    count = data.draw(st.integers(0, 3))
    begins = sorted(data.draw(st.lists(st.integers(0, 6), min_size=count + 1, max_size=count + 1)))
    if data.draw(st.booleans()):
        begins = data.draw(st.lists(near, max_size=4))
    lens = data.draw(st.lists(st.one_of(st.integers(0, 12), number), min_size=count, max_size=count))
    row = st.lists(near, min_size=3, max_size=3)
    table = data.draw(st.lists(row, min_size=count, max_size=count))
    result = outcome(
        quire.attend, q, k, v, begins, lens, table, out=out, causal=data.draw(st.booleans()),
        window=data.draw(st.one_of(st.none(), st.tuples(near, near))),
    )  # fmt: skip
    assert kept() and k_kept() and v_kept()
    assert (k == 1).all() and (v == 1).all()
    if result is not None:
        written = np.zeros(6, bool)
        for first, last in zip(begins, begins[1:]):
            written[first:last] = True
        assert (out[~written] == 77).all()
        np.testing.assert_allclose(out[written][out[written] != 0], 1, atol=1e-5)
    else:
        assert (out == 77).all()


@FUZZ
@given(st.data())
def test_append_touches_its_slots_alone(data):
    k_cache, k_kept = guarded((3, 4, 2, 8))
    v_cache, v_kept = guarded((3, 4, 2, 8))
    n = data.draw(st.integers(0, 5))
    rows = np.ones((n, 2, 8), np.float32)
    slots = data.draw(st.lists(st.one_of(st.integers(-1, 12), number), min_size=n, max_size=n))
    done = outcome(lambda: quire.append(rows, rows, k_cache, v_cache, slots) or True)
    assert k_kept() and v_kept()
    flat = k_cache.reshape(-1, 2, 8)
    stored = [slot for slot in slots if slot >= 0] if done else []
    assert (flat[stored] == 1).all()
    assert (np.delete(flat, stored, axis=0) == 77).all()


@FUZZ
@given(st.data())
def test_merge_takes_anything(data):
    valid = {
        "outs": [np.ones((3, 4, 8), np.float32) for _ in range(2)],
        "lses": [np.ones((3, 4), np.float32) for _ in range(2)],
    }
    wild = {
        "outs": st.lists(floats(3), max_size=3),
        "lses": st.one_of(st.lists(floats(2), max_size=3), st.just(5)),
        **{name: OPTIONS[name] for name in ("sinks", "out", "lse", "out_dtype", "return_lse", "backend")},
    }
    outcome(quire.merge, **perturbed(data, valid, wild))


@FUZZ
@given(st.data())
def test_block_manager_takes_any_order_of_calls(data):
    manager = quire.BlockManager(8, 2, num_host_blocks=4)
    ids = [outcome(manager.admit, quire.Prompt([1, 2, 3, 4, 5], 2))[0]]
    for _ in range(data.draw(st.integers(1, 16))):
        one = data.draw(st.one_of(st.sampled_from(ids), st.sampled_from([0, 2**63])))
        count = data.draw(st.one_of(st.integers(0, 3), st.integers(-1, 12)))
        name = data.draw(st.sampled_from(
            ["admit", "append", "commit", "commit_prompt", "rollback", "fork", "free", "truncate",
             "swap_out", "swap_in", "take_copies", "write_step", "resize", "block_table"]))  # fmt: skip
        if name == "admit":
            prompt = outcome(quire.Prompt, list(range(max(count, 0))), 2)
            admitted = prompt and outcome(manager.admit, prompt)
            if admitted:
                ids.append(admitted[0])
        elif name == "commit":
            outcome(manager.commit, one, [5] * max(count, 0))
        elif name == "fork":
            forked = outcome(manager.fork, one)
            if forked is not None:
                ids.append(forked)
        elif name == "take_copies":
            ticket, _ = manager.take_copies()
            outcome(manager.complete_copies, ticket + data.draw(st.integers(0, 1)))
        elif name == "write_step":
            outcome(manager.write_step, data.draw(st.integers(-1, 1)), [one])
        elif name == "resize":
            outcome(manager.resize, data.draw(st.integers(0, 1)), count + 4)
        elif name in ("free", "swap_out", "swap_in", "block_table"):
            outcome(getattr(manager, name), one)
        else:
            outcome(getattr(manager, name), one, count)
        manager.validate()


@FUZZ
@given(st.data())
def test_prepared_batch_takes_anything(data):
    spec = quire.AttentionSpec(4, 2, 8, q_dtype="f32", block_size=4)
    cache = quire.KvCache(spec, 5, layout="plain")
    prepared = quire.PreparedBatch(spec)
    valid = {
        "query_begins": [0, 2, 3],
        "kv_lens": [5, 7],
        "block_table": [[0, 1], [4, 3]],
        "slots": [0, 17, -1],
        "block_size": 4,
    }
    wild = {name: WILD[name] for name in ("query_begins", "kv_lens", "block_table", "kv_begins")}
    wild |= {"slots": numbers(), "block_size": st.integers(-1, 9)}
    batch = outcome(quire.BatchView, **perturbed(data, valid, wild))
    if batch is not None:
        outcome(prepared.prepare, batch)
    rows = perturbed(
        data,
        {"q": np.ones((3, 4, 8), np.float32), "k": np.ones((3, 2, 8), np.float32)},
        {"q": floats(3), "k": floats(3)},
    )
    outcome(prepared.append, rows["k"], rows["k"], cache.layer(0))
    outcome(prepared.attend, rows["q"], cache.layer(0))
    outcome(prepared.attend, rows["q"], cache.layer(0), k=rows["k"], v=rows["k"])
    outcome(cache.layer, data.draw(number))
    pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3)
    outcome(cache.copy_blocks, data.draw(st.one_of(pairs, tables())))
