"""Which algorithm is the fastest for a product, kept on disk: the next process takes the same one.

Algorithms a few percent apart change places from one timing to the next. If every process chose
anew, one recipe would be several programs, each with its own latency and its own rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from platformdirs import user_cache_path

from thunder_tune.executors.kernels.alone import alone

FOLDER = "products"
WARM_UPS = 3
REPEATS = 10
HEAD_START = 1_000_000
"""Cycles that the device waits before a round, in which the host enqueues all of it."""
AS_GOOD = 1.03
"""Of algorithms that are no slower than the fastest by more, the first one is taken.

A device at its power limit gives the same algorithm times a few percent apart.
"""

T = TypeVar("T")


def kept_choice(
    problem: Sequence[object],
    algorithms: Sequence[bytes],
    choose: Callable[[], int],
    *,
    prepare: Callable[[], object] | None = None,
) -> int:
    """Return the index of the algorithm that was chosen for a problem, now or by another process.

    The first choice stands. An entry that cannot be read, or that names no algorithm of these, is
    as good as none; a folder that cannot be written costs each process its own choice.

    Args:
        problem: What the choice depends on, the device's name and the library's version included.
        algorithms: As configured, each once.
        choose: Makes the choice; called with the device to itself.
        prepare: Does before that what needs no device to itself: compiles, say.
    """
    path = _path(problem)
    known = _read(path, algorithms)
    if known is not None:
        return known
    if prepare is not None:
        prepare()
    with alone():
        known = _read(path, algorithms)  # of whoever had the device before
        if known is not None:
            return known
        chosen = choose()
    with suppress(OSError):
        _write(path, problem, algorithms, chosen)
        written = _read(path, algorithms)  # perhaps by someone who was faster
        return chosen if written is None else written
    return chosen


def _path(problem: Sequence[object]) -> Path:
    digest = hashlib.sha256(repr(tuple(problem)).encode()).hexdigest()[:32]
    return user_cache_path("thunder-tune") / FOLDER / f"{digest}.json"


def _read(path: Path, algorithms: Sequence[bytes]) -> int | None:
    try:
        kept = bytes.fromhex(json.loads(path.read_text())["algorithm"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return algorithms.index(kept) if kept in algorithms else None


def _write(
    path: Path, problem: Sequence[object], algorithms: Sequence[bytes], chosen: int
) -> None:
    """Write an entry unless there is a good one; readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"problem": repr(tuple(problem)), "algorithm": algorithms[chosen].hex()}
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(entry, file)
        try:
            os.link(name, path)
        except FileExistsError:  # by someone who was faster, or damaged
            if _read(path, algorithms) is None:
                os.replace(name, path)
    finally:
        with suppress(OSError):
            os.unlink(name)


def fastest(algorithms: Sequence[T], launch: Callable[[T], bool]) -> T:
    """Return the algorithm of the least median time, leaving out those that fail.

    Args:
        algorithms: The most promising one first; it is taken where none runs.
        launch: Enqueues one on the current stream, returns whether that went well.
    """
    running = [a for a in algorithms if launch(a)]
    if len(running) < 2:
        return (running or algorithms)[0]
    times: list[list[float]] = [[] for _ in running]
    for repeat in range(WARM_UPS + REPEATS):
        torch.cuda._sleep(HEAD_START)
        laps: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
        for position in range(len(running)):
            index = (position + repeat) % len(running)  # no one always follows the same one
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch(running[index])
            end.record()
            laps.append((index, start, end))
        laps[-1][2].synchronize()
        if repeat >= WARM_UPS:
            for index, start, end in laps:
                times[index].append(start.elapsed_time(end))
    return running[first_as_good([statistics.median(t) for t in times])]


def first_as_good(times: Sequence[float]) -> int:
    """Return the first index whose time is as good as the least one."""
    limit = min(times) * AS_GOOD
    return next(i for i, time in enumerate(times) if time <= limit)
