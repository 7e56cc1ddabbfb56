"""Which of a recipe's shapes a command is about: `--shape 8`."""

from __future__ import annotations

from thunder_tune.errors import InputError
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.shapes import Shape, parse_shape


def one_shape(recipe: Recipe, wanted: str | None) -> Recipe:
    """Return the recipe of one shape alone, and say on stderr which one where there are several.

    Args:
        recipe: With a plan for each shape.
        wanted: The shape as the user wrote it; None: the first.

    Raises:
        InputError: The recipe has no plan for that shape; the message names those it has.
    """
    parts = recipe.by_shape
    names = _names(parts)
    if wanted is None:
        chosen = 0
    else:
        shape = parse_shape(wanted)
        fitting = [i for i, part in enumerate(parts) if _is_of(part, shape)]
        if len(fitting) != 1:
            problem = "no plan" if not fitting else "more than one plan"
            raise InputError(
                f"shape {wanted!r}: recipe {recipe.digest} has {problem} for it, it has "
                f"{', '.join(names)}"
            )
        (chosen,) = fitting
    if len(parts) > 1:
        from thunder_tune.cli.tables import console

        others = ", ".join(name for i, name in enumerate(names) if i != chosen)
        console(stderr=True).print(
            f"shape {names[chosen]}: {parts[chosen].plans[0].signature} "
            f"(--shape chooses another: {others})",
            soft_wrap=True,
        )
    return parts[chosen]


def _is_of(part: Recipe, shape: Shape) -> bool:
    source = part.source
    return source.batch_size == shape.batch_size and shape.seq_len in (0, source.seq_len)


def _names(parts: tuple[Recipe, ...]) -> list[str]:
    """Return the shapes as `--shape` takes them, with sequence lengths only where these differ."""
    do_differ = len({part.source.seq_len for part in parts}) > 1
    return [
        str(Shape(part.source.batch_size, part.source.seq_len if do_differ else 0))
        for part in parts
    ]
