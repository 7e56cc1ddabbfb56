"""Family 8: CUDA graphs around the whole program."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.space import CUDA_GRAPHS, Dimension


def cuda_graphs(context: Context) -> Iterable[Dimension]:
    """Offer none or whole."""
    reason = "" if context.source.device == "cuda" else "needs a CUDA device"
    found = dimension(CUDA_GRAPHS, "cuda-graphs", [("none", ""), ("whole", reason)])
    return [found] if found else []
