"""Convolutions that are matrix products: patch embedding and 1x1, without im2col or layout copies.

A convolution whose windows do not overlap (kernel = stride) multiplies each patch by the same
matrix, and one with a 1x1 kernel each pixel. The result is laid out channels last, as the rows of
the product are: a transformer reads it as (batch, patches, channels) without another copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

Pair = Union[int, Sequence[int]]  # noqa: UP007 - evaluated at run time

matmul_conv_executor = OperatorExecutor("thunder_tune_matmul_conv", version="1")
register_executor(matmul_conv_executor)


def pair(value: Pair) -> tuple[int, int]:
    """Return what a setting of a convolution says of height and width."""
    first, second = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return int(first), int(second)


def matmul_conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Convolve by one matrix product.

    Args:
        x: (batch, channels, height, width), any strides.
        weight: (features, channels, kernel height, kernel width); equal to the stride, or 1x1.
        bias: (features,) or None.
        stride: As in `torch.nn.functional.conv2d`.
        padding: 0.
        dilation: 1.
        groups: 1.

    Returns:
        (batch, features, rows, columns), channels last in memory.
    """
    features, channels, kernel_h, kernel_w = weight.shape
    stride_h, stride_w = pair(stride)
    if (kernel_h, kernel_w) == (1, 1):
        pixels = x[:, :, ::stride_h, ::stride_w].permute(0, 2, 3, 1)
        batch, rows, columns, _ = pixels.shape
        patches = pixels.reshape(-1, channels)
    else:
        batch = x.shape[0]
        rows, columns = x.shape[2] // kernel_h, x.shape[3] // kernel_w
        whole = _widened(x[:, :, : rows * kernel_h, : columns * kernel_w], kernel_w)
        windows = whole.reshape(batch, channels, rows, kernel_h, columns, -1)
        patches = windows.permute(0, 2, 4, 1, 3, 5).reshape(batch * rows * columns, -1)
        if whole.dtype != x.dtype:
            patches = patches.view(x.dtype)
    product = F.linear(patches, weight.reshape(features, -1), bias)
    return product.view(batch, rows, columns, features).permute(0, 3, 1, 2)


def _widened(x: torch.Tensor, run: int) -> torch.Tensor:
    """Return the same memory in the widest elements that runs of a row consist of.

    A copy that moves single numbers of two bytes to another order reaches a third of a device's
    bandwidth; 16 bytes at a time it works out an eighth of the addresses. A view of another type
    has no gradient.

    Args:
        x: Any strides.
        run: Elements that stay side by side.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return x
    *others, last = x.stride()
    starts = (*others, x.storage_offset())
    for wide in (torch.complex128, torch.int64, torch.int32):
        n, rest = divmod(wide.itemsize, x.element_size())
        fits = n > 1 and not rest and last == 1 and x.data_ptr() % wide.itemsize == 0
        if fits and all(number % n == 0 for number in (run, *starts)):
            return x.view(wide)
    return x


def _fits(
    a: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> bool:
    kernel = tuple(int(k) for k in weight.shape[2:])
    return (
        a.ndim == 4
        and groups == 1
        and (padding == "valid" if isinstance(padding, str) else pair(padding) == (0, 0))
        and pair(dilation) == (1, 1)
        and (kernel in (pair(stride), (1, 1)))
        and all(int(size) >= k for size, k in zip(a.shape[2:], kernel, strict=True))
    )


def _register() -> None:
    symbol: Any = matmul_conv_executor.register_operator(
        "matmul_conv2d", like=ltorch.conv2d, fn=matmul_conv2d
    )
    matmul_conv_executor.register_implementation(ltorch.conv2d, symbol, checker=_fits)


_register()
