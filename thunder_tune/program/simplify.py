"""What every captured trace goes through, whichever front end it comes from."""

from __future__ import annotations

from thunder.core.trace import TraceCtx
from thunder.core.transform_common import dce

from thunder_tune.program.demand import narrowed
from thunder_tune.program.kinds import STRUCTURAL
from thunder_tune.program.noops import without_noops
from thunder_tune.program.order import ordered


def simplified(trace: TraceCtx) -> TraceCtx:
    """Return a trace of the ops that its results need, in the order that lets them be fused.

    Args:
        trace: As traced; one top-level bound symbol for each op.
    """
    needed = dce(without_noops(trace))
    if all(bsym.sym.id in STRUCTURAL for bsym in needed.bound_symbols):
        return dce(trace)  # a model that only hands on its inputs is a program too
    return ordered(narrowed(needed))
