#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_metadata: valid batches of every kind, and a few that are refused.

    tests/fuzz/make_corpus.py [folder]      (default: corpus/fuzz_metadata beside this file)

The format is the one that metadata_input.h reads, field by field in the same order.
"""
import pathlib
import struct
import sys

F32, F16, BF16, F8E4M3, F8E5M2, I8 = range(6)
NO_SCALES, PER_TENSOR, PER_HEAD, PER_TOKEN_HEAD = range(4)
ALIGNED, UNALIGNED = range(2)
PADDED, INDEXED, RAGGED = range(3)
SOFTCAP, ALIBI, SINKS, BIAS, TREE, LSE = (1 << i for i in range(6))


def pack(code, values):
    return struct.pack(f"<{len(values)}{code}", *values)


def exact(code, values):
    """An array whose size follows from the format: a byte for no deviation, then the values."""
    return b"\0" + pack(code, values)


def counted(code, values):
    return bytes([len(values)]) + pack(code, values)


def spec(kv_heads=2, group=4, head_dim=128, value_dim=128, dtype=BF16, kv_dtype=BF16,
         scales=NO_SCALES, block_size=16, v_in_k=0, layout=0, alignment=ALIGNED, causal=1,
         window=(-1, -1), chunk=0, features=0):
    return (bytes([kv_heads, group, 0, head_dim, value_dim, dtype, dtype, kv_dtype, scales,
                   block_size, v_in_k]) + pack("H", [layout]) + bytes([alignment, causal]) +
            pack("h", [*window, chunk]) + bytes([features]))


def bounds(sequences=32, tokens=1024, kv_len=8192, total=65536):
    return pack("b", [sequences]) + pack("h", [tokens, kv_len]) + pack("i", [total])


def tables(kind, begins, rows, indices):
    """rows: of a padded table the entries per row, of a ragged one the first rows."""
    stride = rows if kind == PADDED else 0
    data = bytes([kind]) + pack("b", [stride])
    if kind != PADDED:
        data += bytes([len(indices)])
    data += exact("h", indices)
    data += exact("h", begins if kind == INDEXED else [])
    return data + exact("i", rows if kind == RAGGED else [])


def batch(ranges, lens, blocks, slots=(), tree=b"\0"):
    begins = [begin for begin, _ in ranges]
    ends = [end for _, end in ranges]
    return (bytes([len(ranges)]) + pack("h", begins) + exact("h", ends) + exact("h", lens) +
            blocks + counted("i", slots) + tree)


def tree_mask(begins, bits, depths=None):
    data = bytes([1 if depths is None else 2]) + exact("h", begins) + counted("B", bits)
    return data if depths is None else data + counted("b", depths)


SEEDS = {
    "decode_padded": spec(features=SOFTCAP | SINKS) + bounds() + batch(
        [(0, 1), (1, 2), (2, 3)], [33, 16, 1], tables(PADDED, [], 3, [5, 2, 9, 4, -1, -1, 7, -1, -1]),
        [9 * 16, 4 * 16 + 15, 7 * 16]),
    "prefill_indexed": spec() + bounds() + batch(
        [(0, 20), (20, 25)], [20, 5], tables(INDEXED, [0, 2, 3], None, [3, 1, 0]),
        [*range(48, 64), *range(16, 20), *range(5)]),
    "mixed_with_gap": spec(features=ALIBI | BIAS | LSE) + bounds() + batch(
        [(0, 3), (3, 4), (4, 4), (6, 8)], [3, 40, 17, 2],
        tables(PADDED, [], 3, [1, -9, -9, 2, 3, 4, -9, -9, -9, 5, -9, -9]),
        [16, 17, 18, 4 * 16 + 7, -1, -1, 80, 81]),
    "ragged_cross": spec(block_size=1, alignment=UNALIGNED, causal=0) + bounds() + batch(
        [(0, 2), (2, 5)], [7, 300], tables(RAGGED, [], [0, 7], [])),
    "window_with_released_blocks": spec(window=(31, -1)) + bounds() + batch(
        [(0, 1)], [100], tables(PADDED, [], 7, [-1, -1, -1, -1, 8, 6, 2]), [35]),
    "window_both_sides": spec(causal=0, window=(5, 9)) + bounds() + batch(
        [(0, 8)], [64], tables(PADDED, [], 4, [-1, -1, -1, 6])),
    "chunked": spec(chunk=48) + bounds() + batch(
        [(0, 4)], [146], tables(PADDED, [], 10, [-1] * 6 + [9, 8, 7, 3]), [50, 51, 52, 53]),
    "tree_with_depths": spec(features=TREE, window=(40, -1)) + bounds() + batch(
        [(0, 1), (1, 5)], [20, 36], tables(PADDED, [], 3, [1, 2, -1, 3, 4, 5]), [35, 80, 81, 82, 83],
        tree_mask([-1, 0], [0b0001, 0b0011, 0b0101, 0b1011], [0, 0, 1, 1, 2])),
    "tree_without_depths": spec(features=TREE) + bounds() + batch(
        [(0, 9)], [16], tables(PADDED, [], 1, [2]), [],
        tree_mask([1], [255] + [1, 0, 3, 0, 7, 0, 15, 0, 31, 0, 63, 0, 127, 0, 255, 0, 255, 1])),
    "more_queries_than_keys": spec() + bounds() + batch(
        [(0, 6)], [2], tables(PADDED, [], 1, [4])),
    "eight_bit_per_token": spec(dtype=F16, kv_dtype=F8E4M3, scales=PER_TOKEN_HEAD) + bounds() +
        batch([(0, 1)], [48], tables(PADDED, [], 3, [0, 1, 2]), [47]),
    "latent": spec(kv_heads=1, head_dim=192, value_dim=128, block_size=64, v_in_k=1) + bounds() +
        batch([(0, 1), (1, 3)], [200, 90], tables(INDEXED, [0, 4, 6], None, [9, 8, 7, 6, 5, 4])),
    "split_into_many": spec(kv_heads=1, group=1) + bounds() + batch(
        [(0, 1), (1, 2)], [2000, 1999], tables(PADDED, [], 125, [*range(250)])),
    "token_slots": spec(block_size=1) + bounds() + batch(
        [(0, 2), (2, 3)], [4, 3], tables(INDEXED, [0, 4, 7], None, [9, 3, 7, 8, 20, 22, 21]),
        [7, 8, 21]),
    "nothing": spec() + bounds() + batch([], [], tables(PADDED, [], 0, [])),
    "refused_slot_twice": spec() + bounds() + batch(
        [(0, 2)], [2], tables(PADDED, [], 1, [0]), [1, 1]),
    "refused_rows_overlap": spec() + bounds() + batch(
        [(0, 2), (1, 3)], [2, 2], tables(PADDED, [], 1, [0, 1])),
    "refused_table_too_short": spec() + bounds() + batch(
        [(0, 1)], [33], tables(PADDED, [], 2, [0, 1])),
}


def main():
    default = pathlib.Path(__file__).parent / "corpus" / "fuzz_metadata"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS.items():
        (folder / name).write_bytes(data)
    print(f"seeds written: {len(SEEDS)}")


if __name__ == "__main__":
    main()
