"""Linears by cuBLASLt, called directly: bias, residual and GELU in the product's epilogue.

What torch offers of it leaves out a bias and a residual in one product, and times no algorithms.
The residual is read where it lies, and the sum has memory of its own. On a CPU torch computes one
step after the other.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.kernels import cublaslt
from thunder_tune.executors.linear_add import linear_add
from thunder_tune.executors.linear_gelu import linear_gelu
from thunder_tune.executors.packed_linear import can_pack, concatenated, one_product, packed_linear

cublaslt_executor = OperatorExecutor("thunder_tune_cublaslt", version="1")
register_executor(cublaslt_executor)

_ON_CUDA = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


def cublaslt_linear(
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


def cublaslt_linear_gelu(
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


def cublaslt_linear_add(
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


def cublaslt_packed_linear(
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


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    result = cublaslt.linear(
        cublaslt.as_rows(x),
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        residual=None if residual is None else cublaslt.as_rows(residual),
        activation=activation,
    )
    return result.view(*x.shape[:-1], weight.shape[0])


def _fits(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> bool:
    is_cuda = str(x.device).startswith("cuda")
    return bool(
        x.ndim >= 1
        and weight.ndim == 2
        and weight.numel > 0
        and all(t.dtype == x.dtype for t in (weight, bias) if t is not None)
        and (x.dtype in _ON_CUDA if is_cuda else dtypes.is_float_dtype(x.dtype))
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
    return _fits(x, weights[0]) and can_pack(x, weights, biases, store)


def _register() -> None:
    for replaced, function, checker in (
        (ltorch.linear, cublaslt_linear, _fits),
        (linear_gelu, cublaslt_linear_gelu, _fits_gelu),
        (linear_add, cublaslt_linear_add, _fits_add),
        (packed_linear, cublaslt_packed_linear, _fits_packed),
    ):
        like = replaced if replaced is ltorch.linear else replaced.meta
        symbol: Any = cublaslt_executor.register_operator(
            function.__name__, like=like, fn=function
        )
        cublaslt_executor.register_implementation(replaced, symbol, checker=checker)


_register()
