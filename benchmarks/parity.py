"""What thunder-tune's own part costs: one region for Inductor, against torch.compile.

Run: python -m benchmarks.parity [--device cuda] [--only NAME ...] [--latency-only]
Prints two tables. Latency: every op of the program given to Inductor as one region, beside
torch.compile, interleaved in fresh processes (with CUDA graphs: beside its mode reduce-overhead);
the smallest model's latency is host time. First result: seconds from `thunder.compile(model,
recipe=...)`, or `torch.compile(model)`, to the first result in a new process, with empty compile
caches and with those that the run before has filled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from thunder_tune.cli import services
from thunder_tune.study.bench import compare_now
from thunder_tune.study.plans import PlanLedger
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import DescribeJob, Description, Setting
from thunder_tune.values.recipe import Recipe, TunedPlan
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import CUDA_GRAPHS, PROGRAM

CUDA = (
    ModelSource(name="mlp", device="cuda", batch_size=1),
    ModelSource(name="vit_b_16", device="cuda", dtype="bfloat16", batch_size=128),
    ModelSource(name="bert_large", device="cuda", dtype="bfloat16", batch_size=32, seq_len=128),
    ModelSource(name="llama_3_2_1b", device="cuda", dtype="bfloat16", batch_size=1, seq_len=2048),
    ModelSource(name="resnet50", device="cuda", dtype="bfloat16", batch_size=128),
)
CPU = (ModelSource(name="mlp", batch_size=1), ModelSource(name="nanogpt", batch_size=1))
MERGED, GRAPHED = "one region", "one region, CUDA graphs"
COMPILED, REDUCED = "torch.compile", "torch.compile:reduce-overhead"


def contenders(source: ModelSource, description: Description) -> list[Contender]:
    """Return each program beside what it is compared with."""
    ledger = PlanLedger(description.program, description.space)
    found = [
        Contender(name=COMPILED, assignment={PROGRAM: COMPILED}, is_baseline=True),
        Contender(name=MERGED, assignment=ledger.composed({})),
    ]
    if source.device == "cuda":
        graphed = ledger.composed({CUDA_GRAPHS: "whole"})
        found.append(Contender(name=REDUCED, assignment={PROGRAM: REDUCED}, is_baseline=True))
        found.append(Contender(name=GRAPHED, assignment=graphed))
    return found


def steady(source: ModelSource, timeout_s: float) -> tuple[list[str], Recipe]:
    """Compare the latencies of one workload; returns lines of a table, and its recipe."""
    setting = Setting(source=source, log_folder=tempfile.mkdtemp(prefix="parity-"))
    with services.pool(setting, workers=1) as pool:
        description = pool.describe(DescribeJob(setting=setting))
        if description.failure is not None:
            raise SystemExit(f"{source.name}: {description.failure.message}")
        programs = contenders(source, description)
        comparison = compare_now(
            setting,
            programs,
            pool=pool,
            observer=SilentObserver(),
            rehearsed=True,
            timeout_s=timeout_s,
        )
    lines = []
    for ours, theirs in zip(programs[1::2], programs[::2], strict=True):
        mine, other = comparison.standing(ours.name), comparison.standing(theirs.name)
        if mine.latency_ms is None or other.latency_ms is None:
            failed = mine.failure or other.failure
            lines.append(f"| {source.name} | {ours.name} | {failed and failed.message} | | |")
            continue
        ratio = mine.latency_ms / other.latency_ms
        lines.append(
            f"| {source.name} | {ours.name} | {other.latency_ms:.4g} | {mine.latency_ms:.4g} "
            f"| {ratio:.3f} |"
        )
    return lines, recipe_of(source, description)


def recipe_of(source: ModelSource, description: Description) -> Recipe:
    """Return the recipe of the program in one region."""
    program = description.program
    plan = TunedPlan(
        signature=description.signature,
        program_hash=program.hash,
        program_loose_hash=program.loose_hash,
        assignment=PlanLedger(program, description.space).composed({}),
        classes=program.loose_ids,
    )
    return Recipe(
        model=source.name,
        source=source,
        kind="composed",
        plans=(plan,),
        fingerprint=description.fingerprint,
        front_end=program.front_end,
    )


def first_result(recipe: Path, *, tuned: bool) -> float:
    """Return the seconds to the first result, in this process."""
    import thunder
    import torch

    from thunder_tune import load_recipe
    from thunder_tune.models import load

    loaded_recipe = load_recipe(recipe, strict=True)
    source = loaded_recipe.recipe.source
    loaded = load(source)
    inputs = loaded.make_inputs(0)
    with torch.no_grad():
        loaded.model(*inputs.args, **inputs.kwargs)  # libraries are loaded by now
        started = time.perf_counter()
        if tuned:
            model = thunder.compile(loaded.model, recipe=loaded_recipe)
        else:
            model = torch.compile(loaded.model)
        model(*inputs.args, **inputs.kwargs)
        if source.device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - started


def first_results(source: ModelSource, recipe: Recipe) -> Iterator[str]:
    """Measure the first result of one workload in new processes; yields lines of a table."""
    from thunder_tune.recipes import write_recipe

    seconds: dict[tuple[bool, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.json"
        write_recipe(recipe, path)
        for tuned in (False, True):
            caches = {
                variable: str(Path(folder) / f"{variable}-{tuned}")
                for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
            }
            for caches_are in ("empty", "filled"):
                command = [sys.executable, "-m", "benchmarks.parity", "--first", str(path)]
                answer = subprocess.run(
                    [*command, *(["--tuned"] if tuned else [])],
                    env={**os.environ, **caches},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if answer.returncode:
                    yield f"| {source.name} | {answer.stderr.strip().splitlines()[-1]} | | | |"
                    return
                last = answer.stdout.strip().splitlines()[-1]
                seconds[tuned, caches_are] = json.loads(last)["seconds"]
    for caches_are in ("empty", "filled"):
        theirs, mine = seconds[False, caches_are], seconds[True, caches_are]
        yield f"| {source.name} | {caches_are} | {theirs:.1f} | {mine:.1f} | {mine / theirs:.2f} |"


def table(title: str, columns: str) -> None:
    """Print the head of a table."""
    print(f"\n{title}\n\n| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or measure one first result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--latency-only", action="store_true")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--first", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if asked.first is not None:
        print(json.dumps({"seconds": first_result(asked.first, tuned=asked.tuned)}))
        return
    sources: tuple[ModelSource, ...] = CUDA if asked.device == "cuda" else CPU
    if asked.only:
        sources = tuple(s for s in sources if s.name in asked.only)
    recipes = {}
    table("Latency, ms", "workload | program | torch.compile | ours | ratio")
    for source in sources:
        lines, recipes[source] = steady(source, asked.timeout)
        print("\n".join(lines), flush=True)
    if not asked.latency_only:
        table("First result, s", "workload | compile caches | torch.compile | ours | ratio")
        for source in sources:
            for line in first_results(source, recipes[source]):
                print(line, flush=True)


if __name__ == "__main__":
    main()
