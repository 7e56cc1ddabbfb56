"""What a user would otherwise run, as candidates."""

from __future__ import annotations

from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.study import baselines_for
from thunder_tune.values.trial import Candidate, TrialResult


def baseline_candidates(ledger: PlanLedger, device: str) -> dict[str, Candidate]:
    """Return the device kind's baselines by name, in order.

    One that the space leaves out is among them all the same: its failure says why.
    """
    return {name: ledger.candidate({PROGRAM: name}) for name in baselines_for(device)}


def baseline_name(result: TrialResult) -> str:
    """Return the name of a measured baseline."""
    return result.candidate.assignment[PROGRAM]
