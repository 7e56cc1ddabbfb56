"""What a confirmation says: the winner, and how surely it wins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_tune.measure.statistics import MIN_EFFECT, decide, standings
from thunder_tune.storage import TrialRecord
from thunder_tune.study.confirmation import trial_name
from thunder_tune.values.comparison import Comparison, Contender, Standing, Verdict
from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Program
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment
from thunder_tune.values.study import BASELINES, Winner
from thunder_tune.values.trial import Timing

_LEAST = 1e-9
"""A ratio's lower bound is not taken below this: its inverse is stored as a number."""


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
    candidates = [c for c in able if not c.is_baseline]
    composed = [c for c in candidates if _kind(c.assignment) == "composed"]
    return Verdicts(
        best=_simplest_tied(comparison, able, program),
        best_composed=_simplest_tied(comparison, composed, program),
        ranked=tuple(_winner(comparison, c) for c in candidates),
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
        verdict="faster" if ratio[1] < 1.0 else "slower" if ratio[0] > 1.0 else "tie",
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
    """Return the simplest of those as fast as the fastest that may be claimed.

    Where nobody is shown to be faster than the best baseline, the baseline sets the mark. Tied
    with the mark are those that measured at most half a percent slower: a wide interval is no
    excuse for naming a slower program.
    """
    if not by_latency:
        return None
    claimed = [c for c in by_latency if _verdict(comparison, c) == "faster"]
    mark = next(iter(claimed), by_latency[0])
    claim = _verdict(comparison, mark)
    if claim != "faster":
        mark = next((c for c in by_latency if c.name == comparison.reference), mark)
    paired = standings(comparison.contenders, comparison.rounds, reference=mark.name)
    tied = [
        c
        for c in by_latency
        if c is mark
        or (
            (paired.standing(c.name).ratio or 2.0) <= 1.0 + MIN_EFFECT
            and _verdict(paired, c) != "slower"
            and (claim != "faster" or _verdict(comparison, c) == claim)
        )
    ]
    return _winner(comparison, min(tied, key=lambda c: simplicity(program, c)))


def _verdict(comparison: Comparison, contender: Contender) -> Verdict:
    standing = comparison.standing(contender.name)
    if contender.name == comparison.reference or standing.ratio_log_error is None:
        return "tie"
    # Every pair of contenders may come to be compared: one family for all of them.
    return decide(standing, family=max(1, len(comparison.contenders) - 1))


def _winner(comparison: Comparison, contender: Contender) -> Winner:
    standing = comparison.standing(contender.name)
    ratio = standing.ratio or 1.0
    lo, hi = standing.ratio_ci95 or (ratio, ratio)
    return Winner(
        assignment=contender.assignment,
        kind=_kind(contender.assignment),
        standing=standing,
        verdict=_verdict(comparison, contender),
        speedup=1.0 / ratio,
        speedup_ci95=(1.0 / hi, 1.0 / max(lo, _LEAST)),
    )
