"""Old trials in terms of the space as it is now."""

from __future__ import annotations

from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.space import (
    COMPOSED,
    CUDA_GRAPHS,
    EXECUTOR,
    FLOAT32_MATMUL,
    FUSER,
    PROGRAM,
    Dimension,
)
from thunder_tune.values.trial import Candidate


def encode(ledger: PlanLedger, candidate: Candidate) -> dict[str, str] | None:
    """Return a choice for every dimension of the space that gives the candidate's plan.

    Args:
        ledger: Of the space as it is now.
        candidate: From a trial, perhaps of an older space.

    Returns:
        A whole-program back end alone, or a composed program's complete assignment; None where
        the space does not contain the plan any more.
    """
    old = candidate.assignment
    back_end = old.get(PROGRAM, COMPOSED)
    if back_end != COMPOSED:
        return {PROGRAM: back_end} if back_end in ledger.whole_programs else None
    if not ledger.can_compose:
        return None
    choices = {
        d.name: old.get(d.name, _unassigned(d))
        for d in ledger.space.dimensions
        if d.name != PROGRAM
    }
    if any(choices[name] not in ledger.space.by_name[name].choices for name in choices):
        return None
    assignment = ledger.composed(choices)
    same = ledger.candidate(assignment).plan_key == candidate.plan_key
    return assignment if same else None


def _unassigned(dimension: Dimension) -> str:
    """Return the choice that equals having no such dimension (`thunder_tune.values.plan`)."""
    if dimension.name.startswith((EXECUTOR, FUSER)):
        return "torch"
    return {CUDA_GRAPHS: "none", FLOAT32_MATMUL: "ieee"}.get(dimension.name, dimension.choices[0])
