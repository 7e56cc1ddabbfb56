"""FlashAttention 4 (CuTe DSL), forward and backward, where the package flash-attn-4 is installed.

On Hopper it multiplies by the instructions of whole warp groups (wgmma), which PyTorch's
FlashAttention 2 does not; queries that share keys are gathered into one tile. A kernel is compiled
for each head width and form of masking, in about a second. On a CPU torch computes it.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import torch

from thunder_tune.executors.fused_attention import (
    Gradients,
    Made,
    attention_executor,
    backward_on_cpu,
    on_cpu,
)

OLDEST = (9, 0)
"""Compute capability from which on there is a backward pass; tried on none but 9.0."""


@functools.cache
def available() -> str:
    """Say why FlashAttention 4 cannot be used here, or return ""."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < OLDEST:
        return "needs compute capability 9.0"
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "flash_attn.cute is not installed: pip install 'thunder-tune[flash]'"
    return "" if find_spec("cutlass") is not None else "nvidia-cutlass-dsl is not installed"


def _flash_4(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Made:
    """Return attention by FlashAttention 4; as `fused_attention`'s other kernels, no dropout."""
    if query.device.type == "cpu":
        return on_cpu(query, key, value, is_causal, scale)
    forward, _ = _kernels()
    made = forward(
        *(x.transpose(1, 2) for x in (query, key, value)),
        softmax_scale=scale,
        causal=is_causal,
        return_lse=True,
    )
    return made[0].transpose(1, 2), made[1], None, None


def _flash_4_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor,
    seed: torch.Tensor | None,
    offset: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Gradients:
    if query.device.type == "cpu":
        return backward_on_cpu(gradient, query, key, value, result, sums, is_causal, scale)
    _, backward = _kernels()
    tensors = (x.transpose(1, 2) for x in (query, key, value, result, gradient))
    found = backward(*tensors, sums, softmax_scale=scale, causal=is_causal)
    queries, keys, values = (g.transpose(1, 2) for g in found[:3])
    return queries, keys, values


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Return the forward and the backward pass; the package offers them only through autograd."""
    from flash_attn.cute import interface

    return interface._flash_attn_fwd, interface._flash_attn_bwd


flash_4_executor = attention_executor(
    "flash_attention_4", _flash_4, _flash_4_backward, max_width=256, drops=False
)
