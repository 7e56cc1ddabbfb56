"""Tags carry the assignment: each op of the initial trace is marked with its index.

The tag of an op stays on everything that autodiff and dispatch make of it, so the router and the
region fuser can look up where it was assigned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.trace_interpreter import TraceSubstitutionProcessor
from thunder.torch import to as convert

from thunder_tune.program.kinds import STRUCTURAL

_PREFIX = "THUNDER_TUNE_OP_"
_tags: dict[int, BoundSymbolTag] = {}
_index_of: dict[BoundSymbolTag, int] = {}


def tag_of(index: int) -> BoundSymbolTag:
    """Return the tag of the op with this index, registering it once a process."""
    if index not in _tags:
        name = f"{_PREFIX}{index}"
        BoundSymbolTag.register_tag(name)
        tag = BoundSymbolTag(name)
        _tags[index] = tag
        _index_of[tag] = index
    return _tags[index]


def op_index(bsym: BoundSymbol) -> int | None:
    """Return the index of the op that a bound symbol was made from, or None."""
    for tag in bsym.tags:
        index = _index_of.get(tag)
        if index is not None:
            return index
    return None


def _mark(bsym: BoundSymbol, tag: BoundSymbolTag) -> None:
    bsym.tags.add(tag)
    for sub in bsym.subsymbols:
        _mark(sub, tag)


def _clone(bsym: BoundSymbol) -> BoundSymbol:
    copy = bsym.from_bsym(subsymbols=[_clone(sub) for sub in bsym.subsymbols])
    copy.tags = set(bsym.tags)
    return copy


def clone_trace(trace: TraceCtx) -> TraceCtx:
    """Copy an initial trace so that a candidate may change it; milliseconds."""
    copy = from_trace(trace)
    copy.names = set(trace.names)
    copy.bound_symbols = [_clone(b) for b in trace.bound_symbols]
    return copy


class _Tagger(TraceSubstitutionProcessor):
    """Marks every op with its index and inserts the casts of its compute type."""

    def __init__(
        self, trace: TraceCtx, indices: Iterable[int], precision: tuple[str, ...]
    ) -> None:
        super().__init__(trace)
        self._indices = iter(indices)
        self._precision = precision

    def process_bsym(self, bsym: BoundSymbol) -> None:
        if bsym.sym.id in STRUCTURAL:
            self.add_processed_bsyms([bsym])
            self.set_result(bsym.output)
            return
        index = next(self._indices)
        compute = self._precision[index] if self._precision else ""
        if compute:
            self.add_bsyms_from_function(_in_precision(bsym, compute), *bsym.args, **bsym.kwargs)
        else:
            self.add_processed_bsyms([bsym])
            self.set_result(bsym.output)
        for new in self.new_bsyms:
            _mark(new, tag_of(index))


def _in_precision(bsym: BoundSymbol, compute: str) -> Any:  # noqa: ANN401 - a traced function
    """Return the op computed in another type: cast, compute, cast back."""
    dtype = getattr(dtypes, compute)
    result_dtype = bsym.flat_proxy_outs[0].dtype

    def lower(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, TensorProxy) and dtypes.is_float_dtype(x.dtype):
            return convert(x, dtype)
        return x

    def computed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = bsym.sym(*tree_map(lower, args), **tree_map(lower, kwargs))
        return convert(result, result_dtype)

    return computed


def tagged(trace: TraceCtx, indices: Iterable[int], precision: tuple[str, ...] = ()) -> TraceCtx:
    """Clone an initial trace with every op marked by its index.

    Args:
        trace: Initial trace; stays as it is.
        indices: Index of each op, in the order of `thunder_tune.program.structure.ops_of`.
        precision: By op index, the type it computes in, or "" for its own.
    """
    result, _ = _Tagger(clone_trace(trace), indices, precision)()
    return result
