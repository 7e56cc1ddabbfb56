"""What a backward region computes again instead of reading: the cheapest cut of each region.

A forward region that keeps its intermediate values for the backward pass writes them to memory,
often in float32, and the backward region reads them. What is cheap to compute from values that lie
in memory anyway (the region's inputs, a row's sum) is computed again in the backward region: of
all ways to cut the region's dataflow between these and what the backward pass wants, the one that
moves the fewest bytes is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, tracectx

from thunder_tune.program.kinds import STRUCTURAL, is_view

_FROM, _TO = PrimIDs.PY_ABS.value, PrimIDs.WHERE.value
_CHEAP = frozenset(p for p in PrimIDs if _FROM <= p.value <= _TO) | {
    PrimIDs.CONVERT_ELEMENT_TYPE,
    PrimIDs.FULL,
    PrimIDs.IOTA,
    PrimIDs.BROADCAST_IN_DIM,
    PrimIDs.CAT,
    PrimIDs.RESHAPE,
    PrimIDs.SLICE,
    PrimIDs.SQUEEZE,
    PrimIDs.TRANSPOSE,
    PrimIDs.SHALLOW_COPY,
}
"""Prims that take each element from few others, and give the same whenever they run."""

_NEVER = 1e18
_SAVED, _IN_MEMORY, _NOWHERE = 10, 11, 20
"""What a byte costs: of a value that is saved anyway; that lies in memory, which would be held for
it; that would be written for it."""


@dataclass
class Group:
    """Consecutive bound symbols of one region, or ones that stay as they are.

    Attributes:
        region: Number of the region, or None.
        backward: Whether they belong to the backward pass.
        bsyms: In order.
    """

    region: int | None
    backward: bool
    bsyms: list[BoundSymbol] = field(default_factory=list)


class _Values:
    """The values of a joint trace: who makes and who wants them.

    Args:
        groups: Of the trace, in order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.saved: set[str] = set()
        self.in_memory: set[str] = set()
        self._written = _written(groups)
        self.wanted: dict[str, list[int]] = {}
        made_in: dict[str, int] = {}
        for number, group in enumerate(groups):
            for bsym in group.bsyms:
                for name in {p.name for p in bsym.flat_proxy_args}:
                    if group.backward and group.region is not None:
                        self.wanted.setdefault(name, []).append(number)
                    elif group.backward:
                        self.saved.add(name)
                    elif made_in.get(name) != number:
                        self.in_memory.add(name)
                if not group.backward:
                    for proxy in bsym.flat_proxy_outs:
                        made_in.setdefault(proxy.name, number)
                        if group.region is None:
                            self.in_memory.add(proxy.name)
        self.in_memory |= self.saved

    def cost(self, proxy: Proxy) -> float:
        """Return what it costs to have a value in memory until the backward pass."""
        if proxy.name in self._written:
            return _NEVER  # it is another one by then
        if not isinstance(proxy, TensorProxy):
            return 0
        price = _NOWHERE
        if proxy.name in self.in_memory:
            price = _SAVED if proxy.name in self.saved else _IN_MEMORY
        return float(price * proxy.numel() * proxy.dtype.bytes)


def _written(groups: Iterable[Group]) -> set[str]:
    """Return what the forward pass writes to, and the views of it."""
    bsyms = [bsym for group in groups if not group.backward for bsym in group.bsyms]
    found: set[str] = set()

    def note(bsym: BoundSymbol) -> None:
        if bsym.sym.id is PrimIDs.COPY_ or bsym.sym.name == "copy_":
            found.add(bsym.args[1].name)
        for part in bsym.subsymbols:
            note(part)

    for bsym in bsyms:
        note(bsym)
    for bsym in bsyms if found else ():
        if is_view(bsym) and any(p.name in found for p in bsym.flat_proxy_args):
            found.update(p.name for p in bsym.flat_proxy_outs)
    return found


def recompute(
    trace: TraceCtx, groups: Sequence[Group], can_fuse: Callable[[int, BoundSymbol], bool]
) -> None:
    """Put into each backward region what is cheaper to compute again than to keep.

    Args:
        trace: That the new values are named in.
        groups: All of the trace's statements; the backward ones change.
        can_fuse: Whether the fuser of a region takes an op.
    """
    values = _Values(groups)
    again: dict[int, set[str]] = {}
    makers: dict[str, BoundSymbol] = {}
    for group in groups:
        if group.region is None or group.backward:
            continue
        own = {p.name: b for b in group.bsyms for p in b.flat_proxy_outs}
        wanted = [n for n in own if n in values.wanted and n not in values.in_memory]
        kept = _cut(wanted, own, values) if wanted else set()
        for name in wanted:
            for number in values.wanted[name]:
                again.setdefault(number, set()).update(_between(name, own, kept))
        makers.update(own)
    order = {name: i for i, name in enumerate(makers)}
    for number, names in again.items():
        group = groups[number]
        bsyms = {id(makers[n]): makers[n] for n in sorted(names, key=order.__getitem__)}
        if group.region is not None and all(can_fuse(group.region, b) for b in bsyms.values()):
            group.bsyms[:] = _with_copies(trace, list(bsyms.values()), group.bsyms)


def _cut(wanted: Iterable[str], makers: Mapping[str, BoundSymbol], values: _Values) -> set[str]:
    """Return the values to keep of a region, so that the wanted ones follow from them."""
    flow = nx.DiGraph()
    open_ = list(wanted)
    seen: set[str] = set()
    for name in open_:
        flow.add_edge((name, "out"), "backward")  # no capacity: never cut
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        maker = makers.get(name)
        if maker is None or name in values.in_memory or not is_cheap(maker):
            flow.add_edge("forward", (name, "in"))
        else:
            for argument in maker.flat_proxy_args:
                flow.add_edge((argument.name, "out"), (name, "in"))
                _add_value(flow, argument, values)
                open_.append(argument.name)
            for proxy in maker.flat_proxy_outs:
                _add_value(flow, proxy, values)
        if maker is not None:
            proxy = next(p for p in maker.flat_proxy_outs if p.name == name)
            _add_value(flow, proxy, values)
    if "forward" not in flow:
        return set()
    _, (before, after) = nx.minimum_cut(flow, "forward", "backward")
    return {name for name in seen if (name, "in") in before and (name, "out") in after}


def _add_value(flow: nx.DiGraph, proxy: Proxy, values: _Values) -> None:
    flow.add_edge((proxy.name, "in"), (proxy.name, "out"), capacity=values.cost(proxy))


def _between(name: str, makers: Mapping[str, BoundSymbol], kept: set[str]) -> set[str]:
    """Return what must be computed for a value, itself included, from the values that are kept."""
    found: set[str] = set()
    open_ = [name]
    while open_:
        name = open_.pop()
        if name not in found and name not in kept and name in makers:
            found.add(name)
            open_ += [p.name for p in makers[name].flat_proxy_args]
    return found


def _with_copies(
    trace: TraceCtx, bsyms: Sequence[BoundSymbol], users: Sequence[BoundSymbol]
) -> list[BoundSymbol]:
    """Return copies of ops under names of their own, and the users with these names."""
    names: dict[Variable, Proxy] = {}
    with tracectx(trace):
        for bsym in bsyms:
            for proxy in bsym.flat_proxy_outs:
                names[variableify(proxy)] = proxy.replace(name=None)
    copies = [b.from_bsym_swap_proxies(names) for b in bsyms]
    for copy, bsym in zip(copies, bsyms, strict=True):
        copy.tags = {*bsym.tags, BoundSymbolTag.BACKWARD}
    return [*copies, *(b.from_bsym_swap_proxies(names, skip_output=True) for b in users)]


def is_cheap(bsym: BoundSymbol) -> bool:
    """Whether an op is made of cheap prims alone."""
    if bsym.sym.id in STRUCTURAL:
        return False
    if bsym.sym.is_prim:
        return bsym.sym.id in _CHEAP
    return bool(bsym.subsymbols) and all(map(is_cheap, bsym.subsymbols))
