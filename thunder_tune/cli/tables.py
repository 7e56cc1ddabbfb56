"""Tables for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thunder_tune.values.comparison import Comparison, Standing
from thunder_tune.values.documents import disturbances, failure_text
from thunder_tune.values.job import Description
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import BOUNDARY
from thunder_tune.values.study import Winner
from thunder_tune.values.trial import Failure

PLAIN_WIDTH = 160
"""Columns where no terminal says how wide it is: wide enough that no cell is cut."""


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr; text is printed as it is, without markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table; columns named in `right` are aligned to the right."""
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def verdict(recipe: Recipe) -> str:
    """Say in one line what a recipe is and what it is worth."""
    what = f"recipe {recipe.digest} ({recipe.kind})"
    evidence = recipe.evidence
    if evidence is None:
        return f"{what}, not measured"
    lo, hi = evidence.speedup_ci95
    return (
        f"{what}, {evidence.verdict}: {milliseconds(evidence.latency_ms)} ms, "
        f"{evidence.speedup:.3f}x the best baseline ({lo:.3f}-{hi:.3f}) over "
        f"{evidence.processes} processes"
    )


def confirmed(comparison: Comparison, top: Sequence[Winner], *, title: str = "Confirmed") -> Table:
    """Show baselines, then the best candidates, as the confirmation measured them."""
    numbers = ("latency ms", "95 % interval", "vs best baseline", "error", "memory", "applied")
    made = table(title, "program", *numbers, "note", right=numbers)
    for contender in comparison.contenders:
        if contender.is_baseline:
            mark = "best baseline" if contender.name == comparison.reference else ""
            made.add_row(*_standing_row(comparison.standing(contender.name), mark))
    for winner in top:
        own = any(winner.standing.name == s.name for s in comparison.standings)
        note = f"{winner.kind}, {winner.verdict}" if own else f"{winner.kind}, not confirmed"
        made.add_row(*_standing_row(winner.standing, note))
    if marks := disturbances(comparison):
        said = ", ".join(f"{mark} in {count}" for mark, count in marks.items())
        made.caption = Text(f"disturbed, of {len(comparison.rounds)} processes: {said}")
        made.caption_justify = "left"
    return made


def _standing_row(standing: Standing, note: str) -> list[str]:
    if standing.failure is not None:
        return [standing.name, *["-"] * 6, failure_text(standing.failure)]
    lo, hi = standing.ci95_ms or (None, None)
    return [
        standing.name,
        milliseconds(standing.latency_ms),
        f"{milliseconds(lo)}-{milliseconds(hi)}",
        "-" if not standing.ratio else f"{1 / standing.ratio:.3f}x",
        "-" if standing.accuracy is None else f"{standing.accuracy.error_ratio:.3g}",
        memory(standing.peak_memory_bytes),
        "-" if standing.applied is None else f"{standing.applied:.2f}",
        note,
    ]


def failures(groups: Sequence[tuple[Failure, int]]) -> Table:
    """Show failures by cause."""
    made = table("Failures", "times", "kind", "phase", "what happened", "log", right=("times",))
    for failure, count in groups:
        made.add_row(str(count), failure.kind, failure.phase, failure.message, failure.log)
    return made


def program(description: Description) -> Table:
    """Show the classes of a program and how often each occurs."""
    found = description.program
    title = (
        f"Program: {len(found.ops)} ops, {len(found.classes)} classes, captured by "
        f"{found.front_end} in {description.capture_s:.1f} s, hash {found.hash[:12]}"
    )
    made = table(title, "class", "kind", "count", "ops", "shapes", right=("count",))
    is_cuttable = any(d.name.startswith(BOUNDARY) for d in description.space.dimensions)
    seams = found.seam_classes if is_cuttable else ()
    for c in (*found.classes, *found.site_classes, *seams):
        made.add_row(c.id, c.kind, str(c.count), " ".join(short_ops(c.ops)), c.summary)
    return made


def short_ops(names: Sequence[str]) -> list[str]:
    """Drop module names, and all but the first ops of a long run."""
    last = [name.rpartition(".")[2] for name in names]
    return last if len(last) <= 8 else [*last[:8], f"... {len(last) - 8} more"]


def dimensions(description: Description) -> Table:
    """Show every dimension with its choices."""
    space = description.space
    made = table(
        f"Search space: {len(space.dimensions)} dimensions, {space.size():.3g} assignments",
        "dimension",
        "family",
        "choices",
    )
    for d in space.dimensions:
        made.add_row(d.name, d.family, ", ".join(d.choices))
    return made


def excluded(description: Description) -> Table | None:
    """Show what was left out and why, dimensions with one reason together; None for nothing."""
    groups: dict[tuple[str, str], list[str]] = {}
    for d in description.space.dimensions:
        for e in d.excluded:
            groups.setdefault((e.choice, e.reason), []).append(d.name)
    if not groups:
        return None
    made = table("Left out", "choice", "reason", "dimensions")
    for (choice, reason), names in groups.items():
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        made.add_row(choice, reason, ", ".join(names[:2]) + more)
    return made


def milliseconds(value: float | None) -> str:
    """Write a latency with four significant digits, "-" for none."""
    if value is None:
        return "-"
    return f"{value:#.4g}".rstrip(".") if value < 9999.5 else f"{value:.0f}"


def memory(count: int | None) -> str:
    """Write bytes in MiB, "-" where unknown."""
    return "-" if count is None else f"{count / 2**20:,.0f} MiB"
