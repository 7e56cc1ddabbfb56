"""What Inductor and Triton time while they compile, timed on a device of one's own.

Both choose among kernels by their times. They are asked for the device in the largest steps in
which nothing but timing happens (all choices of one product; all configurations of one kernel),
and for whatever else they time in single ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from thunder_tune.executors.kernels.alone import alone


@functools.cache
def time_alone() -> None:
    """Have all that Inductor and Triton time in this process from now on be timed so; once."""
    from torch._inductor.runtime.benchmarking import Benchmarker
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    choices: Any = AlgorithmSelectorCache.__dict__["benchmark_choices"]
    AlgorithmSelectorCache.benchmark_choices = classmethod(_alone(choices.__func__))  # type: ignore[method-assign, assignment]
    for owner, name in (
        (CachingAutotuner, "benchmark_all_configs"),
        (CachingAutotuner, "coordinate_descent_tuning"),
        *((owner, "benchmark_gpu") for owner in (Benchmarker, *_below(Benchmarker))),
    ):
        if name in vars(owner):
            setattr(owner, name, _alone(vars(owner)[name]))
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # torch for the CPU alone comes without
        return
    Autotuner._bench = _alone(Autotuner._bench)


def _below(owner: type) -> list[type]:
    children: list[type] = owner.__subclasses__()
    return [found for child in children for found in (child, *_below(child))]


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def held(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the library's
        with alone():
            return function(*args, **kwargs)

    return held
