"""What the study of one input shape leaves to the next, and what is read back of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thunder_tune.errors import InputError
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.shapes import (
    best_plans,
    carried,
    check_shapes_differ,
    newest_recipe,
    stored_outcome,
)
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.recipe import TunedPlan
from thunder_tune.values.space import Dimension

FUSED = ("fuser:glue-1", "inductor")
LINEAR = ("executor:linear-0", "cudnn")


def dimensions_of(shape, choices=("torch", "inductor")):
    """Make a space whose classes bear the shape in their ids."""
    return (
        Dimension(name="program", family="whole-program", choices=("composed", "eager")),
        Dimension(name=f"fuser:glue-{shape}", family="fuser", choices=choices),
        Dimension(name=f"executor:linear-{shape}", family="executor", choices=choices),
    )


def described(shape, **options):
    description = synthetic_description(dimensions_of(shape, **options))
    program = description.program
    classes = tuple(replace(c, loose_id=f"{c.kind}-any") for c in program.classes)
    return replace(
        description,
        program=replace(program, classes=classes),
        signature=f"float32[{shape},4]",
    )


def plan_for(shape, **assignment):
    found = described(shape)
    return TunedPlan(
        signature=found.signature,
        program_hash="",
        program_loose_hash="",
        assignment={name.replace("_", ":", 1): c for name, c in assignment.items()},
        classes=found.program.loose_ids,
    )


def test_choices_go_to_the_classes_of_another_shape():
    plan = plan_for(1, **{"fuser_glue-1": "inductor", "executor_linear-1": "inductor"})
    found = described(8)
    ledger = PlanLedger(found.program, found.space)
    assert list(carried([plan], ledger, "cpu")) == [
        {"program": "composed", "fuser:glue-8": "inductor", "executor:linear-8": "inductor"}
    ]


def test_a_choice_that_the_other_space_does_not_offer_is_left_out():
    plan = plan_for(1, **{"fuser_glue-1": "inductor", "executor_linear-1": "inductor"})
    found = described(8, choices=("torch", "nvfuser"))
    ledger = PlanLedger(found.program, found.space)
    assert list(carried([plan], ledger, "cpu")) == [
        {"program": "composed", "fuser:glue-8": "torch", "executor:linear-8": "torch"}
    ]


def test_nothing_is_carried_to_what_cannot_be_composed():
    found = synthetic_description(dimensions_of(8)[:1])
    assert list(carried([plan_for(1)], PlanLedger(found.program, found.space), "cpu")) == []


def test_the_same_inputs_are_no_other_shape():
    check_shapes_differ(described(8), [plan_for(1)])
    with pytest.raises(InputError, match=r"two of the shapes give the same inputs, float32\[8,4"):
        check_shapes_differ(described(8), [plan_for(1), plan_for(8)])


def test_the_best_plans_are_the_fastest_composed_ones(study, database, spec, dimensions, costs):
    table = costs(choices={FUSED: -2.0, LINEAR: -1.0})
    study(spec(trials=12), dimensions(), table)
    plans = best_plans(database, "study")
    assert 1 < len(plans) <= 5
    assert plans[0].assignment.items() >= {FUSED, LINEAR}
    latencies = [table.latency_ms(plan.assignment) for plan in plans]
    assert latencies == sorted(latencies)
    assert all(plan.assignment["program"] == "composed" for plan in plans)
    assert set(plans[0].classes) == {"glue-0", "glue-1", "linear-0"}


def test_what_is_stored_of_a_study_is_what_it_returned(study, database, spec, dimensions, costs):
    asked = spec(trials=8)
    outcome, _ = study(asked, dimensions(), costs(choices={FUSED: -2.0}))
    stored = stored_outcome(database, asked)
    assert stored is not None
    assert stored.best == outcome.best
    assert stored.best_composed == outcome.best_composed
    assert (stored.counts, stored.captures) == (outcome.counts, outcome.captures)
    assert stored.comparison == outcome.comparison
    assert newest_recipe(database, "study").digest == outcome.best.digest
    database.update_study("study", state="interrupted")
    assert stored_outcome(database, asked) is None
