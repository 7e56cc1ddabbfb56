"""What templates show, computed from the values: shared by pages and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from thunder_tune.dashboards import insight
from thunder_tune.dashboards.charts import bars, program_map, trials
from thunder_tune.dashboards.charts.drawing import Translate
from thunder_tune.dashboards.source import Progress, Source, progress, summary
from thunder_tune.storage import LeaseRecord, StudyRecord, StudySummary, TrialOutline
from thunder_tune.study.lease import Life, life_of
from thunder_tune.values.comparison import Comparison, Standing
from thunder_tune.values.documents import disturbances
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.job import Description
from thunder_tune.values.plan import Plan, resolve
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import Failure

TOP = 8
"""Candidates beside the baselines, and dimensions that are shown at once choice by choice."""
MOST_DIMENSIONS = 60
"""Dimensions that are shown choice by choice at all."""

LinkTo = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class FailureView:
    """Failures of one cause, with an example and the end of its log."""

    group: insight.FailureGroup
    example: Failure | None
    excerpt: str | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What one worker has done, and when it last had a result."""

    name: str
    trials: int
    failed: int
    last: TrialOutline


@dataclass(frozen=True, slots=True)
class RunView:
    """A study that is said to run: by which process, whether that lives, and its workers."""

    study: str
    lease: LeaseRecord | None
    life: Life
    workers: Sequence[WorkerView]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """A study, ready to be shown; charts are None where there is nothing to draw."""

    summary: StudySummary
    record: StudyRecord
    lease: LeaseRecord | None
    life: Life
    progress: Progress
    description: Description | None
    comparison: Comparison | None
    recipes: Sequence[Recipe]
    best: TrialOutline | None
    best_baseline: TrialOutline | None
    front: Sequence[TrialOutline]
    failures: Sequence[FailureView]
    effects: Sequence[insight.DimensionEffect]
    workers: Sequence[WorkerView]
    drawn: int
    measured: int
    charts: Mapping[str, Markup | None] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """Whether more is to come."""
        return self.record.state == "running"

    @property
    def is_orphan(self) -> bool:
        """Whether it is said to run and the process that ran it is dead."""
        return self.is_running and self.life == "gone"

    @property
    def speedup(self) -> float | None:
        """Best baseline's search-time latency divided by the best candidate's."""
        if self.best and self.best_baseline and self.best.latency_ms:
            return (self.best_baseline.latency_ms or 0.0) / self.best.latency_ms
        return None

    @property
    def standings(self) -> list[tuple[Standing, bool]]:
        """The confirmation's contenders, measured ones first by latency; is it a baseline?"""
        if self.comparison is None:
            return []
        baselines = {c.name for c in self.comparison.contenders if c.is_baseline}
        return [
            (s, s.name in baselines)
            for s in sorted(
                self.comparison.standings,
                key=lambda s: (s.latency_ms is None, s.latency_ms or 0.0),
            )
        ]

    @property
    def disturbances(self) -> dict[str, int]:
        """In how many processes of the confirmation each mark was seen."""
        return disturbances(self.comparison) if self.comparison else {}


def runs(source: Source) -> list[RunView]:
    """Return the studies that are said to run, the newest first."""
    found = []
    for one in source.database.studies():
        if one.state == "running":
            lease = source.database.lease(one.name)
            workers = _workers(source.tables.of(one.name).rows)
            found.append(RunView(one.name, lease, life(lease), workers))
    return found


def life(lease: LeaseRecord | None) -> Life:
    """Say whether the process that runs a study lives; where there is none, it is gone."""
    return "gone" if lease is None else life_of(lease.owner)


def study_view(source: Source, name: str, link_to: LinkTo, _: Translate) -> StudyView:
    """Gather everything about a study.

    Raises:
        NotFoundError: There is no such study.
    """
    database = source.database
    lease = database.lease(name)
    record, table = database.study(name), source.tables.of(name)
    how_far = progress(record, table)
    if life(lease) == "gone":
        how_far = replace(how_far, left_s=None)
    measured, baselines = insight.measured(table), insight.measured(table, "baseline")
    comparison, effects = database.comparison(name), insight.effects(table)
    contenders = (
        _confirmed_bars(comparison, link_to)
        if comparison
        else _search_bars(measured, baselines, link_to)
    )
    front = insight.front([*measured, *baselines])
    importance = [(e.dimension, e.share) for e in effects[:12]]
    return StudyView(
        summary=summary(record, table),
        record=record,
        lease=lease,
        life=life(lease),
        progress=how_far,
        description=database.description(name),
        comparison=comparison,
        recipes=database.recipes(name),
        best=insight.best(measured),
        best_baseline=insight.best(baselines),
        front=front[:20],
        failures=_failures(source, name, insight.failures(table)),
        effects=effects[:MOST_DIMENSIONS],
        workers=_workers(table.rows),
        drawn=min(len(measured), len(insight.thinned(measured, trials.POINTS))),
        measured=len(measured),
        charts={
            "history": trials.history(table, link_to, _),
            "intervals": bars.intervals(contenders, _),
            "trade_off": trials.trade_off(table, front, link_to, _),
            "importance": bars.shares(importance, _("Importance of dimensions")),
            "parallel": trials.parallel(table, effects, link_to, _),
        },
    )


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A program under one plan: the map, its colours, and what each class became."""

    plan: Plan
    tones: Mapping[str, int]
    used: Mapping[str, int]
    chart: Markup | None
    classes: Sequence[tuple[str, str, int, str, str]]


def plan_of(found: Description, assignment: Mapping[str, str]) -> Plan | None:
    """Return where an assignment puts the ops; None for what has no ops to put."""
    if not found.program.is_captured or assignment.get(PROGRAM, COMPOSED) != COMPOSED:
        return None
    return resolve(found.program, assignment)


def program_view(
    found: Description, assignment: Mapping[str, str], _: Translate
) -> ProgramView | None:
    """Show where an assignment puts the ops; None for what has no ops to put."""
    plan = plan_of(found, assignment)
    if plan is None:
        return None
    used: dict[str, int] = {}
    for target in plan.targets:
        used[target] = used.get(target, 0) + 1
    tones = program_map.tones(plan)
    classes = []
    for c in found.program.classes:
        targets = sorted({plan.targets[i] for i in c.examples})
        classes.append((c.id, c.kind, c.count, c.summary, ", ".join(targets)))
    return ProgramView(plan, tones, used, program_map.program_map(found.program, plan, _), classes)


def fused(target: str) -> bool:
    """Whether a target is a fuser, whose ops are merged into regions."""
    return target in FUSERS


def _confirmed_bars(comparison: Comparison, link_to: LinkTo) -> list[bars.Bar]:
    baselines = {c.name for c in comparison.contenders if c.is_baseline}
    return [
        bars.Bar(s.name, s.latency_ms, s.ci95_ms, s.name in baselines, _link(s.name, link_to))
        for s in comparison.standings
        if s.latency_ms is not None
    ]


def _link(contender: str, link_to: LinkTo) -> str | None:
    """Return where "trial 12" is shown."""
    word, _space, number = contender.partition(" ")
    is_number = word == "trial" and number.isascii() and number.isdigit()
    return link_to(int(number)) if is_number else None


def _search_bars(
    measured: Sequence[TrialOutline], baselines: Sequence[TrialOutline], link_to: LinkTo
) -> list[bars.Bar]:
    top = sorted(measured, key=lambda r: r.latency_ms or 0.0)[:TOP]
    return [
        bars.Bar(
            r.program if r.role == "baseline" else f"trial {r.number}",
            r.latency_ms or 0.0,
            r.ci95_ms,
            r.role == "baseline",
            link_to(r.number),
        )
        for r in [*baselines, *top]
    ]


def _failures(
    source: Source, study: str, groups: Sequence[insight.FailureGroup]
) -> list[FailureView]:
    shown = groups[:30]
    first = [group.numbers[0] for group in shown]
    examples = {t.number: t.result.failure for t in source.database.trials(study, numbers=first)}
    found = []
    for group in shown:
        example = examples.get(group.numbers[0])
        excerpt = source.log_excerpt(example.log) if example and example.log else None
        found.append(FailureView(group, example, excerpt))
    return found


def _workers(rows: Sequence[TrialOutline]) -> list[WorkerView]:
    found: dict[str, list[TrialOutline]] = {}
    for row in rows:
        if row.worker:
            found.setdefault(row.worker, []).append(row)
    return [
        WorkerView(name, len(own), sum(1 for r in own if r.failure_kind), own[-1])
        for name, own in sorted(found.items())
    ]
