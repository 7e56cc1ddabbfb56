"""What the installed versions need before they work together; nothing happens at import."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thunder.core.recipe import Recipe


def prepare_nvfuser() -> None:
    """Let thunder 0.2.6 find nvFuser's newer module under its old name.

    Thunder imports `nvfuser_direct` everywhere but in one function, which asks for `nvfuser`.
    """
    if "nvfuser" in sys.modules:
        return
    with contextlib.suppress(ImportError):
        sys.modules["nvfuser"] = importlib.import_module("nvfuser_direct")


def stock_recipe(interpreter: str) -> Recipe:
    """Return Thunder's stock recipe with the fuser that is installed: nvFuser, else Inductor.

    `thunder.compile(model)` alone puts None into its executor list where nvFuser is not installed,
    and raises.

    Args:
        interpreter: "thunder.jit" or "thunder.fx".
    """
    from thunder.extend import get_executor
    from thunder.recipes import BaseRecipe

    prepare_nvfuser()
    fuser = "nvfuser" if get_executor("nvfuser") is not None else "torch.compile"
    return BaseRecipe(fuser=fuser, interpreter=interpreter)
