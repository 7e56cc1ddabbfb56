"""Linear, bias and GELU in one kernel: cuBLASLt's epilogue, through torch.

The epilogue computes the tanh form of GELU whatever the model asks for. The two forms differ by at
most 4.8e-4, near 2.7, where bfloat16 steps by 1.6e-2; the accuracy check decides. On a CPU, and
where cuBLASLt declines, torch computes the two steps one after the other.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

addmm_gelu_executor = OperatorExecutor("thunder_tune_addmm_gelu", version="1")
register_executor(addmm_gelu_executor)


def _composite(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy, approximate: str = "none"
) -> TensorProxy:
    return ltorch.gelu(ltorch.linear(x, weight, bias), approximate=approximate)


linear_gelu = Symbol("linear_gelu", meta=_composite, id="thunder_tune.linear_gelu")
"""The composite that a rewrite puts in place of a linear and the GELU after it."""


def addmm_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    """Return GELU(x @ weight.T + bias).

    Args:
        x: (..., in features).
        weight: (out features, in features).
        bias: (out features,).
        approximate: "none" or "tanh", as the model asks; both are computed in the tanh form on
            CUDA.

    Returns:
        (..., out features).
    """
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cuda:
        product = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    else:
        product = torch.nn.functional.gelu(
            torch.addmm(bias, rows, weight.t()), approximate=approximate
        )
    return product.view(*x.shape[:-1], weight.shape[0])


def _fits(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, approximate: str = "none"
) -> bool:
    return (
        bias is not None
        and x.ndim >= 2
        and x.dtype == weight.dtype == bias.dtype
        and dtypes.is_float_dtype(x.dtype)
    )


def _register() -> None:
    symbol: Any = addmm_gelu_executor.register_operator(
        "addmm_gelu", like=_composite, fn=addmm_gelu
    )
    addmm_gelu_executor.register_implementation(linear_gelu, symbol, checker=_fits)


_register()
