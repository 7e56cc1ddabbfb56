"""Composite torch functions opened up, so that the choices inside them are ops like any other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy

from thunder_tune.program.masks import additive
from thunder_tune.program.opaque import opaque_call


def _multi_head_attention(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: TensorProxy | None,
    in_proj_bias: TensorProxy | None,
    bias_k: TensorProxy | None,
    bias_v: TensorProxy | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: TensorProxy,
    out_proj_bias: TensorProxy | None,
    training: bool = True,
    key_padding_mask: TensorProxy | None = None,
    need_weights: bool = True,
    attn_mask: TensorProxy | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: TensorProxy | None = None,
    k_proj_weight: TensorProxy | None = None,
    v_proj_weight: TensorProxy | None = None,
    static_k: TensorProxy | None = None,
    static_v: TensorProxy | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[TensorProxy, TensorProxy | None]:
    """`torch.nn.functional.multi_head_attention_forward` as linear, SDPA, linear.

    Tensors are (length, batch, embed), as torch.nn.MultiheadAttention passes them.
    """
    refused = {
        "bias_k": bias_k is not None or bias_v is not None,
        "add_zero_attn": add_zero_attn,
        "static_k": static_k is not None or static_v is not None,
        "a two-dimensional input": query.ndim != 3,
    }
    for what, present in refused.items():
        if present:
            raise NotImplementedError(f"multi_head_attention_forward with {what}")
    length, batch, embed = query.shape
    head = embed // num_heads
    self_attention = query is key and key is value
    # Batch first from here on: torch.nn.MultiheadAttention(batch_first=True) has transposed its
    # input, so transposing it back costs nothing and every product below reads contiguous rows.
    query, key, value = (ltorch.transpose(x, 0, 1) for x in (query, key, value))
    if self_attention and not use_separate_proj_weight:
        parts = ltorch.chunk(ltorch.linear(query, in_proj_weight, in_proj_bias), 3, -1)
    else:
        biases: Any = (None, None, None) if in_proj_bias is None else ltorch.chunk(in_proj_bias, 3)
        projections: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
        if not use_separate_proj_weight:
            projections = ltorch.chunk(in_proj_weight, 3)
        parts = [
            ltorch.linear(x, w, b)
            for x, w, b in zip((query, key, value), projections, biases, strict=True)
        ]

    def heads(x: TensorProxy) -> TensorProxy:
        split = ltorch.reshape(x, (batch, x.shape[1], num_heads, head))
        return ltorch.permute(split, (0, 2, 1, 3))

    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = ltorch.reshape(attn_mask, (batch, num_heads, *attn_mask.shape[-2:]))
    if key_padding_mask is not None:
        padding = ltorch.reshape(key_padding_mask, (batch, 1, 1, key.shape[1]))
        attn_mask = _both_masks(attn_mask, padding, query.dtype)
    is_causal = is_causal and attn_mask is None
    q, k, v = (heads(x) for x in parts)
    dropout_p = dropout_p if training else 0.0
    weights = None
    if need_weights:
        y, weights = _attention_with_weights(q, k, v, attn_mask, dropout_p)
        weights = ltorch.mean(weights, 1) if average_attn_weights else weights
    else:
        # True leaves out here, and keeps in SDPA's boolean masks: added, there is no doubt.
        mask = None if attn_mask is None else additive(attn_mask, query.dtype)
        y = ltorch.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    y = ltorch.reshape(ltorch.permute(y, (0, 2, 1, 3)), (batch, length, embed))
    y = ltorch.linear(y, out_proj_weight, out_proj_bias)
    return ltorch.transpose(y, 0, 1), weights


def attention(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorProxy:
    """`torch.nn.functional.scaled_dot_product_attention`; grouped heads repeated, as it says."""
    if enable_gqa:
        key, value = (_repeated(x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    y: TensorProxy = ltorch.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )
    return y


def _repeated(heads: TensorProxy, times: int) -> TensorProxy:
    """Return each head of (..., heads, length, width) so many times in a row."""
    if times == 1:
        return heads
    *outer, number, length, width = heads.shape
    apart = ltorch.expand(ltorch.unsqueeze(heads, -3), (*outer, number, times, length, width))
    together: TensorProxy = ltorch.reshape(apart, (*outer, number * times, length, width))
    return together


def _both_masks(
    mask: TensorProxy | None, padding: TensorProxy, dtype: dtypes.dtype
) -> TensorProxy:
    padding = additive(padding, dtype)
    both: TensorProxy = padding if mask is None else ltorch.add(additive(mask, dtype), padding)
    return both


def _attention_with_weights(
    q: TensorProxy, k: TensorProxy, v: TensorProxy, mask: TensorProxy | None, dropout_p: float
) -> tuple[TensorProxy, TensorProxy]:
    """Attention step by step, for callers that ask for its weights."""
    scores = ltorch.matmul(q * math.sqrt(1.0 / q.shape[-1]), ltorch.transpose(k, -2, -1))
    if mask is not None:
        scores = scores + additive(mask, q.dtype)
    weights = ltorch.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = ltorch.dropout(weights, dropout_p)
    return ltorch.matmul(weights, v), weights


def _safe(composite: Callable[..., TensorProxy]) -> Callable[..., TensorProxy]:
    """Return Thunder's composite of SDPA with torch's result for queries that see no key: zeros.

    Taken apart, as training does where no executor brings a gradient, a plain softmax gives NaN
    there, and NaN gradients everywhere. Such a query sees every key instead and its result is
    dropped, so no gradient comes from it.
    """

    @functools.wraps(composite)
    def safe(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> TensorProxy:
        if attn_mask is None:
            return composite(query, key, value, None, dropout_p, is_causal, scale=scale)
        if dtypes.is_boolean_dtype(attn_mask.dtype):
            blind = ltorch.logical_not(ltorch.any_tensor(attn_mask, -1, keepdim=True))
            mask = ltorch.logical_or(attn_mask, blind)
        else:
            blind = ltorch.all_tensor(ltorch.eq(attn_mask, float("-inf")), -1, keepdim=True)
            mask = ltorch.masked_fill(attn_mask, blind, 0.0)
        y = composite(query, key, value, mask, dropout_p, is_causal, scale=scale)
        dropped: TensorProxy = ltorch.masked_fill(y, blind, 0.0)
        return dropped

    return safe


@contextmanager
def safe_attention() -> Iterator[None]:
    """Trace attention so that queries which see no key give zeros, inside the block.

    The symbol itself is changed, since every way to attention leads to it (replay, interpreter,
    autocast), and only while a model is captured: Thunder's own recipe runs as it is.
    """
    symbol = ltorch.scaled_dot_product_attention
    before = symbol.meta
    object.__setattr__(symbol, "meta", _safe(before))
    try:
        yield
    finally:
        object.__setattr__(symbol, "meta", before)


def _dropout(input: TensorProxy, p: float, train: bool) -> TensorProxy:
    """`torch.dropout`, which Thunder only wraps, as `torch.nn.functional.dropout`."""
    y: TensorProxy = ltorch.dropout(input, p, train)
    return y


def _channel_dropout(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dropout of whole channels as a product with a random mask, which has a gradient."""

    def opened(x: TensorProxy, p: float = 0.5, training: bool = True) -> TensorProxy:
        if not training or p == 0.0:
            return x
        mask = opaque_call(function, (ltorch.ones_like(x), p, True), {}, has_gradient=False)
        masked: TensorProxy = x * mask
        return masked

    return opened


OPENED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _multi_head_attention,
    F.scaled_dot_product_attention: attention,
    torch.dropout: _dropout,
    **{
        f: _channel_dropout(f)
        for f in (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout)
    },
}
