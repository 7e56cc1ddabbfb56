"""What Inductor and Triton time while they compile, timed on a device of one's own.

Both choose among kernels by their times. All choices of one product, and all configurations of one
kernel, are timed in one go; they are compiled before, while the device is still another's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from thunder_tune.executors.kernels.alone import alone


@functools.cache
def time_alone() -> None:
    """Have all that Inductor and Triton time in this process from now on be timed so; once."""
    from torch._inductor.runtime.benchmarking import Benchmarker
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, get_num_workers

    choosing: Any = AlgorithmSelectorCache.__dict__["benchmark_choices"]
    time_all = _alone(choosing.__func__)

    def benchmark_choices(
        cls: type,
        choices: Sequence[Any],
        *args: Any,  # noqa: ANN401 - the library's
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        _compile(choices, get_num_workers())
        return time_all(cls, choices, *args, **kwargs)

    AlgorithmSelectorCache.benchmark_choices = classmethod(benchmark_choices)  # type: ignore[method-assign, assignment]
    for owner, name in (
        (CachingAutotuner, "benchmark_all_configs"),
        *((owner, "benchmark_gpu") for owner in (Benchmarker, *_below(Benchmarker))),
    ):
        if name in vars(owner):
            setattr(owner, name, _alone(vars(owner)[name]))
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # torch for the CPU alone comes without
        return
    Autotuner._bench = _alone(Autotuner._bench)


def _compile(choices: Sequence[Any], threads: int) -> None:
    """Compile choices side by side; what one raises it raises again when it is timed."""

    def one(choice: Any) -> None:  # noqa: ANN401 - Inductor's, of several classes
        with suppress(Exception):
            choice.precompile()

    able = [c for c in choices if hasattr(c, "precompile")]
    if able and threads > 1:
        with ThreadPoolExecutor(min(threads, len(able)), thread_name_prefix="choice") as pool:
            list(pool.map(one, able))


def _below(owner: type) -> list[type]:
    children: list[type] = owner.__subclasses__()
    return [found for child in children for found in (child, *_below(child))]


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def held(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the library's
        with alone():
            return function(*args, **kwargs)

    return held
