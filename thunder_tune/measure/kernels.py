"""Where the time of one call goes: kernel by kernel, statement by statement."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity

from thunder_tune.errors import InputError, MeasurementError
from thunder_tune.measure.profile_events import (
    CALL,
    Kernel,
    Work,
    attributed,
    by_kernel,
    by_range,
    call_spans_ms,
    device_work,
    host_work,
)
from thunder_tune.measure.steps import Inputs, Step
from thunder_tune.measure.timing import time_step
from thunder_tune.values.job import TimingRequest

LONGEST_NAME = 72
_TAIL = 24
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)::|\b\w+::)+")
_HASHED = re.compile(r"\b[a-z0-9]{40,}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """Where the time of one call goes.

    Attributes:
        clock: "device": work is what ran on the GPU; "host": what operators took on a CPU.
        calls: Calls that were profiled.
        latency_ms: One call without the profiler, as `time_step` measures it.
        profiled_ms: One call under the profiler, waiting for the device included.
        work_ms: All work of one call: the sum over the kernels.
        kernels: By name, the longest first.
        ranges: Milliseconds by statement's position; empty where statements were not marked.
    """

    clock: Literal["device", "host"]
    calls: int
    latency_ms: float
    profiled_ms: float
    work_ms: float
    kernels: tuple[Kernel, ...]
    ranges: Mapping[int, float] = field(default_factory=dict)

    @property
    def idle_ms(self) -> float:
        """Time of a call in which the device does nothing; 0 where work overlaps."""
        return max(0.0, self.latency_ms - self.work_ms)


def profile_step(
    step: Step,
    inputs: Sequence[Inputs],
    *,
    device: str,
    marked: Step | None = None,
    replays: bool = False,
    calls: int = 10,
    request: TimingRequest | None = None,
) -> KernelProfile:
    """Time a program, then profile it.

    Args:
        step: The program as a user runs it, built.
        inputs: Sets to rotate over, at least one.
        device: "cpu" or "cuda".
        marked: The same with a `record_function` range around each statement, named RANGE and the
            statement's position.
        replays: Whether `step` replays a CUDA graph: its kernels are profiled as replayed, and
            attributed to the statements that launch kernels of the same name in `marked`.
        calls: To profile, at least 1.
        request: How precisely to time.

    Raises:
        InputError: No calls are asked for.
        MeasurementError: The profiler saw no work.
    """
    if calls < 1:
        raise InputError(f"calls {calls}: must be at least 1")
    timing = time_step(
        step, inputs, device=device, request=request or TimingRequest(precision=0.01, max_s=3.0)
    )
    profiled = _profiled(marked or step, inputs, device, calls)
    kernels = by_kernel(profiled.work, calls)
    ranges = by_range(profiled.work, calls)
    if replays and marked is not None:
        profiled = _profiled(step, inputs, device, calls)
        kernels = attributed(by_kernel(profiled.work, calls), like=kernels)
    if not kernels:
        raise MeasurementError(
            f"the profiler saw no work on {device}: does another one (nsys, ncu) hold the device?"
        )
    return KernelProfile(
        clock="device" if torch.device(device).type == "cuda" else "host",
        calls=calls,
        latency_ms=timing.latency_ms,
        profiled_ms=profiled.call_ms,
        work_ms=sum(kernel.ms for kernel in kernels),
        kernels=kernels,
        ranges=ranges,
    )


@dataclass(frozen=True, slots=True)
class _Profiled:
    work: list[Work]
    call_ms: float


def _profiled(step: Step, inputs: Sequence[Inputs], device: str, calls: int) -> _Profiled:
    place = torch.device(device)
    is_cuda = place.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    cycle = itertools.cycle(inputs)
    with torch.profiler.profile(activities=activities) as profiler:
        step(next(cycle))  # the profiler's own start is paid here
        for _ in range(calls):
            if is_cuda:
                torch.cuda.synchronize(place)
            with torch.profiler.record_function(CALL):
                result = step(next(cycle))
                if is_cuda:
                    torch.cuda.synchronize(place)
            del result
    events = _events(profiler)
    work = device_work(events) if is_cuda else host_work(events)
    return _Profiled(work, median(call_spans_ms(events)))


def _events(profiler: torch.profiler.profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


def short_name(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a kernel's name for a table: no result type, namespaces, parameters or hashes.

    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(int)"
    becomes "vectorized_elementwise_kernel<4, FillFunctor<float>, ...>".
    """
    short = name.removeprefix("void ")
    if short.endswith(")") and "(" in short.lstrip("("):
        short = short[: _last_parenthesis(short)] or short
    if "<" in short or short != name:
        short = _NAMESPACES.sub("", short)
    short = _HASHED.sub(lambda m: m.group()[:8], short).strip()
    if len(short) <= longest:
        return short
    # Both ends tell kernels apart: what it is, and the tile, type or number at its end.
    return f"{short[: longest - 3 - _TAIL]}...{short[-_TAIL:]}"


def _last_parenthesis(text: str) -> int:
    """Return where the last parenthesised part of a text begins."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)
