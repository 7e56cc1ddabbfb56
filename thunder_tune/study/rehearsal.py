"""Every contender built once by itself, side by side, before a comparison.

The rounds of a comparison build all contenders one after the other in each process. After a
rehearsal compile caches are warm for them, who fails or takes too long is known and sits out, and
the slow ones come last. Behind all of them come those of which no cache keeps anything: a
rehearsal would cost what they cost in the rounds, and save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thunder_tune.study.budget import Clock
from thunder_tune.study.pool import WorkerPool
from thunder_tune.study.waiting import TICK_S
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import MeasureJob, Setting
from thunder_tune.values.screening import Screening
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.trial import Candidate, Failure

UNKEPT = frozenset({"thunder"})
"""Back ends that build everything anew in each process."""
SHARE = 0.6
"""Of the time of a comparison: the rounds, which find caches warm, need less."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What a rehearsal showed.

    Attributes:
        build_s: Seconds to the first result, by contender, of those that gave one.
        failures: Of the others, by contender.
    """

    build_s: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)

    def cast(self, contenders: Sequence[Contender]) -> tuple[Contender, ...]:
        """Return who can be measured, those first that are built soonest."""
        able = (c for c in contenders if c.name in self.build_s)
        unknown = (c for c in contenders if not _is_rehearsed(c))
        return (*sorted(able, key=lambda c: self.build_s[c.name]), *unknown)


def _is_rehearsed(contender: Contender) -> bool:
    return contender.assignment.get(PROGRAM) not in UNKEPT


def rehearse(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    pool: WorkerPool,
    limit_s: float | None,
    clock: Clock,
) -> Rehearsal:
    """Build, judge and time contenders once, as many at once as the pool has room for.

    Args:
        setting: The model, how it is run and judged.
        contenders: Distinct names.
        pool: Runs them.
        limit_s: Seconds for all of it, or None; who is not ready by then has failed.
        clock: Source of time.
    """
    started = clock()
    shown = Rehearsal()
    waiting: dict[int, str] = {}
    is_over = False
    try:
        for contender in filter(_is_rehearsed, contenders):
            candidate = Candidate(assignment=contender.assignment, plan_key="")
            waiting[pool.submit(MeasureJob(setting=setting, candidate=candidate))] = contender.name
        while waiting and not is_over:
            left_s = TICK_S if limit_s is None else started + limit_s - clock()
            is_over = left_s <= 0.0  # what is ready by now still counts
            for ticket, result in pool.wait(max(0.0, min(TICK_S, left_s))):
                name = waiting.pop(ticket, None)
                if name is None or isinstance(
                    result, Screening
                ):  # of an earlier rehearsal that was cut short
                    continue
                if result.failure is not None:
                    shown.failures[name] = result.failure
                else:
                    shown.build_s[name] = result.first_call_s or 0.0
    finally:
        if waiting:
            pool.cancel()
    for name in waiting.values():
        shown.failures[name] = Failure(
            kind="timeout",
            phase="compile",
            message=f"not built within {limit_s:.3g} s, {SHARE:.0%} of the time of the comparison",
            group=f"not built within {SHARE:.0%} of the time of the comparison",
        )
    return shown
