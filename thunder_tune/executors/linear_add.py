"""A linear whose result is added to a residual: in the product's epilogue, into the residual.

cuBLAS adds what it writes to what is there (beta = 1): the residual is read and the sum written by
the product itself. That saves a pass only where the residual's own memory takes the sum, so it
does wherever nobody can see it: the trace has no later use of it, and no other tensor shares its
memory. Elsewhere torch copies the residual first. A bias would be a third thing to add: those
linears are cuBLASLt's, called directly (`executors/cublaslt.py`).
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

linear_add_executor = OperatorExecutor("thunder_tune_linear_add", version="1")
register_executor(linear_add_executor)

_ALONE = 2
"""References to the memory of a tensor that shares it with none: its own, and the asking one."""


def _composite(
    x: TensorProxy,
    weight: TensorProxy,
    residual: TensorProxy,
    may_overwrite: bool = False,
    *,
    bias: TensorProxy | None = None,
) -> TensorProxy:
    total: TensorProxy = ltorch.add(residual, ltorch.linear(x, weight, bias))
    return total


linear_add = Symbol("linear_add", meta=_composite, id="thunder_tune.linear_add")
"""The composite that a rewrite puts in place of a linear and the addition after it."""


def addmm_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    may_overwrite: bool = False,
    *,
    bias: None = None,
) -> torch.Tensor:
    """Return residual + x @ weight.T.

    Args:
        x: (..., in features).
        weight: (out features, in features).
        residual: (..., out features).
        may_overwrite: Whether the residual is needed no more.
        bias: None.

    Returns:
        (..., out features); the residual's memory where that may take it.
    """
    if not residual.is_contiguous():
        return torch.add(residual, F.linear(x, weight))
    rows, total = x.reshape(-1, x.shape[-1]), residual.view(-1, weight.shape[0])
    if may_overwrite and _is_alone(residual):
        total.addmm_(rows, weight.t())
        return residual
    return torch.addmm(total, rows, weight.t()).view(residual.shape)


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor has this one's memory, which it fills without gaps.

    The view that the caller has just made of it counts as one more reference.
    """
    storage = tensor.untyped_storage()
    is_whole = tensor.numel() * tensor.element_size() == storage.nbytes()
    return bool(is_whole and torch._C._storage_Use_Count(storage._cdata) <= _ALONE + 1)


def _fits(
    x: TensorProxy,
    weight: TensorProxy,
    residual: TensorProxy,
    may_overwrite: bool = False,
    *,
    bias: TensorProxy | None = None,
) -> bool:
    is_one_type = x.dtype == weight.dtype == residual.dtype
    return bias is None and bool(
        x.ndim >= 2 and residual.ndim == x.ndim and is_one_type and dtypes.is_float_dtype(x.dtype)
    )


def _register() -> Symbol:
    symbol: Any = linear_add_executor.register_operator(
        "addmm_residual", like=_composite, fn=addmm_residual
    )
    linear_add_executor.register_implementation(linear_add, symbol, checker=_fits)
    made: Symbol = symbol
    return made


ADDMM_RESIDUAL = _register()
"""The symbol in executable traces; its fourth argument is `may_overwrite`."""
