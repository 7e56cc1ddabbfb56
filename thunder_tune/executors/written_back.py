"""A write into a buffer, such as a step's keys and values, done where the buffer lies.

A captured program computes without writes: it copies the buffer, replaces a part of the copy, and
writes all of that back in the end. Where nothing else uses what the buffer held, the part alone
can be written, as the model itself does it.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

in_place_executor = OperatorExecutor("thunder_tune_in_place", version="1")
register_executor(in_place_executor)


def _composite(
    buffer: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy
) -> TensorProxy:
    copied: TensorProxy = ltorch.index_copy(buffer, dim, index, source)
    return copied


_TAGS = (OpTags.DONT_DCE,)  # the write counts, used or not
written_back = Symbol("written_back", meta=_composite, id="thunder_tune.written_back", tags=_TAGS)
"""The composite that a rewrite puts in place of a copy of a buffer and the write of it."""


def index_copy_in_place(
    buffer: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """Write slices into a buffer and return it.

    Args:
        buffer: Any shape.
        dim: Dimension of the slices.
        index: (slices,), int64: where they go.
        source: The slices, of the buffer's shape but for that dimension.
    """
    return buffer.index_copy_(dim, index, source)


def _fits(buffer: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy) -> bool:
    return bool(buffer.dtype == source.dtype)


def _register() -> None:
    symbol: Any = in_place_executor.register_operator(
        "index_copy_in_place", like=_composite, fn=index_copy_in_place, tags=list(_TAGS)
    )
    in_place_executor.register_implementation(written_back, symbol, checker=_fits)


_register()
