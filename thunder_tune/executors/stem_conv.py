"""Strided convolutions of few channels, made dense: space to depth.

A tensor-core kernel reads 16 bytes of channels at a time; an image has three channels. Cut into
blocks of stride x stride pixels, whose pixels become channels, the image is read by a convolution
of stride 1 with fewer taps (7x7, stride 2, over 3 channels: 4x4 over 12). This is the rewriting of
ResNet's stem in MLPerf's submissions; it is exact, as all it adds is zeros.

Along one axis, output i is the sum over u of w[u] x[s i - p + u]. With b = ceil(p / s) blocks of
padding, of which f = s b - p pixels are more than the convolution asks for, that is the sum over m
of W[m] . X[i - b + m], where X[j] are the pixels s j to s j + s - 1, and W is w after f zeros,
filled up to whole blocks. The blocks start where the input starts, whatever the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.folded_conv import Size, conv_bn, fold, folds
from thunder_tune.executors.matmul_conv import Pair, pair
from thunder_tune.executors.packing import active_store, packs

MAX_CHANNELS = 4
"""With more, the library's own kernels read whole vectors, and the copy does not pay."""

MULTIPLE = 8
"""Of channels: 16 bytes in the types of two bytes."""

space_to_depth_executor = OperatorExecutor("thunder_tune_space_to_depth", version="1")
register_executor(space_to_depth_executor)
folded_stem_executor = OperatorExecutor("thunder_tune_folded_stem", version="1")
register_executor(folded_stem_executor)


@dataclass(frozen=True, slots=True)
class Axis:
    """A convolution along one axis, in blocks of its stride.

    Attributes:
        before: Blocks of padding before the input.
        front: Zero weights before the kernel.
        taps: Blocks that the kernel covers.
        blocks: Blocks that the convolution reads, padding included.
    """

    before: int
    front: int
    taps: int
    blocks: int


def axis_of(size: int, kernel: int, stride: int, padding: int) -> Axis:
    """Return the blocks of an axis of `size` pixels."""
    before = -(-padding // stride)
    front = before * stride - padding
    taps = -(-(front + kernel) // stride)
    outputs = (size + 2 * padding - kernel) // stride + 1
    return Axis(before, front, taps, outputs + taps - 1)


def _axes(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: Size) -> tuple[Axis, Axis]:
    height, width = (
        axis_of(size, kernel, stride, pad)
        for size, kernel, pad in zip(x.shape[2:], weight.shape[2:], padding, strict=True)
    )
    return height, width


def _depth(channels: int, stride: int) -> int:
    """Return the channels of a block, filled up."""
    return -(-channels * stride * stride // MULTIPLE) * MULTIPLE


def blocked_weight(weight: torch.Tensor, stride: int, axes: tuple[Axis, Axis]) -> torch.Tensor:
    """Return a kernel as one over blocks.

    Args:
        weight: (features, channels, height, width).
        stride: Of the convolution, in both directions.
        axes: Of its height and width.

    Returns:
        (features, channels of a block, taps, taps), channels last in memory.
    """
    features, channels, *sizes = weight.shape
    margins = [
        margin
        for axis, size in zip(reversed(axes), reversed(sizes), strict=True)
        for margin in (axis.front, axis.taps * stride - axis.front - size)
    ]
    rows, columns = (axis.taps for axis in axes)
    whole = F.pad(weight, margins).view(features, channels, rows, stride, columns, stride)
    deep = whole.permute(0, 3, 5, 1, 2, 4).reshape(features, -1, rows, columns)
    more = _depth(channels, stride) - deep.shape[1]
    return F.pad(deep, (0, 0, 0, 0, 0, more)).contiguous(memory_format=torch.channels_last)


def blocked(x: torch.Tensor, stride: int, axes: tuple[Axis, Axis]) -> torch.Tensor:
    """Return an image's blocks as channels, padding included.

    Args:
        x: (batch, channels, height, width), any strides.
        stride: Height and width of a block.
        axes: Of the convolution.

    Returns:
        (batch, channels of a block, rows, columns), channels last in memory. A channel's number
        is (row in the block * stride + column in the block) * channels + channel.
    """
    arrange = blocked_at_once if x.is_cuda else _blocked_by_copying
    return arrange(x, stride, axes)


def blocked_at_once(x: torch.Tensor, stride: int, axes: tuple[Axis, Axis]) -> torch.Tensor:
    """Launch the kernel; arguments and result as of `blocked`."""
    from thunder_tune.executors.kernels import blocks

    height, width = axes
    batch, channels = x.shape[:2]
    depth = _depth(channels, stride)
    total = batch * height.blocks * width.blocks
    result = x.new_empty(batch, height.blocks, width.blocks, depth)
    blocks.blocks[(-(-total // blocks.PIXELS),)](
        x,
        result,
        *x.stride(),
        total,
        HEIGHT=x.shape[2],
        WIDTH=x.shape[3],
        CHANNELS=channels,
        STRIDE=stride,
        ROWS=height.blocks,
        COLUMNS=width.blocks,
        ROWS_BEFORE=height.before,
        COLUMNS_BEFORE=width.before,
        DEPTH=depth,
        LANES=1 << (depth - 1).bit_length(),
        PIXELS=blocks.PIXELS,
    )
    return result.permute(0, 3, 1, 2)


def _blocked_by_copying(x: torch.Tensor, stride: int, axes: tuple[Axis, Axis]) -> torch.Tensor:
    height, width = axes
    batch, channels = x.shape[:2]
    result = x.new_zeros(batch, height.blocks, width.blocks, _depth(channels, stride))
    missing = [-size % stride for size in x.shape[2:]]
    if any(missing):
        x = F.pad(x, (0, missing[1], 0, missing[0]))
    rows, columns = (
        min(size // stride, axis.blocks - axis.before)
        for size, axis in zip(x.shape[2:], axes, strict=True)
    )
    whole = x[:, :, : rows * stride, : columns * stride]
    pixels = whole.reshape(batch, channels, rows, stride, columns, stride)
    inside = result[
        :,
        height.before : height.before + rows,
        width.before : width.before + columns,
        : channels * stride * stride,
    ]
    inside.view(batch, rows, columns, stride, stride, channels).copy_(
        pixels.permute(0, 2, 4, 3, 5, 1)
    )
    return result.permute(0, 3, 1, 2)


def space_to_depth_conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int,
    padding: Size,
    store: int,
) -> torch.Tensor:
    """Convolve over blocks of stride x stride pixels.

    Args:
        x: (batch, channels, height, width), any strides.
        weight: (features, channels, kernel height, kernel width).
        bias: (features,) or None.
        stride: In both directions.
        padding: Of height and width.
        store: Number of the candidate's packed weights.

    Returns:
        (batch, features, rows, columns), channels last in memory.
    """
    axes = _axes(x, weight, stride, padding)
    kernel = packs(store).get(
        f"space_to_depth {stride} {padding}",
        (weight,),
        lambda: blocked_weight(weight, stride, axes),
    )
    return F.conv2d(blocked(x, stride, axes), kernel, bias)


def folded_stem(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor | None, ...],
    residual: None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    training: bool,
    eps: float,
    relu: bool,
    store: int,
) -> torch.Tensor:
    """Return the same as `folded_conv` without a residual, over blocks of pixels."""
    padding = _numbers(padding)
    axes = _axes(x, weight, stride[0], padding)

    def pack() -> tuple[torch.Tensor, torch.Tensor]:
        folded, shift = fold(weight, bias, norm, eps)
        return blocked_weight(folded, stride[0], axes), shift

    kernel, shift = packs(store).get(
        f"folded_stem {stride} {padding} {eps}", (weight, bias, *norm), pack
    )
    x = blocked(x, stride[0], axes)
    if x.is_cuda and relu:
        one = (1, 1)
        return torch.cudnn_convolution_relu(x, kernel, shift, one, (0, 0), one, 1)
    y = F.conv2d(x, kernel, shift)
    return y.relu_() if relu else y


def _numbers(padding: Pair | str) -> Size:
    return (0, 0) if isinstance(padding, str) else pair(padding)


def _fits(
    a: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None = None,
    stride: Pair = 1,
    padding: Union[Pair, str] = 0,  # noqa: UP007 - evaluated at run time
    dilation: Pair = 1,
    groups: int = 1,
) -> bool:
    kernel = tuple(int(k) for k in weight.shape[2:])
    by_row, by_column = pair(stride)
    return (
        a.ndim == 4
        and groups == 1
        and pair(dilation) == (1, 1)
        and by_row == by_column > 1
        and all(k > by_row for k in kernel)
        and int(weight.shape[1]) <= MAX_CHANNELS
        and (padding == "valid" if isinstance(padding, str) else True)
        and dtypes.is_float_dtype(a.dtype)
        and all(t is None or t.dtype == a.dtype for t in (weight, bias))
    )


def _fits_folded(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    norm: tuple[TensorProxy | None, ...],
    residual: TensorProxy | None,
    *settings: Any,  # noqa: ANN401 - as of `folded_stem`
) -> bool:
    return (
        residual is None
        and folds(x, weight, bias, norm, residual, *settings)
        and _fits(x, weight, bias, *settings[:4])
    )


def _conv_meta(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    stride: int,
    padding: Size,
    store: int,
) -> TensorProxy:
    result: TensorProxy = ltorch.conv2d(x, weight, bias, stride, padding)
    return result


def _register() -> None:
    convolve: Any = space_to_depth_executor.register_operator(
        "space_to_depth_conv2d", like=_conv_meta, fn=space_to_depth_conv2d
    )

    def over_blocks(
        a: TensorProxy,
        weight: TensorProxy,
        bias: TensorProxy | None = None,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> Any:  # noqa: ANN401
        return convolve(a, weight, bias, pair(stride)[0], _numbers(padding), active_store())

    space_to_depth_executor.register_implementation(
        ltorch.conv2d, checker=_fits, execution_transform=over_blocks
    )
    folded: Any = folded_stem_executor.register_operator(
        "folded_stem", like=conv_bn.meta, fn=folded_stem
    )
    folded_stem_executor.register_implementation(conv_bn, folded, checker=_fits_folded)


_register()
