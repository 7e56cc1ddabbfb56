"""Several input shapes of one model: what a study leaves to the next one, and what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from thunder_tune.errors import InputError, NotFoundError
from thunder_tune.storage import Database
from thunder_tune.study.journal import count_captures, count_trials
from thunder_tune.study.objective import latency_of
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.verdict import judge
from thunder_tune.values.job import Description
from thunder_tune.values.recipe import Recipe, TunedPlan, with_all_shapes
from thunder_tune.values.shapes import studies_by_shape
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.study import Outcome, StudySpec, Winner

CARRIED = 5
"""So many of a study's composed programs are tried first for the next shape."""


def best_plans(database: Database, study: str) -> tuple[TunedPlan, ...]:
    """Return a study's fastest composed programs as measured in the search, the fastest first."""
    description = database.description(study)
    if description is None or not description.program.is_captured:
        return ()
    program = description.program
    timed = [
        (latency_ms, record.number, record.result.candidate.assignment)
        for record in database.trials(study, "search")
        if (latency_ms := latency_of(record.result)) is not None
        and record.result.candidate.assignment.get(PROGRAM, COMPOSED) == COMPOSED
    ]
    return tuple(
        TunedPlan(
            signature=description.signature,
            program_hash=program.hash,
            program_loose_hash=program.loose_hash,
            assignment=dict(assignment),
            classes=program.tuned_ids(assignment),
        )
        for _, _, assignment in sorted(timed, key=lambda found: found[:2])[:CARRIED]
    )


def carried(
    plans: Sequence[TunedPlan], ledger: PlanLedger, device: str
) -> Iterator[dict[str, str]]:
    """Yield the assignments that plans for other shapes come to in a space.

    Choices go from class to class by the key without shapes; those that the space does not offer
    are left out.
    """
    if not plans or not ledger.can_compose:
        return
    from thunder_tune.compiler.matching import match  # loads torch

    offered = {d.name: d.choices for d in ledger.space.dimensions}
    for plan in plans:
        asked = match(plan, ledger.program, device).asked
        yield ledger.composed({n: c for n, c in asked.items() if c in offered.get(n, ())})


def check_shapes_differ(description: Description, others: Sequence[TunedPlan]) -> None:
    """Refuse to tune the same inputs twice as if they were two shapes.

    Raises:
        InputError: The inputs are those of another shape.
    """
    if any(plan.signature == description.signature for plan in others):
        raise InputError(
            f"two of the shapes give the same inputs, {description.signature}: the function of "
            "--inputs has to take batch_size (and seq_len, where shapes have one)"
        )


def own_recipe(database: Database, study: str) -> Recipe | None:
    """Return a study's newest recipe, without the plans of other studies in it; None: none yet."""
    for recipe in database.recipes(study):
        parts = recipe.by_shape
        for part in parts:
            if len(parts) == 1 or (part.evidence and part.evidence.study == study):
                return part
    return None


def newest_recipe(database: Database, name: str) -> Recipe:
    """Return the recipe that a study, or a run over several shapes, found best.

    Raises:
        NotFoundError: There is no such study, or it has no recipe yet.
        ConflictError: The shapes were tuned on different machines.
    """
    names = [summary.name for summary in database.studies()]
    studies = (name,) if name in names else studies_by_shape(name, names) or (name,)
    states = ", ".join(dict.fromkeys(database.study(study).state for study in studies))
    found = [recipe for study in studies if (recipe := own_recipe(database, study))]
    if not found:
        raise NotFoundError(
            f"study {name!r} ({states}) has no recipe yet: let it end with "
            f"thunder-tune run --study {name}"
        )
    return with_all_shapes(found)


def stored_outcome(database: Database, spec: StudySpec) -> Outcome | None:
    """Return how a study that is done ended, as its last run returned it; None: it is not done."""
    description, comparison = database.description(spec.name), database.comparison(spec.name)
    if database.study(spec.name).state != "done" or description is None or comparison is None:
        return None
    verdicts = judge(comparison, description.program, spec.setting.policies[0])
    digests = {
        (part.kind, *sorted(part.plans[0].assignment.items())): part.digest
        for recipe in reversed(database.recipes(spec.name))
        for part in recipe.by_shape
        if part.evidence and part.evidence.study == spec.name
    }

    def with_digest(winner: Winner | None) -> Winner | None:
        if winner is None:
            return None
        key = (winner.kind, *sorted(winner.assignment.items()))
        return replace(winner, digest=digests.get(key, ""))

    results = [record.result for record in database.trials(spec.name)]
    return Outcome(
        study=spec.name,
        state="done",
        description=description,
        captures=count_captures(results),
        counts=count_trials(results, requested=spec.trials),
        comparison=comparison,
        top=verdicts.ranked,
        best=with_digest(verdicts.best),
        best_composed=with_digest(verdicts.best_composed),
    )


def save_together(
    database: Database, outcomes: Sequence[Outcome]
) -> tuple[Recipe | None, Recipe | None]:
    """Put the recipes of all shapes together, and store them with each of their studies.

    So they are found by the inputs of any of the shapes.

    Returns:
        Of the best programs, and of the best composed ones; None where no shape has one.

    Raises:
        ConflictError: The shapes were tuned on different machines.
    """
    together: list[Recipe | None] = []
    for winners in (
        [(o, o.best_composed) for o in outcomes],
        [(o, o.best) for o in outcomes],  # last, so that it is each study's newest
    ):
        found = []
        for outcome, winner in winners:
            stored = (p for r in database.recipes(outcome.study) for p in r.by_shape)
            digest = winner.digest if winner else ""
            found += [recipe for recipe in stored if recipe.digest == digest][:1]
        recipe = with_all_shapes(found) if found else None
        for outcome, winner in winners:
            if recipe is not None and winner is not None and outcome.description is not None:
                key = outcome.description.model_key
                database.save_recipe(outcome.study, recipe, model_key=key)
        together.append(recipe)
    return together[1], together[0]
