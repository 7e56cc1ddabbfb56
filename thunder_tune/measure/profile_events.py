"""From the events of one torch.profiler trace to the time of each kernel, range and call.

The trace is the Chrome trace that `torch.profiler.profile.export_chrome_trace` writes. Of its
events these are used: `user_annotation` (ranges of `record_function`), `cpu_op`, `cuda_runtime`
and `cuda_driver` (launches) and, of the device, `kernel`, `gpu_memcpy` and `gpu_memset`. A launch
and what it launched carry the same `correlation`; all times are microseconds of one clock.

On CUDA work is what ran on the device, and it belongs to the range that its launch lies in: what a
CUDA graph replays was launched by no statement and belongs to none. On a CPU work is the time that
an operator spent itself, without the operators that it called.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

CALL = "thunder_tune call"
"""Name of the range around each whole call."""
RANGE = "thunder_tune range "
"""What the name of a statement's range begins with; its position follows."""
PYTHON = "(Python)"
"""Time of a call on a CPU that no operator accounts for."""

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_HOST = frozenset({"cpu_op", "user_annotation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Work of one name.

    Attributes:
        name: Kernel on CUDA, operator on a CPU.
        times: How often it runs in one call of the program.
        ms: Milliseconds in one call, the median over calls.
        share: Of all work.
        ranges: Positions of the statements it runs in; empty where that cannot be told.
    """

    name: str
    times: float
    ms: float
    share: float
    ranges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work: its name, the call and the range it belongs to, its milliseconds."""

    name: str
    call: int
    range: int | None
    ms: float


@dataclass(frozen=True, slots=True)
class _Span:
    name: str
    kind: str
    begin: float
    end: float
    thread: object
    correlation: object


def device_work(events: Iterable[Mapping[str, Any]]) -> list[Work]:
    """Return what ran on the device inside calls."""
    spans = _spans(events)
    calls = _Lines([s for s in spans if s.name == CALL and s.kind in _HOST])
    launches = {s.correlation: s for s in spans if s.kind in _LAUNCHES}
    # One statement runs at a time, a backward pass on autograd's thread included.
    marks = _Lines([s for s in spans if s.kind == "user_annotation" and _is_mark(s)])
    work = []
    for span in spans:
        if span.kind not in _DEVICE:
            continue
        launch = launches.get(span.correlation)
        call = calls.at((launch or span).begin)
        if call is None:
            continue
        number = marks.at(launch.begin) if launch is not None else None
        mark = _position(marks.spans[number]) if number is not None else None
        work.append(Work(name=span.name, call=call, range=mark, ms=(span.end - span.begin) / 1000))
    return work


def host_work(events: Iterable[Mapping[str, Any]]) -> list[Work]:
    """Return the time that each operator spent itself inside calls."""
    spans = _spans(events)
    calls = _Lines([s for s in spans if s.name == CALL])
    by_thread: dict[object, list[_Span]] = {}
    for span in spans:
        if span.kind in _HOST and calls.at(span.begin) is not None:
            by_thread.setdefault(span.thread, []).append(span)
    work: list[Work] = []
    for found in by_thread.values():
        work += _own_times(found, calls)
    return work


def _own_times(spans: Sequence[_Span], calls: _Lines) -> list[Work]:
    """Return the work of one thread; spans nest."""
    work: list[Work] = []
    open_: list[tuple[_Span, list[float]]] = []

    def close() -> None:
        span, inner = open_.pop()
        mark = next((_position(s) for s, _ in [*open_, (span, inner)][::-1] if _is_mark(s)), None)
        is_ours = span.name == CALL or _is_mark(span)
        work.append(
            Work(
                name=PYTHON if is_ours else span.name,
                call=calls.at(span.begin) or 0,
                range=mark,
                ms=max(0.0, span.end - span.begin - sum(inner)) / 1000,
            )
        )
        if open_:
            open_[-1][1].append(span.end - span.begin)

    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        while open_ and open_[-1][0].end <= span.begin:
            close()
        open_.append((span, []))
    while open_:
        close()
    return work


def by_kernel(work: Sequence[Work], calls: int) -> tuple[Kernel, ...]:
    """Gather work of one name, the longest first.

    Args:
        work: Of all calls.
        calls: How many there were, at least 1.
    """
    names: dict[str, list[Work]] = {}
    for piece in work:
        names.setdefault(piece.name, []).append(piece)
    ms = {name: _per_call(pieces, calls) for name, pieces in names.items()}
    total = sum(ms.values())
    kernels = [
        Kernel(
            name=name,
            times=len(pieces) / calls,
            ms=ms[name],
            share=ms[name] / total if total else 0.0,
            ranges=tuple(sorted({p.range for p in pieces if p.range is not None})),
        )
        for name, pieces in names.items()
    ]
    return tuple(sorted(kernels, key=lambda k: -k.ms))


def attributed(kernels: Sequence[Kernel], *, like: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Give kernels the ranges that those of the same name have in another profile."""
    ranges = {kernel.name: kernel.ranges for kernel in like}
    return tuple(replace(kernel, ranges=ranges.get(kernel.name, ())) for kernel in kernels)


def by_range(work: Sequence[Work], calls: int) -> dict[int, float]:
    """Return the milliseconds of one call by range, the median over calls."""
    ranges: dict[int, list[Work]] = {}
    for piece in work:
        if piece.range is not None:
            ranges.setdefault(piece.range, []).append(piece)
    return {position: _per_call(ranges[position], calls) for position in sorted(ranges)}


def call_spans_ms(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return how long each call took under the profiler, milliseconds of the host's clock."""
    return [
        (s.end - s.begin) / 1000
        for s in _spans(events)
        if s.name == CALL and s.kind == "user_annotation"
    ]


def _per_call(work: Sequence[Work], calls: int) -> float:
    sums = [0.0] * calls
    for piece in work:
        sums[piece.call] += piece.ms
    return median(sums)


def _spans(events: Iterable[Mapping[str, Any]]) -> list[_Span]:
    found = []
    for event in events:
        kind = event.get("cat")
        if event.get("ph") != "X" or kind not in _DEVICE | _LAUNCHES | _HOST:
            continue
        begin = float(event["ts"])
        found.append(
            _Span(
                name=str(event["name"]),
                kind=str(kind),
                begin=begin,
                end=begin + float(event.get("dur", 0.0)),
                thread=event.get("tid"),
                correlation=event.get("args", {}).get("correlation"),
            )
        )
    return found


class _Lines:
    """Spans that do not overlap, to be asked which of them holds a time."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        self.spans = sorted(spans, key=lambda s: s.begin)
        self._begins = [s.begin for s in self.spans]

    def at(self, time: float) -> int | None:
        i = bisect_right(self._begins, time) - 1
        return i if i >= 0 and time <= self.spans[i].end else None


def _is_mark(span: _Span) -> bool:
    return span.name.startswith(RANGE)


def _position(span: _Span) -> int:
    return int(span.name.removeprefix(RANGE))
