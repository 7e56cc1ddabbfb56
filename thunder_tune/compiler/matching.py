"""Carry a recipe's choices to a program: the same one, another shape, or a sibling."""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_tune.compiler import fusers
from thunder_tune.executors import unavailable_reason
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.program import Program
from thunder_tune.values.recipe import TunedPlan
from thunder_tune.values.space import (
    BOUNDARY,
    CUDA_GRAPHS,
    EXECUTOR,
    FLOAT32_MATMUL,
    FUSER,
    NO_REWRITE,
    PRECISION,
    REGION_LIMIT,
    REWRITE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A recipe's choices for one program.

    Attributes:
        assignment: Choices by dimension name of this program.
        exact: Share of ops whose class the recipe was tuned for.
        carried: Share of ops whose class matches without shapes only.
        missing: What the recipe names and this machine lacks, with the reason.
        asked: The assignment as the recipe has it, what is missing here included.
    """

    assignment: dict[str, str]
    exact: float
    carried: float
    missing: tuple[str, ...] = field(default=())
    asked: dict[str, str] = field(default_factory=dict)


def match(plan: TunedPlan, program: Program, device: str) -> Match:
    """Find the choices of a tuned plan that apply to a program.

    A class that the plan knows keeps its choice. Otherwise the class with the same structure
    without shapes gives it; where several have (linears of several sizes), the first of the plan
    goes to the first of the program, the second to the second, and so on.
    """
    tuned_by_loose: dict[str, list[str]] = {}
    for class_id, loose_id in plan.classes.items():
        tuned_by_loose.setdefault(loose_id, []).append(class_id)
    assignment = {
        name: plan.assignment[name]
        for name in (CUDA_GRAPHS, FLOAT32_MATMUL, REGION_LIMIT)
        if name in plan.assignment
    }
    asked = dict(assignment)
    rank: dict[str, int] = {}
    ops_exact = ops_carried = 0
    missing: dict[str, str] = {}
    for cell_class in (*program.classes, *program.site_classes, *program.seam_classes):
        is_site = cell_class in program.site_classes
        count = 0 if is_site else cell_class.count * len(cell_class.ops)
        siblings = tuned_by_loose.get(cell_class.loose_id, [])
        position = rank.get(cell_class.loose_id, 0)
        rank[cell_class.loose_id] = position + 1
        if cell_class.id in plan.classes:
            source = cell_class.id
            ops_exact += count
        elif siblings:
            source = siblings[min(position, len(siblings) - 1)]
            ops_carried += count
        else:
            continue
        for prefix in (EXECUTOR, FUSER, PRECISION, REWRITE, BOUNDARY):
            choice = plan.assignment.get(prefix + source)
            if choice is None:
                continue
            asked[prefix + cell_class.id] = choice
            is_place = prefix not in (PRECISION, BOUNDARY) and choice != NO_REWRITE
            reason = _unavailable(choice, device) if is_place else ""
            if reason:
                missing[choice] = reason
                choice = NO_REWRITE if prefix == REWRITE else "torch"
            assignment[prefix + cell_class.id] = choice
    total = max(1, len(program.ops))
    return Match(
        assignment=assignment,
        exact=ops_exact / total,
        carried=ops_carried / total,
        missing=tuple(f"{name} {reason}" for name, reason in missing.items()),
        asked=asked,
    )


def _unavailable(target: str, device: str) -> str:
    if target in FUSERS:
        return fusers.unavailable_reason(target, device)
    return unavailable_reason(target, device)
