"""Where a statement of an executable trace runs, by the names of the search space."""

from __future__ import annotations

from thunder.core.symbol import BoundSymbol

from thunder_tune.executors import OPERATOR_EXECUTORS

_CHOICE_OF = {
    "python": "torch",
    "thunder_tune_opaque": "torch",
    **{info.thunder_name: info.name for info in OPERATOR_EXECUTORS},
}
"""Executor in Thunder's registry -> choice in the search space."""

_FUSER_OF = {"nvfusion": "nvfuser"}
"""Letters of a fusion's name -> fuser, where they differ."""


def place_of(bsym: BoundSymbol) -> str:
    """Return the executor or fuser of a statement."""
    if bsym.sym.is_fusion:
        letters = "".join(c for c in bsym.sym.name if c.isalpha()).lower()
        return _FUSER_OF.get(letters, letters)
    executor = str(getattr(bsym.sym.executor, "name", "python"))
    return _CHOICE_OF.get(executor, executor)
