# SPDX-License-Identifier: Apache-2.0
# Written by tools/make_stubs.py.
"""The compiled part of quire."""

from typing import Any

from collections.abc import Sequence

from quire import Error as Error


class AttentionSpec:
    """
    What attention means for one group of layers.

    Layers with equal specs share one PreparedBatch. Dtypes are named 'f32', 'f16', 'bf16', 'f8e4m3', 'f8e5m2', 'i8'.
    """

    def __init__(self, num_q_heads: int, num_kv_heads: int, head_dim: int, *, value_dim: int | None = None, q_dtype: str = 'bf16', out_dtype: str | None = None, kv_dtype: str | None = None, block_size: int = 16, scales: str = 'none', v_in_k: bool = False, layout: str = 'plain', alignment: str = 'aligned', causal: bool = True, window_left: int = -1, window_right: int = -1, chunk: int = 0, softcap: bool = False, alibi: bool = False, sinks: bool = False, bias: bool = False, tree_mask: bool = False, lse: bool = False) -> None: ...

    @property
    def num_q_heads(self) -> int:
        """heads of Q and the output"""

    @num_q_heads.setter
    def num_q_heads(self, arg: int, /) -> None: ...

    @property
    def num_kv_heads(self) -> int:
        """divides num_q_heads"""

    @num_kv_heads.setter
    def num_kv_heads(self, arg: int, /) -> None: ...

    @property
    def head_dim(self) -> int:
        """of Q and K"""

    @head_dim.setter
    def head_dim(self, arg: int, /) -> None: ...

    @property
    def value_dim(self) -> int:
        """of V and the output"""

    @value_dim.setter
    def value_dim(self, arg: int, /) -> None: ...

    @property
    def block_size(self) -> int:
        """tokens per block"""

    @block_size.setter
    def block_size(self, arg: int, /) -> None: ...

    @property
    def v_in_k(self) -> bool:
        """V is the first value_dim elements of K"""

    @v_in_k.setter
    def v_in_k(self, arg: bool, /) -> None: ...

    @property
    def causal(self) -> bool:
        """key_pos <= query_pos"""

    @causal.setter
    def causal(self, arg: bool, /) -> None: ...

    @property
    def window_left(self) -> int:
        """key_pos >= query_pos - window_left; -1: unlimited"""

    @window_left.setter
    def window_left(self, arg: int, /) -> None: ...

    @property
    def window_right(self) -> int:
        """key_pos <= query_pos + window_right; -1: unlimited"""

    @window_right.setter
    def window_right(self, arg: int, /) -> None: ...

    @property
    def chunk(self) -> int:
        """key_pos // chunk == query_pos // chunk; 0: off"""

    @chunk.setter
    def chunk(self, arg: int, /) -> None: ...

    @property
    def softcap(self) -> bool:
        """calls may use softcap"""

    @softcap.setter
    def softcap(self, arg: bool, /) -> None: ...

    @property
    def alibi(self) -> bool:
        """calls may use alibi_slopes"""

    @alibi.setter
    def alibi(self, arg: bool, /) -> None: ...

    @property
    def sinks(self) -> bool:
        """calls may use sinks"""

    @sinks.setter
    def sinks(self, arg: bool, /) -> None: ...

    @property
    def bias(self) -> bool:
        """calls may use bias"""

    @bias.setter
    def bias(self, arg: bool, /) -> None: ...

    @property
    def tree_mask(self) -> bool:
        """batches may have tree masks"""

    @tree_mask.setter
    def tree_mask(self, arg: bool, /) -> None: ...

    @property
    def lse(self) -> bool:
        """calls may return lse"""

    @lse.setter
    def lse(self, arg: bool, /) -> None: ...

    @property
    def q_dtype(self) -> str:
        """'f32', 'f16' or 'bf16'"""

    @q_dtype.setter
    def q_dtype(self, arg: str, /) -> None: ...

    @property
    def out_dtype(self) -> str:
        """q_dtype, or 'f32' for partial results"""

    @out_dtype.setter
    def out_dtype(self, arg: str, /) -> None: ...

    @property
    def kv_dtype(self) -> str:
        """of the cache: those of Q, or 'f8e4m3', 'f8e5m2', 'i8'"""

    @kv_dtype.setter
    def kv_dtype(self, arg: str, /) -> None: ...

    @property
    def scales(self) -> str:
        """'none', 'per_tensor', 'per_head' or 'per_token_head'"""

    @scales.setter
    def scales(self, arg: str, /) -> None: ...

    @property
    def layout(self) -> str:
        """'plain', 'pair_tiled', or 'private_N' of a backend"""

    @layout.setter
    def layout(self, arg: str, /) -> None: ...

    @property
    def alignment(self) -> str:
        """'aligned' (self-attention) or 'unaligned' (cross-attention)"""

    @alignment.setter
    def alignment(self, arg: str, /) -> None: ...

    def validate(self) -> None:
        """Raises Error naming the field that contradicts another."""

    def copy(self) -> AttentionSpec: ...

    def __copy__(self) -> AttentionSpec: ...

    def __deepcopy__(self, arg: object, /) -> AttentionSpec: ...

    def __getstate__(self) -> dict[str, Any]: ...

    def __setstate__(self, arg: dict, /) -> None: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

class BatchBounds:
    """What a prepared batch may hold at most."""

    def __init__(self, max_sequences: int, max_tokens: int, max_kv_len: int, max_total_kv_len: int, max_q_len: int = 0) -> None: ...

    @property
    def max_sequences(self) -> int:
        """sequences"""

    @max_sequences.setter
    def max_sequences(self, arg: int, /) -> None: ...

    @property
    def max_tokens(self) -> int:
        """rows of Q, and of new K and V"""

    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...

    @property
    def max_kv_len(self) -> int:
        """keys of one sequence"""

    @max_kv_len.setter
    def max_kv_len(self, arg: int, /) -> None: ...

    @property
    def max_total_kv_len(self) -> int:
        """keys of all sequences"""

    @max_total_kv_len.setter
    def max_total_kv_len(self, arg: int, /) -> None: ...

    @property
    def max_q_len(self) -> int:
        """queries of one; 0: max_tokens"""

    @max_q_len.setter
    def max_q_len(self, arg: int, /) -> None: ...

    def copy(self) -> BatchBounds: ...

    def __copy__(self) -> BatchBounds: ...

    def __deepcopy__(self, arg: object, /) -> BatchBounds: ...

    def __getstate__(self) -> dict[str, Any]: ...

    def __setstate__(self, arg: dict, /) -> None: ...

class Backend:
    """
    A backend with threads of its own. Calls that name a backend by a string share one.

    isa: a level of a CPU backend, as info() lists them; empty: the best.
    cpus: pins the threads that it starts, thread i to cpus[i % len(cpus)].
    """

    def __init__(self, name: str, *, num_threads: int = 0, isa: str = '', cpus: Sequence[int] = []) -> None: ...

    @property
    def name(self) -> str: ...

    def info(self) -> dict[str, Any]:
        """Name, version, isa, device and whether bits depend on the batch."""

    def supports(self, spec: AttentionSpec) -> dict[str, Any]:
        """{'ok', 'reasons', 'fused_append', 'own_rounding', 'clears_tails'}"""

    def preferred_layout(self, spec: AttentionSpec) -> str:
        """The layout in which it is fastest."""

    def workspace(self, spec: AttentionSpec, bounds: BatchBounds) -> dict[str, Any]:
        """{'host_bytes', 'device_bytes'} of a PreparedBatch with these bounds."""

    def __repr__(self) -> str: ...

def info() -> dict[str, Any]: ...

def set_num_threads(arg: int, /) -> None: ...

def get_num_threads() -> int: ...

def release_memory() -> None: ...

class KvCacheView:
    """
    The cache of one layer: a layer of a KvCache, or arrays of the program.

    attend, append and PreparedBatch take it in place of k_cache and v_cache.
    """

    def __init__(self, k_cache: object, v_cache: object | None = None, *, k_scale: object | None = None, v_scale: object | None = None, kv_order: str = 'block_token_head_dim', kv_packing: str | None = None, kv_dtype: str | None = None, head_dim: int = 0, value_dim: int = 0) -> None: ...

    @property
    def k(self) -> Any:
        """
        K [num_blocks, num_kv_heads, block_size, head_dim] without a copy, for from_dlpack of any library. Plain layouts only.
        """

    @property
    def v(self) -> Any:
        """V [num_blocks, num_kv_heads, block_size, value_dim]."""

    @property
    def k_scales(self) -> Any:
        """None, [1], [num_kv_heads] or [num_blocks, num_kv_heads, block_size]."""

    @property
    def v_scales(self) -> Any:
        """As k_scales."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def scales(self) -> str: ...

    @property
    def layout(self) -> str: ...

def as_bits(arg: object, /) -> Any: ...

class KvCache:
    """
    Owns K and V of all layers of one spec, in blocks.

    layout: 'preferred' by the backend, or 'plain', which other libraries can read.
    on_host: in (pinned) host memory, the other end of a swap.
    Memory is uninitialised; scales per tensor and per head start at 1.
    """

    def __init__(self, spec: AttentionSpec, num_blocks: int, *, num_layers: int = 1, backend: object = 'auto', layout: str = 'preferred', on_host: bool = False, huge_pages: bool = False, device: str = 'cpu') -> None: ...

    def layer(self, index: int) -> KvCacheView:
        """The KvCacheView of one layer."""

    @property
    def num_layers(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Of all layers, scales included."""

    @property
    def spec(self) -> AttentionSpec:
        """With the layout of the cache: what a PreparedBatch for it needs."""

    def copy_blocks(self, copies: object, src: KvCache | None = None, stream: object | None = None) -> None:
        """
        Copies blocks of all layers: (source block of src, block of this cache) pairs. src: another cache of equal layout; None: this one.
        """

    def export_blocks(self, copies: object, src: KvCache, stream: object | None = None) -> None:
        """From a cache in any layout to this plain one."""

    def import_blocks(self, copies: object, src: KvCache, stream: object | None = None) -> None:
        """From a plain cache to this one."""

    def copy_region(self, src_block: int, dst_block: int, first_token: int, num_tokens: int, src: KvCache | None = None, stream: object | None = None) -> None:
        """Some tokens of one block."""

    def __repr__(self) -> str: ...

def attend(q: object | None, k_cache: object | None, v_cache: object | None, query_begins: object | None, kv_lens: object | None, block_table: object | None, kv_begins: object | None, k: object | None, v: object | None, slots: object | None, scale: float | None, softcap: float | None, alibi_slopes: object | None, sinks: object | None, bias: object | None, tree_mask: object | None, causal: bool | None, window_left: int | None, window_right: int | None, chunk: int | None, alignment: str | None, k_scale: object | None, v_scale: object | None, kv_order: str | None, kv_packing: str | None, kv_dtype: str | None, value_dim: int | None, out: object | None, lse: object | None, out_dtype: str | None, return_lse: bool | None, backend: object | None, stream: object | None) -> Any: ...

def append(k: object | None, v: object | None, k_cache: object | None, v_cache: object | None, slots: object | None, k_scale: object | None, v_scale: object | None, kv_order: str | None, kv_packing: str | None, kv_dtype: str | None, backend: object | None, stream: object | None) -> None: ...

def merge(outs: object | None, lses: object | None, sinks: object | None, out: object | None, lse: object | None, out_dtype: str | None, return_lse: bool | None, backend: object | None, stream: object | None) -> Any: ...

class BatchView:
    """
    One ragged batch: which rows of Q belong to which sequence, and where its keys lie.

    query_begins: [num_sequences + 1] offsets into the rows of Q, or a pair (begins, ends).
    kv_lens:      [num_sequences] keys of each, new tokens included.
    block_table:  [num_sequences, max_blocks], or a pair (begins, indices); None: K and V have
                  no blocks, and sequence s begins at row kv_begins[s] of them.
    slots:        [num_new_kv_tokens] block * block_size + offset of new K and V; -1: not stored.
    tree_mask:    (bits, begins[, depths]), see pack_tree_mask.
    Arrays on the host are copied.
    """

    def __init__(self, query_begins: object, kv_lens: object, block_table: object | None = None, *, slots: object | None = None, kv_begins: object | None = None, tree_mask: object | None = None, block_size: int = 1) -> None: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def query_begins(self) -> Any: ...

    @property
    def query_ends(self) -> Any: ...

    @property
    def kv_lens(self) -> Any: ...

    @property
    def slots(self) -> Any: ...

    @property
    def table_begins(self) -> Any: ...

    @property
    def table_indices(self) -> Any: ...

class PreparedBatch:
    """
    A batch, validated and planned once per step, for all layers of one spec.

    bounds: None: memory grows with the batches; given: made once, larger batches are refused.
    Batches on a device need them: of those q, out and lse have max_tokens rows.
    One thread at a time.
    """

    def __init__(self, spec: AttentionSpec, bounds: BatchBounds | None = None, *, backend: object = 'auto', device: str = 'cpu') -> None: ...

    def prepare(self, batch: BatchView, *, stream: object | None = None) -> None:
        """Validates and plans a BatchView; the calls below then work on it."""

    def append(self, k: object, v: object | None, cache: KvCacheView, *, stream: object | None = None) -> None:
        """
        Stores K [num_new_kv_tokens, num_kv_heads, head_dim] and V at the slots of the batch.
        """

    def attend(self, q: object, cache: KvCacheView, *, k: object | None = None, v: object | None = None, scale: float | None = None, softcap: float = 0.0, alibi_slopes: object | None = None, sinks: object | None = None, bias: object | None = None, out: object | None = None, lse: object | None = None, return_lse: bool = False, stream: object | None = None) -> Any:
        """
        Attention of one layer, as quire.attend. With k and v it stores them first.
        """

    def poll(self) -> None:
        """Raises the first error of work on a device, if any."""

    @property
    def spec(self) -> AttentionSpec: ...

    @property
    def bounds(self) -> BatchBounds | None:
        """None before the first prepare."""

    @property
    def workspace_bytes(self) -> int: ...

def from_token_slots(query_begins: object, kv_begins: object, read_slots: object | None, write_slots: object | None = None, block_size: int = 1) -> BatchView:
    """
    The BatchView of keys named by their slots.

    query_begins, kv_begins: [num_sequences + 1] offsets (cu_seq_lens_q, cu_seq_lens_k).
    read_slots: [kv_begins[-1]] the slot of every key (read_index); None: all keys are
        new ones, in write_slots.
    write_slots: [num_new_kv_tokens] where new K and V go (write_index), -1: nowhere.
    block_size: above 1 only if the slots prove it, see aligned_block_size.
    """

def aligned_block_size(query_begins: object, kv_begins: object, read_slots: object | None, write_slots: object | None = None, max_block_size: int = 256) -> int:
    """The largest power of two up to max_block_size that the slots prove."""

class Prompt:
    """
    Tokens and the SHA-256 keys of their blocks, which the prefix cache looks up.

    Only prompts of equal salt and adapter share blocks. extra_keys: (first_token, num_tokens,
    digest) of what stands at placeholder tokens. hashed=False: it neither finds cached blocks
    nor leaves any.
    """

    def __init__(self, tokens: object, block_size: int = 16, *, salt: object = '', adapter: object = '', extra_keys: Sequence[tuple[int, int, object]] = [], hashed: bool = True) -> None: ...

    def extended(self, more: object) -> Prompt:
        """This prompt and more tokens; hashes only the new blocks."""

    @property
    def tokens(self) -> Any: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def is_hashed(self) -> bool: ...

    @property
    def num_full_blocks(self) -> int: ...

    def root(self) -> bytes: ...

    def key(self, block: int) -> bytes:
        """The SHA-256 that names a full block and all before it."""

class BlockManager:
    """
    Which sequence holds which blocks: sharing, prefix cache, copy-on-write, swap.

    num_blocks: of the KvCache; block 0 belongs to nobody. pools and groups: lists of
    dicts with the fields of C++ (groups also AttentionSpecs), for models whose layers
    differ; by default there is one of each.
    Expected outcomes are values, misuse raises Error. One thread at a time.
    """

    def __init__(self, num_blocks: int = 0, block_size: int = 16, *, num_host_blocks: int = 0, watermark_blocks: int = 0, pools: Sequence[object] | None = None, groups: Sequence[object] | None = None, prefix_cache: bool = True, share_tails: bool = False, compare_tokens: bool = False, digest_bits: int = 256, events: bool = False) -> None: ...

    def num_cached_tokens(self, prompt: Prompt) -> int:
        """Tokens that admit would find in the prefix cache."""

    def can_admit(self, prompt: Prompt, *, num_lookahead: int = 0, max_chunk: int = 0, num_cross_tokens: int = 0) -> str:
        """'now', 'later' or 'never'."""

    def admit(self, prompt: Prompt, *, num_lookahead: int = 0, max_chunk: int = 0, num_cross_tokens: int = 0) -> tuple[int, int] | None:
        """(sequence, num_cached_tokens), or None unless can_admit is 'now'."""

    def num_blocks_to_admit(self, prompt: Prompt, pool: int = 0, *, num_lookahead: int = 0, max_chunk: int = 0, num_cross_tokens: int = 0) -> int: ...

    def can_append(self, id: int, num_tokens: int) -> bool: ...

    def append(self, id: int, num_tokens: int) -> bool:
        """Slots for more tokens; False if blocks are missing."""

    def num_blocks_to_append(self, id: int, num_tokens: int, pool: int = 0) -> int: ...

    def commit(self, id: int, tokens: object) -> None:
        """The first appended slots now hold K and V of these tokens."""

    def commit_prompt(self, id: int, num_tokens: int) -> None:
        """The same with the next tokens of the prompt."""

    def rollback(self, id: int, num_tokens: int) -> None:
        """Gives up the last appended, not committed tokens."""

    def fork(self, id: int) -> int:
        """A second sequence with the same tokens; blocks are shared."""

    def free(self, id: int) -> None: ...

    def truncate(self, id: int, num_tokens: int) -> int:
        """Cuts to at most so many tokens; returns what is left."""

    def can_swap_out(self, id: int) -> bool: ...

    def swap_out(self, id: int) -> bool: ...

    def can_swap_in(self, id: int, num_tokens: int = 0) -> str: ...

    def swap_in(self, id: int) -> bool: ...

    def num_blocks_to_swap_in(self, id: int, num_tokens: int = 0, pool: int = 0) -> int: ...

    def num_tokens(self, id: int) -> int:
        """Committed ones."""

    def num_appended(self, id: int) -> int:
        """And not committed."""

    def is_swapped(self, id: int) -> bool: ...

    def block_table(self, id: int, group: int = 0) -> Any:
        """Blocks of a sequence; those of the host if swapped."""

    def take_copies(self) -> tuple[Any, ...]:
        """
        (ticket, copies of every group): run them before the step, then complete_copies.
        """

    def complete_copies(self, ticket: int) -> None: ...

    def write_step(self, group: int, ids: Sequence[int]) -> BatchView:
        """The BatchView of the appended tokens of these sequences."""

    def num_available_blocks(self, pool: int = 0) -> int:
        """Free or evictable."""

    def reset_prefix_cache(self) -> None: ...

    def resize(self, pool: int, num_blocks: int) -> bool: ...

    def reserve(self, num_sequences: int, num_tokens_each: int) -> None: ...

    def stats(self) -> dict[str, Any]:
        """How full the cache is and what it has done."""

    def take_events(self) -> list[Any]:
        """What became findable or was removed since the last call."""

    def validate(self) -> None:
        """Raises Error if its state contradicts itself."""

    def dump(self) -> str: ...

    @property
    def block_size(self) -> int: ...

class ScheduledBatch:
    """The work of one step. Valid until the next schedule()."""

    @property
    def empty(self) -> bool: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_cross_rows(self) -> int: ...

    @property
    def tokens(self) -> Any:
        """[num_tokens] int32"""

    @property
    def positions(self) -> Any:
        """[num_tokens] int32"""

    @property
    def sequences(self) -> list[Any]:
        """
        One dict per request: request, sequence, first_position, first_row, num_tokens, num_drafts, num_cross_rows, is_last_chunk.
        """

    @property
    def copies(self) -> list[Any]:
        """
        Stages, each a list with one dict per group (on_device, to_host, to_device, on_host); to be run in order before anything is stored.
        """

    def view(self, group: int = 0) -> BatchView:
        """The BatchView of the layers of a group."""

class Scheduler:
    """
    Continuous batching over a BlockManager: who runs in the next step.

        id = scheduler.submit(prompt, max_new_tokens=100)
        batch = scheduler.schedule()
        ... run batch.copies, compute ...
        for ready in scheduler.commit(batch)['ready']:
            scheduler.extend(ready['id'], choose_token(ready['row']))

    The manager must serve nobody else. preemption: a dict with fields of C++.
    """

    def __init__(self, manager: BlockManager, *, max_tokens: int = 2048, max_sequences: int = 256, max_chunk: int = 0, max_cross_tokens: int = 0, max_length: int = 0, max_total_length: int = 0, aging_steps: int = 256, prefix_window: int = 1, wait_for_shared: bool = False, preemption: object | None = None) -> None: ...

    def submit(self, prompt: Prompt, *, max_new_tokens: int = 1, priority: int = 0, deadline: float | None = None, num_cross_tokens: int = 0) -> int:
        """
        Takes part from the next schedule() on. deadline: seconds of time.monotonic().
        """

    def cancel(self, id: int) -> None: ...

    @property
    def num_unfinished(self) -> int: ...

    def schedule(self) -> ScheduledBatch:
        """The ScheduledBatch of the next step."""

    def commit(self, batch: ScheduledBatch) -> dict[str, Any]:
        """
        {'num_tokens', 'num_sequences', 'ready': [{id, row, num_drafts}], 'finished': [{id, reason, num_new_tokens, detail}]}
        """

    def abandon(self, batch: ScheduledBatch, num_stages: int | None = None) -> None:
        """
        Only the copies (of the first num_stages) have run: the step is to come again.
        """

    @property
    def has_batch(self) -> bool: ...

    def extend(self, id: int, tokens: object, drafts: object = ()) -> None:
        """Adds a token or several, and guesses of those that follow."""

    def finish(self, id: int) -> None:
        """It has all its tokens."""

    def fork(self, id: int) -> int:
        """A second request with the same tokens so far."""

    def new_tokens(self, id: int) -> Any: ...

    def stats(self) -> dict[str, Any]: ...

    def validate(self) -> None: ...

def check(arg0: object, arg1: str, arg2: str, /) -> dict[str, Any]: ...

__version__: str

def _after_fork() -> None: ...
