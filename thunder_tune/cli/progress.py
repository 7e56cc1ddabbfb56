"""What a user sees while a study runs: a live view on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from thunder_tune.cli.durations import text_of
from thunder_tune.cli.tables import milliseconds
from thunder_tune.study.observer import Observer, Status
from thunder_tune.values.comparison import Round
from thunder_tune.values.job import Description
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import TrialResult

QUIET_S = 30.0
"""Without a terminal the status is repeated after so many seconds."""


def headline(status: Status) -> str:
    """Write stage, trials, best and time of a status as one line."""
    counts = status.counts
    parts = [f"{status.stage}: {counts.finished}/{counts.requested} trials"]
    if counts.failed:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.failed_by_kind.items()))
        parts.append(f"{counts.failed} failed ({kinds})" if kinds else f"{counts.failed} failed")
    if counts.pruned:
        parts.append(f"{counts.pruned} pruned")
    parts.append(standing(status))
    if status.left_s is not None and status.stage != "done":
        parts.append(f"about {text_of(status.left_s)} left")
    return ", ".join(part for part in parts if part)


def standing(status: Status) -> str:
    """Write the best so far against the best baseline; neither is confirmed yet."""
    parts = []
    if status.best_ms is not None:
        parts.append(f"best {milliseconds(status.best_ms)} ms")
    if status.best_baseline_ms is not None:
        parts.append(f"best baseline {milliseconds(status.best_baseline_ms)} ms")
    text = ", ".join(parts)
    if status.best_ms and status.best_baseline_ms:
        text += f" ({status.best_baseline_ms / status.best_ms:.2f}x, not confirmed)"
    return text


def describe(description: Description) -> list[str]:
    """Say in a few lines what a worker found out."""
    if description.failure is not None:  # which is told when the study ends
        return []
    program = description.program
    lines = [f"device: {description.fingerprint.device}"]
    if program.is_captured:
        lines.append(
            f"captured by {program.front_end} in {description.capture_s:.1f} s: "
            f"{len(program.ops)} ops, {len(program.classes)} classes; "
            f"{len(description.space.dimensions)} dimensions"
        )
    return [*lines, *(f"note: {note}" for note in description.notes)]


class LineProgress:
    """An `Observer` that prints lines: every stage, baseline, improvement and notice."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._stage = ""
        self._told_at = 0.0
        self._best_ms = float("inf")

    def on_status(self, status: Status) -> None:
        """Print a new stage, and the status when it has been quiet for a while."""
        now = self._clock()
        if status.stage != self._stage or now - self._told_at >= QUIET_S:
            self._stage, self._told_at = status.stage, now
            self._say(headline(status))

    def on_description(self, description: Description) -> None:
        """Print what the model and machine are."""
        for line in describe(description):
            self._say(line)

    def on_result(self, number: int, result: TrialResult) -> None:
        """Print baselines, and trials that are the best so far."""
        assignment = result.candidate.assignment
        name = assignment.get(PROGRAM, COMPOSED)
        if result.role == "baseline":
            if result.timing:
                self._say(f"baseline {name}: {milliseconds(result.timing.latency_ms)} ms")
            elif result.failure:
                self._say(f"baseline {name}: {result.failure.kind}: {result.failure.message}")
        elif result.state == "complete" and result.timing:
            latency_ms = result.timing.latency_ms
            if latency_ms < self._best_ms:
                self._best_ms = latency_ms
                self._say(f"trial {number} ({name}): {milliseconds(latency_ms)} ms, best so far")

    def on_round(self, index: int, total: int, round_: Round) -> None:
        """Print that a round of the confirmation is done."""
        came_of_it = f"process {round_.process_id}" if round_.blocks else "nothing measured"
        self._say(f"confirmation: round {index + 1} of {total} ({came_of_it})")

    def on_notice(self, text: str) -> None:
        """Print the sentence."""
        self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class LiveProgress(LineProgress):
    """The same lines, and below them a view that is redrawn in place."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self._title = title
        self._status: Status | None = None
        self._live = Live(
            console=console, get_renderable=self.view, refresh_per_second=2, transient=True
        )

    def on_status(self, status: Status) -> None:
        """Keep the status for the next redraw."""
        self._status = status

    def view(self) -> Group:
        """Return what is drawn now."""
        lines = [Text(self._title, style="bold")]
        status = self._status
        if status is not None:
            counts = status.counts
            kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.failed_by_kind.items()))
            failed = f"{counts.failed} failed" + (f" ({kinds})" if kinds else "")
            left = "" if status.left_s is None else f", about {text_of(status.left_s)} left"
            lines += [
                Text(f"  stage   {status.stage}, {text_of(status.elapsed_s)} so far{left}"),
                Text(
                    f"  trials  {counts.finished} of {counts.requested}: {counts.complete} "
                    f"complete, {failed}, {counts.pruned} pruned"
                ),
                Text(f"  result  {standing(status) or 'none yet'}"),
            ]
        return Group(*lines)

    @contextmanager
    def shown(self) -> Iterator[LiveProgress]:
        """Draw the view inside the block."""
        with self._live:
            yield self


@contextmanager
def observing(console: Console, title: str) -> Iterator[Observer]:
    """Return the observer that suits the console."""
    if console.is_terminal:
        with LiveProgress(console, title).shown() as observer:
            yield observer
    else:
        yield LineProgress(console)
