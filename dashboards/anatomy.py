"""What is known of the programs of recipes, ready to be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from thunder_tune.dashboards.charts.costs import costs
from thunder_tune.dashboards.charts.drawing import Translate
from thunder_tune.dashboards.charts.program_map import TONES
from thunder_tune.storage import Database
from thunder_tune.values.anatomy import Anatomy, Statement
from thunder_tune.values.recipe import Recipe


@dataclass(frozen=True, slots=True)
class AnatomyView:
    """The program of one shape of a recipe.

    Attributes:
        recipe: As it is stored, with all its shapes.
        shape: Position of the shape in the recipe.
        anatomy: What is known.
        chart: Where the time goes, None where not measured.
        tones: Colour number of each place in the chart.
    """

    recipe: Recipe
    shape: int
    anatomy: Anatomy
    chart: Markup | None
    tones: Mapping[str, int]

    @property
    def signature(self) -> str:
        """The inputs it is for."""
        return self.recipe.plans[self.shape].signature

    @property
    def statements(self) -> Sequence[Statement]:
        """The statements, those that take longest first where that is known."""
        return sorted(self.anatomy.statements, key=lambda s: (-(s.ms or 0.0), s.number))

    def share(self, statement: Statement) -> float | None:
        """Return a statement's share of all work of a call."""
        whole = self.anatomy.costs
        if whole is None or statement.ms is None or not whole.work_ms > 0:
            return None
        return statement.ms / whole.work_ms


def anatomies(database: Database, recipe: Recipe) -> Iterator[tuple[int, Anatomy]]:
    """Yield what is known of each shape of a recipe, with the shape's position."""
    for shape, part in enumerate(recipe.by_shape):
        found = database.anatomy(part)
        if found is not None:
            yield shape, found


def anatomy_views(
    database: Database, recipes: Sequence[Recipe], tones: Mapping[str, int], _: Translate
) -> list[AnatomyView]:
    """Return what is known of recipes.

    Args:
        database: To read.
        recipes: To show.
        tones: Colour numbers that places have elsewhere on the page.
        _: Translator.
    """
    views = []
    for recipe in recipes:
        for shape, found in anatomies(database, recipe):
            own = dict(tones)
            for statement in found.statements:
                own.setdefault(statement.place, min(len(own), TONES - 1))
            views.append(AnatomyView(recipe, shape, found, costs(found, own, _), own))
    return views
