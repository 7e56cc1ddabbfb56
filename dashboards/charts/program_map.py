"""The program as a map: every op a cell in program order, coloured by where it runs."""

from __future__ import annotations

from collections import Counter

from markupsafe import Markup

from thunder_tune.dashboards.charts.drawing import Translate, group, line, picture, tag
from thunder_tune.values.plan import Plan
from thunder_tune.values.program import Program

WIDTH = 1182.0
CELL = 14.0
STEP = 16.0
PER_ROW = 74
TONES = 8
MOST_OPS = 6000


def tones(plan: Plan) -> dict[str, int]:
    """Return a colour number for each target, the most used first."""
    used = Counter(plan.targets)
    return {name: min(i, TONES - 1) for i, (name, _count) in enumerate(used.most_common())}


def program_map(program: Program, plan: Plan, _: Translate) -> Markup | None:
    """Draw the ops in rows; a bar beneath joins the ops of one region."""
    if not plan.targets:
        return None
    tone = tones(plan)
    region_of = {op: i for i, region in enumerate(plan.regions) for op in region.ops}
    ops = program.ops[:MOST_OPS]
    parts = []
    for op in ops:
        row, column = divmod(op.index, PER_ROW)
        x, y = column * STEP, row * (STEP + 6) + 2
        target = plan.targets[op.index]
        precision = plan.precision[op.index] if plan.precision else ""
        said = [f"{op.index} {op.name}", target, op.class_id]
        said += [precision] if precision else []
        region = region_of.get(op.index)
        if region is not None:
            said.append(f"{_('region')} {region}")
        kind = f"op tone{tone[target]}{' view' if op.is_view else ''}"
        cell = tag("rect", x=x, y=y, width=CELL, height=CELL, rx=2, class_=kind)
        parts.append(group([tag("title", " · ".join(said)), cell]))
        if region is not None:
            goes_on = region_of.get(op.index + 1) == region and column + 1 < PER_ROW
            end = x + (STEP if goes_on else CELL)
            parts.append(line(x, y + CELL + 2.5, end, y + CELL + 2.5, f"join tone{tone[target]}"))
    rows = -(-len(ops) // PER_ROW)
    return picture(WIDTH, rows * (STEP + 6) + 4, _("Ops in program order"), *parts)
