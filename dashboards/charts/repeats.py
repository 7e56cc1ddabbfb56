"""Every repeat of one trial: how its times are distributed, and in which order they came."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from thunder_tune.dashboards.charts.drawing import (
    Translate,
    axes,
    is_drawn,
    line,
    picture,
    scale,
    tag,
)
from thunder_tune.dashboards.formatting import milliseconds

WIDTH, HEIGHT = 600.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 588.0, 28.0, 152.0
MOST = 600


def distribution(
    samples: Sequence[float], median: float, ci95: tuple[float, float], _: Translate
) -> Markup | None:
    """Draw a histogram of the repeats with the median and its interval."""
    finite = sorted(s for s in samples if is_drawn(s))
    if len(finite) < 2:
        return None
    lo, hi = finite[0], finite[-1]
    bins = max(5, min(48, round(2 * len(finite) ** (1 / 2))))
    width = (hi - lo) / bins or abs(hi) * 0.01 or 1.0
    counts = [0] * bins
    for s in finite:
        counts[min(bins - 1, int((s - lo) / width))] += 1
    x = scale([lo, lo + width * bins], LEFT, RIGHT, pad=0.02)
    y = scale([0.0, float(max(counts))], BOTTOM, TOP, pad=0.0)
    parts = [axes(x, y, _("latency, ms"), _("repeats"))]
    if all(is_drawn(v) for v in ci95):
        a, b = x(ci95[0]), x(ci95[1])
        band = tag("rect", x=a, y=TOP, width=max(1.0, b - a), height=BOTTOM - TOP, class_="band")
        parts.append(band)
    for i, count in enumerate(counts):
        if count:
            a, b = x(lo + i * width), x(lo + (i + 1) * width)
            from_, to = milliseconds(lo + i * width), milliseconds(lo + (i + 1) * width)
            said = f"{from_} – {to}: {count}"
            rect = tag(
                "rect",
                tag("title", said),
                x=a + 0.5,
                y=y(count),
                width=max(1.0, b - a - 1),
                height=BOTTOM - y(count),
                class_="bar",
            )
            parts.append(rect)
    if is_drawn(median):
        parts.append(line(x(median), TOP, x(median), BOTTOM, "best-line"))
    return picture(WIDTH, HEIGHT, _("Distribution of the repeats"), *parts)


def in_order(samples: Sequence[float], _: Translate) -> Markup | None:
    """Draw the repeats in the order they were run: drift and steps show here."""
    finite = [(i, s) for i, s in enumerate(samples) if is_drawn(s)]
    if len(finite) < 2:
        return None
    step = max(1, math.ceil(len(finite) / MOST))
    shown = finite[::step]
    x = scale([0.0, float(len(samples) - 1)], LEFT, RIGHT, pad=0.02)
    y = scale([s for _i, s in shown], BOTTOM, TOP)
    parts = [axes(x, y, _("repeat"), _("latency, ms"))]
    parts.extend(tag("circle", cx=x(i), cy=y(s), r=2, class_="dot search") for i, s in shown)
    return picture(WIDTH, HEIGHT, _("Repeats in the order they ran"), *parts)
