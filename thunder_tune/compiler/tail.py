"""The tail of a program: last ops with large results, run after a CUDA graph instead of in it.

What a graph writes is overwritten by its next replay, so its results are copied. A language
model's logits are hundreds of megabytes; computed behind the graph, into memory of their own, they
need no copy, at the price of one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from thunder.core import prims
from thunder.core.proxies import CollectionProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx
from thunder.executors.passes import del_last_used

from thunder_tune.program.frontend import Graph
from thunder_tune.program.kinds import STRUCTURAL, is_view

LARGE = 16 * 2**20
"""Results of so many bytes are worth a launch rather than a copy."""


@dataclass(frozen=True, eq=False)
class Split:
    """A program in two parts.

    Attributes:
        head: Takes the program's inputs, returns a tuple: what the tail reads, and results.
        tail: Takes one sequence of what it reads, returns its results.
        reads: For each value the tail reads its place among the inputs, or (from -1 down) among
            the head's results.
        results: For each result of the program its place among the tail's, or (from -1 down)
            among the head's.
        spec: Structure of the program's results.
    """

    head: Graph
    tail: Callable[[Sequence[Any]], Sequence[Any]]
    reads: tuple[int, ...]
    results: tuple[int, ...]
    spec: pytree.TreeSpec

    def finish(
        self, inputs: Sequence[Any], head: Sequence[Any], copy: Callable[[Any], Any]
    ) -> Any:  # noqa: ANN401 - the program's results
        """Run the tail and return the program's results.

        Args:
            inputs: Of the program.
            head: What the head returned.
            copy: Applied to each result that the head has computed.
        """
        made = self.tail([inputs[i] if i >= 0 else head[-1 - i] for i in self.reads])
        leaves = [made[i] if i >= 0 else copy(head[-1 - i]) for i in self.results]
        return pytree.tree_unflatten(leaves, self.spec)


def split(trace: TraceCtx) -> Split | None:
    """Cut the tail off an executable trace; None: there is none worth it.

    Args:
        trace: Without statements that delete values.
    """
    *bsyms, returned = trace.bound_symbols
    leaves, spec = pytree.tree_flatten(returned.args[0])
    inputs = [p.name for p in _unpacked(bsyms)]
    last = [b for b in bsyms if _is_last(b, bsyms, leaves)]
    if not last or any(getattr(leaf, "name", inputs[0]) in inputs for leaf in leaves):
        return None
    made = [p.name for b in last for p in b.flat_proxy_outs]
    reads = {p.name: p for b in last for p in b.flat_proxy_args}
    kept = {p.name: p for p in (*reads.values(), *leaves) if p.name not in (*made, *inputs)}
    place = {name: -1 - i for i, name in enumerate(kept)}
    return Split(
        head=_head(trace, [b for b in bsyms if b not in last], list(kept.values())),
        tail=_tail(last, list(reads.values())),
        reads=tuple(inputs.index(n) if n in inputs else place[n] for n in reads),
        results=tuple(made.index(p.name) if p.name in made else place[p.name] for p in leaves),
        spec=spec,
    )


def _is_last(bsym: BoundSymbol, bsyms: Sequence[BoundSymbol], leaves: Sequence[Any]) -> bool:
    """Whether an op of its own computes a large result that nothing else reads."""
    if bsym.sym.id in STRUCTURAL or bsym.sym.is_fusion or is_view(bsym):
        return False
    if not isinstance(bsym.output, TensorProxy) or not any(bsym.output is p for p in leaves):
        return False
    name = bsym.output.name
    is_read = any(p.name == name for b in bsyms if b is not bsym for p in b.flat_proxy_args)
    return not is_read and bsym.output.numel() * bsym.output.dtype.bytes >= LARGE


def _unpacked(bsyms: Sequence[BoundSymbol]) -> list[Proxy]:
    """Return the program's inputs, in order."""
    sequence = next(b for b in bsyms if b.sym.id == prims.PrimIDs.UNPACK_SEQUENCE)
    return list(sequence.flat_proxy_outs)


def _head(trace: TraceCtx, bsyms: Sequence[BoundSymbol], results: Sequence[Proxy]) -> Graph:
    head = from_trace(trace)
    head.bound_symbols = list(bsyms)
    with tracectx(head):
        prims.python_return(tuple(results))
    run: Graph = del_last_used(head).python_callable()
    return run


def _tail(
    bsyms: Sequence[BoundSymbol], reads: Sequence[Proxy]
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def tail(values: Any) -> None:  # noqa: ANN401 - its signature is all that Thunder wants
        pass

    part = TraceCtx(fn=tail)
    part.names = {p.name for p in reads}
    with tracectx(part):
        values = CollectionProxy(list(reads), name="values")
        part.args = (values.collection(),)
        prims.unpack_trivial(values, name="values")
        prims.unpack_sequence(values, len(reads))
        part.bound_symbols += bsyms
        prims.python_return(tuple(p for b in bsyms for p in b.flat_proxy_outs))
    run: Callable[[Sequence[Any]], Sequence[Any]] = del_last_used(part).python_callable()
    return run
