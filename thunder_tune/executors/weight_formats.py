"""Formats of packed weights: 8 bits and less for a value, with scales for groups of them.

Values lie in words of 16 bits, two of 8 or four of 4: a word's are `Format.lanes` apart in a row,
so that a kernel that reads neighbouring words has neighbouring values at each place of them, and
two words to a register. Of 6 bits the high 4 lie that way, the low 2 in bytes, four to a byte.

Codes and ranges: e4m3, e3m2, e2m3 and e2m1 after "OCP Microscaling Formats (MX) Specification"
1.0; nf4 after "QLoRA" (Dettmers et al., 2023), appendix E. A group's scale is the one of a few by
which its values come out nearest, the largest of which stops short of clipping any.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

LARGEST_E4M3 = 448.0
LANES = 64
"""Words of a row that lie together; a scale may ask for fewer."""
_CLIPPED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Shares of a group's largest magnitude that its scale may be made for."""
_TYPES = {"int8": torch.int8, "float8": torch.float8_e4m3fn}
_VALUES_AT_ONCE = 1 << 23
"""Of a matrix that is packed part by part, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a weight is packed.

    Attributes:
        name: Of the format, and of the type that it computes in.
        bits: Of one value.
        group: Values with a scale of their own, in a row; 0: all of the row.
        codes: Value of each code, or () where the code is a value of torch's.
    """

    name: str
    bits: int
    group: int = 0
    codes: tuple[float, ...] = ()

    @property
    def each(self) -> int:
        """Values of a word."""
        return 2 if self.bits == 8 else 4

    @property
    def lanes(self) -> int:
        """Values apart that those of a word lie: never more than share a scale."""
        return min(LANES, self.group or LANES)

    @property
    def span(self) -> int:
        """Values of a row that are packed together: widths are multiples of it."""
        return self.each * self.lanes

    def bytes_of(self, rows: int, width: int) -> int:
        """Return the bytes of a packed matrix, its scales among them."""
        scales = rows * width // self.group * 2 if self.group else rows * 4
        return rows * width * self.bits // 8 + scales


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A matrix in a format.

    Attributes:
        format: The format.
        shape: (rows, width) of the matrix.
        values: (rows, words), int16.
        pairs: (rows, width / 4), uint8: the low 2 bits of values of 6; else None.
        scales: (rows, groups) in bfloat16; (rows, 1) in float32 where a group is a row.
    """

    format: Format
    shape: tuple[int, int]
    values: torch.Tensor
    pairs: torch.Tensor | None
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        tensors = [self.values, self.scales, *([] if self.pairs is None else [self.pairs])]
        return sum(t.nbytes for t in tensors)


def _minifloat(exponent: int, mantissa: int, bias: int) -> tuple[float, ...]:
    """Return the values of a float format without infinities, by code, sign first."""
    ones = 1 << mantissa
    positive = [
        (code % ones / ones + (code >= ones)) * 2.0 ** (max(code // ones, 1) - bias)
        for code in range(1 << (exponent + mantissa))
    ]
    return (*positive, *(-v for v in positive))


# fmt: off
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)
# fmt: on

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            Format(name="int4", bits=4, group=128, codes=tuple(float(n - 8) for n in range(16))),
            Format(name="int8", bits=8),
            Format(name="float8", bits=8),
            Format(name="fp4_e2m1", bits=4, group=32, codes=_minifloat(2, 1, bias=1)),
            Format(name="nf4", bits=4, group=64, codes=_NF4),
            Format(name="fp6_e2m3", bits=6, group=128, codes=_minifloat(2, 3, bias=1)),
            Format(name="fp6_e3m2", bits=6, group=128, codes=_minifloat(3, 2, bias=3)),
        )
    }
)
"""Formats by name."""


def pack(weight: torch.Tensor, form: Format) -> PackedWeight:
    """Return a matrix in a format.

    Args:
        weight: (rows, width), floating; the width a multiple of the format's `span`.
        form: The format.
    """
    rows, width = weight.shape
    step = max(1, _VALUES_AT_ONCE // width)
    parts = [_packed_rows(weight[at : at + step].float(), form) for at in range(0, rows, step)]
    values, pairs, scales = (
        None if part[0] is None else torch.cat([p for p in part if p is not None])
        for part in zip(*parts, strict=True)
    )
    assert values is not None
    assert scales is not None
    return PackedWeight(
        format=form, shape=(rows, width), values=values, pairs=pairs, scales=scales
    )


def joined(parts: Sequence[PackedWeight]) -> PackedWeight:
    """Return packed matrices of one width and format behind one another."""
    if len(parts) == 1:
        return parts[0]
    pairs = [p.pairs for p in parts if p.pairs is not None]
    return PackedWeight(
        format=parts[0].format,
        shape=(sum(p.shape[0] for p in parts), parts[0].shape[1]),
        values=torch.cat([p.values for p in parts]),
        pairs=torch.cat(pairs) if pairs else None,
        scales=torch.cat([p.scales for p in parts]),
    )


def unpacked(packed: PackedWeight, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return a packed matrix, or some of its rows, in float32.

    Args:
        packed: The matrix.
        rows: Which rows, int64, of one dimension; None: all.
    """
    form = packed.format
    values, scales, pairs = (
        t if t is None or rows is None else t[rows]
        for t in (packed.values, packed.scales, packed.pairs)
    )
    assert values is not None
    assert scales is not None
    codes = _apart(values, form.each, form.lanes)
    if pairs is not None:
        codes = codes << 2 | _apart(pairs, 4, form.lanes)
    if form.codes:
        found = table_of(form, codes.device)[codes]
        return (found.view(*scales.shape, -1) * scales.float()[..., None]).view(codes.shape)
    return codes.to(torch.uint8).view(_TYPES[form.name]).float() * scales


def _together(codes: torch.Tensor, each: int, lanes: int, *, bits: int) -> torch.Tensor:
    """Return codes (rows, width) of so many bits in words, int32: (rows, width / each)."""
    apart = codes.to(torch.int32).view(len(codes), -1, each, lanes)
    words = [apart[:, :, place] << bits * place for place in range(each)]
    return sum(words[1:], words[0]).reshape(len(codes), -1)


def _apart(words: torch.Tensor, each: int, lanes: int) -> torch.Tensor:
    """Return the codes of words, or of bytes, int32: (rows, width)."""
    bits = 8 * words.element_size() // each
    wide = words.to(torch.int32).view(len(words), -1, 1, lanes)
    places = [(wide >> bits * place) & ((1 << bits) - 1) for place in range(each)]
    return torch.cat(places, 2).view(len(words), -1)


def _packed_rows(
    wide: torch.Tensor, form: Format
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return values, pairs and scales of some rows in float32."""
    pairs = None
    if form.codes:
        codes, scales = _codes(wide.view(len(wide), -1, form.group), form)
        codes = codes.view(wide.shape)
        if form.bits == 6:
            pairs = _together(codes & 3, 4, form.lanes, bits=2).to(torch.uint8)
            codes = codes >> 2
    else:
        largest = 127.0 if form.name == "int8" else LARGEST_E4M3
        scales = wide.abs().amax(-1, keepdim=True) / largest
        scaled = wide / torch.where(scales > 0, scales, 1.0)
        scaled = scaled.round() if form.name == "int8" else scaled
        codes = scaled.to(_TYPES[form.name]).view(torch.uint8)
    words = _together(codes, form.each, form.lanes, bits=16 // form.each)
    return words.to(torch.int16), pairs, scales


def _codes(groups: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest codes (rows, groups, values) and the scales of groups."""
    table = table_of(form, groups.device)
    ordered, order = table.sort()
    between = (ordered[1:] + ordered[:-1]) / 2
    best: tuple[torch.Tensor, ...] | None = None
    for scales in _candidates(groups, form):
        divisor = torch.where(scales == 0, 1.0, scales.float())[..., None]
        nearest = torch.bucketize(groups / divisor, between)
        error = (ordered[nearest] * divisor - groups).square().sum(-1)
        if best is None:
            best = nearest, scales, error
            continue
        is_better = error < best[2]
        best = (
            torch.where(is_better[..., None], nearest, best[0]),
            torch.where(is_better, scales, best[1]),
            torch.where(is_better, error, best[2]),
        )
    assert best is not None
    return order[best[0]], best[1]


def _candidates(groups: torch.Tensor, form: Format) -> Iterator[torch.Tensor]:
    """Yield scales that groups may have, in bfloat16; of codes with a longer side, either sign."""
    largest = groups.abs().amax(-1)
    low, high = min(form.codes), max(form.codes)
    at_top = groups.amax(-1) >= largest
    for share in _CLIPPED:
        yield (largest * share / high).to(torch.bfloat16)
        if -low > high:
            sign = torch.where(at_top, -1.0, 1.0)
            yield (largest * share / -low * sign).to(torch.bfloat16)


@functools.cache
def table_of(
    form: Format, device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the value of each code, on a device."""
    return torch.tensor(form.codes, dtype=dtype, device=device)
