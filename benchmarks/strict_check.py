"""Load a recipe strictly in a fresh process and see whether it keeps what it claims.

Run: python -m benchmarks.strict_check RECIPE.json [RECIPE.json ...]
Prints one JSON object for each recipe: share applied, latency and error, stored and measured here
as a trial is, holding the device.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import thunder
import torch

from thunder_tune import load_recipe
from thunder_tune.measure.accuracy import Judge
from thunder_tune.measure.steps import forward_step
from thunder_tune.measure.timing import rotation, time_step
from thunder_tune.models import load
from thunder_tune.values.job import TimingRequest
from thunder_tune.workers.device_lease import lease_of


def check(path: Path) -> dict[str, object]:
    """Apply one recipe through `thunder.compile`, time it, judge it."""
    tuned = load_recipe(path, strict=True)
    recipe = tuned.recipe
    source = recipe.source
    loaded = load(source)
    inputs = loaded.make_inputs(source.seed)
    started = time.perf_counter()
    model = thunder.compile(loaded.model, recipe=tuned)
    with torch.no_grad():
        model(*inputs.args, **inputs.kwargs)
    if source.device == "cuda":
        torch.cuda.synchronize()
    first_call_s = time.perf_counter() - started
    step = forward_step(model)
    rotated = rotation(
        [loaded.make_inputs(source.seed + i) for i in range(3)], device=source.device
    )
    with lease_of(source.device).held(lambda: None):
        timing = time_step(step, rotated, device=source.device, request=TimingRequest())
    judge = Judge(
        loaded.model,
        loaded.make_inputs,
        device=source.device,
        training=False,
        policies=(recipe.policy,),
        metric=None,
    )
    accuracy = judge.judge(step)
    evidence = recipe.evidence
    stored_ms = evidence.latency_ms if evidence else float("nan")
    low, high = evidence.ci95_ms if evidence else (stored_ms, stored_ms)
    return {
        "recipe": path.name,
        "kind": recipe.kind,
        "applied": getattr(model.tuning, "applied", None),
        "notes": model.tuning.notes,
        "first_call_s": round(first_call_s, 2),
        "latency_ms": timing.latency_ms,
        "stored_ms": stored_ms,
        "within": low * 0.98 <= timing.latency_ms <= high * 1.02,
        "error_ratio": accuracy.error_ratio,
        "stored_error_ratio": evidence.accuracy.error_ratio
        if evidence and evidence.accuracy
        else None,
    }


def main() -> None:
    """Check each recipe named on the command line."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        print(json.dumps(check(Path(name))), flush=True)


if __name__ == "__main__":
    main()
