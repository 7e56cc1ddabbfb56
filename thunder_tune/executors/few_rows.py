"""Products of few rows with a weight, plain or packed, and rows of a packed one.

A step of generation multiplies a row or a few with every weight: what it takes is the time to read
them. The kernels (`executors/kernels/weight_only.py`) read a weight once, in the form that it is
packed in. With more rows the weight is unpacked and torch multiplies; on a CPU it always does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from thunder_tune.executors.short_attention import triton_is_interpreted
from thunder_tune.executors.weight_formats import LANES, PackedWeight, table_of, unpacked

MOST_AT_ONCE = 64
"""Rows of one tile of the input."""
MOST_ROWS = 256
"""With more a product is bound by its operations: bfloat16 on an H200 has 206 for each byte."""
FEWEST_COLUMNS = 32
"""Of a tile of the result."""


def product(
    x: torch.Tensor,
    weight: PackedWeight | torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    counters: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ weight.T + bias + residual, accumulated in float32 and rounded once.

    Args:
        x: (..., in features); on CUDA bfloat16 or float16.
        weight: (out features, in features).
        bias: (out features,) or None.
        residual: (..., out features) or None.
        counters: As `counters_for` makes them for the weight, for its calls alone.

    Returns:
        (..., out features), contiguous.
    """
    out = weight.shape[0]
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    added = None if residual is None else residual.reshape(-1, out).contiguous()
    if not x.is_cuda:
        found = _by_torch(rows, weight, bias, added)
    elif len(rows) > MOST_AT_ONCE:
        plain = weight if isinstance(weight, torch.Tensor) else rows_of(weight, dtype=x.dtype)
        found = F.linear(rows, plain, bias)
        found = found if added is None else found.add_(added)
    else:
        found = multiply(rows, weight, bias, added, counters=counters)
    return found.view(*x.shape[:-1], out)


def multiply(
    x: torch.Tensor,
    weight: PackedWeight | torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    counters: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel of `product`.

    Args:
        x: (rows, in features), contiguous; at most `MOST_AT_ONCE` rows.
        weight: As there.
        bias: As there.
        residual: (rows, out features), contiguous; or None.
        counters: As there.
    """
    import triton

    out, width = weight.shape
    rows = len(x)
    result = x.new_empty(rows, out)
    if not result.numel():
        return result
    if counters is None:
        counters = counters_for(weight)
    most = _parts(out)
    partial = x.new_empty(most * rows * out if most > 1 else 1, dtype=torch.float32)
    # A gather of 16 bits stays out of the tiles on their way, which are copied by 32 at least.
    tensors, form = _stored(weight, x.dtype)
    _product_kernel()(
        lambda tile: (triton.cdiv(out, tile["COLUMNS"]), tile["PARTS"]),
        x,
        *tensors,
        x if bias is None else bias.contiguous(),
        x if residual is None else residual,
        result,
        partial,
        counters,
        rows,
        WIDTH=width,
        OUT=out,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        FAST=x.dtype == torch.bfloat16 and not triton_is_interpreted(),
        ROWS=max(8, triton.next_power_of_2(rows)),
        **form,
    )
    return result


def rows_of(
    weight: PackedWeight, indices: torch.Tensor | None = None, *, dtype: torch.dtype
) -> torch.Tensor:
    """Return a packed weight, or some of its rows.

    Args:
        weight: (rows, width).
        indices: Which rows, integers of any shape; None: all.
        dtype: Of the result.

    Returns:
        (*shape of the indices, width), or (rows, width).
    """
    wanted = None if indices is None else indices.reshape(-1)
    if weight.values.is_cuda:
        found = unpack(weight, wanted, dtype)
    else:
        found = unpacked(weight, wanted).to(dtype)
    return found if indices is None else found.view(*indices.shape, -1)


def unpack(weight: PackedWeight, indices: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Launch the kernel of `rows_of`; indices have one dimension."""
    import triton

    from thunder_tune.executors.kernels import weight_only as kernels

    count, width = weight.shape
    result = weight.values.new_empty(
        count if indices is None else len(indices), width, dtype=dtype
    )
    if not result.numel():
        return result
    tensors, form = _stored(weight, torch.float32)
    words = weight.values.shape[1]
    kernels.unpack_rows[(len(result), triton.cdiv(words, kernels.SIDE))](
        weight.values if indices is None else indices.contiguous(),
        *tensors,
        result,
        count,
        WIDTH=width,
        HAS_INDICES=indices is not None,
        SIDE=kernels.SIDE,
        **form,
    )
    return result


def counters_for(weight: PackedWeight | torch.Tensor) -> torch.Tensor:
    """Return what counts the parts of a product that are done; a kernel leaves it at zero."""
    device = weight.device if isinstance(weight, torch.Tensor) else weight.values.device
    return torch.zeros(-(-weight.shape[0] // FEWEST_COLUMNS), dtype=torch.int32, device=device)


def _by_torch(
    x: torch.Tensor,
    weight: PackedWeight | torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    wide = weight.float() if isinstance(weight, torch.Tensor) else unpacked(weight)
    found = F.linear(x.float(), wide, None if bias is None else bias.float())
    return (found if residual is None else found + residual.float()).to(x.dtype)


def _stored(
    weight: PackedWeight | torch.Tensor, table_dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Return values, pairs, scales and table as kernels take them, and what they are."""
    if isinstance(weight, torch.Tensor):
        plain = weight.contiguous()
        form = {"FORM": "plain", "EACH": 1, "GROUP": 0, "LANES": LANES, "HAS_PAIRS": False}
        return (plain, plain, plain, plain), form
    form = {
        "FORM": weight.format.name,
        "EACH": weight.format.each,
        "GROUP": weight.format.group,
        "LANES": weight.format.lanes,
        "HAS_PAIRS": weight.pairs is not None,
    }
    values, pairs, scales = weight.values, weight.pairs, weight.scales
    table = table_of(weight.format, values.device, table_dtype) if weight.format.codes else scales
    return (values, values if pairs is None else pairs, scales, table), form


def _parts(out: int) -> int:
    """Return how many parts of the width there may be beside one another, with room for each."""
    from thunder_tune.executors.kernels.weight_only import PARTS, SPLIT_BELOW

    return max(PARTS) if out < SPLIT_BELOW else 1


@functools.cache
def _product_kernel() -> Callable[..., object]:
    from thunder_tune.executors.kernels import weight_only as kernels

    if triton_is_interpreted():  # there is no device to time tiles on

        def interpreted(grid: Any, *args: Any, **settings: Any) -> object:  # noqa: ANN401
            blocks = settings["WIDTH"] // (settings["EACH"] * settings["LANES"])
            tile = {"COLUMNS": FEWEST_COLUMNS, "PARTS": 1 if blocks % 2 else 2}
            return kernels.product[grid(tile)](*args, **settings, **tile)

        return interpreted
    tuned = kernels.tuned_product()
    return lambda grid, *args, **settings: tuned[grid](*args, **settings)
