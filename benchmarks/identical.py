"""Confirmations of which the truth is known, in real processes: equal programs, and 2 %.

Run: python -m benchmarks.identical [--device cpu|cuda] [--runs 20]
Each run confirms seventeen equal programs, one of them as the baseline: all must be ties. And it
confirms a candidate that moves 2 % fewer bytes beside equal ones: it must be found faster, and
nobody else. Workers, processes, blocks, extra rounds and statistics are those of a study. Some
runs share their processes, each with programs of its own; and blocks lead in for a moment only,
since the programs load the device alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from thunder_tune.machine import current_fingerprint
from thunder_tune.measure.statistics import is_open, standings
from thunder_tune.study.bench import EXTRA_ROUNDS, compare_now
from thunder_tune.study.confirmation import ROUNDS
from thunder_tune.study.verdict import Verdicts, judge
from thunder_tune.testing.moved_bytes import INPUTS, MODEL, MOVED, MOVING_SESSION
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.comparison import Comparison, Contender, Round
from thunder_tune.values.documents import disturbances
from thunder_tune.values.job import DescribeJob, Description, Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import PROGRAM
from thunder_tune.workers import start_pool

PROGRAM_OF_ALL = {PROGRAM: "eager"}
"""It takes no time to build; what is measured is the same."""
EQUAL = 16
FEWER = 0.98
BESIDE = 2
"""Equal candidates beside the one that moves fewer bytes."""
SHARING = 5
"""Runs that share their processes."""
BLOCKS, CALLS, LEAD_IN_S = 6, 10, 0.005


def contenders_of(run: int) -> list[Contender]:
    """Return the programs of one run: the baseline, the equal candidates, the one with fewer."""
    equal = [Contender(name=f"{run}: {i}", assignment=PROGRAM_OF_ALL) for i in range(EQUAL)]
    fewer = Contender(name=f"{run}: fewer", assignment={**PROGRAM_OF_ALL, MOVED: str(FEWER)})
    baseline = Contender(name=f"{run}: baseline", assignment=PROGRAM_OF_ALL, is_baseline=True)
    return [baseline, *equal, fewer]


def confirmed(found: Comparison, chosen: Sequence[Contender]) -> Comparison:
    """Return what a comparison says of some contenders, with as many rounds as a study takes."""
    names = {c.name for c in chosen}
    rounds = [_restricted(round_, names) for round_ in found.rounds]
    first = standings(chosen, rounds[:ROUNDS])
    return standings(chosen, rounds) if is_open(first) else first


def _restricted(round_: Round, names: set[str]) -> Round:
    blocks = tuple(b for b in round_.blocks if b.contender in names)
    failures = {n: f for n, f in round_.failures.items() if n in names}
    return replace(round_, blocks=blocks, failures=failures)


def judged(found: Comparison, run: int, description: Description) -> Iterator[str]:
    """Say what is true of one run's two confirmations: "tie", "found", and what is wrong."""
    own = [c for c in found.contenders if c.name.startswith(f"{run}: ")]

    def verdicts(chosen: Sequence[Contender]) -> Verdicts:
        return judge(confirmed(found, chosen), description.program, "same")

    same = {w.verdict for w in verdicts(own[:-1]).ranked}
    yield "tie" if same == {"tie"} else f"equal called {' and '.join(sorted(same - {'tie'}))}"
    two = verdicts([*own[: 1 + BESIDE], own[-1]])
    said = {w.standing.name: w for w in two.ranked}
    fewer = said.pop(own[-1].name)
    is_best = two.best is not None and two.best.standing.name == own[-1].name
    yield "found" if is_best and fewer.verdict == "faster" else "not found"
    if fewer.verdict == "slower" or any(w.verdict == "faster" for w in said.values()):
        yield "wrong sign"
    yield f"fewer: {fewer.speedup:.4f} ({fewer.speedup_ci95[0]:.4f}-{fewer.speedup_ci95[1]:.4f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what was said in each run, and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args(arguments)
    started = time.monotonic()
    source = ModelSource(name=MODEL, inputs=INPUTS, device=asked.device)
    setting = Setting(source=source, log_folder=tempfile.mkdtemp(prefix="identical-"))
    pool = start_pool(
        device=asked.device,
        workers=1,
        ray_address=None,
        log_folder=setting.log_folder,
        limits=setting.limits,
        session=MOVING_SESSION,
    )
    counts: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    processes = 0
    try:
        description = pool.describe(DescribeJob(setting=setting))
        for first in range(0, asked.runs, SHARING):
            runs = range(first, min(first + SHARING, asked.runs))
            found = compare_now(
                setting,
                [c for run in runs for c in contenders_of(run)],
                pool=pool,
                observer=SilentObserver(),
                rounds=ROUNDS,
                extra_rounds=EXTRA_ROUNDS,
                blocks=BLOCKS,
                calls=CALLS,
                lead_in_s=LEAD_IN_S,
                seed=first,
            )
            processes += len(found.rounds)
            marks.update(disturbances(found))
            for run in runs:
                said = list(judged(found, run, description))
                counts.update(said)
                print(f"run {run}: {', '.join(said)}", flush=True)
    finally:
        pool.close()
    print(
        f"{current_fingerprint(asked.device).device}: tie in {counts['tie']} of {asked.runs}, "
        f"{1 - FEWER:.0%} found in {counts['found']}, sign wrong in {counts['wrong sign']}; "
        f"{processes} processes, {time.monotonic() - started:.0f} s; "
        f"disturbed: {dict(marks) or 'none'}"
    )


if __name__ == "__main__":
    main()
