"""Recipe files, written whole or not at all, read with every doubt; and recipes compared."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from thunder_tune.errors import InputError, RecipeError
from thunder_tune.values.codec import from_data, to_data
from thunder_tune.values.recipe import READABLE_VERSIONS, Recipe, TunedPlan

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
    if version not in READABLE_VERSIONS:
        known = " and ".join(map(str, READABLE_VERSIONS))
        raise RecipeError(
            f"recipe {path} has schema version {version!r}: this release reads {known}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A dimension for which two recipes choose differently; "" where one has no such choice.

    Attributes:
        dimension: Its name, with the first recipe's class where both know the class.
        here: The first recipe's choice.
        there: The second one's.
    """

    dimension: str
    here: str
    there: str


def differences(recipe: Recipe, other: Recipe) -> tuple[Difference, ...]:
    """Compare the choices of two recipes, for the inputs that the first was tuned for first.

    Classes of another shape are compared with those of the same structure, in order.
    """
    plan = recipe.plans[0]
    beside = next((p for p in other.plans if p.signature == plan.signature), other.plans[0])
    here, there = plan.assignment, _renamed(beside, plan)
    return tuple(
        Difference(dimension=name, here=here.get(name, ""), there=there.get(name, ""))
        for name in dict.fromkeys((*here, *there))
        if here.get(name, "") != there.get(name, "")
    )


def _renamed(plan: TunedPlan, like: TunedPlan) -> dict[str, str]:
    """Return a plan's assignment with the class ids that another plan has for its classes."""
    unknown: dict[str, list[str]] = {}
    for class_id, loose_id in like.classes.items():
        if class_id not in plan.classes:
            unknown.setdefault(loose_id, []).append(class_id)
    names: dict[str, str] = {}
    for class_id, loose_id in plan.classes.items():
        if class_id not in like.classes and unknown.get(loose_id):
            names[class_id] = unknown[loose_id].pop(0)
    renamed = {}
    for dimension, choice in plan.assignment.items():
        prefix, colon, class_id = dimension.partition(":")
        renamed[prefix + colon + names.get(class_id, class_id)] = choice
    return renamed
