"""How long one call of a program takes, in one process.

Clock. On CUDA a pair of events around every call, all enqueued without waiting, a bounded number
in flight: where the device is the slower side that is device time, where the host is, it is the
host's pace, as in a loop of a user's own. On a CPU `time.perf_counter_ns` around every call.

Warm-up. Until calls stop becoming faster, not a fixed count; bounded in calls and seconds.

Caches. Inputs rotate over several sets, which on CUDA are multiplied until together they exceed
twice the L2 cache (at most 16 sets): no call finds its input there because the call before read
it. Weights are left as warm as calls leave them, as when a server calls one model again and
again; those of all but small models are larger than L2. Nothing is flushed between calls: a flush
would give the host time to run ahead and hide the launch costs of programs of many kernels.

Output. Held until the end of its call is recorded, then dropped; Python calls are not optimised
away, and work on the stream is ordered. The garbage collector is off while timing.

Host. Its pace is taken before the first batch of calls, after the last, and about twice a second
between batches; one call after that is not timed. See `thunder_tune.measure.host_pace`.

Stop. When the 95 % interval of the median is narrow enough, looked at after each growth of the
sample by a fifth, or when time is up. Repeats of one process are correlated: the interval says how
repeatable this process is, see `thunder_tune.measure.statistics` for claims.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from thunder_tune.errors import InputError
from thunder_tune.measure.device_watch import DeviceWatch
from thunder_tune.measure.host_pace import HostWatch
from thunder_tune.measure.statistics import median_interval
from thunder_tune.measure.steps import Arguments, Inputs, Step
from thunder_tune.values.job import TimingRequest
from thunder_tune.values.trial import Timing

MAX_IN_FLIGHT = 32
"""Calls enqueued before waiting for the device."""
BATCH_S = 0.1
"""A batch of calls in flight aims at no more than this many seconds."""
MAX_SETS = 16
HOST_CALLS = 10
WINDOW = 5
STILL_FASTER = 0.02
"""Warm-up goes on while the fastest of a window beats all before by this share."""
PACE_S = 0.5
"""The host's pace is taken between batches after so many seconds."""
FEWEST_CALLS = 3
"""Timed calls made even where one of them takes longer than the whole time allowed."""

T = TypeVar("T")


def time_step(
    step: Step, inputs: Sequence[Inputs], *, device: str, request: TimingRequest
) -> Timing:
    """Time a program until the asked precision, or until time is up.

    Args:
        step: What to time, built already: its first call compiles nothing.
        inputs: Sets to rotate over, at least one; two or more on a CPU, so that none is warm.
        device: "cpu" or "cuda".
        request: Precision, fewest repeats, and seconds of timed calls. Where the two conflict
            time wins, after three calls.

    Raises:
        InputError: There are no inputs.
    """
    place = torch.device(device)
    cycle = itertools.cycle(rotation(inputs, device=device))
    watch, host = DeviceWatch(place), HostWatch()
    sample = _device_samples if place.type == "cuda" else _host_samples
    samples: list[float] = []
    gc.collect()
    with _without_collector():
        longest_s = max(0.5, request.max_s / 2)
        warmup_calls, call_s = _warm_up(
            step, cycle, place, max_s=longest_s, least_s=_clock_s(place)
        )
        batch = _batch(call_s)
        _take_pace(host, step, cycle, place)
        started, look_at = time.perf_counter(), request.min_repeats
        pace_at = started + PACE_S
        while True:
            samples += sample(step, itertools.islice(cycle, batch), watch)
            now = time.perf_counter()
            spent_s = now - started
            if spent_s >= request.max_s and len(samples) >= FEWEST_CALLS:
                break
            if len(samples) >= look_at:
                if _half_width(samples) <= request.precision:
                    break
                look_at = max(len(samples) + 1, len(samples) * 6 // 5)
            if now >= pace_at:
                _take_pace(host, step, cycle, place)
                pace_at = time.perf_counter() + PACE_S
        host.observe()
        host_ms = _host_ms(step, cycle) if place.type == "cuda" else None
    return Timing(
        samples_ms=tuple(samples),
        latency_ms=median(samples),
        ci95_ms=median_interval(samples),
        host_ms=host_ms,
        clock="device" if place.type == "cuda" else "host",
        warmup_calls=warmup_calls,
        marks=(*watch.marks(), *host.marks()),
    )


def time_block(
    step: Step,
    inputs: Sequence[Inputs],
    *,
    device: str,
    calls: int,
    lead_in_s: float = 0.0,
) -> tuple[float, ...]:
    """Time consecutive calls of one contender of a comparison.

    Calls before them are not timed. The first finds the caches as another program left them, and
    where power limits a GPU's clock the next ones run at a clock that the other program left.

    Args:
        step: What to time, built and warmed up.
        inputs: Sets to rotate over; pass all contenders the same `rotation`.
        device: "cpu" or "cuda".
        calls: Timed calls, at least 1.
        lead_in_s: Seconds of untimed calls before; one is made in any case.

    Returns:
        Milliseconds of each call, in run order.
    """
    if calls < 1:
        raise InputError(f"calls {calls}: a block needs at least 1")
    place = torch.device(device)
    cycle = itertools.cycle(_some(inputs))
    watch = DeviceWatch(torch.device("cpu"))  # marks belong to the whole round, not to a block
    sample = _device_samples if place.type == "cuda" else _host_samples
    samples: list[float] = []
    with _without_collector():
        started = time.perf_counter()
        step(next(cycle))
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        call_s = time.perf_counter() - started
        while time.perf_counter() - started < lead_in_s:
            sample(step, itertools.islice(cycle, _batch(call_s)), watch)
        while len(samples) < calls:
            batch = min(MAX_IN_FLIGHT, calls - len(samples))
            samples += sample(step, itertools.islice(cycle, batch), watch)
    return tuple(samples)


def warm_up(
    step: Step,
    inputs: Sequence[Inputs],
    *,
    device: str,
    max_calls: int = 2000,
    max_s: float = 3.0,
    raises_clock: bool = True,
) -> int:
    """Call a program until it stops becoming faster.

    Args:
        step: What to warm up.
        inputs: Sets to rotate over, at least one.
        device: "cpu" or "cuda".
        max_calls: At most this many calls, at least 1.
        max_s: No call begins after this many seconds.
        raises_clock: Go on until a GPU that was idle has its clock again.

    Returns:
        The number of calls made.
    """
    place = torch.device(device)
    cycle = itertools.cycle(_some(inputs))
    with _without_collector():
        least_s = _clock_s(place) if raises_clock else 0.0
        calls, _ = _warm_up(step, cycle, place, max_calls=max_calls, max_s=max_s, least_s=least_s)
    return calls


def rotation(inputs: Sequence[Inputs], *, device: str) -> tuple[Inputs, ...]:
    """Return sets of inputs to rotate over; on CUDA copies are added until they exceed L2.

    Raises:
        InputError: There are no inputs.
    """
    given = tuple(_some(inputs))
    place = torch.device(device)
    if place.type != "cuda":
        return given
    wanted = 2 * torch.cuda.get_device_properties(place).L2_cache_size
    size = max(1, sum(_bytes(i) for i in given))
    copies = min(-(-wanted // size), max(1, MAX_SETS // len(given)))
    return given + tuple(_copy(i) for _ in range(copies - 1) for i in given)


def _batch(call_s: float) -> int:
    """Return how many calls of so many seconds are enqueued at once."""
    return max(1, min(MAX_IN_FLIGHT, int(BATCH_S / max(call_s, 1e-9))))


def _warm_up(
    step: Step,
    cycle: Iterator[Inputs],
    place: torch.device,
    *,
    max_calls: int = 2000,
    max_s: float = 3.0,
    least_s: float = 0.0,
) -> tuple[int, float]:
    """Return calls made and seconds of a typical one of the last."""
    at_least_s = min(least_s, max_s)
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < max_calls:
        before = time.perf_counter()
        step(next(cycle))
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        now = time.perf_counter()
        times.append(now - before)
        if now - started >= max_s:
            break
        if now - started >= at_least_s and _is_stable(times):
            break
    return len(times), median(times[-WINDOW:])


def _clock_s(place: torch.device) -> float:
    """Return the seconds that an idle device needs to raise its clock."""
    return 0.3 if place.type == "cuda" else 0.02


def _is_stable(times: Sequence[float]) -> bool:
    if len(times) < 2 * WINDOW:
        return False
    return min(times[-WINDOW:]) >= (1 - STILL_FASTER) * min(times[:-WINDOW])


def _take_pace(host: HostWatch, step: Step, cycle: Iterator[Inputs], place: torch.device) -> None:
    """Note the host's pace, then make a call that is not timed: caches are the step's again."""
    host.observe()
    step(next(cycle))
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def _host_samples(step: Step, inputs: Iterator[Inputs], watch: DeviceWatch) -> list[float]:
    samples = []
    for item in inputs:
        before = time.perf_counter_ns()
        result = step(item)
        after = time.perf_counter_ns()
        del result
        samples.append((after - before) / 1e6)
    watch.observe()
    return samples


def _device_samples(step: Step, inputs: Iterator[Inputs], watch: DeviceWatch) -> list[float]:
    pairs = []
    for item in inputs:
        begin, end = _event(), _event()
        begin.record()
        result = step(item)
        end.record()
        del result
        pairs.append((begin, end))
    watch.observe()  # while the device still works
    pairs[-1][1].synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none


def _host_ms(step: Step, cycle: Iterator[Inputs]) -> float:
    """Return the median time to issue one call to an idle device, milliseconds."""
    samples = []
    for _ in range(HOST_CALLS):
        torch.cuda.synchronize()
        before = time.perf_counter_ns()
        result = step(next(cycle))
        samples.append((time.perf_counter_ns() - before) / 1e6)
        del result
    torch.cuda.synchronize()
    return median(samples)


def _half_width(samples: Sequence[float]) -> float:
    """Return the half width of the median's interval, relative to the median."""
    low, high = median_interval(samples)
    return (high - low) / 2 / max(median(samples), 1e-9)


@contextmanager
def _without_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _some(inputs: Sequence[T]) -> Sequence[T]:
    if not inputs:
        raise InputError("no inputs to time with: give at least one set, better three")
    return inputs


def _tensors(inputs: Inputs) -> list[torch.Tensor]:
    leaves = tree_leaves((inputs.args, dict(inputs.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _bytes(inputs: Inputs) -> int:
    return sum(t.nbytes for t in _tensors(inputs))


def _copy(inputs: Inputs) -> Inputs:
    def clone(leaf: object) -> object:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf

    return Arguments(tree_map(clone, inputs.args), tree_map(clone, dict(inputs.kwargs)))
