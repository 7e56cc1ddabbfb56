"""Plots for terminals: bars of latency, and latency against error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_tune.cli.tables import milliseconds
from thunder_tune.dashboards import insight
from thunder_tune.dashboards.trial_table import TrialTable
from thunder_tune.storage import TrialOutline

BAR, TOP = 40, 5
WIDTH, HEIGHT = 60, 12


def bars(table: TrialTable) -> list[str]:
    """Return a bar for each of the fastest trials and of the baselines, the fastest first."""
    fastest = sorted(insight.measured(table), key=_latency)[:TOP]
    rows = sorted([*fastest, *insight.measured(table, "baseline")], key=_latency)
    longest = max(map(_latency, rows), default=0.0)
    if not longest or not math.isfinite(longest):
        return []
    names = [_name(row) for row in rows]
    width = max(map(len, names))
    return [
        f"{name:<{width}}  {'=' * max(1, round(BAR * _latency(row) / longest)):<{BAR}}  "
        f"{milliseconds(row.latency_ms)} ms"
        for name, row in zip(names, rows, strict=True)
    ]


def trade_off(table: TrialTable) -> list[str]:
    """Return latency (to the right) against error (upwards); nothing of less than three points.

    `o` is a trial, `#` a baseline, `@` what nothing else beats in both.
    """
    rows = [
        row
        for role in ("search", "baseline")
        for row in insight.measured(table, role)
        if row.error_ratio is not None and math.isfinite(row.error_ratio)
    ]
    if len(rows) < 3:
        return []
    best = {row.number for row in insight.front(rows)}
    columns = _places([_latency(row) for row in rows], WIDTH)
    lines = _places([row.error_ratio or 0.0 for row in rows], HEIGHT)
    grid = [[" "] * WIDTH for _line in range(HEIGHT)]
    order = sorted(range(len(rows)), key=lambda i: (rows[i].number in best, rows[i].role))
    for i in order:
        row = rows[i]
        mark = "@" if row.number in best else "#" if row.role == "baseline" else "o"
        grid[HEIGHT - 1 - lines[i]][columns[i]] = mark
    errors = [row.error_ratio or 0.0 for row in rows]
    left = [f"{max(errors):.3g}", *[""] * (HEIGHT - 2), f"{min(errors):.3g}"]
    fast, slow = (milliseconds(f(map(_latency, rows))) for f in (min, max))
    return [
        "error against latency: o trial, # baseline, @ not beaten in both",
        *(f"{label:>8} |{''.join(line)}".rstrip() for label, line in zip(left, grid, strict=True)),
        f"{'':>8} +{'-' * WIDTH}",
        f"{'':>10}{fast} ms{slow + ' ms':>{WIDTH - len(fast) - 3}}",
    ]


def _places(values: Sequence[float], cells: int) -> list[int]:
    lo, hi = min(values), max(values)
    if not hi > lo or not math.isfinite(hi - lo):
        return [0] * len(values)
    return [round((cells - 1) * ((value - lo) / (hi - lo))) for value in values]


def _name(row: TrialOutline) -> str:
    return row.program if row.role == "baseline" else f"trial {row.number}"


def _latency(row: TrialOutline) -> float:
    return row.latency_ms or 0.0
