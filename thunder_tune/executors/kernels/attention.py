"""Attention of one tile of queries over all keys, without a mask.

The softmax is the online one of Milakov and Gimelshein (arXiv:1805.02867), as FlashAttention uses
it. Strides are in elements; rows of queries, keys, values and results are contiguous. The keys
that fill no whole tile have a tile of their own: 197 are three of 64 and one of 16.
"""

from typing import Any

import triton
import triton.language as tl

TILES = (
    (64, 32, 4),
    (64, 64, 4),
    (64, 128, 4),
    (128, 32, 4),
    (128, 64, 4),
    (128, 64, 8),
    (128, 128, 8),
    (256, 64, 8),
)
"""Queries, keys and warps of a tile."""


def _last(arguments: dict[str, Any]) -> int:
    """Return the keys of the last tile, where some are left for one; a product takes 16."""
    return max(16, int(triton.next_power_of_2(arguments["N_KEYS"] % arguments["COLUMNS"])))


@triton.jit
def _absorb(
    query,
    key_at,
    value_at,
    columns,
    most,
    total,
    result,
    scale,
    N_KEYS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Take one tile of keys and values into the softmax and the result so far."""
    if IS_WHOLE:
        scores = tl.dot(query, tl.load(key_at)) * scale
        value = tl.load(value_at)
    else:
        is_key = columns < N_KEYS
        key = tl.load(key_at, mask=is_key[None, :], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(query, key) * scale, float("-inf"))
        value = tl.load(value_at, mask=is_key[:, None], other=0.0)
    larger = tl.maximum(most, tl.max(scores, 1))
    weights = tl.exp2(scores - larger[:, None])
    shrink = tl.exp2(most - larger)
    total = total * shrink + tl.sum(weights, 1)
    result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None])
    return larger, total, result


@triton.heuristics({"LAST": _last})
@triton.jit
def attention(
    queries,
    keys,
    values,
    results,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    o_batch,
    o_head,
    o_row,
    heads,
    scale,  # times log2(e)
    N_QUERIES: tl.constexpr,
    N_KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LAST: tl.constexpr,
):
    """Write softmax(queries @ keys.T * scale) @ values for ROWS queries of one head."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    width = tl.arange(0, WIDTH)
    is_query = rows[:, None] < N_QUERIES
    query_at = queries + batch * q_batch + head * q_head + rows[:, None] * q_row + width[None, :]
    query = tl.load(query_at, mask=is_query, other=0.0)
    key_of = keys + batch * k_batch + head * k_head
    value_of = values + batch * v_batch + head * v_head
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    WHOLE: tl.constexpr = N_KEYS // COLUMNS * COLUMNS
    for start in range(0, WHOLE, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        key_at = key_of + columns[None, :] * k_row + width[:, None]
        value_at = value_of + columns[:, None] * v_row + width[None, :]
        most, total, result = _absorb(
            query, key_at, value_at, columns, most, total, result, scale, N_KEYS, True
        )
    if WHOLE < N_KEYS:
        last = WHOLE + tl.arange(0, LAST)
        last_key_at = key_of + last[None, :] * k_row + width[:, None]
        last_value_at = value_of + last[:, None] * v_row + width[None, :]
        most, total, result = _absorb(
            query, last_key_at, last_value_at, last, most, total, result, scale, N_KEYS, False
        )
    result_at = results + batch * o_batch + head * o_head + rows[:, None] * o_row + width[None, :]
    tl.store(result_at, (result / total[:, None]).to(results.dtype.element_ty), mask=is_query)


def tuned_attention() -> Any:
    """Return the kernel that chooses its tile by timing them at the first call of a shape."""
    configs = [
        triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps in TILES
        for stages in (2, 3)
    ]
    return triton.autotune(configs=configs, key=["N_QUERIES", "N_KEYS", "WIDTH"])(attention)
