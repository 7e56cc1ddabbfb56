"""Replay tables of a made-up program: planted costs, some that cannot be measured alone."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from thunder_tune.study.plans import PlanLedger
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.replay import RecordedPlan, ReplayTable
from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.space import CUDA_GRAPHS, EXECUTOR, FUSER, PROGRAM, Dimension

FUSERS = ("inductor", "torch", "nvfuser", "inductor:tuned")
EXECUTORS = ("torch", "cudnn", "cublaslt")


def synthetic_table(
    *, classes: int = 24, plans: int = 150, seed: int = 0, noise: float = 0.003
) -> ReplayTable:
    """Return a table of plans drawn at random, of some that are better, and of the best.

    A class takes in the program what it takes alone, but for a tenth of each of its choices'
    differences, a cost for each change of fuser between neighbours, and CUDA graphs.

    Args:
        classes: Half of them glue, half linears.
        plans: Distinct plans, at least half of them drawn uniformly.
        seed: Of everything.
        noise: Relative standard deviation of a measurement.
    """
    random = Random(seed)
    dimensions = [Dimension(name=PROGRAM, family="whole-program", choices=("composed",))]
    for i in range(classes):
        is_glue = i % 2 == 0
        name, choices = (
            (FUSER + f"glue-{i}", FUSERS) if is_glue else (f"{EXECUTOR}linear-{i}", EXECUTORS)
        )
        dimensions.append(Dimension(name=name, family="class", choices=choices))
    dimensions.append(Dimension(name=CUDA_GRAPHS, family="cuda-graphs", choices=("none", "whole")))
    description = synthetic_description(dimensions)
    ledger = PlanLedger(description.program, description.space)
    alone = {
        (d.name, choice): size * random.uniform(1.0, 1.5)
        for d in dimensions
        if d.name.startswith((EXECUTOR, FUSER))
        for size in (random.uniform(0.1, 1.0),)
        for choice in d.choices
    }
    inside = {key: ms * random.gauss(1.0, 0.02) for key, ms in alone.items()}

    def true_ms(assignment: dict[str, str]) -> float:
        glue = [assignment[d.name] for d in dimensions if d.name.startswith(FUSER)]
        changes = sum(a != b for a, b in pairwise(glue))
        launches = 1.0 if assignment[CUDA_GRAPHS] == "none" else 0.0
        return (
            sum(inside.get(item, 0.0) for item in assignment.items()) + 0.02 * changes + launches
        )

    best = {
        d.name: min(d.choices, key=lambda c, name=d.name: inside.get((name, c), 0.0))  # type: ignore[misc]
        for d in ledger.open_dimensions
    }
    best[CUDA_GRAPHS] = "whole"
    recorded: dict[str, RecordedPlan] = {}
    while len(recorded) < plans:
        is_random = len(recorded) < plans * 3 // 4
        drawn = {d.name: random.choice(d.choices) for d in ledger.open_dimensions}
        if not is_random:
            kept = random.sample(sorted(best), random.randint(0, len(best) // 2))
            drawn.update({name: best[name] for name in kept})
        if len(recorded) == plans - 1:
            drawn = best
        assignment = ledger.composed(drawn)
        times = random.choice((1, 1, 2))
        ms = true_ms(assignment)
        recorded.setdefault(
            ledger.candidate(assignment).plan_key,
            RecordedPlan(
                choices=tuple(d.choices.index(assignment[d.name]) for d in dimensions),
                latencies_ms=tuple(ms * random.gauss(1.0, noise) for _ in range(times)),
                is_random=is_random,
            ),
        )
    return ReplayTable(
        model="synthetic",
        device="none",
        program=description.program,
        space=description.space,
        measurements=tuple(
            ClassMeasurement(class_id=name.partition(":")[2], choice=choice, latency_ms=ms)
            for (name, choice), ms in alone.items()
        ),
        plans=tuple(recorded.values()),
    )
