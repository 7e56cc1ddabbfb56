"""The fusers by name, and where the options of one can make no difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod

from thunder_tune.values.program import Op, Program

INDUCTOR = "inductor"
PERSISTENT = "inductor:persistent"
"""Inductor that holds whole rows in registers where its own limit has it loop over them."""
TUNED = "inductor:tuned"
"""The same, with the blocks of each kernel found by measuring."""

FUSERS = (INDUCTOR, "nvfuser", PERSISTENT, TUNED)
"""Targets that take several ops at once; every other target takes one op."""
VARIANTS = frozenset({PERSISTENT, TUNED})
"""Fusers that are another one with other options."""

LOOPED_ABOVE = 1024
"""Elements of a row up to which Inductor holds it in registers by itself."""
WIDEST = 16384
"""Elements of a row up to which "inductor:persistent" does."""

_POINTWISE = frozenset(
    """
    abs activation add arange batch_norm bool cat clamp clone contiguous cos cosine div dropout
    embedding eq erf exp expm1 float full ge gelu getitem gt le lerp log log1p logical_and
    logical_not logical_or lt masked_fill maximum minimum mul ne neg ones pow reciprocal relu
    remainder rsqrt rsub sigmoid sign silu sin softplus sqrt square stack sub tanh to true_divide
    tril triu type_as where zeros
    """.split()
)
"""Kinds of ops that reduce nothing in inference."""
_NORMS = frozenset({"layer_norm", "rms_norm"})


def without_idle_options(program: Program, targets: Sequence[str]) -> tuple[str, ...]:
    """Replace "inductor:persistent" by "inductor" wherever it makes the same code.

    That is so where no op of a region reduces, or only rows that Inductor treats so anyway. What
    cannot be told from the ops stays: a gradient may sum over rows, and an executor that follows
    may bring a reduction along (a quantization joins the region before it).

    Args:
        program: The captured program.
        targets: For every op its executor or fuser.
    """
    found = list(targets)
    if program.training or PERSISTENT not in targets:
        return tuple(found)
    for run in _runs(program, targets):
        if not any(map(_may_loop, run)) and not _brings_more(program, targets, run[-1]):
            for op in run:
                found[op.index] = INDUCTOR
    return tuple(found)


def _runs(program: Program, targets: Sequence[str]) -> Iterator[list[Op]]:
    for (_, target), run in groupby(program.ops, lambda op: (op.graph, targets[op.index])):
        if target == PERSISTENT:
            yield list(run)


def _brings_more(program: Program, targets: Sequence[str], last: Op) -> bool:
    """Whether an executor comes after an op, before the next region, and may add to its region."""
    for op in program.ops[last.index + 1 :]:
        if op.graph != last.graph:
            break
        if targets[op.index] != "torch":
            return targets[op.index] not in FUSERS
    return False


def _may_loop(op: Op) -> bool:
    """Whether an op may reduce rows over which Inductor loops by itself."""
    if op.is_view or op.kind in _POINTWISE:
        return False
    if op.kind in _NORMS and len(op.inputs) > 1:  # a weight has the shape of what is reduced
        return LOOPED_ABOVE < prod(op.inputs[1].shape) <= WIDEST
    if op.kind == "softmax" and op.inputs:
        return max(op.inputs[0].shape, default=1) > LOOPED_ABOVE
    return True
