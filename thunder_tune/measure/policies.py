"""Accuracy policies: how far from the reference a candidate may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from thunder_tune.errors import InputError, NotFoundError
from thunder_tune.values.trial import Accuracy

MAX_ERROR_RATIO = 2.0
"""Limit of `same`, and good enough for every other policy."""

MIXED_ERROR = 0.02
"""Limit of `mixed`: what products in bfloat16 cost, and some room."""

METRIC = "metric"
"""Name of the user's own metric among an accuracy's policies."""

PART = 4.0
"""A part of an output may err this many times as much as the policy allows the whole.

Errors of the parts of a sound result scatter around the error of the whole; a part that was
skipped, or read from the wrong place, has an error near 1.
"""

Precisions = Literal["own", "half", "any"]
"""Compute types: the model's own or finer, also tf32 and 16 bits, also 8 bits and below."""

SIGNIFICAND_EXPONENT_BITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "float64": (53, 11),
        "float32": (24, 8),
        "tf32": (11, 8),
        "float16": (11, 5),
        "bfloat16": (8, 8),
    }
)
BELOW_16_BITS = ("float8", "fp8", "fp6", "fp4", "mxfp", "nvfp4", "nf4", "int8", "int4")
"""How the names of narrower types begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The worst part (a few dozen neighbouring elements) of all outputs and gradients.

    Attributes:
        error_ratio: Its error divided by the error of the eager model's worst part.
        relative_error: Its error, relative to the reference there or on the whole.
    """

    error_ratio: float = 0.0
    relative_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of one policy; see `POLICIES` for the four there are.

    Whatever passes a policy passes the laxer ones too: a model whose own arithmetic is off by more
    than 2 % could otherwise run under `same` but not under `mixed`. Where the limits come from is
    in docs/measuring.md; `python -m benchmarks.limits` shows what lies on either side of them.

    Attributes:
        name: As users write it.
        precisions: Compute types it admits.
        max_relative_error: Of ||out - ref|| / ||ref||; None: the ratio decides.
        close_error: Relative error up to which nothing more is asked.
        min_cosine: Smallest cosine similarity.
        min_top1: Smallest agreement of the largest output, relative to eager's own.
        is_judged: False: everything finite and well-formed passes.
    """

    name: str
    precisions: Precisions
    max_relative_error: float | None = None
    close_error: float = 0.0
    min_cosine: float = -1.0
    min_top1: float = 0.0
    is_judged: bool = True

    def refusal(self, accuracy: Accuracy, part: Part | None = None) -> str:
        """Say why this policy refuses a candidate, or "" where it does not.

        Args:
            accuracy: As judged; limits themselves are allowed, NaN is not.
            part: The worst part, where known.
        """
        part = part or Part()
        if not self.is_judged:
            return ""
        as_good = _worse_than_eager(accuracy, part)
        if not as_good or self.max_relative_error is None:
            return as_good
        error, worst = accuracy.relative_error, part.relative_error
        if error <= self.close_error and worst <= PART * self.close_error:
            return ""
        top1 = accuracy.top1_agreement
        if not accuracy.relative_error <= self.max_relative_error:
            return f"relative error {accuracy.relative_error:.3g} is above " + (
                f"{self.max_relative_error:g}"
            )
        if not part.relative_error <= PART * self.max_relative_error:
            return (
                f"relative error {part.relative_error:.3g} in a part of an output is above "
                f"{PART * self.max_relative_error:g}"
            )
        if not accuracy.cosine >= self.min_cosine:
            return f"cosine similarity {accuracy.cosine:.4f} is below {self.min_cosine:g}"
        if top1 is not None and not top1 >= self.min_top1:
            return f"largest-output agreement {top1:.4f} is below {self.min_top1:g} of eager's"
        return ""

    def allows_dtype(self, model_dtype: str, compute_dtype: str) -> str:
        """Say why ops may not compute in a type, or "" where they may.

        Args:
            model_dtype: Type of the model's parameters: "float32", "bfloat16" or "float16".
            compute_dtype: "float32", "tf32", "bfloat16", "float8_e4m3fn", "int8", "nvfp4", ...

        Raises:
            InputError: A type is unknown.
        """
        own, compute = _bits(model_dtype), _bits(compute_dtype)
        if self.precisions == "any" or compute_dtype == model_dtype:
            return ""
        if compute is None:
            return f"policy {self.name} allows no {compute_dtype}: use --policy low"
        if self.precisions == "half" or own is None:
            return ""
        if compute[0] < own[0]:
            return f"policy {self.name}: {compute_dtype} is less precise than {model_dtype}"
        if compute[1] < own[1]:
            return f"policy {self.name}: {compute_dtype} has a smaller range than {model_dtype}"
        return ""


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        p.name: p
        for p in (
            Policy(name="same", precisions="own"),
            Policy(name="mixed", precisions="half", max_relative_error=MIXED_ERROR),
            Policy(
                name="low",
                precisions="any",
                max_relative_error=0.125,
                close_error=MIXED_ERROR,
                min_cosine=0.99,
                min_top1=0.99,
            ),
            Policy(name="any", precisions="any", is_judged=False),
        )
    }
)
"""From strict to lax."""


def policy(name: str) -> Policy:
    """Return a policy by name.

    Raises:
        NotFoundError: There is none of that name.
    """
    try:
        return POLICIES[name]
    except KeyError:
        allowed = ", ".join(POLICIES)
        raise NotFoundError(f"unknown policy {name!r}: use one of {allowed}") from None


def _worse_than_eager(accuracy: Accuracy, part: Part) -> str:
    gradient = accuracy.gradient_error_ratio
    if not accuracy.error_ratio <= MAX_ERROR_RATIO:
        return f"error is {accuracy.error_ratio:.3g} times eager's, above {MAX_ERROR_RATIO:g}"
    if gradient is not None and not gradient <= MAX_ERROR_RATIO:
        return f"gradient error is {gradient:.3g} times eager's, above {MAX_ERROR_RATIO:g}"
    if not part.error_ratio <= PART * MAX_ERROR_RATIO:
        return (
            f"error in a part of an output is {part.error_ratio:.3g} times eager's worst, "
            f"above {PART * MAX_ERROR_RATIO:g}"
        )
    return ""


def _bits(dtype: str) -> tuple[int, int] | None:
    bits = SIGNIFICAND_EXPONENT_BITS.get(dtype)
    if bits is None and not dtype.startswith(BELOW_16_BITS):
        allowed = ", ".join((*SIGNIFICAND_EXPONENT_BITS, *(f"{n}..." for n in BELOW_16_BITS)))
        raise InputError(f"unknown compute type {dtype!r}: use one of {allowed}")
    return bits
