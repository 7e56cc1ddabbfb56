"""The study: stages, budget, strategy and the controller's loop.

`run_study` (controller) runs one study: a worker describes the model; baselines; search, in
which a `Strategy` (optuna_strategy) proposes and the `Dispatcher` keeps the workers busy;
confirmation, in rounds of `compare_now` (bench), which `verdict` judges. `pool` and `observer`
are the seams to the workers and to whoever shows progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thunder_tune.study.bench import compare_now
    from thunder_tune.study.controller import run_study

__all__ = ["compare_now", "run_study"]


def __getattr__(name: str) -> object:
    # Optuna and SQLAlchemy load when a study runs, not when a seam of this package is imported.
    if name == "run_study":
        from thunder_tune.study.controller import run_study

        return run_study
    if name == "compare_now":
        from thunder_tune.study.bench import compare_now

        return compare_now
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
