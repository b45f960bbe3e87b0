# SPDX-License-Identifier: Apache-2.0
"""Schedulers, caches and quire.compat with arguments that nobody would write: a result or an error."""

import numpy as np
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from quire import compat
from test_fuzz import FUZZ, OPTIONS, floats, number, numbers, outcome, perturbed, small, tables

SHORT = settings(FUZZ, max_examples=150)
word = st.sampled_from(["", "auto", "cpu", "plain", "preferred", "f32", "i8", "?", "NHD", "HND", None, 3])
bounded = st.one_of(small, st.integers(-3, 70), st.sampled_from([-(2**63), 2**31, 2**62, 2**63 - 1]))


SCHEDULER = {
    name: st.one_of(bounded, st.sampled_from(["x", None, 1.5]))
    for name in ("max_tokens", "max_sequences", "max_chunk", "max_cross_tokens", "max_length",
                 "max_total_length", "aging_steps", "prefix_window")
}  # fmt: skip
SCHEDULER["wait_for_shared"] = st.one_of(st.booleans(), st.just("x"))
SCHEDULER["preemption"] = st.one_of(
    st.none(), st.just(4), st.dictionaries(st.sampled_from(["token_bytes", "mode", "?"]), bounded)
)


@SHORT
@given(st.data())
def test_scheduler_takes_any_order_of_calls(data):
    manager = quire.BlockManager(8, 2, num_host_blocks=4)
    options = perturbed(data, {"max_tokens": 8, "max_sequences": 4}, SCHEDULER)
    scheduler = outcome(quire.Scheduler, manager, **options)
    if scheduler is None:
        return
    ids, batches = [0, 2**63, -1], [None]
    for _ in range(data.draw(st.integers(1, 12))):
        one = data.draw(st.sampled_from(ids))
        name = data.draw(st.sampled_from(
            ["submit", "submit", "schedule", "schedule", "commit", "abandon", "cancel", "extend",
             "finish", "fork", "new_tokens"]))  # fmt: skip
        if name == "submit":
            prompt = outcome(quire.Prompt, list(range(data.draw(st.integers(0, 7)))), 2)
            given_options = {
                "max_new_tokens": st.one_of(small, bounded), "priority": bounded,
                "deadline": st.one_of(st.none(), st.floats()), "num_cross_tokens": bounded,
            }  # fmt: skip
            new = outcome(scheduler.submit, prompt, **perturbed(data, {}, given_options))
        elif name == "schedule":
            new, batch = None, outcome(scheduler.schedule)
            batches.append(batch)
        elif name == "commit":
            new = None
            outcome(scheduler.commit, data.draw(st.sampled_from(batches)))
        elif name == "abandon":
            new = None
            stages = data.draw(st.one_of(st.none(), st.integers(-1, 3)))
            outcome(scheduler.abandon, data.draw(st.sampled_from(batches)), stages)
        elif name == "extend":
            new = None
            drafts = data.draw(st.one_of(st.just(()), numbers()))
            outcome(scheduler.extend, one, data.draw(st.one_of(small, numbers())), drafts)
        else:
            made = outcome(getattr(scheduler, name), one)
            new = made if name == "fork" else None
        if new is not None:
            ids.append(new)
        scheduler.validate()
        manager.validate()


@SHORT
@given(st.data())
def test_caches_of_any_size(data):
    """Sizes that cannot be had are refused; what is made can be looked at."""
    arguments = {
        "num_q_heads": bounded, "num_kv_heads": bounded, "head_dim": bounded, "value_dim": bounded,
        "q_dtype": word, "kv_dtype": word, "block_size": bounded, "window_left": bounded,
    }  # fmt: skip
    valid = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "q_dtype": "f32", "block_size": 4}
    spec = outcome(quire.AttentionSpec, **perturbed(data, valid, arguments))
    if spec is None:
        return
    wild = {
        "num_blocks": st.one_of(small, st.sampled_from([-1, 2**62, 2**63 - 1])),
        "num_layers": st.one_of(small, st.sampled_from([-1, 2**62])), "backend": word,
        "layout": word, "on_host": st.booleans(), "device": word,
    }  # fmt: skip
    cache = outcome(quire.KvCache, spec, **perturbed(data, {"num_blocks": 5}, wild))
    if cache is None:
        return
    assert cache.size_bytes >= 0
    for i in range(-1, min(cache.num_layers, 3) + 1):
        view = outcome(cache.layer, i)
        assert (view is not None) == (0 <= i < cache.num_layers)
        if view is not None:
            for name in "k", "v", "k_scales", "v_scales", "num_blocks":
                outcome(getattr, view, name)


@SHORT
@given(st.data())
def test_views_of_any_arrays(data):
    valid = {"k_cache": np.ones((5, 4, 2, 8), np.float32), "v_cache": np.ones((5, 4, 2, 8), np.float32)}
    names = ("k_scale", "v_scale", "kv_order", "kv_packing", "kv_dtype", "value_dim")
    wild = {name: OPTIONS[name] for name in names}
    wild |= {"k_cache": st.one_of(floats(4), word), "v_cache": st.one_of(st.none(), floats(4), floats(5))}
    view = outcome(quire.KvCacheView, **perturbed(data, valid, wild | {"head_dim": bounded}))
    if view is not None:
        q = np.ones((3, 4, 8), np.float32)
        outcome(quire.attend, q, view, None, [0, 2, 3], [5, 7], [[0, 1], [4, 3]])


def array(*shape):
    return np.ones(shape, np.float32)


meta = st.one_of(numbers(), tables())
flag = st.sampled_from([True, False, None, 0, 1, 2.5, "x"])
COMPAT = {
    compat.flash_attn_varlen_func: (
        {
            "q": array(3, 4, 8), "k": array(5, 4, 2, 8), "v": array(5, 4, 2, 8),
            "cu_seqlens_q": [0, 2, 3], "cu_seqlens_k": [0, 5, 12], "max_seqlen_q": 2,
            "max_seqlen_k": 7, "block_table": [[0, 1], [4, 3]],
        },
        {
            "q": floats(3), "k": floats(4), "v": floats(4), "cu_seqlens_q": meta,
            "cu_seqlens_k": meta, "max_seqlen_q": bounded, "max_seqlen_k": bounded,
            "block_table": st.one_of(st.none(), meta), "causal": flag, "softcap": flag,
            "dropout_p": flag, "alibi_slopes": st.one_of(st.none(), floats(1), floats(2)),
            "window_size": OPTIONS["window"], "return_attn_probs": flag,
        },
    ),
    compat.flash_attn_with_kvcache: (
        {
            "q": array(2, 1, 4, 8), "k_cache": array(5, 4, 2, 8), "v_cache": array(5, 4, 2, 8),
            "k": array(2, 1, 2, 8), "v": array(2, 1, 2, 8), "cache_seqlens": [4, 6],
            "block_table": [[0, 1], [4, 3]],
        },
        {
            "q": floats(4), "k_cache": floats(4), "v_cache": floats(4), "k": floats(4),
            "v": st.one_of(st.none(), floats(4)), "cache_seqlens": st.one_of(number, meta),
            "block_table": st.one_of(st.none(), meta), "cache_batch_idx": st.one_of(st.none(), meta),
            "causal": flag, "window_size": OPTIONS["window"], "return_softmax_lse": flag,
        },
    ),
    compat.merge_attn_states: (
        {
            "output": array(3, 4, 8), "prefix_output": array(3, 4, 8), "prefix_lse": array(4, 3),
            "suffix_output": array(3, 4, 8), "suffix_lse": array(4, 3), "output_lse": array(4, 3),
        },
        {
            "output": floats(3), "prefix_output": floats(3), "prefix_lse": floats(2),
            "suffix_output": floats(3), "suffix_lse": floats(2),
            "output_lse": st.one_of(st.none(), floats(2)),
            "prefill_tokens_with_context": st.one_of(bounded, flag), "output_scale": flag,
        },
    ),
    compat.reshape_and_cache_flash: (
        {
            "key": array(3, 2, 8), "value": array(3, 2, 8), "key_cache": array(5, 4, 2, 8),
            "value_cache": array(5, 4, 2, 8), "slot_mapping": [0, 17, -1],
        },
        {
            "key": floats(3), "value": floats(3), "key_cache": floats(4), "value_cache": floats(4),
            "slot_mapping": meta, "kv_cache_dtype": st.sampled_from(["auto", "fp8", "fp8_e5m2", "?"]),
            "k_scale": OPTIONS["k_scale"], "v_scale": OPTIONS["v_scale"],
        },
    ),
    compat.append_paged_kv_cache: (
        {
            "append_key": array(2, 2, 8), "append_value": array(2, 2, 8), "batch_indices": [0, 1],
            "positions": [4, 1], "paged_kv_cache": (array(5, 4, 2, 8), array(5, 4, 2, 8)),
            "kv_indices": [0, 1, 4], "kv_indptr": [0, 2, 3], "kv_last_page_len": [1, 2],
        },
        {
            "append_key": floats(3), "append_value": floats(3), "batch_indices": meta,
            "positions": meta, "paged_kv_cache": st.one_of(floats(5), st.tuples(floats(4), floats(4))),
            "kv_indices": meta, "kv_indptr": meta, "kv_last_page_len": meta,
            "kv_layout": st.sampled_from(["NHD", "HND", "?"]),
        },
    ),
}  # fmt: skip


@FUZZ
@given(st.data())
def test_functions_of_compat_take_anything(data):
    function = data.draw(st.sampled_from(list(COMPAT)))
    valid, wild = COMPAT[function]
    outcome(function, **perturbed(data, valid, wild))


@SHORT
@given(st.data())
def test_wrappers_of_compat_take_anything(data):
    wrapper = compat.BatchPrefillWithPagedKVCacheWrapper(None, data.draw(st.sampled_from(["NHD", "HND"])))
    valid = {
        "qo_indptr": [0, 2, 3], "paged_kv_indptr": [0, 2, 4], "paged_kv_indices": [0, 1, 4, 3],
        "paged_kv_last_page_len": [1, 3], "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 8,
        "page_size": 4,
    }  # fmt: skip
    wild = {name: meta if i < 4 else bounded for i, name in enumerate(valid)}
    wild |= {"custom_mask": st.one_of(st.none(), floats(1)), "causal": flag, "window_left": bounded}
    outcome(wrapper.plan, **perturbed(data, valid, wild))
    run = {"q": array(3, 4, 8), "paged_kv_cache": (array(5, 4, 2, 8), array(5, 4, 2, 8))}
    pages = st.one_of(floats(5), st.tuples(floats(4), floats(4)), st.just((1,)))
    scales = {name: st.one_of(st.none(), st.floats(), floats(1)) for name in ("q_scale", "k_scale", "v_scale")}
    outcome(wrapper.run, **perturbed(data, run, {"q": floats(3), "paged_kv_cache": pages, **scales}))
