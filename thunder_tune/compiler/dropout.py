"""Dropout in training: the random numbers that eager mode draws, and a gradient that knows them.

Thunder takes dropout apart into uniform numbers and comparisons. As plain torch calls that is
slower than torch's own and draws other numbers for the same seed. Here the mask comes from torch's
dropout itself, applied to ones; a fuser draws its own, of the same distribution.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import register_grad

from thunder_tune.program.opaque import opaque_call

DROPOUT = "torch.nn.functional.dropout"


def dropout_mask(
    shape: tuple[int, ...], p: float, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return what torch's dropout multiplies by.

    Args:
        shape: Of the tensor.
        p: Probability of an element to be zero.
        dtype: Of the tensor.
        device: Of the tensor.

    Returns:
        0 with probability `p`, else 1 / (1 - p).
    """
    return F.dropout(torch.ones(shape, dtype=dtype, device=device), p, True)


def _is_identity(p: float, training: bool) -> bool:
    return not training or p == 0


def _masked(x: TensorProxy, mask: Any) -> TensorProxy:  # noqa: ANN401 - a proxy or a number
    result: TensorProxy = x * mask
    prims.put_grad(x, prims.get_grad(result) * mask)
    return result


def eager_rule(
    x: TensorProxy, p: float = 0.5, training: bool = True, inplace: bool = False
) -> TensorProxy:
    """Gradient rule of dropout with torch's own random numbers."""
    if _is_identity(p, training):
        return _masked(x, 1)
    arguments = (
        tuple(x.shape),
        float(p),
        to_torch_dtype(x.dtype),
        to_torch_device(x.device),
    )
    return _masked(x, opaque_call(dropout_mask, arguments, {}, has_gradient=False))


def fused_rule(
    x: TensorProxy, p: float = 0.5, training: bool = True, inplace: bool = False
) -> TensorProxy:
    """Gradient rule of dropout with random numbers that a fuser draws."""
    if _is_identity(p, training) or p == 1:
        return _masked(x, 1 if p != 1 or not training else 0)
    ones = ltorch.ones_like(x)
    return _masked(x, ltorch.dropout(ones, p, True))


register_grad(DROPOUT, eager_rule)
