"""Which algorithm was chosen for a product, kept on disk: the next process takes the same one.

Algorithms a few percent apart change places from one timing to the next. If every process chose
anew, one recipe would be several programs, each with its own latency and its own rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from thunder_tune.executors.kernels.alone import alone

FOLDER = "products"


def kept_choice(
    problem: Sequence[object], algorithms: Sequence[bytes], choose: Callable[[], int]
) -> int:
    """Return the index of the algorithm that was chosen for a problem, now or by another process.

    The first choice stands. An entry that cannot be read, or that names no algorithm of these, is
    as good as none; a folder that cannot be written costs each process its own choice.

    Args:
        problem: What the choice depends on, the device's name and the library's version included.
        algorithms: As configured, each once.
        choose: Makes the choice; called with the device to itself.
    """
    path = _path(problem)
    known = _read(path, algorithms)
    if known is not None:
        return known
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
