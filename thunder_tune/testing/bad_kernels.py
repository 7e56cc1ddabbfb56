"""Kernels that break the device they run on."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_FAR = 2**40
"""Elements: further away than any allocation, and still an address."""


@triton.jit
def _store_far_away(pointer, offset):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    tl.store(pointer + offset, 1.0)


def store_elsewhere(tensor: Tensor) -> None:
    """Store through a pointer to memory that is not there: an illegal access."""
    _store_far_away[(1,)](tensor, _FAR)
