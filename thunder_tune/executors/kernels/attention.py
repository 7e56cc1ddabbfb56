"""Attention of one tile of queries over all keys, without a mask.

The softmax is the online one of Milakov and Gimelshein (arXiv:1805.02867), as FlashAttention uses
it. Strides are in elements; rows of queries, keys, values and results are contiguous.
"""

from typing import Any

import triton
import triton.language as tl

TILES = ((64, 32, 4), (64, 64, 4), (64, 128, 4), (64, 256, 8), (128, 32, 4), (128, 64, 8))
"""Queries, keys and warps of a tile."""


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
    for start in range(0, N_KEYS, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        is_key = columns < N_KEYS
        key_at = key_of + columns[None, :] * k_row + width[:, None]
        key = tl.load(key_at, mask=is_key[None, :], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(query, key) * scale, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(most - larger)
        total = total * shrink + tl.sum(weights, 1)
        value_at = value_of + columns[:, None] * v_row + width[None, :]
        value = tl.load(value_at, mask=is_key[:, None], other=0.0)
        result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None])
        most = larger
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
