"""Attention over short sequences in one Triton kernel.

The kernels of torch's libraries are made for long sequences: their tiles of 128 keys waste a third
of the work on the 197 tokens of a vision transformer. This one reads queries, keys and values
where the projection put them, whatever the strides, and tries several tiles at the first call.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

MAX_LENGTH = 1024
"""Beyond it the libraries' kernels are the better ones."""

_WIDTHS = (16, 32, 64, 128)
short_attention_executor = OperatorExecutor("thunder_tune_short_attention", version="1")
register_executor(short_attention_executor)


@functools.cache
def _kernel() -> Callable[[Callable[[int], tuple[int, int]]], Any]:
    from thunder_tune.executors.kernels import attention

    if triton_is_interpreted():  # there is no device to time tiles on
        tile = {"ROWS": 64, "COLUMNS": 64}
        return lambda grid: functools.partial(attention.attention[grid(64)], **tile)
    tuned = attention.tuned_attention()
    return lambda grid: tuned[lambda tile: grid(tile["ROWS"])]


def triton_is_interpreted() -> bool:
    """Whether Triton's kernels run as Python on the CPU, to be tested there."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def short_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Return softmax(query @ key.T * scale) @ value.

    Args:
        query: (batch, heads, queries, width), float16 or bfloat16.
        key: (batch, heads, keys, width).
        value: (batch, heads, keys, width).
        attn_mask: None.
        dropout_p: 0.
        is_causal: False.
        scale: None: 1 / sqrt(width).

    Returns:
        (batch, heads, queries, width), in memory (batch, queries, heads, width).
    """
    if not query.is_cuda:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    return attend(query, key, value, 1.0 / math.sqrt(query.shape[3]) if scale is None else scale)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Launch the kernel; arguments and result as of `short_attention`."""
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    batch, heads, n_queries, width = query.shape
    result = query.new_empty(batch, n_queries, heads, width).transpose(1, 2)
    tensors = (query, key, value, result)
    strides = [size for x in tensors for size in x.stride()[:3]]
    _kernel()(lambda rows: (-(-n_queries // rows), batch * heads))(
        *tensors,
        *strides,
        heads,
        scale * math.log2(math.e),
        N_QUERIES=n_queries,
        N_KEYS=key.shape[2],
        WIDTH=width,
    )
    return result


def _fits(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> bool:
    return (
        attn_mask is None
        and not dropout_p
        and not is_causal
        and query.ndim == 4
        and tuple(query.shape[:2]) == tuple(key.shape[:2])
        and tuple(key.shape) == tuple(value.shape)
        and query.shape[3] == key.shape[3]
        and int(query.shape[3]) in _WIDTHS
        and 0 < int(query.shape[2]) <= MAX_LENGTH
        and 0 < int(key.shape[2]) <= MAX_LENGTH
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (dtypes.float16, dtypes.bfloat16)
    )


def _register() -> None:
    attention = ltorch.scaled_dot_product_attention
    symbol: Any = short_attention_executor.register_operator(
        "short_attention", like=attention, fn=short_attention
    )
    short_attention_executor.register_implementation(attention, symbol, checker=_fits)


_register()
