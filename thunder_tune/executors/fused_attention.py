"""PyTorch's own attention kernels called directly, forward and backward, one executor for each.

`torch.nn.functional.scaled_dot_product_attention` chooses among them by rules of its own, and only
autograd knows its gradient. Called directly, the one that is fastest for a shape can be taken;
both read grouped keys and values where they lie, without a copy for each head of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import DeviceType
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grads
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.grouped_attention import grouped_attention

Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_HALVES = (dtypes.float16, dtypes.bfloat16)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Made:
    """Return attention by FlashAttention, and what its backward pass needs.

    Args:
        query: (batch, heads, queries, width).
        key: (batch, groups, keys, width); groups divide the heads.
        value: As `key`.
        dropout_p: Probability that a weight is dropped.
        is_causal: Whether a query sees no later key.
        scale: Of the scores; None: 1 / sqrt(width).

    Returns:
        The result, the logarithm of each row's sum, and the state of the random numbers.
    """
    if query.device.type == "cpu":
        return on_cpu(query, key, value, is_causal, scale)
    made = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )
    return made[0], made[1], made[6], made[7]


def _flash_backward(
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
    lengths = (query.shape[2], key.shape[2])
    state = (dropout_p, is_causal, seed, offset)
    found: Gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        gradient, query, key, value, result, sums, None, None, *lengths, *state, scale=scale
    )
    return found


def _cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Made:
    """Return attention by cuDNN; as `_flash`."""
    if query.device.type == "cpu":
        return on_cpu(query, key, value, is_causal, scale)
    made = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, dropout_p, is_causal, False, scale=scale
    )
    return made[0], made[1], made[6], made[7]


def _cudnn_backward(
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
    tensors = (gradient, query, key, value, result, sums, seed, offset)
    lengths = (query.shape[2], key.shape[2])
    found: Gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *tensors, None, None, None, *lengths, dropout_p, is_causal, scale=scale
    )
    return found


def on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    scale: float | None,
) -> Made:
    """Return what a kernel's forward pass does, by torch's own on a CPU."""
    key, value = (_repeated(x, query) for x in (key, value))
    result, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, scale=scale
    )
    return result, sums, None, None


def backward_on_cpu(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor,
    is_causal: bool,
    scale: float | None,
) -> Gradients:
    """Return the gradients of `on_cpu`."""
    groups = key.shape[1]
    key, value = (_repeated(x, query) for x in (key, value))
    queries, *others = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, result, sums, 0.0, is_causal, scale=scale
    )
    keys, values = (g.unflatten(1, (groups, -1)).sum(2) for g in others)
    return queries, keys, values


def _repeated(heads: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return heads.repeat_interleave(query.shape[1] // heads.shape[1], 1)


def _made_meta(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[TensorProxy, ...]:
    batch, heads, length, _ = query.shape

    def state(shape: tuple[int, ...], dtype: dtypes.dtype) -> TensorProxy:
        return TensorProxy(shape=shape, device=query.device, dtype=dtype, requires_grad=False)

    return (
        TensorProxy(like=query, shape=(batch, heads, length, value.shape[-1])),
        state((batch, heads, length), dtypes.float32),
        state((), dtypes.int64),
        state((), dtypes.int64),
    )


def _gradients_meta(
    gradient: TensorProxy,
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    *others: Any,  # noqa: ANN401 - what the kernel needs
) -> tuple[TensorProxy, ...]:
    return tuple(TensorProxy(like=x) for x in (query, key, value))


def _fits(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> bool:
    """Whether both kernels take this attention, with its gradient."""
    tensors = (query, key, value)
    if attn_mask is not None or any(x.ndim != 4 for x in tensors):
        return False
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    on_cpu = query.device.devicetype is DeviceType.CPU
    return (
        tuple(value.shape) == tuple(key.shape)
        and key.shape[0] == batch
        and heads % key.shape[1] == 0
        and key.shape[3] == width
        and len({x.dtype for x in tensors}) == 1
        and (not is_causal or length == keys)  # where lengths differ, kernels disagree
        and length > 1
        and (
            (dtypes.is_float_dtype(query.dtype) and not dropout_p)
            if on_cpu
            else (query.dtype in _HALVES and width % 8 == 0)
        )
    )


def attention_executor(
    name: str,
    forward: Callable[..., Made],
    backward: Callable[..., Gradients],
    *,
    max_width: int,
    drops: bool = True,
) -> OperatorExecutor:
    """Make and register an executor of attention and of `grouped_attention`.

    Args:
        name: Of its op; the executor's has the product's name before it.
        forward: As `_flash`.
        backward: As `_flash_backward`.
        max_width: Widest head.
        drops: Whether it takes a probability of dropping weights.
    """
    executor = OperatorExecutor(f"thunder_tune_{name}", version="1")
    register_executor(executor)
    tags = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,)
    run = executor.register_operator(name, meta=_made_meta, fn=forward, tags=tags)
    back = executor.register_operator(f"{name}_backward", meta=_gradients_meta, fn=backward)

    def checker(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> bool:
        fits = _fits(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return fits and query.shape[-1] <= max_width and (drops or not dropout_p)

    def execution(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> TensorProxy:
        result: TensorProxy = run(query, key, value, dropout_p, is_causal, scale)[0]
        return result

    def gradient(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> TensorProxy:
        settings = (dropout_p, is_causal, scale)
        result, *state = run(query, key, value, *settings)
        found = back(get_grad(result), query, key, value, result, *state, *settings)
        put_grads((query, key, value), found)
        return result

    for symbol in (ltorch.scaled_dot_product_attention, grouped_attention):
        executor.register_implementation(
            symbol, checker=checker, execution_transform=execution, grad_transform=gradient
        )
    return executor


flash_executor = attention_executor("flash_attention", _flash, _flash_backward, max_width=256)
cudnn_executor = attention_executor("cudnn_attention", _cudnn, _cudnn_backward, max_width=128)
