"""Rounds of a comparison: every contender in fresh processes, in interleaved blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from thunder_tune.measure.statistics import MIN_ROUNDS, is_open, standings
from thunder_tune.study.budget import Clock
from thunder_tune.study.observer import Observer
from thunder_tune.study.pool import WorkerPool
from thunder_tune.study.rehearsal import SHARE, rehearse
from thunder_tune.study.waiting import call_while_ticking, result_while_ticking
from thunder_tune.values.comparison import NOT_REACHED, Comparison, Contender, Round
from thunder_tune.values.job import LEAD_IN_S, CompareJob, Limits, Setting
from thunder_tune.values.trial import Failure

EXTRA_ROUNDS = 3
"""Rounds that follow where the first ones leave a candidate's claim open."""


def compare_now(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    pool: WorkerPool,
    observer: Observer,
    rounds: int = 3,
    extra_rounds: int = 0,
    blocks: int = 8,
    calls: int = 10,
    lead_in_s: float = LEAD_IN_S,
    timeout_s: float | None = None,
    rehearsed: bool = False,
    seed: int = 0,
    clock: Clock = time.monotonic,
    tick: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare programs over several fresh processes.

    Args:
        setting: The model, how it is run and judged.
        contenders: Distinct names.
        pool: Runs each round.
        observer: Told of each round.
        rounds: Fresh processes, at least 3 for a claim.
        extra_rounds: So many more at most, once, where a candidate measured faster and that is
            not sure yet; as many as the time left allows at the pace of the first ones. An
            interrupt during these ends them, and what was measured before stands.
        blocks: Blocks of each contender in a round.
        calls: Timed calls in a block.
        lead_in_s: Seconds of untimed calls before those of a block, on a GPU.
        timeout_s: Seconds for all rounds, or None for the setting's limits; each batch of rounds
            gets an equal share of what is left.
        rehearsed: Build every contender once by itself first, where the pool has room for several:
            for programs of which nothing is known yet.
        seed: Of block orders and fresh inputs; every round has its own.
        clock: Source of time.
        tick: Called about once a second while the rounds run; what it raises ends the comparison.

    Returns:
        All rounds and the standings. As many rounds are under way at once as the pool has room
        for: they build side by side and take turns at the device. A contender that failed sits
        out the rounds that begin later, so that one that hangs costs its limit once.
    """
    series = _Series(
        setting,
        contenders,
        pool=pool,
        observer=observer,
        shape=(blocks, calls),
        lead_in_s=lead_in_s,
        seed=seed,
        ends_at=None if timeout_s is None else clock() + timeout_s,
        clock=clock,
        tick=tick,
    )
    if rehearsed and pool.capacity > 1:
        observer.on_notice("building every program once, to warm the compile caches")
        series.rehearse(timeout_s)
    started = clock()
    series.run(rounds)
    found = standings(series.contenders, series.done)
    if extra_rounds and rounds >= MIN_ROUNDS and is_open(found):
        if more := series.affordable((clock() - started) / rounds, extra_rounds):
            observer.on_notice(f"not sure yet: {more} more round{'s' * (more > 1)}")
            try:
                series.run(more, extra=True)
            except KeyboardInterrupt:
                observer.on_notice("interrupted: the rounds before stand as they are")
            found = standings(series.contenders, series.done)
    return found


class _Series:
    """The rounds of one comparison."""

    def __init__(
        self,
        setting: Setting,
        contenders: Sequence[Contender],
        *,
        pool: WorkerPool,
        observer: Observer,
        shape: tuple[int, int],
        lead_in_s: float,
        seed: int,
        ends_at: float | None,
        clock: Clock,
        tick: Callable[[], None],
    ) -> None:
        self.contenders = tuple(contenders)
        self.done: list[Round] = []
        self._entered = self.contenders
        self._absent: Mapping[str, Failure] = {}
        self._build_s: Mapping[str, float] = {}
        self._setting = setting
        self._pool = pool
        self._observer = observer
        self._shape = shape
        self._lead_in_s = lead_in_s
        self._seed = seed
        self._ends_at = ends_at
        self._clock = clock
        self._tick = tick

    def rehearse(self, timeout_s: float | None) -> None:
        """Let those sit out that fail by themselves, unless all do; slow ones come last."""
        shown = rehearse(
            self._setting,
            self.contenders,
            pool=self._pool,
            limit_s=None if timeout_s is None else SHARE * timeout_s,
            clock=self._clock,
        )
        if shown.build_s:
            self._entered, self._absent = shown.cast(self.contenders), shown.failures
            self._build_s = shown.build_s

    def affordable(self, round_s: float, at_most: int) -> int:
        """Return how many rounds of so many seconds fit into the time left."""
        if self._ends_at is None:
            return at_most
        left_s = self._ends_at - self._clock()
        return max(0, min(at_most, int(left_s / max(round_s, 1e-9))))

    def run(self, rounds: int, *, extra: bool = False) -> None:
        """Run so many rounds; of extra ones those that time cuts short do not count."""
        begun = 0
        total = len(self.done) + rounds
        while begun < rounds:
            size = min(rounds - begun, max(1, self._pool.capacity))
            jobs = [self._job(total - rounds + begun + i + 1) for i in range(size)]
            longest_s = self._longest_s(size / (rounds - begun))
            for round_ in _side_by_side(self._pool, jobs, longest_s, self._tick):
                begun += 1
                if extra and any(f.kind == "timeout" for f in round_.failures.values()):
                    continue
                round_ = replace(round_, failures={**self._absent, **round_.failures})
                self.done.append(round_)
                self._observer.on_round(len(self.done) - 1, total, round_)
                # Where all failed it was the process: all of them get another chance.
                failed = {n for n, f in round_.failures.items() if f.group != NOT_REACHED}
                able = (c for c in self._entered if c.name not in failed)
                self._entered = tuple(able) or self._entered

    def _job(self, number: int) -> CompareJob:
        blocks, calls = self._shape
        return CompareJob(
            setting=self._setting,
            contenders=self._entered,
            blocks=blocks,
            calls=calls,
            lead_in_s=self._lead_in_s,
            seed=self._seed * 1_000 + number,
            build_s=self._build_s,
        )

    def _longest_s(self, share: float) -> float:
        """Return the seconds that a batch may take: a share of what is left."""
        longest_s = _limit_s(self._setting.limits, len(self._entered))
        if self._ends_at is None:
            return longest_s
        return min(longest_s, max(1.0, (self._ends_at - self._clock()) * share))


def _side_by_side(
    pool: WorkerPool, jobs: Sequence[CompareJob], timeout_s: float, tick: Callable[[], None]
) -> Iterator[Round]:
    """Run several rounds at once; yields each in the order of the jobs."""
    if len(jobs) == 1:
        yield call_while_ticking(lambda: pool.compare(jobs[0], timeout_s), tick)
        return
    executor = ThreadPoolExecutor(len(jobs), thread_name_prefix="round")
    try:
        futures = [executor.submit(pool.compare, job, timeout_s) for job in jobs]
        for future in futures:
            yield result_while_ticking(future, tick)
    finally:  # after Ctrl-C the pool's cancel ends what still runs
        executor.shutdown(wait=False, cancel_futures=True)


def _limit_s(limits: Limits, contenders: int) -> float:
    once_s = limits.start_s + limits.load_s + limits.capture_s
    return once_s + contenders * (limits.compile_s + limits.check_s + limits.time_s)
