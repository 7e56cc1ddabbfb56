"""Blocks of an image's pixels as channels, in one pass: padding, layout and filling included."""

import triton
import triton.language as tl

PIXELS = 128
"""Blocks of pixels that a program writes."""


@triton.jit
def blocks(
    images,
    results,
    i_batch,
    i_channel,
    i_row,
    i_column,
    total,  # blocks of all images
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_BEFORE: tl.constexpr,
    COLUMNS_BEFORE: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write (batch, ROWS, COLUMNS, DEPTH), contiguous; LANES is DEPTH's next power of two."""
    block = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    lane = tl.arange(0, LANES)
    batch = block // (ROWS * COLUMNS)
    within = (block - batch * (ROWS * COLUMNS)).to(tl.int32)
    row = (within // COLUMNS - ROWS_BEFORE)[:, None] * STRIDE + lane[None, :] // (
        STRIDE * CHANNELS
    )
    column = (within % COLUMNS - COLUMNS_BEFORE)[:, None] * STRIDE + (
        lane[None, :] // CHANNELS % STRIDE
    )
    is_block = block[:, None] < total
    is_pixel = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    is_pixel &= is_block & (lane[None, :] < STRIDE * STRIDE * CHANNELS)
    image = images + batch[:, None] * i_batch
    at = image + row * i_row + column * i_column + lane[None, :] % CHANNELS * i_channel
    pixels = tl.load(at, mask=is_pixel, other=0.0)
    result_at = results + block[:, None] * DEPTH + lane[None, :]
    tl.store(result_at, pixels, mask=is_block & (lane[None, :] < DEPTH))
