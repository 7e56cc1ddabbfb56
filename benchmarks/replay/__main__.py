"""Compare search strategies on recorded plans.

    python -m benchmarks.replay [TABLE.json ...] [--seeds 50] [--shuffled] [--json]

A seed hits where the best of its first 40 plans is within 2 % of the best recorded. A table on
which random search hits in more than half of the seeds is too easy to count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.replay.strategies import STRATEGIES, Strategy, best_after, shuffled
from thunder_tune.values.replay import ReplayTable, read_table

TRIALS = 40
WITHIN = 1.02
TOO_EASY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, help="default: those beside this file")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--shuffled", action="store_true", help="also with shuffled screening")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    paths = options.tables or sorted(Path(__file__).parent.glob("*.json"))
    strategies = {**STRATEGIES, **({"shuffled": shuffled} if options.shuffled else {})}
    found = {
        path.stem: compared(read_table(path), strategies, options.seeds, path.stem)
        for path in paths
    }
    if options.as_json:
        print(json.dumps({"tables": found}))
    return 0


def compared(
    table: ReplayTable, strategies: dict[str, Strategy], seeds: int, name: str
) -> dict[str, object]:
    """Return hit rates and what was recorded, and print a line for each strategy."""
    rates: dict[str, float] = {}
    print(f"{name}: {len(table.plans)} plans, best {table.best_ms:.4g} ms")
    for strategy, run in strategies.items():
        runs = [list(islice(run(table, seed), TRIALS)) for seed in range(seeds)]
        ends = [best_after(latencies, TRIALS) / table.best_ms for latencies in runs]
        rates[strategy] = sum(end <= WITHIN for end in ends) / seeds
        until = [_first_hit(latencies, table.best_ms) for latencies in runs]
        print(
            f"  {strategy:9} hits {rates[strategy]:.2f}  median of the best {median(ends):.3f}x  "
            f"median trials to a hit {median(until):.0f}"
        )
    return {
        "hit_rate_40": rates,
        "plans": len(table.plans),
        "random_plans": sum(plan.is_random for plan in table.plans),
        "counts": rates["random"] <= TOO_EASY,
    }


def _first_hit(latencies: Sequence[float | None], best_ms: float) -> int:
    """Return after how many trials a run is within 2 % of the best; one more than all if never."""
    hits = (i for i, ms in enumerate(latencies, 1) if ms is not None and ms <= WITHIN * best_ms)
    return next(hits, TRIALS + 1)


if __name__ == "__main__":
    raise SystemExit(main())
