"""Put composite symbols in place of the sites that a plan rewrites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_tune.compiler.tagging import op_index
from thunder_tune.executors.linear_gelu import linear_gelu
from thunder_tune.values.plan import Plan

Composed = tuple[Symbol, tuple[Any, ...], dict[str, Any]]


def _linear_gelu(members: Sequence[BoundSymbol]) -> Composed:
    linear, gelu = members
    x, weight, *rest = linear.args
    bias = rest[0] if rest else linear.kwargs.get("bias")
    approximate = gelu.kwargs.get("approximate", gelu.args[1] if len(gelu.args) > 1 else "none")
    return linear_gelu, (x, weight, bias), {"approximate": approximate}


REWRITES: Mapping[str, Callable[[Sequence[BoundSymbol]], Composed]] = {
    "linear_gelu": _linear_gelu,
}
"""Rewrite -> composite symbol and its arguments, from the ops of a site."""


def composite_of(rewrite_name: str, members: Sequence[BoundSymbol]) -> BoundSymbol:
    """Return the composite of a site: its result is the last op's, its subsymbols are the ops."""
    symbol, args, kwargs = REWRITES[rewrite_name](members)
    composite: BoundSymbol = symbol.bind(
        *args, **kwargs, output=members[-1].output, subsymbols=list(members)
    )
    composite.tags = set(members[-1].tags)
    return composite


def rewrite(trace: TraceCtx, plan: Plan) -> TraceCtx:
    """Apply a plan's rewritings to a tagged trace.

    A composite stands where the last op of its site stood: nothing but that op used the others.
    """
    last_of = {site.ops[-1]: site for site in plan.rewritings}
    moved = {op for site in plan.rewritings for op in site.ops[:-1]}
    if not last_of:
        return trace
    held: dict[int, BoundSymbol] = {}
    result = from_trace(trace)
    for bsym in trace.bound_symbols:
        index = op_index(bsym)
        if index in moved and index is not None:
            held[index] = bsym
        elif index in last_of and index is not None:
            site = last_of[index]
            members = [*(held[op] for op in site.ops[:-1]), bsym]
            result.bound_symbols.append(composite_of(site.rewrite, members))
        else:
            result.bound_symbols.append(bsym)
    result.set_provenance(TraceProvenance("Rewrites"))
    return result
