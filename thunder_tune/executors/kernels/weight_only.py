"""Products of few rows with packed weights, and rows of packed weights in 16 bits.

A product of few rows waits for its weight's bytes: they are read once, 128 bytes of each row at a
time, become 16 bits in registers and are multiplied on tensor cores, by tiles of the input that
are filled up to 8 rows. Where there are too few columns to occupy the device, parts of the width
are multiplied side by side, and whoever is last adds them up in their order.

Layouts are those of `executors/weight_formats.py`: words of 16 bits, in which the values of one
place are `LANES` apart in a row. "plain" is a matrix as torch has it.
"""

from typing import Any

import triton
import triton.language as tl

PARTS = (1, 2, 4, 8, 16)
"""Of the width, side by side."""
SPLIT_BELOW = 65536
"""Products of so many columns have tiles enough as they are."""
TILES = ((32, 2), (64, 4), (128, 4), (128, 8))
"""Columns and warps of a tile."""
STAGES = 5
"""Tiles on their way at a time, and in use."""
SIDE = 1024
"""Words that a program unpacks."""


def _two(*lines: str) -> str:
    """Return PTX that makes two bfloat16 in $0 of two words in $1."""
    named = "\n".join(lines)
    return f"{{\n.reg .b32 n, m, a, b;\n{named}\n}}"


def _nibbles(shift: int) -> str:
    """128 + n by the bits of a bfloat16, less 136."""
    return _two(
        "mov.b32 a, 0x3F803F80;",
        "mov.b32 b, 0xC308C308;",
        f"shr.u32 n, $1, {shift};",
        "lop3.b32 n, n, 0x000F000F, 0x43004300, 0xEA;",
        "fma.rn.bf16x2 $0, n, a, b;",
    )


def _integers(shift: int) -> str:
    """128 + the low 7 bits, less 128 or, by the sign, 256: both by the bits of a bfloat16."""
    return _two(
        "mov.b32 a, 0xBF80BF80;",
        f"shr.u32 n, $1, {shift};",
        "lop3.b32 m, n, 0x00800080, 0x43004300, 0xEA;",
        "lop3.b32 n, n, 0x007F007F, 0x43004300, 0xEA;",
        "fma.rn.bf16x2 $0, m, a, n;",
    )


def _floats(sign: int, shift: int, mask: int, factor: int) -> str:
    """Sign, exponent and fraction where a bfloat16 has them, then times a power of two."""
    return _two(
        f"mov.b32 a, {factor:#x};",
        "mov.b32 b, 0x80008000;",
        f"shl.b32 m, $1, {sign};",
        f"shl.b32 n, $1, {shift};" if shift > 0 else f"shr.u32 n, $1, {-shift};",
        f"and.b32 n, n, {mask:#x};",
        "lop3.b32 n, m, 0x80008000, n, 0xEA;",
        "fma.rn.bf16x2 $0, n, a, b;",
    )


INT4 = tl.constexpr(tuple(_nibbles(shift) for shift in (0, 4, 8, 12)))
INT8 = tl.constexpr(tuple(_integers(shift) for shift in (0, 8)))
E4M3 = tl.constexpr(
    tuple(_floats(8 - at, 4 - at, 0x07F007F0, 0x7B807B80) for at in (0, 8))  # 2^120
)
E2M1 = tl.constexpr(
    tuple(_floats(12 - at, 6 - at, 0x01C001C0, 0x7E807E80) for at in (0, 4, 8, 12))  # 2^126
)


@triton.jit
def _by_ptx(words, code: tl.constexpr):
    return tl.inline_asm_elementwise(
        code, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def _of_bits(bits, factor: tl.constexpr, dtype: tl.constexpr):
    """Return what a float16 of these bits is, times a power of two: subnormal ones too."""
    return (bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * factor).to(dtype)


@triton.jit
def _decoded(words, pairs, table, FORM: tl.constexpr, PART: tl.constexpr, dtype: tl.constexpr):
    """Return the values in one part of words, in a type that holds them."""
    if FORM == "plain":
        return words.to(dtype)
    elif FORM == "int8":
        return (words >> (8 * PART)).to(tl.int8).to(dtype)
    elif FORM == "float8":
        code = words >> (8 * PART)
        return _of_bits(((code & 128) << 8) | ((code & 127) << 7), 256.0, dtype)
    else:
        code = (words >> (4 * PART)) & 15
        if FORM == "int4":
            return (code.to(tl.int16) - 8).to(dtype)
        elif FORM == "nf4":
            return tl.load(table + code).to(dtype)
        elif FORM == "fp4_e2m1":
            return _of_bits(((code & 8) << 12) | ((code & 7) << 9), 16384.0, dtype)
        else:
            code = (code << 2) | ((pairs >> (2 * PART)) & 3).to(tl.uint16)
            if FORM == "fp6_e2m3":
                return _of_bits(((code & 32) << 10) | ((code & 31) << 7), 16384.0, dtype)
            else:
                return _of_bits(((code & 32) << 10) | ((code & 31) << 8), 4096.0, dtype)


@triton.jit
def _operand(
    words, pairs, table, FORM: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr, dtype
):
    """Return the same, of most formats in bfloat16 by a few instructions for two."""
    if FAST and FORM == "int4":
        return _by_ptx(words, tl.constexpr(INT4[PART]))
    elif FAST and FORM == "int8":
        return _by_ptx(words, tl.constexpr(INT8[PART]))
    elif FAST and FORM == "float8":
        return _by_ptx(words, tl.constexpr(E4M3[PART]))
    elif FAST and FORM == "fp4_e2m1":
        return _by_ptx(words, tl.constexpr(E2M1[PART]))
    else:
        return _decoded(words, pairs, table, FORM, PART, dtype)


@triton.jit
def product(
    x,
    values,
    pairs,
    scales,
    table,
    bias,
    residual,
    results,
    partial,
    counters,
    rows,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    FORM: tl.constexpr,
    EACH: tl.constexpr,  # values of a word
    GROUP: tl.constexpr,  # values with a scale of their own; 0: a row
    LANES: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    FAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Write x @ weight.T + bias + residual: (rows, OUT), contiguous, as x and residual are."""
    dtype: tl.constexpr = x.dtype.element_ty
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    held = tl.minimum(column, OUT - 1).to(tl.int64)  # what lies beyond is not written
    row = tl.arange(0, ROWS)
    is_row = row < rows
    lane = tl.arange(0, LANES)
    step: tl.constexpr = EACH * LANES
    part: tl.constexpr = WIDTH // step // PARTS
    x_at = x + row[None, :] * WIDTH + lane[:, None]
    value_at = values + held[:, None] * (WIDTH // EACH) + lane[None, :]
    pair_at = pairs + held[:, None] * (WIDTH // 4) + lane[None, :]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for done in range(part):
        block = tl.program_id(1) * part + done
        words = tl.load(value_at + block * LANES)
        low = words
        if HAS_PAIRS:
            low = tl.load(pair_at + block * LANES)
        found = tl.zeros([COLUMNS, ROWS], tl.float32) if GROUP else total
        for index in tl.static_range(EACH):
            weight = _operand(words, low, table, FORM, index, FAST, dtype)
            at = block * step + index * LANES
            given = tl.load(x_at + at, mask=is_row[None, :], other=0.0)
            found = tl.dot(weight, given, found)
            if GROUP and (index + 1) * LANES % GROUP == 0:
                scale = tl.load(scales + held * (WIDTH // GROUP) + at // GROUP)
                total += found * scale.to(tl.float32)[:, None]
                found = tl.zeros([COLUMNS, ROWS], tl.float32)
        if GROUP == 0:
            total = found
    if GROUP == 0 and FORM != "plain":
        total *= tl.load(scales + held)[:, None]
    place = row[None, :].to(tl.int64) * OUT + column[:, None]
    is_place = is_row[None, :] & (column < OUT)[:, None]
    is_last = True
    if PARTS > 1:
        size = rows.to(tl.int64) * OUT
        tl.store(partial + tl.program_id(1) * size + place, total, mask=is_place)
        tl.debug_barrier()  # all of it is written before it is counted
        is_last = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel") == PARTS - 1
        if is_last:
            total = tl.zeros([COLUMNS, ROWS], tl.float32)
            for index in range(PARTS):
                at = partial + index * size + place
                total += tl.load(at, mask=is_place, other=0.0, cache_modifier=".cg")
            tl.store(counters + tl.program_id(0), 0)  # for the next call
    if is_last:
        if HAS_BIAS:
            total += tl.load(bias + held).to(tl.float32)[:, None]
        if HAS_RESIDUAL:
            total += tl.load(residual + place, mask=is_place, other=0.0).to(tl.float32)
        tl.store(results + place, total.to(dtype), mask=is_place)


@triton.jit
def unpack_rows(
    indices,
    values,
    pairs,
    scales,
    table,
    results,
    count,  # of the weight's rows
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
    EACH: tl.constexpr,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
    HAS_INDICES: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Write rows of a packed weight: (indices or rows, WIDTH), contiguous."""
    row = tl.program_id(0).to(tl.int64)
    result_at = results + row * WIDTH
    if HAS_INDICES:
        row = tl.load(indices + row).to(tl.int64)
        tl.device_assert((row >= 0) & (row < count), "index out of range")
        row = tl.minimum(tl.maximum(row, 0), count - 1)
    word = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    is_word = word < WIDTH // EACH
    words = tl.load(values + row * (WIDTH // EACH) + word, mask=is_word, other=0)
    low = words
    if HAS_PAIRS:
        low = tl.load(pairs + row * (WIDTH // 4) + word, mask=is_word, other=0)
    for index in tl.static_range(EACH):
        at = word // LANES * (EACH * LANES) + index * LANES + word % LANES
        found = _decoded(words, low, table, FORM, index, tl.float32)
        if GROUP:
            scale_at = scales + row * (WIDTH // GROUP) + at // GROUP
            found *= tl.load(scale_at, mask=is_word, other=0.0).to(tl.float32)
        else:
            found *= tl.load(scales + row)
        tl.store(result_at + at, found.to(results.dtype.element_ty), mask=is_word)


def tuned_product() -> Any:
    """Return the kernel that chooses tile and parts, timed at the first call of a shape.

    The choice is kept in Triton's cache, so that later processes add the parts up as this one.
    """
    configs = [
        triton.Config({"COLUMNS": columns, "PARTS": parts}, num_warps=warps, num_stages=STAGES)
        for columns, warps in TILES
        for parts in PARTS
    ]
    return triton.autotune(
        configs,
        key=["WIDTH", "OUT", "FORM", "ROWS"],
        prune_configs_by={"early_config_prune": _worth_timing},
        cache_results=True,
    )(product)


def suits(out: int, blocks: int, tile: tuple[int, int], processors: int) -> bool:
    """Whether so many programs suit a device.

    Args:
        out: Columns of the product; only fewer than `SPLIT_BELOW` are worth parts.
        blocks: Of the width, which parts share evenly.
        tile: Columns of a tile, and parts of the width.
        processors: Of the device: a program for each is the least that occupies it, with more
            than 8 there are more parts to add up than are needed.
    """
    columns, parts = tile
    programs = -(-out // columns) * parts
    if blocks % parts or (parts > 1 and out >= SPLIT_BELOW):
        return False
    return programs >= processors and (parts == 1 or programs <= 8 * processors)


def _worth_timing(configs: Any, arguments: Any, **settings: Any) -> Any:
    """Return the configurations that suit; where none does, those of the most programs."""
    import torch

    given = {**arguments, **settings}
    processors = torch.cuda.get_device_properties(given["x"].device).multi_processor_count
    blocks = given["WIDTH"] // (given["EACH"] * given["LANES"])

    def tile(config: Any) -> tuple[int, int]:
        return config.kwargs["COLUMNS"], config.kwargs["PARTS"]

    found = [c for c in configs if suits(given["OUT"], blocks, tile(c), processors)]
    if found:
        return found
    columns = min(columns for columns, _ in TILES)
    parts = max(p for p in PARTS if not blocks % p)
    return [c for c in configs if tile(c) == (columns, parts)]
