"""Families 2 and 3: the executor of each anchor class, the fuser of each glue class."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_tune.executors import executors_for
from thunder_tune.search_spaces.family import Context, dimension
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import moves_only
from thunder_tune.values.program import CellClass
from thunder_tune.values.space import EXECUTOR, FUSER, Dimension


def executors(context: Context) -> Iterable[Dimension]:
    """Offer each anchor class the fusers and the operator executors of its kind."""
    for cell_class in context.program.classes:
        if cell_class.is_anchor and not _moves_only(context, cell_class):
            targets = (
                *FUSERS,
                *(e.name for e in executors_for(cell_class.kind)),
            )
            yield from _dimension(context, cell_class, EXECUTOR, "executor", targets)


def fusers(context: Context) -> Iterable[Dimension]:
    """Offer each glue class that computes anything the fusers, or none."""
    for cell_class in context.program.classes:
        if not cell_class.is_anchor and not _moves_only(context, cell_class):
            yield from _dimension(context, cell_class, FUSER, "fuser", (*FUSERS, "torch"))


def _moves_only(context: Context, cell_class: CellClass) -> bool:
    cell = next(c for c in context.program.cells if c.class_id == cell_class.id)
    return moves_only(context.program, cell)


def _dimension(
    context: Context, cell_class: CellClass, prefix: str, family: str, targets: Iterable[str]
) -> Iterable[Dimension]:
    offers = [(target, context.refusal(cell_class.id, target)) for target in targets]
    found = dimension(prefix + cell_class.id, family, offers)
    if found is not None:
        yield found
