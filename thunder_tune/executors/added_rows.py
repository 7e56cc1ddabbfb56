"""The gradient of an embedding added to a gradient that exists already, row by row.

A language model whose head shares the embedding's weight has two gradients of it. The embedding's
is zero but for the rows of the tokens: made whole and added, it moves the weight four times.
"""

from __future__ import annotations

from typing import Any

import torch
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

added_rows_executor = OperatorExecutor("thunder_tune_added_rows", version="1")
register_executor(added_rows_executor)


def add_rows(
    total: torch.Tensor, gradient: torch.Tensor, indices: torch.Tensor, padding_idx: int
) -> torch.Tensor:
    """Add the gradient of an embedding to `total` in place and return it.

    The rows of one index are summed up in float32 first, as torch does.

    Args:
        total: (rows, width).
        gradient: (..., width), of the embedding's result.
        indices: (...), the rows that were looked up.
        padding_idx: The row that gets nothing, or -1.
    """
    order = indices.reshape(-1).argsort()
    sorted_ = indices.reshape(-1)[order]
    rows = gradient.reshape(-1, gradient.shape[-1])[order].to(torch.float32)
    if padding_idx >= 0:
        rows = rows.masked_fill((sorted_ == padding_idx)[:, None], 0.0)
    starts = torch.ones_like(sorted_)
    starts[1:] = sorted_[1:] != sorted_[:-1]
    place = starts.cumsum(0) - 1
    sums = torch.zeros_like(rows).index_add_(0, place, rows)
    targets = torch.zeros_like(sorted_).scatter_(0, place, sorted_)  # what is left over adds zeros
    return total.index_put_((targets,), sums.to(total.dtype), accumulate=True)


def _meta(
    total: TensorProxy, gradient: TensorProxy, indices: TensorProxy, padding_idx: int
) -> TensorProxy:
    return TensorProxy(like=total)


ADD_ROWS: Any = added_rows_executor.register_operator(
    "add_rows", meta=_meta, fn=add_rows, tags=(OpTags.IN_PLACE,)
)
