"""The built-in models, by name."""

from __future__ import annotations

import difflib

from thunder_tune.errors import NotFoundError
from thunder_tune.models import huggingface, small, torchvision
from thunder_tune.models.family import Family, ModelInfo

FAMILIES: tuple[Family, ...] = (small, torchvision, huggingface)


def catalogue() -> tuple[ModelInfo, ...]:
    """List every built-in model, family by family."""
    return tuple(info for family in FAMILIES for info in family.infos())


def family_of(name: str) -> Family:
    """Return the family that makes a model.

    Raises:
        NotFoundError: No family has a model of that name; close names are listed.
    """
    names = []
    for family in FAMILIES:
        own = [info.name for info in family.infos()]
        if name in own:
            return family
        names += own
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else "see `thunder-tune models`,"
    raise NotFoundError(
        f"unknown model {name!r}: {hint} or name a factory of your own as package.module:factory"
    )
