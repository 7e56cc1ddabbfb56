"""Charts in rows: intervals of contenders, importance, phases of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from thunder_tune.dashboards.charts.drawing import (
    Translate,
    group,
    is_drawn,
    line,
    link,
    picture,
    plain,
    scale,
    tag,
    text,
)
from thunder_tune.dashboards.formatting import interval, milliseconds, percent, seconds

WIDTH = 600.0
ROW = 26.0
LABELS = 200.0
RIGHT = 528.0
WIDE = 20.0
"""Ratio of the largest to the smallest beyond which intervals are drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender: its latency with an interval, and where its trial is shown."""

    name: str
    latency_ms: float
    ci95_ms: tuple[float, float] | None
    is_baseline: bool
    link: str | None = None


def intervals(bars: Sequence[Bar], _: Translate) -> Markup | None:
    """Draw latencies with their 95 % intervals, the fastest first."""
    ordered = sorted(
        (bar for bar in bars if is_drawn(bar.latency_ms)), key=lambda bar: bar.latency_ms
    )
    if not ordered:
        return None
    ends = [v for bar in ordered for v in (bar.latency_ms, *(bar.ci95_ms or ()))]
    known = [v for v in ends if is_drawn(v) and v > 0]
    is_wide = bool(known) and max(known) > WIDE * min(known)
    x = scale(ends, LABELS + 8, RIGHT, pad=0.06, log=is_wide)
    height = ROW * len(ordered) + 48
    bottom = height - 36
    parts = []
    for value in x.ticks(6):
        parts.append(line(x(value), 4, x(value), bottom, "grid"))
        parts.append(text(x(value), bottom + 16, plain(value), anchor="middle", kind="tick"))
    parts.append(text(RIGHT, bottom + 32, _("latency, ms"), anchor="end", kind="label"))
    for i, bar in enumerate(ordered):
        y = ROW * (i + 0.5) + 4
        kind = "baseline" if bar.is_baseline else "search"
        is_known = bar.ci95_ms is not None and all(map(is_drawn, bar.ci95_ms))
        lo, hi = bar.ci95_ms if bar.ci95_ms and is_known else (bar.latency_ms, bar.latency_ms)
        said = f"{bar.name}: {milliseconds(bar.latency_ms)}, 95 % {interval(bar.ci95_ms)}"
        mark = [
            tag("title", said),
            tag("rect", x=0, y=y - ROW / 2, width=WIDTH, height=ROW, class_="hit"),
            text(LABELS, y + 4, _cut(bar.name, 32), anchor="end", kind=f"name {kind}"),
            line(x(lo), y, x(hi), y, f"whisker {kind}"),
            line(x(lo), y - 4, x(lo), y + 4, f"whisker {kind}"),
            line(x(hi), y - 4, x(hi), y + 4, f"whisker {kind}"),
            tag("circle", cx=x(bar.latency_ms), cy=y, r=5, class_=f"dot {kind}"),
            text(RIGHT + 12, y + 4, milliseconds(bar.latency_ms), kind="value"),
        ]
        parts.append(link(bar.link, *mark))
    return picture(WIDTH, height, _("Latency with 95 % intervals"), group(parts))


def shares(values: Sequence[tuple[str, float]], title: str) -> Markup | None:
    """Draw shares of one as bars, in the order given."""
    if not values:
        return None
    x = scale([0.0, max(0.05, *(share for _, share in values))], LABELS + 8, RIGHT, pad=0.0)
    parts = []
    for i, (name, share) in enumerate(values):
        y = ROW * i + 4
        parts.append(
            group(
                [
                    tag("title", f"{name}: {percent(share)}"),
                    text(LABELS, y + 16, _cut(name, 34), anchor="end", kind="name"),
                    tag(
                        "rect",
                        x=LABELS + 8,
                        y=y + 4,
                        width=max(1.0, x(share) - x(0.0)),
                        height=ROW - 12,
                        class_="bar",
                        rx=2,
                    ),
                    text(x(share) + 8, y + 16, percent(share), kind="value"),
                ]
            )
        )
    return picture(WIDTH, ROW * len(values) + 8, title, *parts)


def phases(spent: Mapping[str, float], _: Translate) -> Markup | None:
    """Draw the seconds of each phase of a trial as one bar of pieces."""
    known = [(name, s) for name, s in spent.items() if s > 0 and is_drawn(s)]
    total = sum(s for _name, s in known)
    if not total:
        return None
    parts, at = [], 0.0
    for i, (name, s) in enumerate(known):
        width = WIDTH * s / total
        piece = [
            tag("title", f"{_(name)}: {seconds(s)}"),
            tag("rect", x=at, y=0, width=width, height=32, class_=f"piece tone{i % 8}"),
        ]
        if width > 72:
            words = f"{_(name)} {seconds(s)}"
            piece.append(text(at + 8, 21, _cut(words, int(width / 7)), kind="inside"))
        parts.append(group(piece))
        at += width
    return picture(WIDTH, 32, _("Time spent in each phase"), *parts)


def _cut(words: str, at_most: int) -> str:
    return words if len(words) <= at_most else f"{words[: at_most - 1]}…"
