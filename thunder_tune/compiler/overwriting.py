"""Which sums may take the memory of their residual: what a trace says of its later uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.trace import TraceCtx, from_trace

from thunder_tune.executors.linear_add import ADDMM_RESIDUAL
from thunder_tune.program.kinds import STRUCTURAL


def overwriting(trace: TraceCtx) -> TraceCtx:
    """Let sums take the memory of residuals that the trace itself makes and uses no more.

    Args:
        trace: An executable trace; it is not changed.
    """
    last_use: dict[str, int] = {}
    for position, bsym in enumerate(trace.bound_symbols):
        if bsym.sym.id not in STRUCTURAL or bsym.sym.id is PrimIDs.RETURN:
            last_use.update(dict.fromkeys((p.name for p in bsym.flat_proxy_args), position))
    made = {
        p.name
        for b in trace.bound_symbols
        if b.sym.id not in STRUCTURAL
        for p in b.flat_proxy_outs
    }
    result = from_trace(trace)
    for position, bsym in enumerate(trace.bound_symbols):
        if bsym.sym.name == ADDMM_RESIDUAL.name:
            residual = bsym.args[2]
            if residual.name in made and last_use[residual.name] == position:
                args: Sequence[Any] = (*bsym.args[:3], True)
                tags = bsym.tags
                bsym = ADDMM_RESIDUAL.bind(*args, output=bsym.output, subsymbols=bsym.subsymbols)
                bsym.tags = tags
        result.bound_symbols.append(bsym)
    return result
