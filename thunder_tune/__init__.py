"""thunder-tune: find the fastest accurate way to run a PyTorch model.

Importing this package loads no torch, ray or sqlalchemy: `load_recipe` and `best_recipe`
come from `thunder_tune.integration` when they are first used. Where thunder is loaded already,
that module is imported at once, so that thunder knows the recipe "tuned".
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from thunder_tune.__about__ import __version__

if TYPE_CHECKING:
    from thunder_tune.integration import best_recipe, load_recipe

__all__ = ["__version__", "best_recipe", "load_recipe"]

_LAZY = frozenset({"best_recipe", "load_recipe"})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("thunder_tune.integration"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


if "thunder" in sys.modules:
    importlib.import_module("thunder_tune.integration")
