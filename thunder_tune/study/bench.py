"""Rounds of a comparison: every contender in fresh processes, in interleaved blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from thunder_tune.measure.statistics import standings
from thunder_tune.study.budget import Clock
from thunder_tune.study.observer import Observer
from thunder_tune.study.pool import WorkerPool
from thunder_tune.values.comparison import Comparison, Contender, Round
from thunder_tune.values.job import CompareJob, Limits, Setting


def compare_now(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    pool: WorkerPool,
    observer: Observer,
    rounds: int = 3,
    blocks: int = 8,
    calls: int = 10,
    timeout_s: float | None = None,
    seed: int = 0,
    clock: Clock = time.monotonic,
) -> Comparison:
    """Compare programs over several fresh processes.

    Args:
        setting: The model, how it is run and judged.
        contenders: Distinct names.
        pool: Runs each round.
        observer: Told of each round.
        rounds: Fresh processes, at least 3 for a claim.
        blocks: Blocks of each contender in a round.
        calls: Timed calls in a block.
        timeout_s: Seconds for all rounds, or None for the setting's limits; each batch of rounds
            gets an equal share of what is left.
        seed: Of block orders and fresh inputs; every round has its own.
        clock: Source of time.

    Returns:
        All rounds and the standings. As many rounds are under way at once as the pool has room
        for: they build side by side and take turns at the device. A contender that failed sits
        out the rounds that begin later, so that one that hangs costs its limit once.
    """
    started = clock()
    entered = tuple(contenders)
    done: list[Round] = []
    while len(done) < rounds:
        batch = range(len(done), min(rounds, len(done) + max(1, pool.capacity)))
        longest_s = _longest_s(setting.limits, len(entered))
        if timeout_s is not None:
            left_s = timeout_s - (clock() - started)
            share = len(batch) / (rounds - len(done))
            longest_s = min(longest_s, max(1.0, left_s * share))
        jobs = [
            CompareJob(
                setting=setting,
                contenders=entered,
                blocks=blocks,
                calls=calls,
                seed=seed * 1_000 + index + 1,
            )
            for index in batch
        ]
        for index, round_ in zip(batch, _side_by_side(pool, jobs, longest_s), strict=True):
            done.append(round_)
            observer.on_round(index, rounds, round_)
            # Where all failed it was the process: all of them get another chance.
            entered = tuple(c for c in entered if c.name not in round_.failures) or entered
    return standings(tuple(contenders), tuple(done))


def _side_by_side(
    pool: WorkerPool, jobs: Sequence[CompareJob], timeout_s: float
) -> Iterator[Round]:
    """Run several rounds at once; yields each in the order of the jobs."""
    if len(jobs) == 1:
        yield pool.compare(jobs[0], timeout_s)
        return
    executor = ThreadPoolExecutor(len(jobs), thread_name_prefix="round")
    try:
        futures = [executor.submit(pool.compare, job, timeout_s) for job in jobs]
        for future in futures:
            yield future.result()
    finally:  # after Ctrl-C the pool's cancel ends what still runs
        executor.shutdown(wait=False, cancel_futures=True)


def _longest_s(limits: Limits, contenders: int) -> float:
    once_s = limits.start_s + limits.load_s + limits.capture_s
    return once_s + contenders * (limits.compile_s + limits.check_s + limits.time_s)
