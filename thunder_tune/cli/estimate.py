"""How long a study would take, before it is started."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from thunder_tune.values.job import Description
from thunder_tune.values.study import StudySpec, baselines_for
from thunder_tune.values.trial import TrialResult

START_S = 6.0
OP_S = {"cpu": 0.08, "cuda": 0.05}
"""Seconds to build a composed program, per op: torch.compile of a ViT's 400 ops takes 20 s."""
AUTOTUNE_S = 180.0
"""Seconds that max-autotune takes beyond torch.compile, on CUDA."""
CONFIRMATION_ROUNDS = 3
WARM = 0.5
"""Share of a build that is left with warm compile caches."""


def estimated_s(
    spec: StudySpec, description: Description, past: Sequence[TrialResult] = ()
) -> float:
    """Estimate the seconds of a study: past trials of the same program say most.

    Args:
        spec: What is asked; a time budget bounds the estimate.
        description: Program and space.
        past: Results of the same program on this machine, if any.
    """
    device = spec.setting.source.device
    measured = [sum(r.phase_s.values()) for r in past if r.role == "search" and r.phase_s]
    if measured:
        trial_s = median(measured)
    else:
        trial_s = START_S + OP_S[device] * len(description.program.ops)
    baselines = baselines_for(device)
    baseline_s = len(baselines) * trial_s + (AUTOTUNE_S if device == "cuda" else 0.0)
    contenders = len(baselines) + 4
    confirmation_s = CONFIRMATION_ROUNDS * contenders * WARM * trial_s
    trials = min(spec.trials, description.space.size())
    total_s = baseline_s + trials * trial_s + confirmation_s
    return total_s if spec.time_budget_s is None else min(total_s, spec.time_budget_s)
