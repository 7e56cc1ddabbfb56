"""The order of a captured program: what can be fused stands together.

A model's code computes `silu(gate(x)) * up(x)` as a product, a light op, a product, a light op,
and regions are runs of neighbouring ops: the second product would cut one fusion in two. So heavy
ops move up behind the heavy ops before them, past the light ops that they do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol, gather_tags
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_tune.program.kinds import STRUCTURAL, is_view, kind_of
from thunder_tune.values.program import MATMUL_KINDS

MOST = 4
"""Heavy ops that move together: as many results wait for the light ops that read them."""

_IMPURE = frozenset(
    {
        OpTags.DONT_DCE,  # prims.copy_ among them, also inside a batch norm in training
        OpTags.IN_PLACE,
        OpTags.CTX_MANAGER_ENTER_EXIT_OP,
        OpTags.DEVICE_SYNC_OP,
        OpTags.AUTO_REGISTERED,  # torch's own functions, of which nothing is known; opaque ops
    }
)
_NOT_LIGHT = frozenset({PrimIDs.CONVOLUTION, PrimIDs.UPDATE_ALIASES})


class Role(Enum):
    """What an op may do in an order: a heavy one moves, a light one is passed, or neither."""

    HEAVY = "heavy"
    LIGHT = "light"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What matters of an op for its place.

    Attributes:
        role: What it may do.
        reads: Names of the values that it needs.
        makes: Names of its results.
        is_view: Whether it is light and computes nothing.
        is_cast: Whether it is light and changes a type, or not even that.
        is_random: Whether it draws random numbers.
    """

    role: Role
    reads: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    is_view: bool = False
    is_cast: bool = False
    is_random: bool = False


def ordered(trace: TraceCtx) -> TraceCtx:
    """Return an initial trace in the order that lets neighbours be fused; the ops are the same."""
    bsyms = trace.bound_symbols
    result = from_trace(trace)
    result.bound_symbols = [bsyms[i] for i in order([step_of(b) for b in bsyms])]
    result.set_provenance(TraceProvenance("Order for fusion"))
    return result


def order(steps: Sequence[Step]) -> list[int]:
    """Return the positions of a program's steps in the new order.

    Nothing moves across a barrier. Heavy ops keep their order, and so do random ones. Memory grows
    by the results of `MOST` heavy ops at most, as more never stand together because of it.
    """
    placed: list[int] = []
    for position, step in enumerate(steps):
        if step.role is not Role.HEAVY or not _moved_up(steps, placed, position):
            placed.append(position)
    return placed


def _moved_up(steps: Sequence[Step], placed: list[int], heavy: int) -> bool:
    """Place a heavy op behind the heavy ops before it, if it can move and that helps."""
    group = _group(steps, placed)
    if group is None:
        return False
    start, end = group
    # Names that the group makes, and all that is computed from them.
    from_group = {name for i in placed[start:end] for name in steps[i].makes}
    dependent = set()
    for i in placed[end:]:
        if not from_group.isdisjoint(steps[i].reads):
            dependent.add(i)
            from_group |= steps[i].makes
    needed = _needed(steps, placed[end:], heavy)
    # Casts, as autocast has them before every product, go before the group and join what is there.
    if not all(steps[i].is_view if i in dependent else steps[i].is_cast for i in needed):
        return False
    passed = [i for i in placed[end:] if i not in needed]
    before = [i for i in placed[end:] if i in needed - dependent]
    if steps[heavy].is_random and any(steps[i].is_random for i in passed):
        return False
    if not passed and all(steps[i].is_view for i in before):
        return False
    views = [i for i in placed[end:] if i in needed & dependent]
    placed[end:] = [*views, heavy, *passed]
    placed[start:start] = before
    return True


def _group(steps: Sequence[Step], placed: Sequence[int]) -> tuple[int, int] | None:
    """Find the last heavy ops with nothing but views between them: where it starts and ends."""
    end = len(placed)
    while end and steps[placed[end - 1]].role is Role.LIGHT:
        end -= 1
    start, count = end, 0
    for position in range(end - 1, -1, -1):
        step = steps[placed[position]]
        if step.role is Role.HEAVY:
            start = position
            count += 1
        elif not step.is_view:
            break
    return (start, end) if 0 < count < MOST else None


def _needed(steps: Sequence[Step], light: Sequence[int], heavy: int) -> set[int]:
    """Return which of the light ops before a heavy one it needs, directly or not."""
    names = set(steps[heavy].reads)
    needed = set()
    for i in reversed(light):
        if not names.isdisjoint(steps[i].makes):
            needed.add(i)
            names |= steps[i].reads
    return needed


def step_of(bsym: BoundSymbol) -> Step:
    """Describe an op; what is not known to be pure is a barrier."""
    tags = gather_tags(bsym)
    role = _role(bsym, tags)
    return Step(
        role=role,
        reads=frozenset(p.name for p in bsym.flat_proxy_args),
        makes=frozenset(p.name for p in bsym.flat_proxy_outs),
        is_view=role is Role.LIGHT and is_view(bsym),
        is_cast=role is Role.LIGHT and _is_cast(bsym),
        is_random=OpTags.RANDOM_OP in tags,
    )


def _role(bsym: BoundSymbol, tags: set[OpTags]) -> Role:
    is_silent = not bsym.flat_proxy_outs  # such an op is there for what it does
    if is_silent or bsym.sym.id in STRUCTURAL or not _IMPURE.isdisjoint(tags):
        return Role.BARRIER
    if kind_of(bsym) in MATMUL_KINDS:
        return Role.HEAVY
    return Role.LIGHT if _is_light(bsym) else Role.BARRIER


def _is_light(bsym: BoundSymbol) -> bool:
    """Whether an op is made of Thunder's primitives without a product or a convolution."""
    if bsym.subsymbols:
        return all(_is_light(sub) for sub in bsym.subsymbols)
    if not isinstance(bsym.sym.id, PrimIDs):
        return is_view(bsym)
    return bsym.sym.id not in _NOT_LIGHT and OpTags.MATMUL_OP not in (bsym.sym.tags or ())


def _is_cast(bsym: BoundSymbol) -> bool:
    if bsym.subsymbols:
        return all(_is_cast(sub) for sub in bsym.subsymbols)
    return bsym.sym.id == PrimIDs.CONVERT_ELEMENT_TYPE or is_view(bsym)
