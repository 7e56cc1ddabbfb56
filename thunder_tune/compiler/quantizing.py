"""Quantizations among a program's statements: each value once, scales known before its region.

Thunder dispatches a linear in FP8 to a quantization of its input and a product. A static scale is
looked up by `activation_scales`, which at its first call must see the values: those exist inside a
region only, in no memory of their own. So that call computes them by torch, from what the region
takes in, before the region does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_tune.compiler.fusers import as_fx
from thunder_tune.executors.float8 import quantize_rows
from thunder_tune.executors.float8_static import ACTIVATION_SCALES
from thunder_tune.executors.packing import packs
from thunder_tune.executors.static_scales import quantize_static

QUANTIZATIONS = frozenset({quantize_rows.id, quantize_static.id})
"""Symbols that belong to an op, and may lie in a region beside it."""
BESIDE = QUANTIZATIONS | {ACTIVATION_SCALES.id}
"""Symbols that dispatch puts beside an op, and that say nothing of where it runs."""


class Quantizations:
    """The statements of a program, with quantizations of equal values made one.

    Args:
        bsyms: As dispatched.

    Attributes:
        bsyms: The statements but those that look scales up, which cut no region.
    """

    def __init__(self, bsyms: Sequence[BoundSymbol]) -> None:
        self._scales = {b.output[0].name: b for b in bsyms if b.sym.id == ACTIVATION_SCALES.id}
        self.bsyms = self._once([b for b in bsyms if b.sym.id != ACTIVATION_SCALES.id])

    def _once(self, bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
        """Drop quantizations of what is quantized already."""
        first: dict[tuple[object, str], BoundSymbol] = {}
        same: dict[Variable, Proxy] = {}
        kept = []
        for bsym in bsyms:
            if bsym.sym.id in QUANTIZATIONS:
                before = first.setdefault((bsym.sym.id, bsym.args[0].name), bsym)
                if before is not bsym:
                    pairs = zip(self._made(bsym), self._made(before), strict=True)
                    same.update((variableify(proxy), known) for proxy, known in pairs)
                    continue
            kept.append(bsym.from_bsym_swap_proxies(same) if same else bsym)
        return kept

    def _made(self, bsym: BoundSymbol) -> list[Proxy]:
        """Return what a quantization makes, with the scale that it is made by."""
        made = list(bsym.flat_proxy_outs)
        if bsym.sym.id == quantize_static.id:
            made += self._scales[bsym.args[1].name].flat_proxy_outs
        return made

    def lookups(
        self, region: Sequence[BoundSymbol], inputs: Sequence[Proxy]
    ) -> Iterator[BoundSymbol]:
        """Yield what looks up the scales of a region, to stand before it.

        Args:
            region: Its statements.
            inputs: What it takes in.
        """
        for position, bsym in enumerate(region):
            if bsym.sym.id != quantize_static.id:
                continue
            values, multiplier = bsym.args
            found = self._scales[multiplier.name]
            makers, read = _makers(region[:position], values)
            seen = tuple(p for p in inputs if p.name in read)
            _, weights, place, store = found.args
            packs(store).observers[place] = _observer(makers, seen, values)
            lookup = ACTIVATION_SCALES.bind(seen, weights, place, store, output=found.output)
            lookup.tags = set(found.tags)
            yield lookup


def _makers(bsyms: Sequence[BoundSymbol], values: Proxy) -> tuple[list[BoundSymbol], set[str]]:
    """Return the statements that a value is made by, and the names of all that they read."""
    found: list[BoundSymbol] = []
    needed = {values.name}
    for bsym in reversed(bsyms):
        if any(p.name in needed for p in bsym.flat_proxy_outs):
            found.insert(0, bsym)
            needed |= {p.name for p in bsym.flat_proxy_args}
    return found, needed


def _observer(
    bsyms: Sequence[BoundSymbol], inputs: Sequence[Proxy], values: Proxy
) -> Callable[..., torch.Tensor]:
    """Return what computes one value of a region by torch, op after op."""
    if not bsyms:
        return lambda seen: seen
    graph = as_fx(bsyms, inputs, [values])

    def observe(*seen: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = graph(*seen)[0]
        return found

    return observe
