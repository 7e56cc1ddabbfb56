"""Inductor's options under the names that a class of ops can choose."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V

from thunder_tune.values.fusers import INDUCTOR, PERSISTENT, TUNED, WIDEST


class RowsInRegisters(InductorChoices):
    """Inductor's heuristics, but wide rows are reduced in one pass.

    A loop over a row reads it, and computes what is reduced, once for the reduction and once more
    for what follows it. A row of 16384 float32 values is 32 registers of each of 512 threads.

    Args:
        widest: Elements of a row up to which it is held in registers.
    """

    def __init__(self, widest: int) -> None:
        self._widest = widest

    def should_use_persistent_reduction(  # type: ignore[override]  # asked of the instance
        self, features: SIMDKernelFeatures, cooperative_reduction: bool
    ) -> bool:
        """Whether a kernel holds what it reduces in registers."""
        if InductorChoices.should_use_persistent_reduction(features, cooperative_reduction):
            return True
        is_row = features.get_reduction_hint() == ReductionHint.INNER
        if cooperative_reduction or not is_row or not config.triton.persistent_reductions:
            return False
        fits = V.graph.sizevars.statically_known_leq(features.reduction_numel, self._widest)
        return bool(fits)


# A partial is pickled with its arguments: Inductor's cache tells one limit from another.
_PERSISTENT = {"inductor_choices_class": functools.partial(RowsInRegisters, WIDEST)}

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    INDUCTOR: {},
    PERSISTENT: _PERSISTENT,
    TUNED: {**_PERSISTENT, "coordinate_descent_tuning": True, "max_autotune_pointwise": True},
}
"""Inductor's configuration where it differs from the default, by fuser.

None of them lets Inductor choose among templates of matrix products, which would compile dozens.
"""


def choosing(options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Let the heuristics among the options choose, inside the block, in this thread.

    Inductor reads this option once for each thread: patching it only changes the cache's key.

    Args:
        options: Inductor's configuration, which the compilation is patched by too.
    """
    make = options.get("inductor_choices_class")
    if make is None:
        return nullcontext()
    handler: AbstractContextManager[None] = V.set_choices_handler(make())
    return handler
