"""Attention of a step of generation: few queries, many keys, in two Triton kernels.

The libraries' kernels give each head's queries to one of the device's processors, which reads all
keys alone; these read parts of the keys side by side, once for all heads that share them, and take
a mask that was made an addition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.grouped_attention import grouped_attention
from thunder_tune.executors.short_attention import triton_is_interpreted

MOST_ROWS = 16
"""Queries of all heads that share keys: one tile of a product."""
FEWEST_KEYS = 128
"""With fewer keys there is nothing to split."""
MOST_PARTS = 64
LARGEST_TILE = 128

_WIDTHS = (16, 32, 64, 128, 256)
split_attention_executor = OperatorExecutor("thunder_tune_split_attention", version="1")
register_executor(split_attention_executor)


def split_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Return softmax(query @ key.T * scale + attn_mask) @ value.

    Args:
        query: (batch, heads, queries, width), float16 or bfloat16; few queries.
        key: (batch, groups, keys, width); groups divide the heads.
        value: (batch, groups, keys, width).
        attn_mask: Floating, broadcasts to (batch, heads, queries, keys); or None.
        dropout_p: 0.
        is_causal: False.
        scale: None: 1 / sqrt(width).

    Returns:
        (batch, heads, queries, width), in memory (batch, queries, heads, width).
    """
    if not query.is_cuda:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, scale=scale, enable_gqa=True
        )
    scale = 1.0 / math.sqrt(query.shape[3]) if scale is None else scale
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    return attend(query, key, value, attn_mask, scale, processors=processors)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    scale: float,
    *,
    processors: int,
) -> torch.Tensor:
    """Launch the kernels; arguments and result as of `split_attention`.

    Args:
        query: As there.
        key: As there.
        value: As there.
        attn_mask: As there.
        scale: Of the scores.
        processors: Of the device; about twice as many parts are read side by side.
    """
    import triton

    from thunder_tune.executors.kernels import split_attention as kernels

    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    batch, heads, n_queries, width = query.shape
    groups, n_keys = key.shape[1:3]
    sharing = heads // groups
    rows = max(16, triton.next_power_of_2(sharing * n_queries))
    wanted = -(-2 * processors // (batch * groups))
    part = -(-n_keys // max(1, min(wanted, MOST_PARTS)))
    part = -(-part // LARGEST_TILE) * LARGEST_TILE
    parts = -(-n_keys // part)
    bias = query if attn_mask is None else attn_mask.expand(batch, heads, n_queries, n_keys)
    sums = query.new_empty(batch * groups, parts, rows, width, dtype=torch.float32)
    highest, totals = query.new_empty(2, batch * groups, parts, rows, dtype=torch.float32)
    result = query.new_empty(batch, n_queries, heads, width)
    shape = {"N_QUERIES": n_queries, "WIDTH": width, "SHARING": sharing, "ROWS": rows}
    _part_kernel()((parts, batch * groups))(
        query,
        key,
        value,
        bias,
        sums,
        highest,
        totals,
        *(size for x in (query, key, value) for size in x.stride()[:3]),
        *bias.stride(),
        groups,
        scale * math.log2(math.e),
        PART=part,
        N_KEYS=n_keys,
        HAS_BIAS=attn_mask is not None,
        **shape,
    )
    kernels.join_parts[(heads, n_queries, batch)](
        sums, highest, totals, result, parts, PARTS=triton.next_power_of_2(parts), **shape
    )
    return result.transpose(1, 2)


@functools.cache
def _part_kernel() -> Callable[[tuple[int, int]], Callable[..., object]]:
    from thunder_tune.executors.kernels import split_attention as kernels

    if triton_is_interpreted():  # there is no device to time tiles on
        return lambda grid: functools.partial(kernels.attend_part[grid], COLUMNS=64)
    tuned = kernels.tuned_attend_part()
    return lambda grid: tuned[grid]


def _fits(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> bool:
    return bool(
        not dropout_p
        and not is_causal
        and query.ndim == key.ndim == 4
        and tuple(key.shape) == tuple(value.shape)
        and query.shape[0] == key.shape[0]
        and key.shape[1]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[3] == key.shape[3]
        and int(query.shape[3]) in _WIDTHS
        and 0 < query.shape[1] // key.shape[1] * query.shape[2] <= MOST_ROWS
        and key.shape[2] >= FEWEST_KEYS
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (dtypes.float16, dtypes.bfloat16)
        and (attn_mask is None or dtypes.is_float_dtype(attn_mask.dtype))
    )


def _register() -> None:
    attention = ltorch.scaled_dot_product_attention
    symbol: Any = split_attention_executor.register_operator(
        "split_attention", like=grouped_attention.meta, fn=split_attention
    )
    for replaced in (attention, grouped_attention):
        split_attention_executor.register_implementation(replaced, symbol, checker=_fits)


_register()
