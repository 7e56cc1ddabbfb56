"""How far a tensor is from its reference: the whole, its worst part, its direction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

PART_ELEMENTS = 64
"""Neighbouring elements that are judged together; smaller than the tile of any matmul kernel."""
CHUNK_ELEMENTS = PART_ELEMENTS * 2**18
"""Elements compared at once, in float64: bounds the memory that a comparison takes."""


@dataclass(frozen=True, slots=True)
class Distance:
    """One tensor's distance from its reference.

    Attributes:
        absolute: ||out - ref||; of integers and booleans the number of wrong elements.
        error: ||out - ref|| / ||ref||; of integers and booleans the share of wrong elements.
        part: Largest error of `PART_ELEMENTS` neighbours, relative to the reference there, or to
            the reference's root mean square where that is larger.
        cosine: Cosine similarity; 1 of integers.
        top1: Share of rows whose largest element is where the reference's is; None where rows have
            one element or the tensor is not floating.
    """

    absolute: float
    error: float
    part: float
    cosine: float
    top1: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A reference tensor with what comparisons with it need.

    Attributes:
        tensor: The values, perhaps kept in host memory.
        norm: Its 2-norm over finite elements; of integers their number.
        is_constant: Whether all elements are equal (and there are several).
        largest: Index of each row's largest element, or None.
    """

    tensor: Tensor
    norm: float
    is_constant: bool
    largest: Tensor | None

    @classmethod
    def of(
        cls, tensor: Tensor, *, dtype: torch.dtype, device: torch.device, has_classes: bool = False
    ) -> Target:
        """Keep a tensor as a target.

        Args:
            tensor: The values.
            dtype: Type to store floating values in.
            device: Where to store them.
            has_classes: Whether the largest element of a row means something.
        """
        tensor = tensor.detach()
        if not tensor.is_floating_point():
            kept = tensor.to(device, copy=True)
            return cls(kept, float(tensor.numel()), False, None)
        square = sum(float((c * c).sum()) for c in _finite_chunks(tensor))
        has_rows = has_classes and tensor.numel() > 0 and tensor.dim() > 0 and tensor.shape[-1] > 1
        is_constant = tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
        return cls(
            tensor=tensor.to(device, dtype, copy=True),
            norm=math.sqrt(square),
            is_constant=is_constant,
            largest=tensor.argmax(-1) if has_rows else None,
        )

    def distance(self, out: Tensor) -> Distance:
        """Compare a tensor of the same shape, on any device, with this target.

        Elements that are not finite in the reference are left out, see `is_finite_where_due`.
        """
        if not self.tensor.is_floating_point():
            wrong = int((out.to(self.tensor.device) != self.tensor).sum())
            share = wrong / max(1, out.numel())
            return Distance(float(wrong), share, share, 1.0)
        difference, product, own = 0.0, 0.0, 0.0
        part_norm = self.norm * math.sqrt(PART_ELEMENTS / max(1, out.numel()))
        worst = 0.0
        for ours, theirs in self._chunks(out):
            square = (ours - theirs).square_()
            difference += float(square.sum())
            product += float((ours * theirs).sum())
            own += float(ours.square().sum())
            there = _by_parts(theirs.square()).sqrt().clamp_(min=part_norm)
            worst = max(worst, float((_by_parts(square).sqrt() / there).nan_to_num(0.0).max()))
        cosine = product / (math.sqrt(own) * self.norm) if own and self.norm else float(not own)
        absolute = math.sqrt(difference)
        return Distance(
            absolute=absolute,
            error=ratio_of(absolute, self.norm),
            part=worst,
            cosine=cosine,
            top1=self._agreement(out),
        )

    def is_finite_where_due(self, out: Tensor) -> bool:
        """Whether a tensor has no NaN or infinity where the reference has none."""
        if not out.is_floating_point() or not self.tensor.is_floating_point():
            return True
        if bool(torch.isfinite(out).all()):
            return True
        due = torch.isfinite(self.tensor).to(out.device)
        return bool(torch.isfinite(out)[due].all())

    def _agreement(self, out: Tensor) -> float | None:
        if self.largest is None:
            return None
        return float((out.argmax(-1).to(self.largest.device) == self.largest).double().mean())

    def _chunks(self, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        ours, theirs = out.detach().reshape(-1), self.tensor.reshape(-1)
        for start in range(0, ours.numel(), CHUNK_ELEMENTS):
            reference = theirs[start : start + CHUNK_ELEMENTS].to(out.device, torch.float64)
            result = ours[start : start + CHUNK_ELEMENTS].to(torch.float64)
            due = torch.isfinite(reference)
            yield result.where(due, 0.0), reference.where(due, 0.0)


def difference(one: Tensor, other: Tensor) -> float:
    """Return ||one - other||, of integers the number of elements that differ.

    Elements where either is not finite are left out.
    """
    if not one.is_floating_point():
        return float((one != other).sum())
    total = 0.0
    flat, other_flat = one.detach().reshape(-1), other.detach().reshape(-1).to(one.device)
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        gap = flat[start : start + CHUNK_ELEMENTS].double()
        gap = gap - other_flat[start : start + CHUNK_ELEMENTS].double()
        total += float(gap.where(torch.isfinite(gap), 0.0).square().sum())
    return math.sqrt(total)


def ratio_of(error: float, norm: float) -> float:
    """Return error / norm, where an error of nothing is infinite and no error of nothing is 0."""
    if norm:
        return error / norm
    return math.inf if error else 0.0


def _finite_chunks(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        chunk = flat[start : start + CHUNK_ELEMENTS].double()
        yield chunk.where(torch.isfinite(chunk), 0.0)


def _by_parts(squares: Tensor) -> Tensor:
    """Sum neighbours; the last part may be shorter."""
    missing = -squares.numel() % PART_ELEMENTS
    return torch.nn.functional.pad(squares, (0, missing)).view(-1, PART_ELEMENTS).sum(1)
