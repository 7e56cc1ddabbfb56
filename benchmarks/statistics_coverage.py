"""Simulate whole confirmations, of which the truth is known, and count what is said of them.

Run: python -m benchmarks.statistics_coverage [RUNS [NOISE ...]]
Prints one row for each kind of noise; 1000 runs of each take about a quarter of an hour on one
core. The standard error of a share p is sqrt(p (1 - p) / RUNS): 0.7 % at 95 %, 0.3 % at 1 %.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from thunder_tune.measure.statistics import standings
from thunder_tune.study.confirmation import ROUNDS
from thunder_tune.study.verdict import judge
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.testing.synthetic_rounds import (
    NOISES,
    Noise,
    contenders_of,
    synthetic_confirmations,
)
from thunder_tune.values.comparison import Comparison, Contender
from thunder_tune.values.study import Winner

PROGRAM = synthetic_description(()).program
TWO_PERCENT = math.log(0.98)


@dataclass
class Tally:
    """Shares counted over runs, and the rounds that they took."""

    runs: int = 0
    rounds: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, comparison: Comparison, **seen: bool) -> None:
        """Count one confirmation."""
        self.runs += 1
        self.rounds += len(comparison.rounds)
        for name, value in seen.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def share(self, name: str) -> str:
        """Write a share in percent."""
        return f"{100 * self.counts[name] / self.runs:.1f}"


def equal(noise: Noise, runs: int) -> Tally:
    """Sixteen candidates and the one baseline are one program: is any called faster?"""
    tally, contenders = Tally(), contenders_of(1, 16)
    for found in _confirmed(noise, contenders, [0.0] * 17, runs, seed=1):
        ranked = judge(found, PROGRAM, "same").ranked
        tally.note(found, wrong=any(w.verdict == "faster" for w in ranked))
    return tally


def two_percent(noise: Noise, runs: int) -> Tally:
    """One of three candidates is 2 % faster than the best of five baselines: is it found?"""
    levels = [0.3, 0.03, 0.0, 0.05, 0.1, TWO_PERCENT, 0.01, 0.04]
    tally, contenders = Tally(), contenders_of(5, 3)
    for found in _confirmed(noise, contenders, levels, runs, seed=2):
        verdicts = judge(found, PROGRAM, "same")
        said = {w.standing.name: w.verdict for w in verdicts.ranked}
        early = standings(found.contenders, found.rounds[:ROUNDS])
        tally.note(
            found,
            found=_is_found(verdicts.best),
            early=_is_found(judge(early, PROGRAM, "same").best),
            wrong=said["c0"] == "slower" or "faster" in (said["c1"], said["c2"]),
            covered=_covers(found.standing("c0").ratio_ci95, math.exp(TWO_PERCENT)),
        )
    return tally


def chosen(noise: Noise, runs: int) -> Tally:
    """Five equal baselines, three equal candidates 3 % faster: is the published ratio covered?"""
    levels = [0.0] * 5 + [-0.03] * 3
    tally, contenders = Tally(), contenders_of(5, 3)
    for found in _confirmed(noise, contenders, levels, runs, seed=3):
        best = judge(found, PROGRAM, "same").best
        tally.note(found, covered=best is not None and _published_covers(best))
    return tally


def _is_found(best: Winner | None) -> bool:
    return best is not None and best.standing.name == "c0" and best.verdict == "faster"


def _published_covers(best: Winner) -> bool:
    true = 1.0 if best.verdict == "tie" else math.exp(0.03)
    return _covers(best.speedup_ci95, true)


def _covers(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def _confirmed(
    noise: Noise, contenders: Sequence[Contender], levels: list[float], runs: int, *, seed: int
) -> Iterator[Comparison]:
    return synthetic_confirmations(noise, contenders, levels, runs=runs, seed=seed)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(
        "| noise | ratio covered % | published covered % | 2 % found % | by three % "
        "| wrong sign % | false winners of 16 % | processes: 2 %, equal |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in sys.argv[2:] or NOISES:
        noise = NOISES[name]
        two, pick, same = two_percent(noise, runs), chosen(noise, runs), equal(noise, runs)
        print(
            f"| {name} | {two.share('covered')} | {pick.share('covered')} | {two.share('found')} "
            f"| {two.share('early')} | {two.share('wrong')} | {same.share('wrong')} "
            f"| {two.rounds / runs:.1f}, {same.rounds / runs:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
