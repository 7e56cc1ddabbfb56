"""A report of one study that stands alone: HTML with the dashboard's charts, Markdown, or JSON."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup

from thunder_tune.dashboards import documents, formatting, insight, languages
from thunder_tune.dashboards.source import Source
from thunder_tune.dashboards.templating import render, text_of
from thunder_tune.dashboards.views import StudyView, study_view
from thunder_tune.storage import Database
from thunder_tune.storage.listing import summary_document, trial_document

BAR = 32
"""Characters of the longest bar in Markdown."""


def as_html(database: Database, study: str, language: str = "en") -> str:
    """Return one file with style and charts inside; it loads nothing and holds no script.

    Raises:
        NotFoundError: There is no such study.
    """
    style = text_of("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    view = _view(database, study, language)
    return render(
        "report.html",
        language,
        view=view,
        name=study,
        linked=False,
        style=Markup(style),
        style_digest=digest,
        made=datetime.now(timezone.utc),
    )


def as_markdown(database: Database, study: str) -> str:
    """Return tables and bars as GitHub's Markdown; errors as in `as_html`."""
    view = _view(database, study, "en")
    parts = [
        f"# {_plain(study)}: {view.record.state}",
        _facts(view),
        *_section("Verdict", _recipes(view)),
        *_section("Confirmed", _standings(view)),
        *_section("Fastest trials (search time, not confirmed)", _fastest(database, study)),
        *_section("Importance of dimensions", _importance(view)),
        *_section("Failures by cause", _failures(view)),
    ]
    return "\n\n".join(parts) + "\n"


def as_document(database: Database, study: str) -> dict[str, Any]:
    """Return everything as a JSON tree, in the shapes of the web API; errors as in `as_html`."""
    view = _view(database, study, "en")
    return {
        "study": documents.study_document(
            summary_document(view.summary), view.record, view.progress, view.description
        ),
        "comparison": view.comparison and documents.comparison_document(view.comparison),
        "importance": [documents.effect_document(effect) for effect in view.effects],
        "failures": [
            documents.failure_document(
                f.group,
                f.example.message if f.example else f.group.cause,
                f.example.log if f.example else "",
            )
            for f in view.failures
        ],
        "trials": [trial_document(t) for t in database.trials(study)],
        "recipes": [documents.recipe_document(recipe) for recipe in view.recipes],
    }


def _view(database: Database, study: str, language: str) -> StudyView:
    translate = languages.translator(language)
    return study_view(Source.of(database), study, lambda _number: None, translate)


def _facts(view: StudyView) -> str:
    source, found = view.record.spec.setting.source, view.description
    machine = found.fingerprint.device if found else source.device
    facts = [
        ("Model", f"{source.name}, {source.dtype}, batch {source.batch_size}, {source.mode}"),
        ("Machine", machine),
        ("Inputs", found.signature if found else formatting.NONE),
        ("Trials", f"{view.progress.finished} of {view.progress.requested}"),
        ("Time", formatting.seconds(view.progress.spent_s)),
        ("Created", formatting.moment(view.record.created_at)),
    ]
    if view.record.error:
        facts.append(("Last error", view.record.error))
    return "\n".join(f"- {name}: {_plain(value)}" for name, value in facts)


def _recipes(view: StudyView) -> list[str]:
    lines = []
    for recipe in view.recipes:
        evidence = recipe.evidence
        said = f"- recipe `{recipe.digest}` ({recipe.kind})"
        if evidence is not None:
            lo, hi = evidence.speedup_ci95
            said += (
                f": **{evidence.verdict}**, {formatting.milliseconds(evidence.latency_ms)}, "
                f"{formatting.speedup(evidence.speedup)} the best baseline "
                f"({formatting.ratio(lo)} – {formatting.ratio(hi)})"
            )
        lines.append(said)
    return lines


def _standings(view: StudyView) -> list[str]:
    longest = max((s.latency_ms or 0.0 for s, _is in view.standings), default=0.0)
    rows = [
        (
            s.name,
            formatting.milliseconds(s.latency_ms),
            formatting.interval(s.ci95_ms),
            formatting.speedup(1 / s.ratio if s.ratio else None),
            formatting.ratio(s.accuracy.error_ratio if s.accuracy else None),
            formatting.memory(s.peak_memory_bytes),
            _bar(s.latency_ms, longest) if s.failure is None else f"failed: {s.failure.kind}",
        )
        for s, _is_baseline in view.standings
    ]
    return _table(
        ("program", "latency", "95 % interval", "against best baseline", "error", "memory", ""),
        rows,
    )


def _fastest(database: Database, study: str) -> list[str]:
    table = Source.of(database).tables.of(study)
    rows = sorted(insight.measured(table), key=lambda r: r.latency_ms or 0.0)[:10]
    baselines = insight.measured(table, "baseline")
    longest = max((r.latency_ms or 0.0 for r in [*rows, *baselines]), default=0.0)
    return _table(
        ("trial", "program", "latency", "error", "memory", ""),
        [
            (
                r.number,
                r.program,
                formatting.milliseconds(r.latency_ms),
                formatting.ratio(r.error_ratio),
                formatting.memory(r.peak_memory_bytes),
                _bar(r.latency_ms, longest),
            )
            for r in [*rows, *baselines]
        ],
    )


def _importance(view: StudyView) -> list[str]:
    return _table(
        ("dimension", "share", "best choice", ""),
        [
            (e.dimension, formatting.percent(e.share), e.choices[0].choice, _bar(e.share, 1.0))
            for e in view.effects
        ],
    )


def _failures(view: StudyView) -> list[str]:
    return _table(
        ("times", "kind", "what happened"),
        [
            (f.group.times, f.group.kind, f.example.message if f.example else f.group.cause)
            for f in view.failures
        ],
    )


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(lines)] if lines else []


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    written = [" | ".join(_plain(str(cell)) for cell in row) for row in rows]
    if not written:
        return []
    rule = " | ".join("---" for _ in columns)
    return [f"| {' | '.join(columns)} |", f"| {rule} |", *(f"| {row} |" for row in written)]


def _bar(value: float | None, longest: float) -> str:
    return "█" * max(1, round(BAR * value / longest)) if value and longest > 0 else ""


def _plain(words: str) -> str:
    """Write any text so that Markdown shows it as it is, in one cell."""
    one_line = html.escape(" ".join(words.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", one_line)
