"""Attention whose queries share keys and values in groups, without copies of these.

A model that repeats each head of its keys and values for the queries of a group writes them out as
often. torch's attention kernels read one copy where they are told of the groups.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.program.opened import attention

grouped_sdpa_executor = OperatorExecutor("thunder_tune_grouped_sdpa", version="1")
register_executor(grouped_sdpa_executor)


def _composite(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> TensorProxy:
    return attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
    )


grouped_attention = Symbol(
    "grouped_attention", meta=_composite, id="thunder_tune.grouped_attention"
)
"""The composite that a rewrite puts in place of repeated heads and the attention over them."""


def grouped_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Return torch's attention with `enable_gqa`.

    Args:
        query: (batch, heads, queries, width).
        key: (batch, groups, keys, width); groups divide the heads.
        value: (batch, groups, keys, width).
        attn_mask: Broadcasts to (batch, heads, queries, keys), or None.
        dropout_p: 0.
        is_causal: Whether a query sees no later key.
        scale: Of the scores; None: 1 / sqrt(width).

    Returns:
        (batch, heads, queries, width).
    """
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
    )


def _fits(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> bool:
    return (
        not dropout_p
        and query.ndim == key.ndim == value.ndim == 4
        and query.dtype == key.dtype == value.dtype
        and dtypes.is_float_dtype(query.dtype)
    )


def _register() -> None:
    symbol: Any = grouped_sdpa_executor.register_operator(
        "grouped_sdpa", like=_composite, fn=grouped_sdpa
    )
    grouped_sdpa_executor.register_implementation(grouped_attention, symbol, checker=_fits)


_register()
