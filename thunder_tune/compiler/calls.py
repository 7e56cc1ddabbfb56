"""The calls that a program consists of at its top level: regions and single ops, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from thunder.core.symbol import BoundSymbol

from thunder_tune.compiler.dispatch import CompiledGraph
from thunder_tune.compiler.places import place_of
from thunder_tune.compiler.quantizing import BESIDE
from thunder_tune.compiler.tagging import op_index
from thunder_tune.program.kinds import STRUCTURAL
from thunder_tune.values.plan import Plan
from thunder_tune.values.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One statement of a compiled program.

    Attributes:
        name: As the program writes it ("inductor0", "linear"); of a plan, the op's kind.
        place: Executor or fuser, by its name in the search space.
        ops: Indices of the ops it computes; none for what autodiff added between ops.
        is_region: Whether it is a fusion.
        backward: Whether it belongs to the backward program.
    """

    name: str
    place: str
    ops: tuple[int, ...]
    is_region: bool = False
    backward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Calls that do the same: same place, and ops of the same classes in the same order.

    Attributes:
        number: From 1, in order of first occurrence.
        name: Of one call; "" for a region, whose calls have names of their own.
        place: Executor or fuser.
        ops: Kinds of the ops of one call; none for what autodiff added between ops.
        calls: Positions of the calls in the program.
        is_region: Whether they are fusions.
        backward: Whether they belong to the backward program.
    """

    number: int
    name: str
    place: str
    ops: tuple[str, ...]
    calls: tuple[int, ...]
    is_region: bool
    backward: bool


def planned_calls(program: Program, plan: Plan) -> list[Call]:
    """Return the calls that a composed plan asks for; ops that only move data have none."""
    region_of = {op: region for region in plan.regions for op in region.ops}
    site_of = {op: site for site in plan.rewritings for op in site.ops}
    calls = []
    for op in program.ops:
        region, site = region_of.get(op.index), site_of.get(op.index)
        if region is not None:
            if op.index == region.ops[0]:
                calls.append(
                    Call(name=region.fuser, place=region.fuser, ops=region.ops, is_region=True)
                )
        elif site is not None:
            if op.index == site.ops[0]:
                calls.append(Call(name=site.rewrite, place=site.executor, ops=site.ops))
        elif not op.is_view:
            calls.append(Call(name=op.kind, place=plan.targets[op.index], ops=(op.index,)))
    return calls


def statements(graphs: Sequence[CompiledGraph]) -> Iterator[tuple[BoundSymbol, bool]]:
    """Yield what compiled graphs call, forward and then backward; True: of a backward trace."""
    for graph in graphs:
        for bsym in graph.forward.bound_symbols:
            if bsym.sym.id not in STRUCTURAL:
                yield bsym, False
    for graph in reversed(graphs):
        for bsym in graph.backward.bound_symbols if graph.backward is not None else ():
            if bsym.sym.id not in STRUCTURAL:
                yield bsym, True


def dispatched_calls(plan: Plan, graphs: Sequence[CompiledGraph]) -> list[Call]:
    """Return what compiled graphs call; positions are those of `statements`."""
    # Of a site that one kernel computes, only the last op leaves its mark on the kernel.
    site_of = {(site.ops[-1], site.executor): site.ops for site in plan.rewritings}
    calls = []
    for bsym, backward in statements(graphs):
        ops, place = tuple(sorted(_indices(bsym))), place_of(bsym)
        if len(ops) == 1:
            ops = site_of.get((ops[0], place), ops)
        calls.append(
            Call(
                name=str(bsym.sym.name),
                place=place,
                ops=ops,
                is_region=bool(bsym.sym.is_fusion),
                backward=backward,
            )
        )
    return calls


def _indices(bsym: BoundSymbol) -> set[int]:
    # A fusion's own tags are its ops' together, of which op_index would find any one.
    has_none = bsym.sym.is_fusion or bsym.sym.id in BESIDE
    own = None if has_none else op_index(bsym)
    found = {own} if own is not None else set()
    for sub in bsym.subsymbols:
        found |= _indices(sub)
    return found


def group_calls(program: Program, calls: Sequence[Call]) -> list[CallGroup]:
    """Group calls that do the same, in order of first occurrence."""
    members: dict[tuple[object, ...], list[int]] = {}
    for position, call in enumerate(calls):
        name = "" if call.is_region else call.name
        classes = tuple(program.ops[i].class_id for i in call.ops)
        kinds = tuple(program.ops[i].kind for i in call.ops)
        key = (call.backward, call.is_region, call.place, name, classes, kinds)
        members.setdefault(key, []).append(position)
    groups = []
    for number, positions in enumerate(members.values(), start=1):
        first = calls[positions[0]]
        groups.append(
            CallGroup(
                number=number,
                name="" if first.is_region else first.name,
                place=first.place,
                ops=tuple(program.ops[i].kind for i in first.ops),
                calls=tuple(positions),
                is_region=first.is_region,
                backward=first.backward,
            )
        )
    return groups


def in_short(kinds: Sequence[str], *, most: int = 10) -> str:
    """Write a run of ops in a few words: "add, 3 view, layer_norm, ... 4 more"."""
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    words = [kind if count == 1 else f"{count} {kind}" for kind, count in runs]
    if len(words) > most:
        rest = sum(count for _, count in runs[most:])
        words = [*words[:most], f"... {rest} more"]
    return ", ".join(words)
