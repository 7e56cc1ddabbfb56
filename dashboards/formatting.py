"""Numbers as people write them; "–" where there is none. No language in it."""

from __future__ import annotations

import math
from datetime import datetime, timezone

NONE = "–"


def milliseconds(value: float | None) -> str:
    """Write a latency: microseconds, milliseconds or seconds, four significant digits."""
    if value is None or not math.isfinite(value):
        return _special(value)
    size = abs(value)
    if size >= 1000:
        return f"{significant(value / 1000)} s"
    if 0 < size < 1:
        return f"{significant(value * 1000)} µs"
    return f"{significant(value)} ms"


def interval(values: tuple[float, float] | None) -> str:
    """Write an interval of latencies, both ends in the unit that suits the upper one."""
    if values is None:
        return NONE
    lo, hi = values
    factor, unit = (1e-3, "s") if 1000 <= hi < math.inf else (1.0, "ms")
    if 0 < hi < 1:
        factor, unit = 1000.0, "µs"
    return f"{significant(factor * lo)} – {significant(factor * hi)} {unit}"


def seconds(value: float | None) -> str:
    """Write a duration: 0.35 s, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if value is None or not math.isfinite(value):
        return _special(value)
    if value == 0:
        return "0 s"
    if value < 0.1:
        return f"{1000 * value:.1f} ms"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def memory(count: float | None) -> str:
    """Write bytes in MiB or GiB."""
    if count is None:
        return NONE
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


def ratio(value: float | None) -> str:
    """Write an error ratio: three significant digits."""
    return _special(value) if value is None else significant(value, 3)


def speedup(value: float | None) -> str:
    """Write how many times faster."""
    if value is None or not math.isfinite(value):
        return _special(value)
    return f"{value:.3f}×"


def percent(value: float | None) -> str:
    """Write a share of one in percent."""
    if value is None or not math.isfinite(value):
        return _special(value)
    return f"{100 * value:.1f} %" if 0 < abs(value) < 0.1 else f"{100 * value:.0f} %"


def moment(value: datetime | float | None) -> str:
    """Write a time to the minute, UTC."""
    if value is None:
        return NONE
    if not isinstance(value, datetime):
        try:
            value = datetime.fromtimestamp(value, timezone.utc)
        except (OverflowError, ValueError, OSError):
            return NONE
    return f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def significant(value: float, digits: int = 4) -> str:
    """Write a number with so many significant digits and no exponent where it can be read."""
    if not math.isfinite(value):
        return _special(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:#.{digits}g}".rstrip(".")


def _special(value: float | None) -> str:
    if value is None:
        return NONE
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
