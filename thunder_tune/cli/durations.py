"""Durations as people write them: 90, 90s, 7m, 1h30m."""

from __future__ import annotations

import re

from thunder_tune.errors import InputError

_PATTERN = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds_of(text: str) -> float:
    """Read a duration above zero and return it in seconds; a bare number means seconds.

    Raises:
        InputError: It is no duration, or not above zero.
    """
    found = _PATTERN.fullmatch(text.strip().lower())
    hours, minutes, seconds = found.groups() if found and found[0] else (None, None, None)
    total = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds or 0)
    if total <= 0:
        raise InputError(f"duration {text!r}: write 90, 90s, 7m or 1h30m, above zero")
    return total


def text_of(seconds: float) -> str:
    """Write seconds as people read them: "45 s", "7 min 05 s", "1 h 30 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
