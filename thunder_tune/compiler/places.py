"""Where a statement of an executable trace runs, by the names of the search space."""

from __future__ import annotations

from thunder.core.symbol import BoundSymbol

from thunder_tune.executors import OPERATOR_EXECUTORS
from thunder_tune.values.fusers import FUSERS

_CHOICE_OF = {
    "python": "torch",
    "thunder_tune_opaque": "torch",
    **{info.thunder_name: info.name for info in OPERATOR_EXECUTORS},
}
"""Executor in Thunder's registry -> choice in the search space."""


def fusion_name(fuser: str) -> str:
    """Return what a fuser's fusions are called in a program, their number left out."""
    return fuser.replace(":", "_")


_FUSER_OF = {"nvfusion": "nvfuser", **{fusion_name(f): f for f in FUSERS}}
"""A fusion's name without its number -> fuser, where they differ."""


def place_of(bsym: BoundSymbol) -> str:
    """Return the executor or fuser of a statement."""
    if bsym.sym.is_fusion:
        stem = str(bsym.sym.name).rstrip("0123456789").lower()
        return _FUSER_OF.get(stem, stem)
    executor = str(getattr(bsym.sym.executor, "name", "python"))
    return _CHOICE_OF.get(executor, executor)
