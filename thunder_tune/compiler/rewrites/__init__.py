"""Rewrites: groups of ops replaced by one composite symbol, before anything else is decided.

A router that claims single ops, or a fuser that runs after autodiff, cannot bind a kernel that
spans several ops; a rewrite can. The composite symbol's subsymbols are the original ops, so that
fallback and gradient come free. Each class of match sites is a dimension of its own.
"""

from __future__ import annotations

from thunder.core.trace import TraceCtx

from thunder_tune.values.plan import Plan


def rewrite(trace: TraceCtx, plan: Plan) -> TraceCtx:
    """Apply a plan's rewrites to an initial trace.

    No rewrite is registered yet: the trace is returned as it is.
    """
    return trace
