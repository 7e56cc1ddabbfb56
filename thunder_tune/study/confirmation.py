"""The last stage: who is compared with whom, and at what length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from thunder_tune.storage import TrialRecord
from thunder_tune.study.baselines import baseline_name
from thunder_tune.study.objective import latency_of
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import LEAD_IN_S
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import TrialResult

ROUNDS = 3
BEST_COMPOSED = 3
WARM = 0.5
"""Share of a first call that is left when compile caches are warm; measured ones lie below."""
BLOCK_S = 0.5
"""A block aims at so many seconds: long against a timer's jitter, short against clock drift."""
CONTENDER_S = 6.0
"""Blocks of one contender in one round aim at so many seconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender and the search-time result that brought it here."""

    contender: Contender
    result: TrialResult

    @property
    def latency_ms(self) -> float:
        """Search-time latency."""
        return latency_of(self.result) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A confirmation that fits the time left.

    Attributes:
        contenders: Who takes part.
        blocks: Of each contender in a round.
        calls: Timed calls in a block.
        timeout_s: Seconds for all rounds, or None.
        notice: What was cut for lack of time, or "".
    """

    contenders: tuple[Contender, ...]
    blocks: int
    calls: int
    timeout_s: float | None = None
    notice: str = ""


def entrants(records: Sequence[TrialRecord], environment_key: str) -> list[Entrant]:
    """Choose who is confirmed, the most important first.

    They are the best three composed candidates, the best overall where it is a back end of its
    own, and every baseline that was measured.

    Args:
        records: Of the study.
        environment_key: Of the machine as it is now: a baseline measured under other versions
            is another program, whereas a candidate is built anew in any case.
    """
    complete = [r for r in records if latency_of(r.result) is not None]
    complete.sort(key=lambda r: latency_of(r.result) or 0.0)
    newest = {
        baseline_name(r.result): r
        for r in records
        if r.result.role == "baseline" and r.environment_key == environment_key
    }
    baselines = [_baseline(r.result) for r in complete if r in newest.values()]
    searched = [r for r in complete if r.result.role == "search"]
    composed = [_candidate(r) for r in searched if _is_composed(r.result)][:BEST_COMPOSED]
    overall = [_candidate(r) for r in searched[:1] if not _is_composed(r.result)]
    # The first of each kind makes the claim, the others refine it.
    return [*composed[:1], *baselines[:1], *overall, *composed[1:], *baselines[1:]]


def estimate_s(records: Sequence[TrialRecord], environment_key: str, *, at_once: int = 1) -> float:
    """Estimate the seconds of a full confirmation from what was measured so far.

    Composed candidates that are not there yet are taken to cost what a typical baseline does.

    Args:
        records: Of the study.
        environment_key: Of the machine as it is now.
        at_once: Rounds that may be under way side by side.
    """
    chosen = entrants(records, environment_key)
    if not chosen:
        return 0.0
    missing = BEST_COMPOSED - sum(1 for e in chosen if _is_composed(e.result))
    typical = sorted(chosen, key=_build_s)[len(chosen) // 2]
    return _rounds_s([*chosen, *[typical] * missing], *_shape(chosen), at_once)


def schedule(chosen: Sequence[Entrant], left_s: float | None, *, at_once: int = 1) -> Schedule:
    """Fit a confirmation into the time left.

    First blocks are shortened, then the least important contenders are left out; two stay in any
    case, in three rounds, and take what they need.

    Args:
        chosen: From `entrants`, not empty.
        left_s: Seconds left, perhaps below 0, or None for no limit.
        at_once: Rounds that may be under way side by side.
    """
    kept, (blocks, calls), cut = list(chosen), _shape(chosen), ""
    if left_s is not None and _rounds_s(kept, blocks, calls, at_once) > left_s:
        blocks, calls = min(blocks, 3), max(2, calls // 2)
        cut = "shorter blocks"
        while len(kept) > 2 and _rounds_s(kept, blocks, calls, at_once) > left_s:
            kept.pop()
        if len(kept) < len(chosen):
            names = ", ".join(e.contender.name for e in chosen[len(kept) :])
            cut += f", and without {names}"
    plan = Schedule(contenders=tuple(e.contender for e in kept), blocks=blocks, calls=calls)
    if left_s is None:
        return plan
    needed_s = 1.5 * _rounds_s(kept, blocks, calls, at_once)
    notice = f"little time is left: the confirmation has {cut}" if cut else ""
    return replace(plan, timeout_s=max(left_s, needed_s), notice=notice)


def _is_composed(result: TrialResult) -> bool:
    return result.candidate.assignment.get(PROGRAM, COMPOSED) == COMPOSED


def _baseline(result: TrialResult) -> Entrant:
    name = baseline_name(result)
    contender = Contender(name=name, assignment=result.candidate.assignment, is_baseline=True)
    return Entrant(contender=contender, result=result)


def _candidate(record: TrialRecord) -> Entrant:
    assignment = record.result.candidate.assignment
    contender = Contender(name=trial_name(record), assignment=assignment)
    return Entrant(contender=contender, result=record.result)


def trial_name(record: TrialRecord) -> str:
    """Return what a search trial is called in tables: its number, or its back end."""
    if _is_composed(record.result):
        return f"trial {record.number}"
    return record.result.candidate.assignment[PROGRAM]


def _shape(chosen: Sequence[Entrant]) -> tuple[int, int]:
    return block_shape([e.latency_ms for e in chosen])


def block_shape(latencies_ms: Sequence[float]) -> tuple[int, int]:
    """Return blocks of each contender in a round, and calls in a block, for such programs."""
    latency_s = max(1e-6, median(latencies_ms) / 1e3)
    calls = max(2, min(20, int(BLOCK_S / latency_s)))
    blocks = max(3, min(8, int(CONTENDER_S / (latency_s * calls))))
    return blocks, calls


def _build_s(entrant: Entrant) -> float:
    return entrant.result.first_call_s or 0.0


def _rounds_s(chosen: Sequence[Entrant], blocks: int, calls: int, at_once: int) -> float:
    """Estimate the seconds of all rounds.

    Starts and warm builds of rounds at once go on side by side; checks, warm-ups and blocks take
    turns at the device.
    """
    phases = [e.result.phase_s for e in chosen]
    start_s = max(sum(p.get(name, 0.0) for name in ("start", "load", "capture")) for p in phases)
    build_s = sum(WARM * _build_s(e) for e in chosen)
    turns_s = sum(p.get("check", 0.0) for p in phases)
    turns_s += sum(warm_up_s(e.latency_ms) for e in chosen)
    turns_s += sum(blocks * (calls * e.latency_ms / 1e3 + _lead_in_s(e)) for e in chosen)
    return ceil(ROUNDS / max(1, at_once)) * (start_s + build_s) + ROUNDS * turns_s


def _lead_in_s(entrant: Entrant) -> float:
    timing = entrant.result.timing
    return LEAD_IN_S if timing is not None and timing.clock == "device" else 0.0


def warm_up_s(latency_ms: float) -> float:
    """Estimate the seconds until calls stop becoming faster: a dozen calls, within bounds."""
    return min(3.0, max(0.3, 12 * latency_ms / 1e3))
