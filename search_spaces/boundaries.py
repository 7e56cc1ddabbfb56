"""Family 4: where regions end. A seam is merged or cut; a region may have a largest size."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.program import Seam
from thunder_tune.values.space import BOUNDARY, CUT, MERGE, NO_LIMIT, REGION_LIMIT, Dimension

LIMITS = ("64", "16")
"""Ops of a region; of a large one there is less to gain from fusing on than compiling costs."""


def boundaries(context: Context) -> Iterable[Dimension]:
    """Offer each class of seams to be merged or cut, and regions of a largest size."""
    by_class = {seam.class_id: seam for seam in context.program.seams}
    for class_id, seam in by_class.items():
        reason = "" if _may_be_one(context, seam) else "no fuser takes both of its sides"
        found = dimension(BOUNDARY + class_id, "boundary", [(MERGE, ""), (CUT, reason)])
        if found is not None:
            yield found
    largest = len(context.program.ops)
    offers = [(NO_LIMIT, "")] + [
        (limit, "" if int(limit) < largest else f"the program has {largest} ops in all")
        for limit in LIMITS
    ]
    if by_class and (found := dimension(REGION_LIMIT, "boundary", offers)) is not None:
        yield found


def _may_be_one(context: Context, seam: Seam) -> bool:
    return any(not any(context.refusal(side, fuser) for side in seam.sides) for fuser in FUSERS)
