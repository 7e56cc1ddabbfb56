"""Family 6: the type in which matrix products are computed."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.program import MATMUL_KINDS
from thunder_tune.values.space import FLOAT32_MATMUL, PRECISION, Dimension


def precision(context: Context) -> Iterable[Dimension]:
    """Offer float32 models TF32 as a whole and bfloat16 for each class of matrix products."""
    source = context.source
    if source.dtype != "float32" or not context.program.is_captured:
        return
    tf32 = context.policy.allows_dtype("float32", "tf32")
    if not tf32 and source.device != "cuda":
        tf32 = "needs a CUDA device"
    found = dimension(FLOAT32_MATMUL, "precision", [("ieee", ""), ("tf32", tf32)])
    if found is not None:
        yield found
    lower = context.policy.allows_dtype("float32", "bfloat16")
    for cell_class in context.program.classes:
        if cell_class.kind in MATMUL_KINDS:
            offers = [("float32", ""), ("bfloat16", lower)]
            found = dimension(PRECISION + cell_class.id, "precision", offers)
            if found is not None:
                yield found
