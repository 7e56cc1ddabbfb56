"""Attention of few queries over many keys: parts of the keys side by side, then joined.

One tile holds the queries of all heads that share keys and values, so that these are read once.
With one query for each head a kernel that walks over all keys would keep few of the device's
processors busy; here each walks over a part, after "Flash-Decoding" (Dao, Haziza, Massa and
Sizov, 2023). Strides are in elements; rows of queries, keys and values are contiguous.
"""

from typing import Any

import triton
import triton.language as tl

TILES = ((32, 2), (64, 4), (128, 4), (128, 8))
"""Keys and warps of a tile."""


@triton.jit
def attend_part(
    queries,
    keys,
    values,
    bias,
    sums,
    highest,
    totals,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    b_batch,
    b_head,
    b_row,
    b_column,
    groups,
    scale,  # times log2(e)
    PART: tl.constexpr,  # keys of a part, whole tiles
    N_QUERIES: tl.constexpr,
    N_KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARING: tl.constexpr,  # heads that share keys
    ROWS: tl.constexpr,  # SHARING * N_QUERIES, rounded up
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write one part's weighted sum of values, its highest score and its sum of weights."""
    batch = (tl.program_id(1) // groups).to(tl.int64)
    group = (tl.program_id(1) % groups).to(tl.int64)
    rows = tl.arange(0, ROWS)
    width = tl.arange(0, WIDTH)
    is_row = rows < SHARING * N_QUERIES
    head, row = group * SHARING + rows // N_QUERIES, rows % N_QUERIES
    query_at = queries + batch * q_batch + head * q_head + row * q_row
    query = tl.load(query_at[:, None] + width[None, :], mask=is_row[:, None], other=0.0)
    key_of = keys + batch * k_batch + group * k_head
    value_of = values + batch * v_batch + group * v_head
    bias_of = bias + batch * b_batch + head * b_head + row * b_row
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, PART, COLUMNS):
        columns = tl.program_id(0) * PART + start + tl.arange(0, COLUMNS)
        is_key = columns < N_KEYS
        key_at = key_of + columns[None, :] * k_row + width[:, None]
        scores = tl.dot(query, tl.load(key_at, mask=is_key[None, :], other=0.0)) * scale
        if HAS_BIAS:
            bias_at = bias_of[:, None] + columns[None, :] * b_column
            added = tl.load(bias_at, mask=is_row[:, None] & is_key[None, :], other=0.0)
            scores += added.to(tl.float32) * 1.4426950408889634
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(larger == float("-inf"), 0.0, larger)  # no key seen so far
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        value_at = value_of + columns[:, None] * v_row + width[None, :]
        value = tl.load(value_at, mask=is_key[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None])
        most = larger
    place = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * ROWS + rows
    tl.store(sums + place[:, None] * WIDTH + width[None, :], result)
    tl.store(highest + place, most)
    tl.store(totals + place, total)


@triton.jit
def join_parts(
    sums,
    highest,
    totals,
    results,
    parts,
    N_QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARING: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,  # rounded up
):
    """Write one query's result: (batch, queries, heads, width), contiguous."""
    heads = tl.num_programs(0)
    head, row, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group = batch * (heads // SHARING) + head // SHARING
    part = tl.arange(0, PARTS)
    width = tl.arange(0, WIDTH)
    place = (group.to(tl.int64) * parts + part) * ROWS + (head % SHARING) * N_QUERIES + row
    is_part = part < parts
    most = tl.load(highest + place, mask=is_part, other=float("-inf"))
    largest = tl.max(most, 0)
    weights = tl.exp2(most - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights * tl.load(totals + place, mask=is_part, other=0.0), 0)
    sum_at = sums + place[:, None] * WIDTH + width[None, :]
    result = tl.sum(weights[:, None] * tl.load(sum_at, mask=is_part[:, None], other=0.0), 0)
    result = tl.where(total > 0.0, result / total, 0.0)  # a query that sees no key gets zeros
    result_at = results + ((batch.to(tl.int64) * N_QUERIES + row) * heads + head) * WIDTH + width
    tl.store(result_at, result.to(results.dtype.element_ty))


def tuned_attend_part() -> Any:
    """Return the kernel that chooses its tile by timing them at the first call of a shape."""
    configs = [triton.Config({"COLUMNS": keys}, num_warps=warps) for keys, warps in TILES]
    return triton.autotune(configs, key=["N_QUERIES", "N_KEYS", "WIDTH", "SHARING"])(attend_part)
