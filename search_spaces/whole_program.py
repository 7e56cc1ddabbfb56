"""Family 1: the whole-program back end, or a composed program."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.compiler.backends import BACK_ENDS
from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.space import COMPOSED, PROGRAM, Dimension


def whole_program(context: Context) -> Iterable[Dimension]:
    """Offer "composed" first, then every back end of the device."""
    captured = "" if context.program.is_captured else f"not captured: {context.program.reason}"
    offers = [(COMPOSED, captured), *((b, context.back_end_reason(b)) for b in BACK_ENDS)]
    found = dimension(PROGRAM, "whole-program", offers)
    return [found] if found else []
