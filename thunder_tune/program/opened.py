"""Composite torch functions opened up, so that the choices inside them are ops like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch.nn.functional as F
from thunder.core.proxies import TensorProxy


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
) -> tuple[TensorProxy, None]:
    """`torch.nn.functional.multi_head_attention_forward` as linear, SDPA, linear.

    Tensors are (length, batch, embed), as torch.nn.MultiheadAttention passes them.
    """
    refused = {
        "bias_k": bias_k is not None or bias_v is not None,
        "add_zero_attn": add_zero_attn,
        "key_padding_mask": key_padding_mask is not None,
        "need_weights": need_weights,
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
        biases = (None, None, None) if in_proj_bias is None else ltorch.chunk(in_proj_bias, 3)
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        if not use_separate_proj_weight:
            weights = ltorch.chunk(in_proj_weight, 3)
        parts = [
            ltorch.linear(x, w, b)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        ]

    def heads(x: TensorProxy) -> TensorProxy:
        split = ltorch.reshape(x, (batch, x.shape[1], num_heads, head))
        return ltorch.permute(split, (0, 2, 1, 3))

    if attn_mask is not None:
        is_causal = False
        if attn_mask.ndim == 3:
            shape = (batch, num_heads, *attn_mask.shape[-2:])
            attn_mask = ltorch.reshape(attn_mask, shape)
    q, k, v = (heads(x) for x in parts)
    y = ltorch.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p if training else 0.0, is_causal
    )
    y = ltorch.reshape(ltorch.permute(y, (0, 2, 1, 3)), (batch, length, embed))
    y = ltorch.linear(y, out_proj_weight, out_proj_bias)
    return ltorch.transpose(y, 0, 1), None


OPENED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _multi_head_attention,
}
