"""Linears in FP8: rows of the input and of the weight scaled to e4m3, accumulated in float32.

The weight is quantized once, row by row. The input is quantized at each call by `quantize_rows`,
a composite that belongs to no executor: the region fuser merges it into the region that produced
the input (a norm, an activation), where it costs little beside what the region does anyway.

Scales are largest magnitude / 448 for each row, after "FP8 Formats for Deep Learning"
(Micikevicius et al., 2022); the product is `torch._scaled_mm`. On a CPU, which has no such
product, the quantized values are multiplied in float32.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.packed_linear import can_pack, packed_linear
from thunder_tune.executors.packing import active_store, packs

float8_executor = OperatorExecutor("thunder_tune_float8", version="1")
register_executor(float8_executor)

LARGEST = 448.0
"""Largest finite value of e4m3."""
SMALLEST_MAGNITUDE = 1e-12
"""Stands for the largest magnitude of a row of zeros."""
_MULTIPLE = 16
"""`torch._scaled_mm` wants widths that are multiples of it."""


def _quantize(x: TensorProxy) -> tuple[TensorProxy, TensorProxy]:
    wide = ltorch.to(x, torch.float32)
    largest = ltorch.amax(ltorch.abs(wide), -1, keepdim=True)
    scale = ltorch.clamp(largest, min=SMALLEST_MAGNITUDE) / LARGEST
    return ltorch.to(wide / scale, torch.float8_e4m3fn), scale


quantize_rows = Symbol("quantize_rows", meta=_quantize, id="thunder_tune.quantize_rows")
"""(..., width) -> e4m3 values of that shape, and float32 scales (..., 1)."""


def quantized(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return e4m3 values and float32 scales of the rows of a matrix: (rows, width), (rows, 1)."""
    wide = weights.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_MAGNITUDE) / LARGEST
    return (wide / scale).to(torch.float8_e4m3fn), scale


def scaled_linears(
    x: torch.Tensor,
    scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
    store: int,
) -> tuple[torch.Tensor, ...]:
    """Return the product of a quantized input with each weight, plus bias.

    Args:
        x: (..., in features), e4m3.
        scale: (..., 1), float32.
        weights: (out features, in features) each, in the type of the results.
        biases: (out features,) each, all or none.
        store: Number of the candidate's packed weights.

    Returns:
        (..., out features) each, views of one product.
    """

    def pack() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        given = [b for b in biases if b is not None]
        return (*quantized(torch.cat(weights)), torch.cat(given) if given else None)

    weight, weight_scale, bias = packs(store).get("float8", (*weights, *biases), pack)
    rows, row_scale = x.reshape(-1, x.shape[-1]), scale.reshape(-1, 1)
    dtype = weights[0].dtype
    if x.is_cuda:
        product = torch._scaled_mm(
            rows,
            weight.t(),
            scale_a=row_scale,
            scale_b=weight_scale.t(),
            bias=bias,
            out_dtype=dtype,
            use_fast_accum=True,
        )
    else:
        wide = (rows.float() @ weight.float().t()) * row_scale * weight_scale.t()
        product = (wide if bias is None else wide + bias.float()).to(dtype)
    result = product.view(*x.shape[:-1], -1)
    return tuple(torch.split_with_sizes(result, [len(w) for w in weights], -1))


def scaled_linear(
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    store: int,
) -> torch.Tensor:
    """Return the same as `scaled_linears` for one weight."""
    return scaled_linears(x, scale, (weight,), (bias,), store)[0]


def linear_meta(
    x: TensorProxy, scale: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, store: int
) -> TensorProxy:
    """Return the proxy of a product of quantized operands, in the weight's own type."""
    return TensorProxy(like=weight, shape=(*x.shape[:-1], weight.shape[0]), requires_grad=False)


def linears_meta(
    x: TensorProxy,
    scale: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> tuple[TensorProxy, ...]:
    """Return the same as `linear_meta` for each weight."""
    return tuple(linear_meta(x, scale, w, None, store) for w in weights)


def _fits_linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> bool:
    return _fits_packed(x, (weight,), (bias,), 0)


def _fits_packed(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> bool:
    widths = (x.shape[-1], sum(int(w.shape[0]) for w in weights))
    is_cuda = str(x.device).startswith("cuda")
    return (
        x.ndim >= 2
        and can_pack(x, weights, biases, store)
        and all(width % _MULTIPLE == 0 for width in widths)
        and (x.dtype == dtypes.bfloat16 or not is_cuda)
        and (not is_cuda or torch.cuda.get_device_capability() >= (8, 9))
    )


def _register() -> None:
    one: Any = float8_executor.register_operator(
        "scaled_linear", meta=linear_meta, fn=scaled_linear
    )
    many: Any = float8_executor.register_operator(
        "scaled_linears", meta=linears_meta, fn=scaled_linears
    )

    def linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> Any:  # noqa: ANN401
        values, scale = quantize_rows(x)
        return one(values, scale, weight, bias, active_store())

    def packed(
        x: TensorProxy,
        weights: tuple[TensorProxy, ...],
        biases: tuple[TensorProxy | None, ...],
        store: int,
    ) -> Any:  # noqa: ANN401
        values, scale = quantize_rows(x)
        return many(values, scale, weights, biases, store)

    float8_executor.register_implementation(
        ltorch.linear, checker=_fits_linear, execution_transform=linear
    )
    float8_executor.register_implementation(
        packed_linear, checker=_fits_packed, execution_transform=packed
    )


_register()
