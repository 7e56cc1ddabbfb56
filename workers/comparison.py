"""A round of a comparison: every contender built in one process, timed in interleaved blocks."""

from __future__ import annotations

import gc
import logging
import os
import random
import time

import torch

from thunder_tune.measure.device_watch import DeviceWatch
from thunder_tune.measure.host_pace import HostWatch
from thunder_tune.measure.timing import time_block, warm_up
from thunder_tune.values.comparison import Block, Contender, Round
from thunder_tune.values.job import CompareJob
from thunder_tune.values.trial import Failure
from thunder_tune.workers.attempt import Attempt
from thunder_tune.workers.containment import contained
from thunder_tune.workers.failures import FAULTS, is_sticky
from thunder_tune.workers.torch_state import kept_torch_state
from thunder_tune.workers.workbench import PhaseClock, Workbench

logger = logging.getLogger(__name__)

_BUILD_SHARE = 0.75
"""Of the time: contenders not begun by then are left out, so that the others get blocks."""
_RECOMPILE_LIMIT = 256
"""Dynamo counts compilations by code object, which all contenders share; its own limit is 8."""


def run_round(job: CompareJob, bench: Workbench, clock: PhaseClock, deadline: float) -> Round:
    """Build and judge all contenders on fresh inputs, then time them.

    Args:
        job: Contenders, number of blocks and calls, seed.
        bench: Of a process in which nothing was built yet.
        clock: Names the contender at work, so that the parent can go on without it.
        deadline: Reading of the monotonic clock, seconds, after which no block begins.

    Raises:
        Exception: A contender's fault has made the device unusable for this process.
    """
    torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = _RECOMPILE_LIMIT * len(job.contenders)
    round_ = _Round(job, bench, clock, deadline)
    round_.build_all()
    round_.time_all()
    return round_.result()


class _Round:
    """A round in the making."""

    def __init__(
        self, job: CompareJob, bench: Workbench, clock: PhaseClock, deadline: float
    ) -> None:
        self._job = job
        self._bench = bench
        self._clock = clock
        self._deadline = deadline
        self._device = job.setting.source.device
        self._watch = DeviceWatch(torch.device(self._device))
        self._host = HostWatch()
        self._attempts: dict[str, Attempt] = {}
        self._failures: dict[str, Failure] = {}
        self._blocks: list[Block] = []

    def build_all(self) -> None:
        """Build, judge and warm up one contender after the other."""
        started = time.monotonic()
        last_start = started + _BUILD_SHARE * (self._deadline - started)
        for contender in self._job.contenders:
            if time.monotonic() < last_start:
                self._build(contender)

    def time_all(self) -> None:
        """Time blocks in an order drawn anew for each round over the contenders.

        The device is kept for a whole round over them; between rounds it changes hands.
        """
        order = random.Random(self._job.seed)
        for _ in range(self._job.blocks):
            names = list(self._attempts)
            order.shuffle(names)
            with self._clock.leased(quietly=True):
                for name in names:
                    if time.monotonic() >= self._deadline:
                        return
                    self._host.observe()  # a block begins with a call that is not timed
                    self._time(name)
                self._host.observe()

    def result(self) -> Round:
        """Return the round; a contender that failed has no blocks."""
        blocks = tuple(b for b in self._blocks if b.contender in self._attempts)
        built = self._attempts
        return Round(
            process_id=os.getpid(),
            blocks=blocks,
            accuracy={n: a.accuracy for n, a in built.items() if a.accuracy is not None},
            applied={n: a.applied for n, a in built.items() if a.applied is not None},
            first_call_s={
                n: a.first_call_s for n, a in built.items() if a.first_call_s is not None
            },
            peak_memory_bytes={n: a.peak_memory_bytes for n, a in built.items()},
            failures=self._failures,
            marks=(*self._watch.marks(), *self._host.marks()),
        )

    def _build(self, contender: Contender) -> None:
        attempt = Attempt(contender.assignment, self._clock, contender.name)
        self._attempts[contender.name] = attempt
        try:
            with contained():
                step = attempt.run(self._bench)
                with self._clock.during("time", contender.name):
                    warm_up(
                        step,
                        self._bench.timed_inputs,
                        device=self._device,
                        raises_clock=not self._bench.is_cuda,  # on a GPU each block leads in
                    )
        except FAULTS as error:
            self._fail(contender.name, error)
        if contender.name in self._failures:
            self._free()

    def _time(self, name: str) -> None:
        step = self._attempts[name].step
        if step is None:
            return
        started_at = time.time()
        try:
            with self._clock.during("time", name), kept_torch_state():
                samples = time_block(
                    step,
                    self._bench.timed_inputs,
                    device=self._device,
                    calls=self._job.calls,
                    lead_in_s=self._job.lead_in_s if self._bench.is_cuda else 0.0,
                )
        except FAULTS as error:
            self._fail(name, error)
            return
        self._watch.observe()
        self._blocks.append(
            Block(
                contender=name,
                position=len(self._blocks),
                samples_ms=samples,
                started_at=started_at,
            )
        )

    def _fail(self, name: str, error: BaseException) -> None:
        if is_sticky(error):
            raise error
        attempt = self._attempts.pop(name)
        self._failures[name] = attempt.failure(error)
        logger.info("%s: %s", name, self._failures[name].message, exc_info=error)
        attempt.close()

    def _free(self) -> None:
        """Give a failed contender's memory to the next; its exception must be gone by now."""
        gc.collect()
        if self._bench.is_cuda:
            torch.cuda.empty_cache()
