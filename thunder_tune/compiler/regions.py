"""The region fuser: owns all fusion and gives each region to the fuser assigned to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.core.devices import DeviceType
from thunder.core.proxies import Proxy, Variable, unvariableify, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol, has_tags
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import dce
from thunder.extend import FusionExecutor

from thunder_tune.compiler.fusers import Fuser, FusionInputs, InductorFuser
from thunder_tune.compiler.quantizing import QUANTIZATIONS, Quantizations
from thunder_tune.compiler.recomputing import Group, recompute
from thunder_tune.compiler.tagging import op_index
from thunder_tune.executors.float8 import quantize_rows
from thunder_tune.program.kinds import STRUCTURAL, is_view
from thunder_tune.values.fusers import INDUCTOR, PERSISTENT

_QUANTIZATION = -1
"""Stands for a region's number where a quantization has none to go to."""


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
        if bsym.sym.id in QUANTIZATIONS:
            return _QUANTIZATION
        index = op_index(bsym)
        return self._region_of.get(index) if index is not None else None

    def _fuser(self, region: int, bsym: BoundSymbol) -> Fuser:
        return _quantizer(bsym) if region == _QUANTIZATION else self._fusers[region]

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Execute nothing op by op."""
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether the op lies in a region whose fuser takes it."""
        region = self._region(bsym)
        self._asked = None
        if region is None or bsym.sym.is_fusion:
            return False
        self._asked = self._fuser(region, bsym)
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
        quantizations = Quantizations(trace.bound_symbols)
        groups = self._groups(_sunk(quantizations.bsyms))
        recompute(result, groups, lambda region, b: self._fuser(region, b).can_fuse(b))
        users = _users([bsym for group in groups for bsym in group.bsyms])
        position = 0
        for group in groups:
            last = position + len(group.bsyms)
            if group.region is None or all(is_view(b) for b in group.bsyms):
                result.bound_symbols += group.bsyms
            else:
                inputs = _fusion_inputs(group.bsyms, users, position, last)
                fuser = self._fuser(group.region, group.bsyms[0])
                taken = [unvariableify(v) for v in inputs.inputs]
                result.bound_symbols += quantizations.lookups(group.bsyms, taken)
                fusion = fuser.fuse(inputs, self._number, self)
                self._number += 1
                result.bound_symbols.append(fusion)
            position = last
        result = dce(result)
        result.set_provenance(TraceProvenance("Fusion of the assigned regions"))
        return result

    def _groups(self, bsyms: Sequence[BoundSymbol]) -> list[Group]:
        groups: list[Group] = []
        gathering: list[BoundSymbol] = []
        for bsym in bsyms:
            backward = has_tags(bsym, {BoundSymbolTag.BACKWARD})
            region = self._region(bsym) if self.can_fuse(bsym) else None
            open_ = groups[-1] if groups else None
            if open_ is not None and not gathering and self._adopts(open_, bsym, region, backward):
                open_.bsyms.append(bsym)
                continue
            if _gathers(bsym):
                gathering.append(bsym)
                continue
            if open_ is None or (open_.region, open_.backward) != (region, backward) or gathering:
                groups += self._gathered(gathering, region, backward)
                gathering = []
                if not groups or (groups[-1].region, groups[-1].backward) != (region, backward):
                    groups.append(Group(region, backward))
            groups[-1].bsyms.append(bsym)
        assert not gathering  # a trace ends with its return
        return groups

    def _gathered(
        self, gathering: Sequence[BoundSymbol], region: int | None, backward: bool
    ) -> list[Group]:
        """Return additions of gradients as a group, of the region that follows if it can be."""
        if not gathering:
            return []
        takes = region is not None and backward and region != _QUANTIZATION
        if region is None or not takes or not all(map(self._fusers[region].can_fuse, gathering)):
            region = None
        return [Group(region, True, list(gathering))]

    def _adopts(self, open_: Group, bsym: BoundSymbol, region: int | None, backward: bool) -> bool:
        """Whether an op of no region of its own goes with what precedes it.

        The additions that gather gradients carry no op's tag and would cut the region otherwise;
        a quantization is cheap where the values it reads are made.
        """
        if open_.region is None or open_.backward != backward:
            return False
        is_ours = region is None and _comes_from_no_op(bsym)
        if not is_ours and region != _QUANTIZATION:
            return False
        return self._fuser(open_.region, open_.bsyms[0]).can_fuse(bsym)


def _comes_from_no_op(bsym: BoundSymbol) -> bool:
    """Whether autodiff has made an op of none of the program's."""
    is_backward = has_tags(bsym, {BoundSymbolTag.BACKWARD})
    return is_backward and op_index(bsym) is None and bsym.sym.id not in STRUCTURAL


def _gathers(bsym: BoundSymbol) -> bool:
    """Whether an op adds up the gradients of a value with several uses."""
    return _comes_from_no_op(bsym) and bsym.sym.name == "add"


def _sunk(bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Put additions that gather gradients right before what uses their sums first."""
    waiting: dict[str, BoundSymbol] = {}
    result: list[BoundSymbol] = []

    def put(bsym: BoundSymbol) -> None:
        for proxy in bsym.flat_proxy_args:
            addition = waiting.pop(proxy.name, None)
            if addition is not None:
                put(addition)
        result.append(bsym)

    for bsym in bsyms:
        if _gathers(bsym) and isinstance(bsym.output, Proxy):
            waiting[bsym.output.name] = bsym
        else:
            put(bsym)
    return result


def _quantizer(bsym: BoundSymbol) -> Fuser:
    """Return the fuser of a quantization on its own; a loop on CUDA would read rows twice."""
    on_cuda = bsym.args[0].device.devicetype is DeviceType.CUDA
    by_rows = bsym.sym.id == quantize_rows.id
    return InductorFuser(PERSISTENT if on_cuda and by_rows else INDUCTOR)


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
