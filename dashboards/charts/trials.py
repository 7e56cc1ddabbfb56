"""Charts of many trials: history, trade-off of latency and error, parallel coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from markupsafe import Markup

from thunder_tune.dashboards import insight
from thunder_tune.dashboards.charts.drawing import (
    Translate,
    axes,
    is_drawn,
    line,
    link,
    picture,
    scale,
    tag,
    text,
)
from thunder_tune.dashboards.formatting import memory, milliseconds, ratio
from thunder_tune.dashboards.trial_table import ABSENT, TrialTable
from thunder_tune.storage import TrialOutline

WIDTH, HEIGHT = 600.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 588.0, 28.0, 256.0
WIDE = 1180.0
POINTS = 1000
"""Points of one chart: of more trials, evenly chosen ones are drawn."""
LINES = 160
"""Lines of the parallel coordinates, the fastest trials first."""
SHADES = 5

LinkTo = Callable[[int], str | None]


def history(table: TrialTable, link_to: LinkTo, _: Translate) -> Markup | None:
    """Draw every measured trial's latency in order, the best so far, and the best baseline."""
    rows = insight.measured(table)
    if not rows:
        return None
    baseline = insight.best(insight.measured(table, "baseline"))
    steps = insight.improvements(rows)
    shown = insight.thinned(rows, POINTS)
    latencies = [r.latency_ms or 0.0 for r in [*shown, *steps, *([baseline] if baseline else [])]]
    x = scale([table.rows[0].number, table.last], LEFT, RIGHT, pad=0.02)
    y = scale(latencies, BOTTOM, TOP, log=True)
    parts = [axes(x, y, _("trial"), _("latency, ms"))]
    if baseline and baseline.latency_ms:
        at = y(baseline.latency_ms)
        parts.append(line(LEFT, at, RIGHT, at, "reference"))
        words = f"{_('best baseline')}: {baseline.program}"
        parts.append(text(LEFT + 4, at - 6, words, kind="note"))
    points = [(x(r.number), y(r.latency_ms or 0.0)) for r in steps]
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    path += "".join(f"H{px:.1f}V{py:.1f}" for px, py in points[1:]) + f"H{RIGHT:.1f}"
    parts.append(tag("path", d=path, class_="best-line"))
    at_best = {r.number for r in steps}
    dots = [r for r in shown if r.number not in at_best] + steps
    parts.extend(
        _dot(r, x(r.number), y(r.latency_ms or 0.0), link_to, r.number in at_best) for r in dots
    )
    return picture(WIDTH, HEIGHT, _("Latency of every trial, in order"), *parts)


def trade_off(
    table: TrialTable, best: Sequence[TrialOutline], link_to: LinkTo, _: Translate
) -> Markup | None:
    """Draw latency against error; the size of a point is its peak memory.

    The line joins `best`, what nothing else beats in both. Baselines are squares.
    """
    rows = [r for r in insight.measured(table) if _is_drawn(r)]
    baselines = [r for r in insight.measured(table, "baseline") if _is_drawn(r)]
    if not rows and not baselines:
        return None
    best = [r for r in best if _is_drawn(r)]
    kept = {r.number: r for r in [*insight.thinned(rows, POINTS), *baselines, *best]}
    shown = list(kept.values())
    x = scale([r.latency_ms or 0.0 for r in shown], LEFT, RIGHT, log=True)
    y = scale([r.error_ratio or 0.0 for r in shown], BOTTOM, TOP, log=True)
    parts = [axes(x, y, _("latency, ms"), _("error ÷ eager's error"))]
    corners = [(x(r.latency_ms or 0.0), y(r.error_ratio or 0.0)) for r in best]
    path = f"M{corners[0][0]:.1f},{TOP:.1f}V{corners[0][1]:.1f}"
    path += "".join(f"H{px:.1f}V{py:.1f}" for px, py in corners[1:]) + f"H{RIGHT:.1f}"
    parts.append(tag("path", d=path, class_="front-line"))
    on_front = {r.number for r in best}
    sizes = [float(r.peak_memory_bytes) for r in shown if r.peak_memory_bytes]
    radius = scale(sizes or [1.0], 3.0, 8.0, pad=0.0) if len(set(sizes)) > 1 else None
    for row in sorted(shown, key=lambda r: r.number in on_front):
        size = radius(row.peak_memory_bytes) if radius and row.peak_memory_bytes else 4.0
        at = (x(row.latency_ms or 0.0), y(row.error_ratio or 0.0))
        parts.append(_dot(row, *at, link_to, row.number in on_front, size))
    return picture(WIDTH, HEIGHT, _("Latency against error of every trial"), *parts)


def parallel(
    table: TrialTable, effects: Sequence[insight.DimensionEffect], link_to: LinkTo, _: Translate
) -> Markup | None:
    """Draw the fastest trials as lines through the choices of the dimensions that matter most."""
    names = [e.dimension for e in effects if e.dimension != "program"][:8]
    if len(names) < 2:
        return None
    position = {row.number: i for i, row in enumerate(table.rows)}
    fastest = sorted(insight.measured(table), key=lambda r: r.latency_ms or 0.0)
    complete = (
        r for r in fastest if all(table.codes[n][position[r.number]] != ABSENT for n in names)
    )
    rows = list(islice(complete, LINES))
    if not rows:
        return None
    first, gap = 90.0, (WIDE - 240.0) / (len(names) - 1)
    height = 320.0
    place: dict[tuple[str, int], float] = {}
    parts, labels = [], []
    for i, name in enumerate(names):
        at = first + i * gap
        parts.append(line(at, 32, at, height - 8, "axis"))
        labels.append(text(at, 18, _short(name, 19), anchor="middle", kind="tick"))
        used = sorted({table.codes[name][position[r.number]] for r in rows})
        for k, code in enumerate(used):
            y = 32 + (height - 40) * (k + 0.5) / len(used)
            place[name, code] = y
            parts.append(line(at - 3, y, at + 3, y, "axis"))
            labels.append(
                text(at + 7, y - 5, _short(table.choices[name][code], 18), kind="choice")
            )
    for order in range(len(rows) - 1, -1, -1):
        row = rows[order]
        at_row = position[row.number]
        points = " ".join(
            f"{first + i * gap:.1f},{place[n, table.codes[n][at_row]] + _jitter(order):.1f}"
            for i, n in enumerate(names)
        )
        shade = min(SHADES - 1, order * SHADES // len(rows))
        drawn = tag("polyline", _title(row), points=points, class_=f"strand shade{shade}")
        parts.append(link(link_to(row.number), drawn))
    return picture(WIDE, height, _("Choices of the fastest trials"), *parts, *labels)


def _jitter(order: int) -> float:
    return ((order * 7) % 11 - 5) * 0.6


def _dot(
    row: TrialOutline,
    x: float,
    y: float,
    link_to: LinkTo,
    is_best: bool,
    size: float = 3.5,
) -> Markup:
    kind = f"dot {row.role}{' best' if is_best else ''}"
    if row.role == "baseline":
        mark = tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_=kind)
    else:
        mark = tag("circle", cx=x, cy=y, r=size, class_=kind)
    return link(link_to(row.number), _title(row), mark)


def _title(row: TrialOutline) -> Markup:
    words = [
        f"{row.number} · {row.program}",
        milliseconds(row.latency_ms),
        f"error {ratio(row.error_ratio)}",
    ]
    if row.peak_memory_bytes:
        words.append(memory(row.peak_memory_bytes))
    return tag("title", " · ".join(words))


def _is_drawn(row: TrialOutline) -> bool:
    return row.error_ratio is not None and is_drawn(row.error_ratio) and row.error_ratio > 0


def _short(words: str, at_most: int) -> str:
    """Cut the middle out: of "executor:linear-b894bb4c" both ends say something."""
    if len(words) <= at_most:
        return words
    keep = at_most - 1
    return f"{words[: keep - keep // 2]}…{words[len(words) - keep // 2 :]}"
