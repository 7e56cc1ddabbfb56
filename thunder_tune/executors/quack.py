"""Linears by QuACK's kernels: bias, residual and activation, gated ones too, in the epilogue.

On a CPU torch computes one step after the other.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.gated_linear import composite, gated_linear
from thunder_tune.executors.kernels import quack_products
from thunder_tune.executors.linear_add import linear_add
from thunder_tune.executors.linear_gelu import linear_gelu
from thunder_tune.executors.packed_linear import can_pack, concatenated, one_product, packed_linear
from thunder_tune.executors.packing import packs

quack_executor = OperatorExecutor("thunder_tune_quack", version="1")
register_executor(quack_executor)

_HALVES = (dtypes.float16, dtypes.bfloat16)


def quack_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight.T + bias.

    Args:
        x: (..., in features).
        weight: (out features, in features).
        bias: (out features,) or None.

    Returns:
        (..., out features).
    """
    return _product(x, weight, bias) if x.is_cuda else F.linear(x, weight, bias)


def quack_linear_gelu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    approximate: str = "none",
) -> torch.Tensor:
    """Return GELU(x @ weight.T + bias).

    Args:
        x: (..., in features).
        weight: (out features, in features).
        bias: (out features,) or None.
        approximate: "none" or "tanh", as the model asks; both are computed in the tanh form on
            CUDA.

    Returns:
        (..., out features).
    """
    if x.is_cuda:
        return _product(x, weight, bias, activation="gelu")
    return F.gelu(F.linear(x, weight, bias), approximate=approximate)


def quack_linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    may_overwrite: bool = False,
    *,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return residual + x @ weight.T + bias.

    Args:
        x: (..., in features).
        weight: (out features, in features).
        residual: (..., out features).
        may_overwrite: Makes no difference: the sum is written to memory of its own.
        bias: (out features,) or None.

    Returns:
        (..., out features).
    """
    if x.is_cuda:
        return _product(x, weight, bias, residual=residual)
    return torch.add(residual, F.linear(x, weight, bias))


def quack_packed_linear(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
    store: int,
) -> tuple[torch.Tensor, ...]:
    """Return the same as `packed_linear.one_product`."""
    if not x.is_cuda:
        return one_product(x, weights, biases, store)
    product = _product(x, *concatenated(weights, biases, store))
    return torch.split_with_sizes(product, [len(w) for w in weights], -1)


def quack_gated_linear(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    activation: str,
    approximate: str,
    store: int,
) -> torch.Tensor:
    """Return activation(x @ gate.T + its bias) * (x @ other.T + its bias).

    Arguments and result are those of `gated_linear.composite`; on CUDA a GELU is computed in its
    tanh form.
    """
    weight, bias = _interleaved(weights, biases, store)
    if x.is_cuda:
        return _product(x, weight, bias, activation=activation, is_gated=True)
    product = F.linear(x, weight, bias)
    gate, other = product[..., ::2], product[..., 1::2]
    if activation == "gelu":
        return torch.mul(F.gelu(gate, approximate=approximate), other)
    return torch.mul(torch.relu(gate) if activation == "relu" else F.silu(gate), other)


def _interleaved(
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    store: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the rows of both weights in turns, and the values of both biases, packed once."""

    def pack() -> tuple[torch.Tensor, torch.Tensor | None]:
        given = [b for b in biases if b is not None]
        bias = quack_products.interleaved(*given) if given else None
        return quack_products.interleaved(*weights), bias

    found: tuple[torch.Tensor, torch.Tensor | None] = packs(store).get(
        "gated_linear", (*weights, *biases), pack
    )
    return found


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
    is_gated: bool = False,
) -> torch.Tensor:
    result = quack_products.linear(
        x.reshape(-1, x.shape[-1]),
        weight.contiguous(),
        bias,
        residual=None if residual is None else residual.reshape(-1, residual.shape[-1]),
        activation=activation,
        is_gated=is_gated,
    )
    return result.view(*x.shape[:-1], result.shape[-1])


def _fits(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> bool:
    is_cuda = str(x.device).startswith("cuda")
    return bool(
        x.ndim >= 1
        and weight.ndim == 2
        and quack_products.fits(weight.shape[1], weight.shape[0])
        and all(t.dtype == x.dtype for t in (weight, bias) if t is not None)
        and (x.dtype in _HALVES if is_cuda else dtypes.is_float_dtype(x.dtype))
    )


def _fits_gelu(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, approximate: str = "none"
) -> bool:
    return _fits(x, weight, bias)


def _fits_add(
    x: TensorProxy,
    weight: TensorProxy,
    residual: TensorProxy,
    may_overwrite: bool = False,
    *,
    bias: TensorProxy | None = None,
) -> bool:
    return _fits(x, weight, bias) and bool(residual.dtype == x.dtype)


def _fits_packed(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> bool:
    return all(_fits(x, w) for w in weights) and can_pack(x, weights, biases, store)


def _fits_gated(
    x: TensorProxy,
    weights: tuple[TensorProxy, TensorProxy],
    biases: tuple[TensorProxy | None, TensorProxy | None],
    activation: str,
    approximate: str,
    store: int,
) -> bool:
    have_one_shape = tuple(weights[0].shape) == tuple(weights[1].shape)
    return have_one_shape and _fits_packed(x, weights, biases, store)


def _register() -> None:
    for replaced, like, function, checker in (
        (ltorch.linear, ltorch.linear, quack_linear, _fits),
        (linear_gelu, linear_gelu.meta, quack_linear_gelu, _fits_gelu),
        (linear_add, linear_add.meta, quack_linear_add, _fits_add),
        (packed_linear, packed_linear.meta, quack_packed_linear, _fits_packed),
        (gated_linear, composite, quack_gated_linear, _fits_gated),
    ):
        symbol: Any = quack_executor.register_operator(function.__name__, like=like, fn=function)
        quack_executor.register_implementation(replaced, symbol, checker=checker)


_register()
