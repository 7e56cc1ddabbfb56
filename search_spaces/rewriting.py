"""Family 12: kernels that span several ops, for each class of sites."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.executors import executors_for
from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.space import NO_REWRITE, REWRITE, Dimension


def rewrites(context: Context) -> Iterable[Dimension]:
    """Offer each class of sites the kernels of its rewrite, or none."""
    for site_class in context.program.site_classes:
        offers = [(NO_REWRITE, "")] + [
            (info.name, context.refusal(site_class.id, info.name))
            for info in executors_for(site_class.kind, only=True)
        ]
        found = dimension(REWRITE + site_class.id, "rewrite", offers)
        if found is not None:
            yield found
