"""Linears in FP8 with static scales: no pass over the input to find them.

The input is rounded by `quantize_static` (`executors/static_scales.py`), which the region before
the linear absorbs: a product, a clamp and a conversion, no reduction. The weight has one scale and
is packed once. On CUDA cuBLASLt computes the product; on a CPU the same values are multiplied in
float32 and rounded alike.
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

from thunder_tune.executors.float8 import linear_meta, linears_meta
from thunder_tune.executors.kernels import cublaslt
from thunder_tune.executors.kernels.cublaslt_float8 import MULTIPLE, float8_linear
from thunder_tune.executors.packed_linear import can_pack, packed_linear
from thunder_tune.executors.packing import active_store, packs
from thunder_tune.executors.static_scales import (
    E4M3,
    activation_scales,
    activation_scales_meta,
    packed_weight,
    quantize_static,
    round_to_e4m3,
)

float8_static_executor = OperatorExecutor("thunder_tune_float8_static", version="1")
register_executor(float8_static_executor)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: tuple[torch.Tensor, torch.Tensor],
    *,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype,
    out_multiplier: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return activation(scales * x @ weight.T + bias + residual), rounded once.

    Args:
        x: (..., in features), e4m3.
        weight: (out features, in features), e4m3.
        bias: (out features,) or None.
        scales: Of x and of the weight, () each.
        residual: (..., out features) or None.
        activation: None, "relu" or "gelu", the latter in its tanh form.
        out_dtype: e4m3, or on CUDA bfloat16.
        out_multiplier: (), an e4m3 result is multiplied by it, and saturated.

    Returns:
        (..., out features).
    """
    if x.is_cuda:
        result = float8_linear(
            cublaslt.as_rows(x),
            weight,
            None if bias is None else bias.contiguous(),
            x_scale=scales[0],
            weight_scale=scales[1],
            residual=None if residual is None else cublaslt.as_rows(residual),
            activation=activation,
            out_dtype=out_dtype,
            out_multiplier=out_multiplier,
        )
        return result.view(*x.shape[:-1], weight.shape[0])
    wide = F.linear(x.float(), weight.float()) * (scales[0] * scales[1])
    for added in (bias, residual):
        wide = wide if added is None else wide + added.float()
    if activation is not None:
        wide = F.relu(wide) if activation == "relu" else F.gelu(wide, approximate="tanh")
    if out_dtype != E4M3:
        return wide.to(out_dtype)
    return round_to_e4m3(wide, wide.new_ones(()) if out_multiplier is None else out_multiplier)


def static_linears(
    x: torch.Tensor,
    scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
    store: int,
) -> tuple[torch.Tensor, ...]:
    """Return the product of a quantized input with each weight, plus bias.

    Args:
        x: (..., in features), e4m3.
        scale: Of x, (), float32.
        weights: (out features, in features) each, in the type of the results.
        biases: (out features,) each, all or none.
        store: Number of the candidate's packed weights.

    Returns:
        (..., out features) each, views of one product.
    """
    weight, weight_scale = packed_weight(weights, store)
    bias = biases[0]
    if len(weights) > 1 and bias is not None:
        given = [b for b in biases if b is not None]
        bias = packs(store).get("static float8 bias", biases, lambda: torch.cat(given))
    result = product(x, weight, bias, (scale, weight_scale), out_dtype=weights[0].dtype)
    return tuple(torch.split_with_sizes(result, [len(w) for w in weights], -1))


def static_linear(
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    store: int,
) -> torch.Tensor:
    """Return the same as `static_linears` for one weight."""
    return static_linears(x, scale, (weight,), (bias,), store)[0]


def takes(x: TensorProxy, widths: tuple[int, ...]) -> bool:
    """Whether an input of this type and device, and products of these widths, can be had."""
    if x.ndim < 2 or any(int(width) % MULTIPLE for width in widths):
        return False
    if not str(x.device).startswith("cuda"):
        return bool(dtypes.is_float_dtype(x.dtype))
    return bool(
        x.dtype == dtypes.bfloat16
        and torch.cuda.get_device_capability() >= (8, 9)
        and not cublaslt.available()
    )


def _fits_linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> bool:
    return _fits_packed(x, (weight,), (bias,), 0)


def _fits_packed(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> bool:
    widths = (int(x.shape[-1]), sum(int(w.shape[0]) for w in weights))
    return can_pack(x, weights, biases, store) and takes(x, widths)


def _register() -> Symbol:
    register: Any = float8_static_executor.register_operator
    scales: Any = register("activation_scales", meta=activation_scales_meta, fn=activation_scales)
    one: Any = register("static_linear", meta=linear_meta, fn=static_linear)
    many: Any = register("static_linears", meta=linears_meta, fn=static_linears)

    def linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> Any:  # noqa: ANN401
        multiplier, scale = scales((), (weight,), x.name, active_store())
        return one(quantize_static(x, multiplier), scale, weight, bias, active_store())

    def packed(
        x: TensorProxy,
        weights: tuple[TensorProxy, ...],
        biases: tuple[TensorProxy | None, ...],
        store: int,
    ) -> Any:  # noqa: ANN401
        multiplier, scale = scales((), weights, x.name, store)
        return many(quantize_static(x, multiplier), scale, weights, biases, store)

    float8_static_executor.register_implementation(
        ltorch.linear, checker=_fits_linear, execution_transform=linear
    )
    float8_static_executor.register_implementation(
        packed_linear, checker=_fits_packed, execution_transform=packed
    )
    made: Symbol = scales
    return made


ACTIVATION_SCALES = _register()
"""The symbol of `activation_scales` in traces; what it sees is filled in with the regions."""
