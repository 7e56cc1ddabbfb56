"""Recipe files: written whole or not at all, read with every doubt."""

from __future__ import annotations

import json
import os
from pathlib import Path

from thunder_tune.errors import InputError, RecipeError
from thunder_tune.values.codec import from_data, to_data
from thunder_tune.values.recipe import SCHEMA_VERSION, Recipe

_LARGEST_FILE_BYTES = 16 * 1024 * 1024


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe as indented JSON with its digest; replaces the file in one step.

    Raises:
        RecipeError: The file cannot be written.
    """
    document = {"digest": recipe.digest, **to_data(recipe)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise RecipeError(f"cannot write recipe {path}: {error.strerror}") from error


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file; nothing it names is imported or run.

    Raises:
        RecipeError: Missing, not JSON, cut off, altered, or of a version this release cannot read.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise RecipeError(f"recipe {path}: larger than {_LARGEST_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"recipe {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} cannot be read: {error}") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"recipe {path} is damaged: not JSON ({error}); export it again"
        ) from error
    if not isinstance(document, dict):
        raise RecipeError(f"recipe {path} is damaged: not a JSON object; export it again")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecipeError(
            f"recipe {path} has schema version {version!r}: this release reads {SCHEMA_VERSION}"
        )
    stated = document.pop("digest", None)
    try:
        recipe = from_data(Recipe, document)
    except InputError as error:
        raise RecipeError(f"recipe {path} is damaged: {error}") from error
    if stated is not None and stated != recipe.digest:
        raise RecipeError(
            f"recipe {path} was altered: its digest is {recipe.digest}, it says {stated}"
        )
    return recipe
