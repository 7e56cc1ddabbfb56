"""Gradients of a weight that an embedding shares: its rows are added where the other one lies."""

from __future__ import annotations

from collections import Counter

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, has_tags
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_tune.executors.added_rows import ADD_ROWS
from thunder_tune.program.kinds import STRUCTURAL, is_view

_EMBEDDING_BACKWARD = "embedding_backward"


def with_rows_added(joint: TraceCtx) -> TraceCtx:
    """Replace the sum of an embedding's gradient and another one by an addition in place.

    Args:
        joint: Forward and backward before dispatch; it is not changed.
    """
    makers = {p.name: b for b in joint.bound_symbols for p in b.flat_proxy_outs}
    uses = Counter(p.name for b in joint.bound_symbols for p in b.flat_proxy_args)
    result = from_trace(joint)
    for bsym in joint.bound_symbols:
        parts = _embedding_and_other(bsym, makers, uses)
        if parts is not None:
            embedding, other = parts
            gradient, indices, _, padding_idx, *_ = embedding.args
            added = ADD_ROWS.bind(other, gradient, indices, padding_idx, output=bsym.output)
            added.tags = set(bsym.tags)
            makers[bsym.output.name] = bsym = added
        result.bound_symbols.append(bsym)
    result.set_provenance(TraceProvenance("Rows added to the gradients of tied weights"))
    return result


def _embedding_and_other(
    bsym: BoundSymbol, makers: dict[str, BoundSymbol], uses: Counter[str]
) -> tuple[BoundSymbol, TensorProxy] | None:
    """Return what makes the embedding's gradient, and the other one, of their sum."""
    if bsym.sym.name != "add" or not has_tags(bsym, {BoundSymbolTag.BACKWARD}):
        return None
    one, other = bsym.args[:2]
    if not all(isinstance(x, Proxy) and uses[x.name] == 1 for x in (one, other)):
        return None
    for embedded, total in ((one, other), (other, one)):
        embedding, maker = makers.get(embedded.name), makers.get(total.name)
        if embedding is None or embedding.sym.name != _EMBEDDING_BACKWARD or maker is None:
            continue
        *_, by_frequency, sparse = embedding.args
        same = total.dtype == embedded.dtype and not (by_frequency or sparse)
        if same and _is_fresh(maker):
            return embedding, total
    return None


def _is_fresh(maker: BoundSymbol) -> bool:
    """Whether a statement of the backward pass makes its result anew."""
    is_backward = has_tags(maker, {BoundSymbolTag.BACKWARD})
    computes = maker.sym.id not in STRUCTURAL and not is_view(maker)
    return is_backward and computes and len(maker.flat_proxy_outs) == 1
