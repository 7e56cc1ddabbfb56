"""Recipes in a session."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from thunder_tune.storage import documents, studies
from thunder_tune.storage.tables import AnatomyRow, RecipePlanRow, RecipeRow, now
from thunder_tune.values.anatomy import Anatomy
from thunder_tune.values.codec import to_data
from thunder_tune.values.recipe import Recipe


def save(session: Session, study: str, recipe: Recipe, model_key: str) -> None:
    """Store a recipe; one that the study has already becomes its newest."""
    owner = studies.row(session, study, lock=True)
    found = session.scalar(
        select(RecipeRow).where(RecipeRow.study_id == owner.id, RecipeRow.digest == recipe.digest)
    )
    if found is None:
        found = RecipeRow(
            study_id=owner.id,
            digest=recipe.digest,
            document=documents.encode(to_data(recipe)),
            plans=[
                RecipePlanRow(
                    position=position,
                    program_hash=plan.program_hash,
                    program_loose_hash=plan.program_loose_hash,
                )
                for position, plan in enumerate(recipe.plans)
            ],
        )
        session.add(found)
    found.model_key = model_key
    found.created_at = now()


def of_study(session: Session, study: str | None) -> list[Recipe]:
    """Return the recipes of one study or of all, newest first."""
    query = select(RecipeRow.document).order_by(RecipeRow.created_at.desc(), RecipeRow.id.desc())
    if study is not None:
        query = query.where(RecipeRow.study_id == studies.row(session, study).id)
    return [_recipe(text) for text in session.scalars(query)]


def find(
    session: Session,
    *,
    model_key: str | None,
    program_hash: str | None,
    program_loose_hash: str | None,
) -> list[Recipe]:
    """Return the recipes for which everything given holds, newest first."""
    query = select(RecipeRow.document).order_by(RecipeRow.created_at.desc(), RecipeRow.id.desc())
    if model_key is not None:
        query = query.where(RecipeRow.model_key == model_key)
    plan = [
        column == wanted
        for column, wanted in (
            (RecipePlanRow.program_hash, program_hash),
            (RecipePlanRow.program_loose_hash, program_loose_hash),
        )
        if wanted is not None
    ]
    if plan:
        query = query.where(RecipeRow.id.in_(select(RecipePlanRow.recipe_id).where(*plan)))
    return [_recipe(text) for text in session.scalars(query)]


def save_anatomy(session: Session, recipe: Recipe, anatomy: Anatomy) -> None:
    """Store what the program of a recipe with one shape consists of, instead of what was known."""
    document = documents.compress(to_data(anatomy))
    session.merge(AnatomyRow(digest=recipe.digest, document=document, created_at=now()))


def anatomy(session: Session, recipe: Recipe) -> Anatomy | None:
    """Return what is known of the program of a recipe with one shape."""
    found = session.get(AnatomyRow, recipe.digest)
    if found is None:
        return None
    return documents.value(Anatomy, documents.decompress(found.document))


def _recipe(text: str) -> Recipe:
    return documents.value(Recipe, documents.decode(text))
