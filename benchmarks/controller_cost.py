"""What the controller itself costs per trial, asking apart, in a study of very many trials.

    python -m benchmarks.controller_cost --trials 10000 --dimensions 60

Fills a study in a new SQLite database with random candidates, then goes through more trials as
the controller does. Prints milliseconds per trial, the median and the 95th percentile: to store a
result, to tell the strategy (classes measured alone included), and for Optuna's copy, which is
written while the devices work.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median, quantiles

from thunder_tune.storage import Database
from thunder_tune.study.optuna_record import OptunaRecord
from thunder_tune.study.optuna_strategy import OptunaStrategy
from thunder_tune.study.plans import PlanLedger
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.job import Setting
from thunder_tune.values.screening import ClassMeasurement, class_choices
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import FUSER, PROGRAM, Dimension
from thunder_tune.values.study import StudySpec
from thunder_tune.values.trial import Candidate, Timing, TrialResult

LIMIT_MS = 20.0
CHOICES = ("inductor", "torch", "nvfuser", "inductor:tuned")


def result_of(candidate: Candidate, random: Random) -> TrialResult:
    """Return a measurement of 100 repeats."""
    samples = tuple(random.uniform(9.0, 11.0) for _ in range(100))
    timing = Timing(samples_ms=samples, latency_ms=median(samples), ci95_ms=(9.9, 10.1))
    return TrialResult(candidate=candidate, role="search", state="complete", timing=timing)


def main() -> int:
    """Print the costs; returns 1 where storing and telling take longer than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=60)
    parser.add_argument("--measured", type=int, default=50)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = costs(Path(folder), options.trials, options.dimensions, options.measured)
    for name, (middle, high) in found.items():
        print(f"{name:12} median {middle:7.2f} ms, 95th percentile {high:7.2f} ms")
    if options.as_json:
        print(json.dumps({name: {"median_ms": m, "p95_ms": h} for name, (m, h) in found.items()}))
    return int(found["store"][0] + found["tell"][0] > LIMIT_MS)


def costs(
    folder: Path, trials: int, dimensions: int, measured: int
) -> dict[str, tuple[float, float]]:
    """Return median and 95th percentile in milliseconds of each step."""
    random = Random(0)
    space = [Dimension(name=PROGRAM, family="whole-program", choices=("composed",))]
    space += [
        Dimension(name=f"{FUSER}glue-{i}", family="fuser", choices=CHOICES)
        for i in range(dimensions)
    ]
    description = synthetic_description(space)
    ledger = PlanLedger(description.program, description.space)
    database = Database.open(str(folder / "studies.db"))
    database.create_study(StudySpec(name="many", setting=Setting(source=ModelSource(name="mlp"))))
    database.save_description("many", description)
    for _ in range(trials):
        drawn = {d.name: random.choice(d.choices) for d in ledger.open_dimensions}
        database.add_trial("many", result_of(ledger.candidate(ledger.composed(drawn)), random))
    record = OptunaRecord(url=database.url, study="many", space=description.space)
    strategy = OptunaStrategy(
        ledger=ledger, sampler="random", seed=0, workers=1, history=database.trials("many")
    )
    strategy.screened(
        [
            ClassMeasurement(class_id=class_id, choice=choice, latency_ms=random.uniform(0.1, 0.2))
            for class_id, choices in class_choices(description.space).items()
            for choice in choices
        ]
    )
    taken: dict[str, list[float]] = {"store": [], "tell": [], "optuna copy": []}
    for _ in range(measured):
        proposal = strategy.ask()
        if proposal is None:
            break
        result = result_of(proposal.candidate, random)

        def store(result: TrialResult = result) -> None:
            database.add_trial("many", result)

        def tell(ticket: int = proposal.ticket, result: TrialResult = result) -> None:
            strategy.tell(ticket, trials, result)

        taken["store"].append(milliseconds(store))
        taken["tell"].append(milliseconds(tell))
        number, assignment = len(taken["optuna copy"]), proposal.candidate.assignment

        def copy(
            number: int = number,
            assignment: dict[str, str] = dict(assignment),  # noqa: B006
            result: TrialResult = result,
        ) -> None:
            record.add(number, assignment, result)

        taken["optuna copy"].append(milliseconds(copy))
    record.close()
    database.close()
    return {name: (median(ms), quantiles(ms, n=20)[-1]) for name, ms in taken.items()}


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    raise SystemExit(main())
