"""One line of a list of studies or trials as JSON: what the command line and the web API share."""

from __future__ import annotations

from thunder_tune.storage.records import StudySummary, TrialRecord
from thunder_tune.values.documents import Document, failure_text, number, pair


def summary_document(summary: StudySummary) -> Document:
    """Return a study as a list shows it."""
    return {
        "name": summary.name,
        "model": summary.model,
        "device": summary.device,
        "state": summary.state,
        "trials": summary.trials,
        "best_ms": summary.best_ms,
        "best_baseline_ms": summary.best_baseline_ms,
        "created_at": summary.created_at.isoformat(),
    }


def trial_document(record: TrialRecord) -> Document:
    """Return a trial as a list shows it."""
    result = record.result
    timing, accuracy = result.timing, result.accuracy
    return {
        "number": record.number,
        "role": result.role,
        "state": result.state,
        "assignment": dict(result.candidate.assignment),
        "latency_ms": number(timing.latency_ms) if timing else None,
        "ci95_ms": pair(timing.ci95_ms) if timing else None,
        "marks": list(timing.marks) if timing else [],
        "error_ratio": number(accuracy.error_ratio) if accuracy else None,
        "peak_memory_bytes": result.peak_memory_bytes,
        "releasable_bytes": result.releasable_bytes,
        "first_call_s": number(result.first_call_s),
        "failure": failure_text(result.failure) or None,
    }
