"""Convolution, batch norm, residual addition and ReLU in one kernel, for inference.

The norm's scale and shift are folded into packed weights (in float32, rounded once), and what
follows becomes the epilogue of the convolution: cuDNN's fused convolutions, or for 1x1 kernels
cuBLASLt's epilogue, through torch (bias and ReLU) or called directly (a residual too). Everything
stays channels last, as all of them want it.
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

from thunder_tune.executors.kernels import cublaslt
from thunder_tune.executors.matmul_conv import matmul_conv2d
from thunder_tune.executors.packing import packs

folded_conv_executor = OperatorExecutor("thunder_tune_folded_conv", version="1")
register_executor(folded_conv_executor)
folded_matmul_executor = OperatorExecutor("thunder_tune_folded_matmul", version="1")
register_executor(folded_matmul_executor)
folded_cublaslt_executor = OperatorExecutor("thunder_tune_folded_cublaslt", version="1")
register_executor(folded_cublaslt_executor)

Size = tuple[int, int]


def _composite(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    norm: tuple[TensorProxy | None, ...],
    residual: TensorProxy | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> TensorProxy:
    y = ltorch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    y = ltorch.batch_norm(y, *norm, training, 0.1, eps)
    if residual is not None:
        y = y + residual
    return ltorch.relu(y) if relu else y


conv_bn = Symbol("conv_bn", meta=_composite, id="thunder_tune.conv_bn")
"""The composite that a rewrite puts in place of a convolution and what follows it.

Its arguments are those of `folded_conv`.
"""


def fold(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a convolution's weight and bias with the batch norm after it folded in.

    Args:
        weight: (features, channels / groups, height, width).
        bias: (features,) or None.
        norm: Running mean and variance, weight, bias; (features,) each, the last two perhaps None.
        eps: Added to the variance.
    """
    mean, variance, gamma, beta = (None if t is None else t.float() for t in norm)
    if mean is None or variance is None:
        raise ValueError("a norm without running statistics cannot be folded")
    scale = torch.rsqrt(variance + eps)
    if gamma is not None:
        scale = scale * gamma
    shift = -mean * scale if bias is None else (bias.float() - mean) * scale
    if beta is not None:
        shift = shift + beta
    folded = weight.float() * scale[:, None, None, None]
    form = torch.channels_last
    return folded.to(weight.dtype).contiguous(memory_format=form), shift.to(weight.dtype)


def folded_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    residual: torch.Tensor | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> torch.Tensor:
    """Return relu(batch_norm(conv2d(x)) + residual), of which all but the convolution may lack.

    Args:
        x: (batch, channels, height, width), any strides.
        weight: As in `torch.nn.functional.conv2d`.
        bias: As there.
        norm: Running mean and variance, weight, bias of the norm.
        residual: Of the result's shape, or None.
        stride: As in `torch.nn.functional.conv2d`.
        padding: As there, numbers.
        dilation: As there.
        groups: As there.
        training: False.
        eps: Of the norm.
        relu: Whether it ends with one.
        store: Number of the candidate's packed weights.

    Returns:
        (batch, features, rows, columns), channels last in memory.
    """
    kernel, shift = _packed(weight, bias, norm, eps, store)
    x = x.contiguous(memory_format=torch.channels_last)
    how = (stride, padding, dilation, groups)
    if x.is_cuda and relu:
        if residual is None:
            return torch.cudnn_convolution_relu(x, kernel, shift, *how)
        z = residual.contiguous(memory_format=torch.channels_last)
        return torch.cudnn_convolution_add_relu(x, kernel, z, 1.0, shift, *how)
    return _finished(F.conv2d(x, kernel, shift, *how), residual, relu)


def folded_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    residual: torch.Tensor | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> torch.Tensor:
    """Return the same as `folded_conv` for a 1x1 kernel, by one matrix product."""
    kernel, shift = _packed(weight, bias, norm, eps, store)
    if residual is not None or not (x.is_cuda and relu):
        return _finished(matmul_conv2d(x, kernel, shift, stride), residual, relu)
    pixels = x[:, :, :: stride[0], :: stride[1]].permute(0, 2, 3, 1)
    batch, rows, columns, channels = pixels.shape
    product = torch._addmm_activation(
        shift, pixels.reshape(-1, channels), kernel.view(len(kernel), -1).t()
    )
    return product.view(batch, rows, columns, -1).permute(0, 3, 1, 2)


def folded_cublaslt(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    residual: torch.Tensor | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> torch.Tensor:
    """Return the same as `folded_matmul`, by one matrix product that adds the residual too."""
    kernel, shift = _packed(weight, bias, norm, eps, store)
    if not x.is_cuda:
        return _finished(matmul_conv2d(x, kernel, shift, stride), residual, relu)
    pixels = x[:, :, :: stride[0], :: stride[1]].permute(0, 2, 3, 1)
    product = cublaslt.linear(
        cublaslt.as_rows(pixels),
        kernel.view(len(kernel), -1),
        shift,
        residual=None if residual is None else cublaslt.as_rows(residual.permute(0, 2, 3, 1)),
        activation="relu" if relu else None,
    )
    return product.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2)


def _finished(y: torch.Tensor, residual: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """Add and clamp in place: the convolution's result is nobody else's."""
    if residual is not None:
        y = y.add_(residual)
    return y.relu_() if relu else y


def _packed(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    eps: float,
    store: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return packs(store).get(
        "conv_bn", (weight, bias, *norm), lambda: fold(weight, bias, norm, eps)
    )


def folds(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    norm: tuple[TensorProxy | None, ...],
    residual: TensorProxy | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> bool:
    """Whether the norm of a composite can be folded into its convolution."""
    return (
        x.ndim == 4
        and not training
        and norm[0] is not None
        and norm[1] is not None
        and dtypes.is_float_dtype(x.dtype)
        and x.dtype == weight.dtype
        and (residual is None or residual.dtype == x.dtype)
    )


def _is_product(x: TensorProxy, weight: TensorProxy, *rest: Any) -> bool:  # noqa: ANN401
    _, _, _, _, padding, dilation, groups, *_ = rest
    one = (1, 1)
    return (
        folds(x, weight, *rest)
        and tuple(weight.shape[2:]) == one
        and (padding, dilation, groups) == ((0, 0), one, 1)
    )


def _is_direct_product(x: TensorProxy, weight: TensorProxy, *rest: Any) -> bool:  # noqa: ANN401
    is_cuda = str(x.device).startswith("cuda")
    return _is_product(x, weight, *rest) and not (is_cuda and x.dtype == dtypes.float64)


def _register() -> None:
    for executor, name, function, checker in (
        (folded_conv_executor, "folded_conv", folded_conv, folds),
        (folded_matmul_executor, "folded_matmul", folded_matmul, _is_product),
        (folded_cublaslt_executor, "folded_cublaslt", folded_cublaslt, _is_direct_product),
    ):
        symbol: Any = executor.register_operator(name, like=_composite, fn=function)
        executor.register_implementation(conv_bn, symbol, checker=checker)


_register()
