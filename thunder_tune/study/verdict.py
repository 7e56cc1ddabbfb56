"""What a confirmation says: the winner, and how surely it wins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_tune.measure.statistics import standings
from thunder_tune.storage import TrialRecord
from thunder_tune.study.confirmation import trial_name
from thunder_tune.values.comparison import Comparison, Contender, Standing, Verdict
from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Program
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment
from thunder_tune.values.study import BASELINES, Winner
from thunder_tune.values.trial import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The winners of a confirmation.

    Attributes:
        best: The simplest of those tied with the fastest; None where nobody may win.
        best_composed: The same among composed programs.
        ranked: Every candidate (baselines are not) that may win, fastest first.
    """

    best: Winner | None
    best_composed: Winner | None
    ranked: tuple[Winner, ...]


def judge(comparison: Comparison, program: Program, policy: str) -> Verdicts:
    """Find the winners of a confirmation.

    Args:
        comparison: All rounds.
        program: What composed assignments refer to.
        policy: Accuracy policy that a winner passed on the confirmation's own inputs too.
    """
    able = [c for c in comparison.contenders if _may_win(comparison.standing(c.name), policy)]
    able.sort(key=lambda c: comparison.standing(c.name).latency_ms or 0.0)
    composed = [c for c in able if _kind(c.assignment) == "composed"]
    ranked = [_winner(comparison, c) for c in able if not c.is_baseline]
    return Verdicts(
        best=_simplest_tied(comparison, able, program),
        best_composed=_simplest_tied(comparison, composed, program),
        ranked=tuple(ranked),
    )


def measured(
    records: Sequence[TrialRecord], without: Collection[Contender] = ()
) -> tuple[Winner, ...]:
    """Rank complete search trials by what the search measured of them, fastest first.

    Their verdicts compare intervals of single processes: they guide the eye and claim nothing.

    Args:
        records: Of the study.
        without: Contenders of the confirmation, which says more about them.
    """
    names = {c.name for c in without}
    baselines = [t for r in records if r.result.role == "baseline" and (t := _timing(r))]
    reference = min(baselines, key=lambda t: t.latency_ms, default=None)
    found = []
    for record in records:
        timing = _timing(record)
        if record.result.role == "search" and timing and trial_name(record) not in names:
            found.append(_measured(record, timing, reference or timing))
    return tuple(sorted(found, key=lambda w: w.standing.latency_ms or 0.0))


def verdict_of(ratio_ci95: tuple[float, float] | None) -> Verdict:
    """Name what the interval of latency over the best baseline's latency says."""
    if ratio_ci95 is None or ratio_ci95[0] <= 1.0 <= ratio_ci95[1]:
        return "tie"
    return "faster" if ratio_ci95[1] < 1.0 else "slower"


def simplicity(program: Program, contender: Contender) -> tuple[int, int, int, str]:
    """Return a key that sorts contenders from simple to elaborate.

    Eager, torch.compile, its modes and Thunder's stock recipe, other whole-program back ends,
    then composed programs by regions and by ops that leave PyTorch.
    """
    back_end = contender.assignment.get(PROGRAM, COMPOSED)
    if back_end in BASELINES:
        return BASELINES.index(back_end), 0, 0, contender.name
    if back_end != COMPOSED:
        return len(BASELINES), 0, 0, contender.name
    plan = resolve(program, contender.assignment)
    moved = sum(target != "torch" for target in plan.targets)
    return len(BASELINES) + 1, len(plan.regions), moved, contender.name


def _timing(record: TrialRecord) -> Timing | None:
    return record.result.timing if record.result.state == "complete" else None


def _measured(record: TrialRecord, timing: Timing, reference: Timing) -> Winner:
    result = record.result
    lo, hi = timing.ci95_ms
    ratio = (lo / reference.ci95_ms[1], hi / reference.ci95_ms[0])
    standing = Standing(
        name=trial_name(record),
        latency_ms=timing.latency_ms,
        ci95_ms=timing.ci95_ms,
        accuracy=result.accuracy,
        applied=result.applied,
        peak_memory_bytes=result.peak_memory_bytes,
        first_call_s=result.first_call_s,
    )
    return Winner(
        assignment=result.candidate.assignment,
        kind=_kind(result.candidate.assignment),
        standing=standing,
        verdict=verdict_of(ratio),
        speedup=reference.latency_ms / timing.latency_ms,
        speedup_ci95=(1.0 / ratio[1], 1.0 / ratio[0]),
    )


def _may_win(standing: Standing, policy: str) -> bool:
    if standing.failure is not None or standing.latency_ms is None:
        return False
    return standing.accuracy is None or standing.accuracy.policies.get(policy, True)


def _kind(assignment: Assignment) -> Literal["composed", "whole-program"]:
    return "composed" if assignment.get(PROGRAM, COMPOSED) == COMPOSED else "whole-program"


def _simplest_tied(
    comparison: Comparison, by_latency: Sequence[Contender], program: Program
) -> Winner | None:
    if not by_latency:
        return None
    fastest = by_latency[0]
    paired = standings(comparison.contenders, comparison.rounds, reference=fastest.name)
    tied = [
        c
        for c in by_latency
        if c is fastest or verdict_of(paired.standing(c.name).ratio_ci95) == "tie"
    ]
    return _winner(comparison, min(tied, key=lambda c: simplicity(program, c)))


def _winner(comparison: Comparison, contender: Contender) -> Winner:
    standing = comparison.standing(contender.name)
    is_reference = contender.name == comparison.reference
    ratio = 1.0 if is_reference or standing.ratio is None else standing.ratio
    ci95 = (ratio, ratio) if is_reference else standing.ratio_ci95
    lo, hi = ci95 or (ratio, ratio)
    return Winner(
        assignment=contender.assignment,
        kind=_kind(contender.assignment),
        standing=standing,
        verdict=verdict_of(None if is_reference else ci95),
        speedup=1.0 / ratio,
        speedup_ci95=(1.0 / hi, 1.0 / lo),
    )
