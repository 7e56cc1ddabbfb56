"""Where the time of one call goes: one bar for each program, all on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from thunder_tune.dashboards.charts.drawing import (
    Scale,
    Translate,
    group,
    is_drawn,
    line,
    picture,
    plain,
    scale,
    tag,
    text,
)
from thunder_tune.dashboards.formatting import milliseconds, percent
from thunder_tune.values.anatomy import Anatomy, Costs

WIDTH = 1180.0
LABELS = 200.0
RIGHT = 1080.0
ROW = 44.0
OTHER = 7
"""Tone of kernels that belong to no statement that is known."""

Piece = tuple[str, float, int]
"""What is said of it, milliseconds, and the number of its colour."""


def costs(anatomy: Anatomy, tones: Mapping[str, int], _: Translate) -> Markup | None:
    """Draw the time of one call of a recipe by statement, above that of the baselines by kernel.

    Args:
        anatomy: To draw.
        tones: Colour number of each place.
        _: Translator.
    """
    if anatomy.costs is None:
        return None
    pieces = [
        (f"#{s.number} {s.place}: {' '.join(s.ops) or s.name}", s.ms, tones.get(s.place, OTHER))
        for s in anatomy.statements
        if s.ms
    ]
    rows = [(_("this recipe"), anatomy.costs, pieces or _kernels(anatomy.costs))]
    rows += [(name, beside, _kernels(beside)) for name, beside in anatomy.baselines.items()]
    rows = [row for row in rows if is_drawn(row[1].latency_ms)]
    totals = [max(c.latency_ms, sum(ms for _said, ms, _tone in p)) for _name, c, p in rows]
    if not rows or not max(totals) > 0:
        return None
    x = scale([0.0, max(totals)], LABELS + 8, RIGHT, pad=0.0)
    height = ROW * len(rows) + 44
    bottom = height - 36
    parts = []
    for value in x.ticks(8):
        parts.append(line(x(value), 4, x(value), bottom, "grid"))
        parts.append(text(x(value), bottom + 16, plain(value), anchor="middle", kind="tick"))
    parts.append(text(RIGHT, bottom + 32, _("one call, ms"), anchor="end", kind="label"))
    for i, (name, beside, drawn) in enumerate(rows):
        y = ROW * i + 8
        parts.append(text(LABELS, y + 18, name[:32], anchor="end", kind="name"))
        parts.extend(_bar(drawn, beside, x, y))
        parts.append(text(RIGHT + 12, y + 18, milliseconds(beside.latency_ms), kind="value"))
    return picture(WIDTH, height, _("Where the time of one call goes"), *parts)


def _bar(pieces: Sequence[Piece], beside: Costs, x: Scale, y: float) -> list[Markup]:
    whole = beside.work_ms if beside.work_ms > 0 else None
    found, at = [], 0.0
    for said, ms, tone in pieces:
        left, right = x(at), x(at + ms)
        at += ms
        words = f"{said} · {milliseconds(ms)} · {percent(whole and ms / whole)}"
        drawn = tag("rect", x=left, y=y, width=right - left, height=28, class_=f"piece tone{tone}")
        found.append(group([tag("title", words), drawn]))
    return found


def _kernels(beside: Costs) -> list[Piece]:
    return [(f"{k.name} × {k.times:g}", k.ms, OTHER) for k in beside.kernels if k.ms > 0]
