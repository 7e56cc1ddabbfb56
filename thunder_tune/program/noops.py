"""Ops that change nothing, left out of a captured program.

Dropout in inference, a transpose and its inverse, a conversion to the type a tensor has: they cost
nothing where they run, but stand between ops that belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_tune.program.kinds import op_name

Makers = dict[str, BoundSymbol]
"""Name of a value -> the op that makes it."""


def without_noops(trace: TraceCtx) -> TraceCtx:
    """Return a trace without ops whose result is a tensor that was there before.

    Args:
        trace: An initial trace; it is not changed.
    """
    result = from_trace(trace)
    makers: Makers = {}
    swaps: dict[Any, Proxy] = {}
    for old in trace.bound_symbols:
        bsym = old.from_bsym_swap_proxies(swaps) if swaps else old
        same = _same(bsym, makers)
        if same is not None:
            swaps[variableify(old.output)] = same
            continue
        makers.update(dict.fromkeys((p.name for p in bsym.flat_proxy_outs), bsym))
        result.bound_symbols.append(bsym)
    result.set_provenance(TraceProvenance("Without ops that change nothing"))
    return result if swaps else trace


def _same(bsym: BoundSymbol, makers: Makers) -> TensorProxy | None:
    """Return the tensor that an op's result is, or None."""
    finder = _FINDERS.get(op_name(bsym))
    found = finder(bsym, makers) if finder is not None else None
    output = bsym.output
    if found is None or not isinstance(output, TensorProxy):
        return None
    is_like = tuple(found.shape) == tuple(output.shape) and found.dtype == output.dtype
    # Tags say what autograd and Thunder may do with a tensor: detached, for example.
    return found if is_like and set(found.tags) == set(output.tags) else None


def _dropout(bsym: BoundSymbol, makers: Makers) -> TensorProxy | None:
    given = dict(zip(("a", "p", "training"), bsym.args, strict=False)) | dict(bsym.kwargs)
    is_idle = given.get("training") is False or given.get("p") == 0.0
    return bsym.args[0] if is_idle else None


def _inverse_transpose(bsym: BoundSymbol, makers: Makers) -> TensorProxy | None:
    before = makers.get(bsym.args[0].name)
    if before is None or op_name(before) != "torch.transpose":
        return None
    if len(bsym.args) != 3 or len(before.args) != 3:
        return None
    ndim = bsym.output.ndim
    turns = [{d % ndim for d in b.args[1:]} for b in (bsym, before)]
    return before.args[0] if turns[0] == turns[1] else None


def _conversion(bsym: BoundSymbol, makers: Makers) -> TensorProxy | None:
    """Return the argument of `Tensor.to` where Thunder found nothing to do."""
    is_idle = all(sub.sym.id is PrimIDs.SHALLOW_COPY for sub in bsym.subsymbols)
    return bsym.args[0] if is_idle and not bsym.kwargs.get("copy") else None


_FINDERS: dict[str, Callable[[BoundSymbol, Makers], TensorProxy | None]] = {
    "torch.nn.functional.dropout": _dropout,
    "torch.transpose": _inverse_transpose,
    "torch.Tensor.to": _conversion,
}
"""Op -> what finds the tensor that its result may be."""
