from __future__ import annotations

import io

from rich.console import Console

from thunder_tune.cli.progress import LineProgress, LiveProgress, headline, observing
from thunder_tune.study.observer import Status
from thunder_tune.testing.fake_pool import FakeClock, synthetic_description
from thunder_tune.values.comparison import Block, Round
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.study import TrialCounts
from thunder_tune.values.trial import Candidate, Failure, Timing, TrialResult

COUNTS = TrialCounts(
    requested=20, complete=5, failed=3, pruned=1, failed_by_kind={"wrong": 1, "compile": 2}
)
SEARCH = Status(
    stage="search", counts=COUNTS, best_ms=8.0, best_baseline_ms=10.0, elapsed_s=60, left_s=125
)


def lines_of(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def plain() -> Console:
    return Console(file=io.StringIO(), width=160)


def result(name: str, role: str, latency_ms: float | None) -> TrialResult:
    candidate = Candidate(assignment={PROGRAM: name}, plan_key=name)
    if latency_ms is None:
        failure = Failure(kind="timeout", phase="compile", message="ran past 900 s")
        return TrialResult(candidate=candidate, role=role, state="failed", failure=failure)
    timing = Timing(
        samples_ms=(latency_ms,), latency_ms=latency_ms, ci95_ms=(latency_ms, latency_ms)
    )
    return TrialResult(candidate=candidate, role=role, state="complete", timing=timing)


def test_a_status_in_one_line():
    assert headline(SEARCH) == (
        "search: 9/20 trials, 3 failed (2 compile, 1 wrong), 1 pruned, best 8.000 ms, "
        "best baseline 10.00 ms (1.25x, not confirmed), about 2 min 05 s left"
    )


def test_a_status_before_anything_is_known():
    status = Status(stage="describe", counts=TrialCounts(requested=20))
    assert headline(status) == "describe: 0/20 trials"


def test_when_all_is_done_nothing_is_left():
    status = Status(stage="done", counts=TrialCounts(requested=20), left_s=0.0)
    assert headline(status) == "done: 0/20 trials"


def test_lines_tell_stages_at_once_and_repeat_seldom():
    console, clock = plain(), FakeClock()
    progress = LineProgress(console, clock=clock)
    for _ in range(5):
        progress.on_status(SEARCH)
    assert len(lines_of(console)) == 1
    clock.now_s += 31
    progress.on_status(SEARCH)
    assert len(lines_of(console)) == 2
    progress.on_status(Status(stage="confirmation", counts=COUNTS))
    assert lines_of(console)[-1].startswith("confirmation: ")


def test_lines_tell_baselines_and_improvements_only():
    console = plain()
    progress = LineProgress(console)
    progress.on_result(0, result("eager", "baseline", 10.0))
    progress.on_result(1, result("thunder", "baseline", None))
    progress.on_result(2, result("composed", "search", 9.0))
    progress.on_result(3, result("composed", "search", 9.5))
    progress.on_result(4, result("composed", "search", None))
    progress.on_result(5, result("composed", "search", 8.0))
    assert lines_of(console) == [
        "baseline eager: 10.00 ms",
        "baseline thunder: timeout: ran past 900 s",
        "trial 2 (composed): 9.000 ms, best so far",
        "trial 5 (composed): 8.000 ms, best so far",
    ]


def test_text_with_brackets_is_printed_as_it_is():
    console = plain()
    LineProgress(console).on_notice("pip install 'thunder-tune[hf]' for [bold]")
    assert lines_of(console) == ["note: pip install 'thunder-tune[hf]' for [bold]"]


def test_description_and_rounds():
    console = plain()
    progress = LineProgress(console)
    progress.on_description(synthetic_description(()))
    block = Block(contender="eager", position=0, samples_ms=(1.0,), started_at=0.0)
    progress.on_round(0, 3, Round(process_id=7, blocks=(block,)))
    progress.on_round(1, 3, Round(process_id=0, blocks=()))
    assert lines_of(console) == [
        "device: fake cpu",
        "confirmation: round 1 of 3 (process 7)",
        "confirmation: round 2 of 3 (nothing measured)",
    ]


def test_the_live_view_shows_stage_trials_result_and_time():
    console = plain()
    live = LiveProgress(console, "study s")
    live.on_status(SEARCH)
    console.print(live.view())
    text = "\n".join(lines_of(console))
    for part in (
        "study s",
        "search, 1 min 00 s so far, about 2 min 05 s left",
        "9 of 20: 5 complete, 3 failed (compile 2, wrong 1), 1 pruned",
        "best 8.000 ms, best baseline 10.00 ms",
    ):
        assert part in text


def test_a_terminal_gets_the_live_view_and_a_pipe_lines():
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with observing(terminal, "study s") as observer:
        observer.on_status(SEARCH)
        assert isinstance(observer, LiveProgress)
    with observing(plain(), "study s") as observer:
        assert not isinstance(observer, LiveProgress)
