"""Recipes as files: written whole or not at all, read with every fault named."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from thunder_tune.errors import InputError, RecipeError
from thunder_tune.values.codec import from_data, to_data
from thunder_tune.values.recipe import SCHEMA_VERSION, Recipe


def default_path(model: str, *, suffix: str = "") -> Path:
    """Return where a model's recipe goes by default: MODEL.recipe.json in the current folder."""
    return Path(f"{re.sub(r'[^A-Za-z0-9_.-]+', '.', model)}{suffix}.recipe.json")


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold.

    Raises:
        InputError: Its folder does not exist or is not writable, or it is a folder.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"recipe file {str(path)!r} cannot be written: choose another --out")


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe with its digest.

    Raises:
        InputError: The file cannot be written.
    """
    text = json.dumps({**to_data(recipe), "digest": recipe.digest}, indent=2, allow_nan=False)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(
            f"recipe file {str(path)!r} cannot be written ({error.strerror}): "
            "choose another with --out"
        ) from error


def read_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: It is missing, damaged, changed after it was written, or of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"recipe {str(path)!r} is damaged (no JSON: {error}): export it again"
        ) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise RecipeError(
            f"recipe {str(path)!r} has schema version {version!r}, this thunder-tune reads "
            f"{SCHEMA_VERSION}"
        )
    claimed = data.pop("digest", None)
    try:
        recipe = from_data(Recipe, data)
    except InputError as error:
        raise RecipeError(f"recipe {str(path)!r} is damaged: {error}") from error
    if claimed is not None and claimed != recipe.digest:
        raise RecipeError(
            f"recipe {str(path)!r} was changed after it was written (digest {recipe.digest}, "
            f"not {claimed}): export it again, or remove its digest if the change is meant"
        )
    return recipe
