"""Where a recipe file goes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from thunder_tune.errors import InputError

ENDING = ".recipe.json"


def default_path(model: str) -> Path:
    """Return where a model's recipe goes by default: MODEL.recipe.json in the current folder."""
    return Path(re.sub(r"[^A-Za-z0-9_.-]+", ".", model) + ENDING)


def composed_path(path: Path) -> Path:
    """Return where the best composed program's recipe goes when it is not the best of all."""
    ending = ENDING if path.name.endswith(ENDING) else path.suffix
    return path.with_name(f"{path.name.removesuffix(ending)}.composed{ending}")


def check_writable(path: Path, what: str = "recipe file") -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold.

    Args:
        path: Of the file.
        what: It is to be.

    Raises:
        InputError: Its folder does not exist or is not writable, or it is a folder.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{what} {str(path)!r} cannot be written: choose another --out")
