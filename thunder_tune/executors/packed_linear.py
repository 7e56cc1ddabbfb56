"""Linears of one input as one product: query, key and value; gate and up.

Their weights are concatenated once, in training at every step, as every step changes them. One
product of three times the width keeps a GPU busier than three, and the input is read once; the
results are views of one tensor. In the backward pass too there is one product each for the input
and for the weights, whose gradients are views of one tensor.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.transforms import get_grad, put_grads
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.packing import packs

packed_linear_executor = OperatorExecutor("thunder_tune_packed_linear", version="1")
register_executor(packed_linear_executor)


def _composite(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> tuple[TensorProxy, ...]:
    return tuple(ltorch.linear(x, w, b) for w, b in zip(weights, biases, strict=True))


packed_linear = Symbol("packed_linear", meta=_composite, id="thunder_tune.packed_linear")
"""The composite that a rewrite puts in place of linears of one input."""


def one_product(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
    store: int,
) -> tuple[torch.Tensor, ...]:
    """Return x @ weight.T + bias for each weight, as views of one product.

    Args:
        x: (..., in features).
        weights: (out features, in features) each.
        biases: (out features,) each, all or none.
        store: Number of the candidate's packed weights.
    """
    product = F.linear(x, *concatenated(weights, biases, store))
    return torch.split_with_sizes(product, [len(w) for w in weights], -1)


def concatenated(
    weights: tuple[torch.Tensor, ...], biases: tuple[torch.Tensor | None, ...], store: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weights and biases of `one_product` behind one another, packed once."""

    def pack() -> tuple[torch.Tensor, torch.Tensor | None]:
        given = [b for b in biases if b is not None]
        return torch.cat(weights), torch.cat(given) if given else None

    found: tuple[torch.Tensor, torch.Tensor | None] = packs(store).get(
        "packed_linear", (*weights, *biases), pack
    )
    return found


def packed_step(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor, ...]:
    """Return the results of `one_product`, and behind them the weights it was made with."""
    given = [b for b in biases if b is not None]
    weight = torch.cat(weights)
    product = F.linear(x, weight, torch.cat(given) if given else None)
    return (*torch.split_with_sizes(product, [len(w) for w in weights], -1), weight)


def packed_step_backward(
    cotangents: tuple[torch.Tensor, ...], x: torch.Tensor, weight: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the input, of each weight, and where there are any of each bias."""
    sizes = [c.shape[-1] for c in cotangents]
    together = torch.cat(cotangents, -1).reshape(-1, sum(sizes))
    to_input = (together @ weight).reshape(x.shape)
    to_weights = together.t() @ x.reshape(-1, x.shape[-1])
    to_biases = torch.split_with_sizes(together.sum(0), sizes) if has_bias else ()
    return (to_input, *torch.split_with_sizes(to_weights, sizes), *to_biases)


def _step_meta(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
) -> tuple[TensorProxy, ...]:
    widths = [w.shape[0] for w in weights]
    results = [TensorProxy(like=x, shape=(*x.shape[:-1], width)) for width in widths]
    packed = TensorProxy(like=weights[0], shape=(sum(widths), weights[0].shape[1]))
    return (*results, packed)


def _step_backward_meta(
    cotangents: tuple[TensorProxy, ...], x: TensorProxy, weight: TensorProxy, has_bias: bool
) -> tuple[TensorProxy, ...]:
    widths = [c.shape[-1] for c in cotangents]
    weights = [TensorProxy(like=weight, shape=(width, weight.shape[1])) for width in widths]
    biases = [TensorProxy(like=weight, shape=(width,)) for width in widths if has_bias]
    return (TensorProxy(like=x), *weights, *biases)


def can_pack(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> bool:
    """Whether weights and biases are of one type, and can lie behind one another."""
    given = [b for b in biases if b is not None]
    return (
        len(given) in (0, len(weights))
        and dtypes.is_float_dtype(x.dtype)
        and all(t.dtype == x.dtype for t in (*weights, *given))
    )


def _register() -> None:
    register = packed_linear_executor.register_operator
    symbol: Any = register("one_product", like=_composite, fn=one_product)
    step: Any = register("packed_step", meta=_step_meta, fn=packed_step)
    backward: Any = register(
        "packed_step_backward", meta=_step_backward_meta, fn=packed_step_backward
    )

    def gradient(
        x: TensorProxy,
        weights: tuple[TensorProxy, ...],
        biases: tuple[TensorProxy | None, ...],
        store: int,
    ) -> tuple[TensorProxy, ...]:
        *results, weight = step(x, weights, biases)
        given = [b for b in biases if b is not None]
        cotangents = tuple(get_grad(y) for y in results)
        found = backward(cotangents, x, weight, bool(given))
        put_grads((x, *weights, *given), found)
        return tuple(results)

    packed_linear_executor.register_implementation(
        packed_linear, symbol, checker=can_pack, grad_transform=gradient
    )


_register()
