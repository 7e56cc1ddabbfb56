"""Tables of `thunder-tune explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table

from thunder_tune.cli import tables
from thunder_tune.compiler.calls import CallGroup, in_short
from thunder_tune.compiler.inspecting import ClassUse
from thunder_tune.compiler.instrumenting import Listing
from thunder_tune.measure.kernels import KernelProfile, short_name
from thunder_tune.recipes import Difference
from thunder_tune.study.explaining import Explanation
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import NO_REWRITE

BAR_WIDTH = 20
MOST_OWNERS = 6
MOST_KERNELS = 30
"""Rows of a kernel table; the rest is summed up, and whole in the JSON."""


def show(screen: Console, explanation: Explanation) -> None:
    """Print everything that an explanation holds."""
    for line in _head(explanation):
        screen.print(line, soft_wrap=True)
    profile = explanation.profile
    parts: list[Table | str] = []
    used = [use for use in explanation.classes if set(use.asked) != {NO_REWRITE}]
    if used:
        parts.append(classes(used, with_places=explanation.is_here))
    if explanation.groups:
        parts.append(statements(explanation.groups, profile))
    if profile is not None:
        parts += _profile("this recipe", profile, explanation.groups)
    for name, beside in explanation.baselines.items():
        parts += _profile(name, beside, ())
    for part in parts:
        screen.print()
        screen.print(part, soft_wrap=isinstance(part, str))
    for check in explanation.checks:
        screen.print(f"check of the {check.title}: {check.text or 'consistent'}", soft_wrap=True)
    for listing in explanation.listings:
        _listing(screen, listing)


def _head(explanation: Explanation) -> list[str]:
    recipe = explanation.recipe
    source = recipe.source
    lines = [
        tables.verdict(recipe),
        f"{recipe.model}: {recipe.plans[0].signature}, {source.mode}, tuned on "
        f"{recipe.fingerprint.device}; here: {explanation.device}",
    ]
    if recipe.kind == "whole-program":
        program = recipe.plans[0].assignment["program"]
        lines.append(f"one back end runs the whole program: {program}")
    else:
        options = ", ".join(f"{k} {v}" for k, v in explanation.options.items())
        applied = explanation.applied
        share = "" if applied is None else f"; {applied:.1%} of the ops are where the recipe says"
        lines.append(f"captured by {explanation.front_end}; {options}{share}")
    for (rewrite, executor), sites in explanation.rewrites.items():
        lines.append(f"rewrite: {rewrite} to {executor} at {sites} sites")
    left = sum(set(use.asked) == {NO_REWRITE} for use in explanation.classes)
    if left:
        lines.append(f"rewrites not made: at {left} classes of sites (listed by --json)")
    return lines + [f"note: {note}" for note in explanation.notes]


def classes(uses: Sequence[ClassUse], *, with_places: bool) -> Table:
    """Show for each class what was asked and, where known, where it is and why there."""
    columns = ["class", "count", "ops", "shapes", "asked"]
    columns += ["runs on", "why"] if with_places else []
    made = tables.table("Classes", *columns, right=("count",))
    for use in uses:
        asked = _places(use.asked) or "(with its neighbours)"
        if use.precision:
            asked = f"{asked} in {use.precision}"
        row = [use.id, str(use.count), " ".join(tables.short_ops(use.ops)), use.summary, asked]
        if with_places:
            row += [_places(use.ran or {}), "; ".join(use.reasons)]
        made.add_row(*row)
    return made


def _places(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{place} {count}" for place, count in counts.items())


def statements(groups: Sequence[CallGroup], profile: KernelProfile | None) -> Table:
    """Show a program's regions and single ops in order, and the time of each where measured."""
    numbers = ("#", "ops", "times")
    columns = ["#", "runs on", "statement", "ops", "times"]
    timed = profile is not None and bool(profile.ranges)
    columns += ["ms", "share", ""] if timed else []
    made = tables.table("Program, in order", *columns, right=(*numbers, "ms", "share"))
    for group in groups:
        where = f"{group.place}, backward" if group.backward else group.place
        row: list[RenderableType] = [
            str(group.number),
            where,
            _statement(group),
            str(len(group.ops)),
            str(len(group.calls)),
        ]
        if timed and profile is not None:
            ms = sum(profile.ranges.get(call, 0.0) for call in group.calls)
            row += [tables.milliseconds(ms), *_share(ms / profile.work_ms)]
        made.add_row(*row)
    return made


def _statement(group: CallGroup) -> str:
    """Name a region by its ops; a single call by itself too, where it is only a part of its op."""
    ops = in_short(group.ops)
    name = group.name.rpartition(".")[2]
    return ops if name in ("", *group.ops) else f"{ops}: {name}" if ops else name


def _profile(name: str, profile: KernelProfile, groups: Sequence[CallGroup]) -> list[Table | str]:
    return [_summary(name, profile), kernels(name, profile, groups)]


def _summary(name: str, profile: KernelProfile) -> str:
    latency, work = tables.milliseconds(profile.latency_ms), tables.milliseconds(profile.work_ms)
    if profile.clock == "host":
        return (
            f"{name}: {latency} ms a call; {tables.milliseconds(profile.profiled_ms)} ms under "
            "the profiler, whose cost makes small operators look slow"
        )
    idle = profile.idle_ms / profile.latency_ms if profile.latency_ms else 0.0
    return (
        f"{name}: {latency} ms a call; {work} ms of it in {len(profile.kernels)} kernels, "
        f"{tables.milliseconds(profile.idle_ms)} ms ({idle:.0%}) idle"
    )


def kernels(name: str, profile: KernelProfile, groups: Sequence[CallGroup]) -> Table:
    """Show the kernels of a program, the longest first."""
    what = "kernel" if profile.clock == "device" else "operator"
    columns = [what, "times", "ms", "share", ""]
    columns += ["in"] if groups else []
    made = tables.table(
        f"{what.capitalize()}s of {name}, a call (median of {profile.calls})",
        *columns,
        right=("times", "ms", "share"),
    )
    number_of = {call: group.number for group in groups for call in group.calls}
    for kernel in profile.kernels[:MOST_KERNELS]:
        row: list[RenderableType] = [
            short_name(kernel.name),
            f"{kernel.times:g}",
            tables.milliseconds(kernel.ms),
            *_share(kernel.share),
        ]
        if groups:
            row.append(_numbers({number_of[r] for r in kernel.ranges if r in number_of}))
        made.add_row(*row)
    rest = profile.kernels[MOST_KERNELS:]
    if rest:
        ms, share = sum(k.ms for k in rest), sum(k.share for k in rest)
        times = sum(k.times for k in rest)
        made.add_row(f"{len(rest)} more", f"{times:g}", tables.milliseconds(ms), *_share(share))
    return made


def _numbers(groups: set[int]) -> str:
    words = [f"#{number}" for number in sorted(groups)]
    more = f" and {len(words) - MOST_OWNERS} more" if len(words) > MOST_OWNERS else ""
    return " ".join(words[:MOST_OWNERS]) + more


def _share(share: float) -> tuple[str, Bar]:
    return f"{share:.1%}", Bar(size=1.0, begin=0.0, end=min(1.0, share), width=BAR_WIDTH)


def differences(recipe: Recipe, other: Recipe, found: Sequence[Difference]) -> Table:
    """Show where two recipes choose differently."""
    made = tables.table(
        f"Differences from {other.digest}",
        "dimension",
        f"this recipe, {recipe.digest}",
        f"the other, {other.digest}",
    )
    for difference in found:
        made.add_row(difference.dimension, difference.here or "-", difference.there or "-")
    return made


def _listing(screen: Console, listing: Listing) -> None:
    screen.print()
    screen.print(f"--- {listing.title}", soft_wrap=True)
    screen.print(listing.text, soft_wrap=True)
