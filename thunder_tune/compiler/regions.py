"""The region fuser: owns all fusion and gives each region to the fuser assigned to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunder.core.proxies import Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol, has_tags
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import dce
from thunder.extend import FusionExecutor

from thunder_tune.compiler.fusers import Fuser, FusionInputs
from thunder_tune.compiler.tagging import op_index
from thunder_tune.program.kinds import STRUCTURAL, is_view


@dataclass
class _Group:
    """Consecutive bound symbols of one region, or ones that stay as they are."""

    region: int | None
    backward: bool
    bsyms: list[BoundSymbol] = field(default_factory=list)


class RegionFuser(FusionExecutor):
    """Fuses exactly the regions of a plan.

    One executor for all fusers, because two would rematerialize across each other's boundaries and
    may give two fusions one name.

    Args:
        region_of: Region number by op index.
        fusers: Fuser of each region, by region number.
    """

    def __init__(self, region_of: Mapping[int, int], fusers: Sequence[Fuser]) -> None:
        super().__init__("thunder_tune_regions", version="1")
        self._region_of = region_of
        self._fusers = fusers
        self._number = 0
        self._asked: Fuser | None = None

    def _region(self, bsym: BoundSymbol) -> int | None:
        index = op_index(bsym)
        return self._region_of.get(index) if index is not None else None

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Execute nothing op by op."""
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether the op lies in a region whose fuser takes it."""
        region = self._region(bsym)
        self._asked = None
        if region is None or bsym.sym.is_fusion:
            return False
        self._asked = self._fusers[region]
        return self._asked.can_fuse(bsym)

    def get_execution_transform(self, bsym: BoundSymbol) -> Callable[..., Any] | None:
        """Keep the op as it is until the fusion pass."""
        return None

    def get_grad_transform(self, sym: Symbol) -> Callable[..., Any] | None:
        """Return the fuser's gradient rule for the op that `can_fuse` was just asked for."""
        return self._asked.grad_rule(sym) if self._asked is not None else None

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """Replace the bound symbols of each region by one fusion."""
        result = from_trace(trace)
        users = _users(trace.bound_symbols)
        position = 0
        for group in self._groups(trace.bound_symbols):
            last = position + len(group.bsyms)
            if group.region is None or all(is_view(b) for b in group.bsyms):
                result.bound_symbols += group.bsyms
            else:
                inputs = _fusion_inputs(group.bsyms, users, position, last)
                fusion = self._fusers[group.region].fuse(inputs, self._number, self)
                self._number += 1
                result.bound_symbols.append(fusion)
            position = last
        result = dce(result)
        result.set_provenance(TraceProvenance("Fusion of the assigned regions"))
        return result

    def _groups(self, bsyms: Sequence[BoundSymbol]) -> list[_Group]:
        groups: list[_Group] = []
        for bsym in bsyms:
            backward = has_tags(bsym, {BoundSymbolTag.BACKWARD})
            region = self._region(bsym) if self.can_fuse(bsym) else None
            open_ = groups[-1] if groups else None
            adopted = (
                region is None
                and open_ is not None
                and open_.region is not None
                and open_.backward
                and backward
                and op_index(bsym) is None
                and bsym.sym.id not in STRUCTURAL
                and self._fusers[open_.region].can_fuse(bsym)
            )
            # The additions that gather gradients carry no op's tag: they go with what precedes
            # them, since they would cut the region otherwise.
            if adopted and open_ is not None:
                open_.bsyms.append(bsym)
            elif open_ is not None and (open_.region, open_.backward) == (region, backward):
                open_.bsyms.append(bsym)
            else:
                groups.append(_Group(region, backward, [bsym]))
        return groups


def _users(bsyms: Sequence[BoundSymbol]) -> dict[str, int]:
    """Return for each proxy the position of its last user."""
    last: dict[str, int] = {}
    for i, bsym in enumerate(bsyms):
        for proxy in bsym.flat_proxy_args:
            last[proxy.name] = i
    return last


def _fusion_inputs(
    bsyms: Sequence[BoundSymbol], users: Mapping[str, int], first: int, last: int
) -> FusionInputs:
    """Find what a run of bound symbols takes in and gives out, in order of first use."""
    made: dict[str, Variable] = {}
    taken: dict[str, Variable] = {}
    for bsym in bsyms:
        for proxy in bsym.flat_proxy_args:
            if proxy.name not in made:
                taken.setdefault(proxy.name, variableify(proxy))
        for proxy in bsym.flat_proxy_outs:
            if proxy.name not in taken:
                made.setdefault(proxy.name, variableify(proxy))
    given = [v for name, v in made.items() if users.get(name, -1) >= last]
    return FusionInputs(inputs=list(taken.values()), outputs=given, bound_symbols=list(bsyms))
