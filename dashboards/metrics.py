"""Numbers for Prometheus, in its text format, out of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from thunder_tune.dashboards.api import source_of
from thunder_tune.storage import Database

router = APIRouter()

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("running", "interrupted", "done", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a metric under its labels."""

    labels: Mapping[str, str]
    value: float


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> PlainTextResponse:
    """Answer a scrape; nothing is remembered between two."""
    return PlainTextResponse(text_of(source_of(request).database), media_type=CONTENT_TYPE)


def text_of(database: Database) -> str:
    """Return all metrics of a database."""
    summaries, tallies = database.studies(), database.tallies()
    states = Counter[str](s.state for s in summaries)
    lines = _metric(
        "studies",
        "Studies by state.",
        (Sample({"state": state}, states[state]) for state in _STATES),
    )
    lines += _metric(
        "trials",
        "Stored trials by outcome; kind is that of the failure.",
        (
            Sample({"study": t.study, "role": t.role, "state": t.state, "kind": t.kind}, t.trials)
            for t in tallies
        ),
    )
    for name, told, values in (
        ("best_ms", "Best search-time latency of a candidate, milliseconds.", "best_ms"),
        ("best_baseline_ms", "The same of a baseline.", "best_baseline_ms"),
    ):
        found = ((s.name, getattr(s, values)) for s in summaries)
        samples = (Sample({"study": study}, ms) for study, ms in found if ms is not None)
        lines += _metric(name, told, samples)
    queue = (
        (s.name, database.study(s.name).spec.trials - s.trials)
        for s in summaries
        if s.state == "running"
    )
    lines += _metric(
        "trials_left",
        "Trials that running studies were asked for and have not finished.",
        (Sample({"study": study}, max(0, left)) for study, left in queue),
    )
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, told: str, samples: Iterable[Sample]) -> list[str]:
    full = f"thunder_tune_{name}"
    lines = [f"# HELP {full} {told}", f"# TYPE {full} gauge"]
    for sample in samples:
        labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in sample.labels.items())
        lines.append(f"{full}{{{labels}}} {sample.value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
